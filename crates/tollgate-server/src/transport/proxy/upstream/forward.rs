//! Sends a request to an upstream, and retries it on another one where that is safe.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::header::{HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::time::timeout;
use tollgate::Time;

use crate::config::{HostHeader, UpstreamProtocol};
use crate::response::ProblemDetails;
use crate::transport::proxy::body::{BoxError, Stalled, Upload, UploadProbe, UploadProgress};
use crate::transport::proxy::upstream::balance::choose;
use crate::transport::proxy::upstream::connect::{ConnectError, Requires, connect, connect_plain};
use crate::transport::proxy::upstream::plain_body::UpstreamBody;
use crate::transport::proxy::upstream::plain_connection::{MAX_BODY_BYTES, PlainError};
use crate::transport::proxy::upstream::server::{InFlightGuard, Upstream, UpstreamFailure, UpstreamSender};
use crate::transport::proxy::{Proxy, RouteSnapshot};

/// A request to be sent to an upstream.
pub struct OutgoingRequest {
    pub parts: Parts,
    pub upload: Upload,
    pub requires: Requires,
    /// The hash by which the request sticks to an upstream.
    pub sticky: Option<u64>,
}

/// Why there is no response.
#[derive(Debug)]
pub enum ForwardError {
    Unreachable(ConnectError),
    /// No response within this time.
    Timeout(Duration),
    /// The upstream closed the connection, or sent invalid HTTP.
    Broken(String),
    /// The upstream switched protocols without a request to do so.
    InvalidUpgrade,
    /// The client's request body was truncated or invalid.
    BadRequestBody,
    SlowRequestBody,
}

impl From<ForwardError> for ProblemDetails {
    fn from(failure: ForwardError) -> ProblemDetails {
        let (status, detail) = match failure {
            ForwardError::Unreachable(error) => {
                let detail = format!("the API server cannot be reached: {}", error.public_cause());
                return ProblemDetails::new(StatusCode::BAD_GATEWAY, detail);
            }
            ForwardError::Broken(_) => {
                (StatusCode::BAD_GATEWAY, "the API server closed the connection before it answered")
            }
            ForwardError::InvalidUpgrade => {
                (StatusCode::BAD_GATEWAY, "the API server switched protocols without a request to do so")
            }
            ForwardError::Timeout(_) => {
                (StatusCode::GATEWAY_TIMEOUT, "the API server did not answer in time")
            }
            ForwardError::BadRequestBody => (StatusCode::BAD_REQUEST, "the body could not be read"),
            ForwardError::SlowRequestBody => {
                (StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")
            }
        };
        ProblemDetails::new(status, detail)
    }
}

/// The connection that an attempt uses.
#[derive(Clone, Copy)]
enum ConnectionChoice {
    /// A pooled connection, if there is one.
    Pooled,
    New,
}

/// A failed attempt.
pub struct FailedAttempt {
    pub error: ForwardError,
    /// A pooled connection turned out to be closed: no evidence about the upstream's health.
    pub is_stale: bool,
}

/// The response, with the guard of the connection that it arrives on. The request is taken out of `outgoing` when it is
/// sent.
///
/// A request that was not sent, or may be sent twice, is retried: on a new connection to the same upstream if a pooled one
/// turned out to be closed, otherwise once on another upstream.
pub async fn forward(
    proxy: &Proxy,
    route: &RouteSnapshot,
    worker: usize,
    outgoing: &mut Option<OutgoingRequest>,
) -> Result<(Response<UpstreamBody>, InFlightGuard), ForwardError> {
    let sticky = outgoing.as_ref().and_then(|outgoing| outgoing.sticky);
    let upstream = choose_untried(proxy, route, sticky, None)?;
    attempt_all(proxy, route, worker, outgoing, upstream, None).await
}

/// As [`forward`], after a first attempt that failed. The request is in `outgoing` if it may be sent again.
pub async fn forward_again(
    proxy: &Proxy,
    route: &RouteSnapshot,
    worker: usize,
    outgoing: &mut Option<OutgoingRequest>,
    tried: &Arc<Upstream>,
    failed: FailedAttempt,
) -> Result<(Response<UpstreamBody>, InFlightGuard), ForwardError> {
    attempt_all(proxy, route, worker, outgoing, tried, Some(failed)).await
}

/// The upstream of a request, other than `tried`.
pub fn choose_untried<'r>(
    proxy: &Proxy,
    route: &'r RouteSnapshot,
    sticky: Option<u64>,
    tried: Option<&Arc<Upstream>>,
) -> Result<&'r Arc<Upstream>, ForwardError> {
    let RouteSnapshot { upstreams, config, round_robin, .. } = route;
    choose(upstreams, &config.balance, round_robin, sticky, tried, proxy.gate.now())
        .ok_or(ForwardError::Unreachable(ConnectError::NoUpstream))
}

