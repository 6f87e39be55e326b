//! Sends a request to an upstream, and to another one where that is safe.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use hyper::header::{HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::{Method, Request, Response, StatusCode, Version};
use tokio::time::timeout;
use tollgate::Time;

use crate::answer::Problem;
use crate::config::{HostHeader, Speech};
use crate::transport::proxy::balance::choose;
use crate::transport::proxy::body::{BodyError, Progress, Stalled, Upload};
use crate::transport::proxy::connect::{ConnectError, Wish, connect};
use crate::transport::proxy::lease::Lease;
use crate::transport::proxy::pool::Sender;
use crate::transport::proxy::upstream::Upstream;
use crate::transport::proxy::{Proxy, Route};

/// A request on its way out.
pub struct Outgoing {
    pub parts: Parts,
    pub upload: Upload,
    pub wish: Wish,
    /// What it sticks to an upstream by.
    pub sticky: Option<u64>,
}

/// Why there is no response.
#[derive(Debug)]
pub enum Failure {
    Unreachable(String),
    TooSlow,
    /// The upstream broke off, or said something that is no HTTP.
    Broken(String),
    /// It changed the protocol without being asked.
    Nonsense,
    /// The client's own body ended too early or was no body.
    BadBody,
    SlowBody,
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        let (status, detail) = match failure {
            Failure::Unreachable(_) => (StatusCode::BAD_GATEWAY, "the API server cannot be reached"),
            Failure::Broken(_) => (StatusCode::BAD_GATEWAY, "the API server broke off before it answered"),
            Failure::Nonsense => {
                (StatusCode::BAD_GATEWAY, "the API server answered what nobody had asked for")
            }
            Failure::TooSlow => (StatusCode::GATEWAY_TIMEOUT, "the API server did not answer in time"),
            Failure::BadBody => (StatusCode::BAD_REQUEST, "the body could not be read"),
            Failure::SlowBody => (StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive"),
        };
        Problem::new(status, detail)
    }
}

/// Which connection a try uses.
#[derive(Clone, Copy)]
enum Line {
    /// One that was kept, where there is one.
    Kept,
    New,
}

/// What came of one try.
struct Tried {
    failure: Failure,
    /// An old connection had been closed: this says nothing about the upstream.
    stale: bool,
}

/// The response, and the connection that it comes on. What is asked is taken out of `outgoing` when it is sent.
pub async fn forward(
    proxy: &Proxy,
    route: &Route,
    worker: usize,
    outgoing: &mut Option<Outgoing>,
) -> Result<(Response<Incoming>, Lease), Failure> {
    let replay = outgoing.as_ref().and_then(Replay::of);
    let sticky = outgoing.as_ref().and_then(|outgoing| outgoing.sticky);
    let now = || proxy.gate.now();
    let choose = |tried| choose(&route.upstreams, &route.config.balance, &route.turn, sticky, tried, now());
    let (mut upstream, mut line, mut retried) = (choose(None), Line::Kept, false);
    while let Some(target) = upstream {
        let tried = match attempt(route, target, worker, outgoing, line).await {
            Ok(done) => {
                target.succeeded();
                return Ok(done);
            }
            Err(tried) => tried,
        };
        if outgoing.is_none() && tried.failure.is_repeatable() {
            *outgoing = replay.as_ref().map(Replay::again);
        }
        if tried.stale && outgoing.is_some() {
            line = Line::New;
            continue;
        }
        tried.failure.note(proxy, target, now());
        let other = choose(Some(target)).filter(|_| !retried && outgoing.is_some());
        let Some(other) = other else { return Err(tried.failure) };
        proxy.counts.retried.fetch_add(1, Ordering::Relaxed);
        (upstream, line, retried) = (Some(other), Line::Kept, true);
    }
    Err(Failure::Unreachable("no upstream".to_owned()))
}

impl From<BodyError> for Failure {
    fn from(error: BodyError) -> Failure {
        if error.is::<Stalled>() { Failure::SlowBody } else { Failure::BadBody }
    }
}

impl Failure {
    /// Whether a request that changes nothing may be sent again after it.
    fn is_repeatable(&self) -> bool {
        matches!(self, Failure::Unreachable(_) | Failure::Broken(_))
    }

    /// Counts it, and holds it against the upstream where it was the upstream's.
    fn note(&self, proxy: &Proxy, upstream: &Upstream, now: Time) {
        let (counter, why) = match self {
            Failure::Unreachable(why) | Failure::Broken(why) => (&proxy.counts.unreachable, why.as_str()),
            Failure::TooSlow => (&proxy.counts.too_slow, "no answer in time"),
            Failure::Nonsense | Failure::BadBody | Failure::SlowBody => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        upstream.failed(now);
        tracing::debug!(upstream = %upstream.address, why, "an upstream failed");
    }
}

/// A request without a body that changes nothing: it may be sent twice.
struct Replay {
    method: Method,
    uri: Uri,
    headers: hyper::HeaderMap,
    sticky: Option<u64>,
}

impl Replay {
    fn of(outgoing: &Outgoing) -> Option<Replay> {
        let parts = &outgoing.parts;
        let harmless = matches!(parts.method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE);
        let empty = hyper::body::Body::is_end_stream(&outgoing.upload);
        (harmless && empty && outgoing.wish == Wish::Any).then(|| Replay {
            method: parts.method.clone(),
            uri: parts.uri.clone(),
            headers: parts.headers.clone(),
            sticky: outgoing.sticky,
        })
    }