async fn attempt_all<'r>(
    proxy: &Proxy,
    route: &'r RouteSnapshot,
    worker: usize,
    outgoing: &mut Option<OutgoingRequest>,
    mut upstream: &'r Arc<Upstream>,
    mut failed: Option<FailedAttempt>,
) -> Result<(Response<UpstreamBody>, InFlightGuard), ForwardError> {
    let sticky = outgoing.as_ref().and_then(|outgoing| outgoing.sticky);
    let mut connection = ConnectionChoice::Pooled;
    let mut is_retry = false;
    loop {
        if let Some(failed) = failed.take() {
            let can_resend = outgoing.is_some();
            if failed.is_stale && can_resend {
                connection = ConnectionChoice::New;
            } else {
                failed.error.record(proxy, upstream, proxy.gate.now());
                let other = choose_untried(proxy, route, sticky, Some(upstream));
                let Some(other) = other.ok().filter(|_| can_resend && !is_retry) else {
                    return Err(failed.error);
                };
                proxy.counts.retried.fetch_add(1, Ordering::Relaxed);
                upstream = other;
                connection = ConnectionChoice::Pooled;
                is_retry = true;
            }
        }
        let started = Instant::now();
        let is_plain = outgoing.as_ref().is_some_and(|outgoing| outgoing.is_plain_for(upstream));
        let mut retryable = None;
        let attempted = if is_plain {
            attempt_plain(route, upstream, worker, outgoing, connection).await
        } else {
            retryable = outgoing.as_ref().and_then(RetryableRequest::of);
            attempt(route, upstream, worker, outgoing, connection).await
        };
        let failure = match attempted {
            Ok(response) => {
                proxy.latencies.record(started.elapsed());
                upstream.record_success();
                return Ok(response);
            }
            Err(failure) => failure,
        };
        if outgoing.is_none() && failure.error.is_repeatable() {
            *outgoing = retryable.as_ref().map(RetryableRequest::to_outgoing);
        }
        failed = Some(failure);
    }
}

impl From<BoxError> for ForwardError {
    fn from(error: BoxError) -> ForwardError {
        if error.is::<Stalled>() { ForwardError::SlowRequestBody } else { ForwardError::BadRequestBody }
    }
}

impl ForwardError {
    /// Whether an idempotent request may be retried after this failure.
    fn is_repeatable(&self) -> bool {
        matches!(self, ForwardError::Unreachable(_) | ForwardError::Broken(_))
    }

    /// Counts the failure, and records it against the upstream if the upstream caused it.
    fn record(&self, proxy: &Proxy, upstream: &Upstream, now: Time) {
        let counts = &proxy.counts;
        let (counter, failure) = match self {
            ForwardError::Unreachable(error) => (&counts.unreachable, UpstreamFailure::connect(error)),
            ForwardError::Broken(why) => (&counts.unreachable, UpstreamFailure::response(why.clone())),
            ForwardError::Timeout(after) => {
                let why = format!("no response within {after:?} (proxy.response_timeout)");
                (&counts.timed_out, UpstreamFailure::response(why))
            }
            ForwardError::InvalidUpgrade | ForwardError::BadRequestBody | ForwardError::SlowRequestBody => {
                return;
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
        upstream.record_failure(failure, now);
    }
}

/// An idempotent request without a body: it may be sent twice.
struct RetryableRequest {
    method: Method,
    uri: Uri,
    headers: hyper::HeaderMap,
    sticky: Option<u64>,
}

impl OutgoingRequest {
    /// Whether a plain connection to this upstream can carry it.
    fn is_plain_for(&self, upstream: &Upstream) -> bool {
        upstream.address.protocol == UpstreamProtocol::Http1
            && self.requires == Requires::Any
            && self.upload.whole().is_some_and(|body| body.len() <= MAX_BODY_BYTES)
    }

    /// Whether it may be sent twice.
    fn is_repeatable(&self) -> bool {
        let is_safe =
            matches!(self.parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        let has_no_body = hyper::body::Body::is_end_stream(&self.upload);
        is_safe && has_no_body && self.requires == Requires::Any
    }
}

impl RetryableRequest {
    fn of(outgoing: &OutgoingRequest) -> Option<RetryableRequest> {
        let parts = &outgoing.parts;
        outgoing.is_repeatable().then(|| RetryableRequest {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            headers: parts.headers.clone(),
            sticky: outgoing.sticky,
        })
    }

    fn to_outgoing(&self) -> OutgoingRequest {
        let (mut parts, ()) = Request::new(()).into_parts();
        parts.method = self.method.clone();
        parts.uri = self.uri.clone();
        parts.headers = self.headers.clone();
        OutgoingRequest { parts, upload: Upload::empty(), requires: Requires::Any, sticky: self.sticky }
    }
}

/// One attempt. If the request is still in `outgoing` afterwards, it was not sent.
async fn attempt(
    route: &RouteSnapshot,
    upstream: &Arc<Upstream>,
    worker: usize,
    outgoing: &mut Option<OutgoingRequest>,
    connection: ConnectionChoice,
) -> Result<(Response<UpstreamBody>, InFlightGuard), FailedAttempt> {
    let timeouts = &route.config.timeouts;
    let mut in_flight = InFlightGuard::new(Arc::clone(upstream), worker);
    let pool = upstream.pool(worker);
    let requires = outgoing.as_ref().map_or(Requires::Any, |outgoing| outgoing.requires);
    let pooled = match (connection, requires) {
        (ConnectionChoice::New, _) => None,
        (ConnectionChoice::Pooled, Requires::Any) => pool.take(timeouts.keep_alive),
        (ConnectionChoice::Pooled, Requires::Http1) => pool.take_http1(timeouts.keep_alive),
    };
    let reused = pooled.is_some();
    let mut sender = match pooled {
        Some(sender) => sender,
        // Boxed: the future is large, and rarely needed.
        None => match Box::pin(connect(upstream, &route.tls.load_full(), requires, timeouts)).await {
            Ok(sender) => {
                if let UpstreamSender::Http2(shared) = &sender {
                    pool.put(UpstreamSender::Http2(shared.clone()));
                }
                sender
            }
            Err(error) => return Err(FailedAttempt { error: error.into(), is_stale: false }),
        },
    };
    match send(&mut sender, outgoing, upstream, route).await {
        Ok(response) => {
            if requires == Requires::Any || response.status() != StatusCode::SWITCHING_PROTOCOLS {
                in_flight.attach_connection(sender);
            }
            Ok((response.map(UpstreamBody::Hyper), in_flight))
        }
        Err(failure) => {
            let stale = reused && matches!(failure, ForwardError::Broken(_));
            Err(FailedAttempt { error: failure, is_stale: stale })
        }
    }
}

/// As [`attempt`], on a plain connection. The request is left in `outgoing` also if it may be sent again.
async fn attempt_plain(
    route: &RouteSnapshot,
    upstream: &Arc<Upstream>,
    worker: usize,
    outgoing: &mut Option<OutgoingRequest>,
    choice: ConnectionChoice,
) -> Result<(Response<UpstreamBody>, InFlightGuard), FailedAttempt> {
    let timeouts = &route.config.timeouts;
    let in_flight = InFlightGuard::new(Arc::clone(upstream), worker);
    let pooled = match choice {
        ConnectionChoice::New => None,
        ConnectionChoice::Pooled => {
            upstream.pool(worker).take_plain(timeouts.keep_alive, tokio::time::Instant::now())
        }
    };
    let is_reused = pooled.is_some();
    let connection = match pooled {
        Some(connection) => connection,
        // Boxed: the future is large, and rarely needed.
        None => Box::pin(connect_plain(upstream, timeouts))
            .await
            .map_err(|error| FailedAttempt { error: error.into(), is_stale: false })?,
    };
    let Some(mut request) = outgoing.take() else {
        return Err(FailedAttempt { error: ForwardError::InvalidUpgrade, is_stale: false });
    };
    write_host(&mut request.parts, upstream, route.config.host);
    let body = request.upload.whole().unwrap_or_default();
    let sent = timeout(timeouts.response, connection.send(&request.parts, body)).await;
    let error = match sent {
        Ok(Ok(response)) => return Ok((response.map(UpstreamBody::Plain), in_flight)),
        Ok(Err(error)) => Some(error),
        Err(_) => None,
    };
    let (failed, may_resend) = classify_plain(error, timeouts.response, is_reused, request.is_repeatable());
    if may_resend {
        *outgoing = Some(request);
    }
    Err(failed)
}

/// A failed attempt on a plain connection, by an error or for lack of a response in time; and whether the request may be sent
/// again.
pub fn classify_plain(
    error: Option<PlainError>,
    timeout: Duration,
    is_reused: bool,
    is_repeatable: bool,
) -> (FailedAttempt, bool) {
    let is_unsent = matches!(error, Some(PlainError::Unsent(_)));
    let error = match error {
        None => ForwardError::Timeout(timeout),
        Some(PlainError::Upgrade) => ForwardError::InvalidUpgrade,
        Some(error) => ForwardError::Broken(error.to_string()),
    };
    let may_resend = is_unsent || (error.is_repeatable() && is_repeatable);
    let is_stale = is_reused && matches!(error, ForwardError::Broken(_));
    (FailedAttempt { error, is_stale }, may_resend)
}

impl From<ConnectError> for ForwardError {
    fn from(error: ConnectError) -> ForwardError {
        ForwardError::Unreachable(error)
    }
}

/// Writes the request target and the host in the form of the connection's protocol.
pub fn build_request(
    mut parts: Parts,
    mut upload: Upload,
    sender: &UpstreamSender,
    upstream: &Upstream,
    host: HostHeader,
) -> Request<Upload> {
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    write_host(&mut parts, upstream, host);
    match sender {
        UpstreamSender::Http1(_) => {
            parts.version = Version::HTTP_11;
            if parts.uri.authority().is_some() {
                parts.uri = Uri::from(path);
            }
        }
        UpstreamSender::Http2(_) => {
            parts.version = Version::HTTP_2;
            upload.lift_min_rate_of_calls();
            let host = parts.headers.remove(HOST).unwrap_or_else(|| HeaderValue::from_static(""));
            let authority = host.to_str().ok().filter(|host| !host.is_empty());
            let authority = authority.unwrap_or(upstream.address.authority.as_str());
            let scheme = if upstream.address.protocol == UpstreamProtocol::Tls { "https" } else { "http" };
            let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path);
            parts.uri = uri.build().unwrap_or(parts.uri);
        }
    }
    Request::from_parts(parts, upload)
}

fn write_host(parts: &mut Parts, upstream: &Upstream, host: HostHeader) {
    if host == HostHeader::Upstream {
        parts.headers.insert(HOST, upstream.host.clone());
    } else if !parts.headers.contains_key(HOST) {
        // The request was written for HTTP/2 by an earlier attempt, or its client sent no Host.
        let authority =
            parts.uri.authority().and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
        parts.headers.insert(HOST, authority.unwrap_or_else(|| upstream.host.clone()));
    }
}

/// Sends the request as soon as the connection is ready.
async fn send(
    sender: &mut UpstreamSender,
    outgoing: &mut Option<OutgoingRequest>,
    upstream: &Upstream,
    route: &RouteSnapshot,
) -> Result<Response<Incoming>, ForwardError> {
    let ready = match sender {
        UpstreamSender::Http1(sender) if sender.is_ready() => Ok(()),
        UpstreamSender::Http1(sender) => sender.ready().await,
        UpstreamSender::Http2(sender) => sender.ready().await,
    };
    ready.map_err(|error| ForwardError::Broken(error.to_string()))?;
    let Some(OutgoingRequest { parts, mut upload, requires, sticky }) = outgoing.take() else {
        return Err(ForwardError::InvalidUpgrade);
    };
    let progress = upload.progress();
    let timeout_after = route.config.timeouts.response;
    let request = build_request(parts, upload, sender, upstream, route.config.host);
    let answered = match sender {
        UpstreamSender::Http1(sender) => {
            await_response(sender.try_send_request(request), progress, timeout_after).await
        }
        UpstreamSender::Http2(sender) => {
            await_response(sender.try_send_request(request), progress, timeout_after).await
        }
    };
    answered.map_err(|(failure, unsent)| {
        *outgoing = unsent.map(|request| {
            let (parts, upload) = request.into_parts();
            OutgoingRequest { parts, upload, requires, sticky }
        });
        failure
    })
}

/// Awaits the response. The timeout counts from the end of the upload, or from when the upstream stopped reading it.
async fn await_response(
    sending: impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload>>>>,
    progress: Option<Arc<UploadProgress>>,
    timeout_after: Duration,
) -> Result<Response<Incoming>, (ForwardError, Option<Request<Upload>>)> {
    tokio::pin!(sending);
    let mut probe = progress.map(UploadProbe::new);
    loop {
        match timeout(timeout_after, sending.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(mut error)) => {
                let unsent = error.take_message();
                return Err((classify(error.into_error()), unsent));
            }
            Err(_) if probe.as_mut().is_some_and(UploadProbe::is_progressing) => {}
            Err(_) => return Err((ForwardError::Timeout(timeout_after), None)),
        }
    }
}

/// Attributes an error: one from the request body is the client's.
fn classify(error: hyper::Error) -> ForwardError {
    if !error.is_user() {
        return ForwardError::Broken(error.to_string());
    }
    let stalled = error.source().is_some_and(|source| source.is::<Stalled>());
    if stalled { ForwardError::SlowRequestBody } else { ForwardError::BadRequestBody }
}