    fn again(&self) -> Outgoing {
        let (mut parts, ()) = Request::new(()).into_parts();
        (parts.method, parts.uri, parts.headers) =
            (self.method.clone(), self.uri.clone(), self.headers.clone());
        Outgoing { parts, upload: Upload::empty(), wish: Wish::Any, sticky: self.sticky }
    }
}

/// One try. A request that stays in `outgoing` was not sent.
async fn attempt(
    route: &Route,
    upstream: &Arc<Upstream>,
    worker: usize,
    outgoing: &mut Option<Outgoing>,
    line: Line,
) -> Result<(Response<Incoming>, Lease), Tried> {
    let timeouts = &route.config.timeouts;
    let mut lease = Lease::new(Arc::clone(upstream), worker);
    let (pool, wish) = (upstream.pool(worker), outgoing.as_ref().map_or(Wish::Any, |outgoing| outgoing.wish));
    let waiting = match (line, wish) {
        (Line::New, _) => None,
        (Line::Kept, Wish::Any) => pool.take(timeouts.keep_alive),
        (Line::Kept, Wish::Http1) => pool.take_http1(timeouts.keep_alive),
    };
    let reused = waiting.is_some();
    let mut sender = match waiting {
        Some(sender) => sender,
        // Boxed: it is large, and rare.
        None => match Box::pin(connect(upstream, &route.tls.load_full(), wish, timeouts)).await {
            Ok(sender) => {
                if let Sender::Http2(shared) = &sender {
                    pool.put(Sender::Http2(shared.clone()));
                }
                sender
            }
            Err(error) => return Err(Tried { failure: error.into(), stale: false }),
        },
    };
    match send(&mut sender, outgoing, upstream, route).await {
        Ok(response) => {
            if wish == Wish::Any || response.status() != StatusCode::SWITCHING_PROTOCOLS {
                lease.keep(sender);
            }
            Ok((response, lease))
        }
        Err(failure) => {
            let stale = reused && matches!(failure, Failure::Broken(_));
            Err(Tried { failure, stale })
        }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        Failure::Unreachable(error.to_string())
    }
}

/// Writes the request's line and host as the connection's protocol has them.
pub fn address(
    mut parts: Parts,
    upload: Upload,
    sender: &Sender,
    upstream: &Upstream,
    host: HostHeader,
) -> Request<Upload> {
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    if host == HostHeader::Upstream {
        parts.headers.insert(HOST, upstream.host.clone());
    } else if !parts.headers.contains_key(HOST) {
        // Written for HTTP/2 before, or from a client that named no host.
        let named = parts.uri.authority().and_then(|named| HeaderValue::from_str(named.as_str()).ok());
        parts.headers.insert(HOST, named.unwrap_or_else(|| upstream.host.clone()));
    }
    match sender {
        Sender::Http1(_) => {
            parts.version = Version::HTTP_11;
            if parts.uri.authority().is_some() {
                parts.uri = Uri::from(path);
            }
        }
        Sender::Http2(_) => {
            parts.version = Version::HTTP_2;
            let host = parts.headers.remove(HOST).unwrap_or_else(|| HeaderValue::from_static(""));
            let authority = host.to_str().ok().filter(|host| !host.is_empty());
            let authority = authority.unwrap_or(upstream.address.authority.as_str());
            let scheme = if upstream.address.speech == Speech::Tls { "https" } else { "http" };
            let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path);
            parts.uri = uri.build().unwrap_or(parts.uri);
        }
    }
    Request::from_parts(parts, upload)
}

/// Sends the request as soon as the connection takes one.
async fn send(
    sender: &mut Sender,
    outgoing: &mut Option<Outgoing>,
    upstream: &Upstream,
    route: &Route,
) -> Result<Response<Incoming>, Failure> {
    let ready = match sender {
        Sender::Http1(sender) if sender.is_ready() => Ok(()),
        Sender::Http1(sender) => sender.ready().await,
        Sender::Http2(sender) => sender.ready().await,
    };
    ready.map_err(|error| Failure::Broken(error.to_string()))?;
    let Some(Outgoing { parts, mut upload, wish, sticky }) = outgoing.take() else {
        return Err(Failure::Nonsense);
    };
    let (progress, within) = (upload.progress(), route.config.timeouts.response);
    let request = address(parts, upload, sender, upstream, route.config.host);
    let answered = match sender {
        Sender::Http1(sender) => answered(sender.try_send_request(request), progress, within).await,
        Sender::Http2(sender) => answered(sender.try_send_request(request), progress, within).await,
    };
    answered.map_err(|(failure, unsent)| {
        *outgoing = unsent.map(|request| {
            let (parts, upload) = request.into_parts();
            Outgoing { parts, upload, wish, sticky }
        });
        failure
    })
}

/// The response, unless it takes too long: that is counted from the end of the upload, or from when the upstream has
/// stopped taking it.
async fn answered(
    sending: impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload>>>>,
    progress: Option<Arc<Progress>>,
    within: Duration,
) -> Result<Response<Incoming>, (Failure, Option<Request<Upload>>)> {
    tokio::pin!(sending);
    let mut taken = 0;
    loop {
        match timeout(within, sending.as_mut()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(mut error)) => {
                let unsent = error.take_message();
                return Err((failure(error.into_error()), unsent));
            }
            Err(_) if progress.as_ref().is_some_and(|progress| progress.goes_on(&mut taken)) => {}
            Err(_) => return Err((Failure::TooSlow, None)),
        }
    }
}

/// Whose fault it was: an error from a body is the client's.
fn failure(error: hyper::Error) -> Failure {
    if !error.is_user() {
        return Failure::Broken(error.to_string());
    }
    let stalled = error.source().is_some_and(|source| source.is::<Stalled>());
    if stalled { Failure::SlowBody } else { Failure::BadBody }
}
