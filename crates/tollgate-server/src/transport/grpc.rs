//! gRPC: Envoy's rate limit service and external authorization, the health service and reflection.
//!
//! The streams that one read brings are accepted first and then decided, so that their responses are one write. A
//! stream that would have to wait becomes a task of its own.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Interval, MissedTickBehavior, interval_at, timeout};

use crate::caller_auth::{self, RefusedCaller};
use crate::config::ListenAddress;
use crate::connection::{
    AddressLimiter, BODY_TIMEOUT, ClientSocket, HEADER_TIMEOUT, Listener, Shutdown, WorkerService,
    WriteTimeoutStream, default_workers, heartbeat, serve_on_workers, shutdown_requested,
};
use crate::gate::Gate;
use crate::log_rate::LogLimiter;
use crate::metrics::{RequestStatus, Transport};
use crate::tokens::{Role, Tokens};
use crate::trace_id::TraceId;

mod authorization;
mod health;
mod protobuf;
mod rate_limit;
mod reflection;
mod status;
mod stream;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;

#[cfg(feature = "otlp")]
pub use protobuf::WriteFields;
use status::{CallError, Code, OK};
use stream::{Incoming, MAX_MESSAGE_BYTES, Outgoing, PREFIX_BYTES};

/// The services, as the health service and reflection know them.
const SERVICES: [&str; 5] = [
    rate_limit::SERVICE,
    authorization::SERVICE,
    health::SERVICE,
    reflection::SERVICE,
    reflection::SERVICE_ALPHA,
];

/// Calls in flight per connection; a client opens no more before some have ended.
const MAX_STREAMS: u32 = 1_024;
const MAX_HEADER_LIST_BYTES: u32 = 16 << 10;
/// Bytes of messages that a connection may have in flight.
const CONNECTION_WINDOW: u32 = 1 << 20;
/// Of each stream. Room for two messages: a window update may wait until a third of the window was released, and the
/// next message must fit the rest.
const STREAM_WINDOW: u32 = 2 * (MAX_MESSAGE_BYTES + PREFIX_BYTES) as u32;
/// Bytes of replies that each stream buffers while the client does not read.
const MAX_SEND_BUFFER_BYTES: usize = 16 << 10;
/// Streams that a client may reset before they are accepted (CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 20;
/// A peer that does not answer a ping within this time is gone.
const PING_INTERVAL: Duration = HEADER_TIMEOUT;
/// How long a connection without a call may take to send its GOAWAY at a stop.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);
/// Streams that are accepted before they are decided.
const MAX_BATCH: usize = 64;

/// What all connections share.
pub struct GrpcServer {
    calls: Arc<Calls>,
}

struct Calls {
    gate: Arc<Gate>,
    /// Required of callers, if there are any with the role `check`.
    tokens: Option<Arc<Tokens>>,
    refusals: LogLimiter,
}

impl GrpcServer {
    pub fn new(gate: Arc<Gate>, tokens: Option<Arc<Tokens>>) -> GrpcServer {
        let tokens = tokens.filter(|tokens| tokens.has_check());
        GrpcServer { calls: Arc::new(Calls { gate, tokens, refusals: LogLimiter::default() }) }
    }

    /// Whether clients beyond this machine would be served without a token.
    pub fn is_open_at(&self, address: &ListenAddress) -> bool {
        self.calls.tokens.is_none() && !address.is_local()
    }
}

/// Serves the listener until the shutdown turns true.
pub async fn serve(
    server: Arc<GrpcServer>,
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
) {
    let serving = serve_on_workers(server, default_workers(), listener, per_address, shutdown);
    if let Err(error) = serving.await {
        tracing::error!("grpc does not run: {error:#}");
    }
}

impl WorkerService for GrpcServer {
    const NAME: &'static str = "grpc";

    fn start_worker(&self, _worker: usize) {
        heartbeat::start(&self.calls.gate, Self::NAME);
    }

    async fn serve(&self, _worker: usize, stream: ClientSocket, peer: SocketAddr, shutdown: Shutdown) {
        if let Err(error) = serve_client(&self.calls, stream, peer, shutdown).await {
            tracing::debug!(%peer, %error, "a grpc connection ended early");
        }
    }
}

type AcceptedStream = (Request<RecvStream>, SendResponse<Bytes>);
type ServerConnection<S> = Connection<WriteTimeoutStream<S>, Bytes>;

/// Serves one client until it leaves, breaks the protocol, or the process stops.
async fn serve_client<S>(
    calls: &Arc<Calls>,
    stream: S,
    peer: SocketAddr,
    shutdown: Shutdown,
) -> Result<(), h2::Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = h2::server::Builder::new()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_window_size(STREAM_WINDOW)
        .max_send_buffer_size(MAX_SEND_BUFFER_BYTES)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .handshake(WriteTimeoutStream::new(stream));
    let mut stopping = shutdown.clone();
    let connection = tokio::select! {
        connection = timeout(HEADER_TIMEOUT, handshake) => connection,
        () = shutdown_requested(&mut stopping) => return Ok(()),
    };
    let Ok(connection) = connection else { return Ok(()) };
    let mut connection = connection?;
    let mut liveness = Liveness::new(connection.ping_pong());
    let mut has_calls = false;
    let stop = shutdown_requested(&mut stopping);
    tokio::pin!(stop);
    let mut is_stopping = false;
    let mut accepted = Vec::new();
    loop {
        tokio::select! {
            biased;
            open = poll_fn(|cx| accept_batch(&mut connection, &mut accepted, cx)) => {
                let open = open?;
                has_calls |= !accepted.is_empty();
                for (request, respond) in accepted.drain(..) {
                    run_or_spawn(handle(Arc::clone(calls), request, respond, peer, shutdown.clone()));
                }
                if !open {
                    return Ok(());
                }
            }
            () = poll_fn(|cx| liveness.poll_gone(cx)) => return Ok(()),
            () = &mut stop, if !is_stopping => {
                is_stopping = true;
                if !has_calls {
                    // The peer may never answer. GOAWAY tells that no call was processed.
                    connection.abrupt_shutdown(Reason::NO_ERROR);
                    let closed = poll_fn(|cx| connection.poll_closed(cx));
                    return timeout(GOAWAY_TIMEOUT, closed).await.unwrap_or(Ok(()));
                }
                connection.graceful_shutdown();
            }
        }
    }
}

/// Accepts what has arrived; returns whether the connection is still open.
fn accept_batch<S>(
    connection: &mut ServerConnection<S>,
    accepted: &mut Vec<AcceptedStream>,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, h2::Error>>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    while accepted.len() < MAX_BATCH {
        match connection.poll_accept(cx) {
            Poll::Ready(Some(Ok(stream))) => accepted.push(stream),
            Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error)),
            Poll::Ready(None) => return Poll::Ready(Ok(false)),
            Poll::Pending if accepted.is_empty() => return Poll::Pending,
            Poll::Pending => break,
        }
    }
    Poll::Ready(Ok(true))
}

/// Runs a call as far as it comes without waiting, which is usually to its end.
fn run_or_spawn(call: impl Future<Output = ()> + Send + 'static) {
    let mut call = Box::pin(call);
    if call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        tokio::spawn(call);
    }
}

/// Pings a peer at intervals: a connection may be idle, but its peer must be there.
struct Liveness {
    pings: Option<PingPong>,
    ticks: Pin<Box<Interval>>,
    is_awaited: bool,
}

impl Liveness {
    fn new(pings: Option<PingPong>) -> Liveness {
        let mut ticks = interval_at(tokio::time::Instant::now() + PING_INTERVAL, PING_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Liveness { pings, ticks: Box::pin(ticks), is_awaited: false }
    }

    /// Ready when a ping was not answered.
    fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(pings) = &mut self.pings else { return Poll::Pending };
        loop {
            if self.is_awaited && pings.poll_pong(cx).is_ready() {
                self.is_awaited = false;
            }
            ready!(self.ticks.as_mut().poll_tick(cx));
            if self.is_awaited || pings.send_ping(Ping::opaque()).is_err() {
                return Poll::Ready(());
            }
            self.is_awaited = true;
        }
    }
}

/// Serves one call. A client that has gone is no error.
async fn handle(
    calls: Arc<Calls>,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    peer: SocketAddr,
    shutdown: Shutdown,
) {
    if let Some(status) = not_grpc(&request) {
        let mut response = Response::new(());
        *response.status_mut() = status;
        respond.send_response(response, true).ok();
        return calls.gate.requests.add(Transport::Grpc, RequestStatus::Http(status), 1);
    }
    let mut response = Outgoing::new(respond);
    let (head, body) = request.into_parts();
    let transport = match split(head.uri.path()) {
        Some((authorization::SERVICE, _)) => Transport::ExtAuthz,
        _ => Transport::Grpc,
    };
    let called = match calls.authorize(head.uri.path(), &head.headers, peer) {
        Ok(()) => calls.call(&head, Incoming::new(body), &mut response, shutdown).await,
        Err(refused) => Err(refused),
    };
    let status = match &called {
        Ok(status) => *status,
        Err(error) => RequestStatus::Grpc(error.code as u8),
    };
    calls.gate.requests.add(transport, status, 1);
    response.end(called.map(drop)).ok();
}

/// The status of a request that is not a call.
fn not_grpc(request: &Request<RecvStream>) -> Option<StatusCode> {
    if request.method() != Method::POST {
        return Some(StatusCode::METHOD_NOT_ALLOWED);
    }
    let content_type = request.headers().get(CONTENT_TYPE).map_or(&b""[..], |value| value.as_bytes());
    let is_grpc = match content_type.strip_prefix(b"application/grpc") {
        Some(rest) => rest.is_empty() || rest.starts_with(b"+proto") || rest.starts_with(b";"),
        None => false,
    };
    (!is_grpc).then_some(StatusCode::UNSUPPORTED_MEDIA_TYPE)
}

impl Calls {
    /// Health is open to all callers.
    fn authorize(&self, path: &str, headers: &HeaderMap, peer: SocketAddr) -> Result<(), CallError> {
        let Some(tokens) = &self.tokens else { return Ok(()) };
        if split(path).is_some_and(|(service, _)| service == health::SERVICE) {
            return Ok(());
        }
        let authorized = caller_auth::authorize_token(tokens, headers, Role::Check);
        authorized.map(drop).map_err(|RefusedCaller { token_name, problem }| {
            let caller = &*token_name;
            let detail = problem.detail;
            self.refusals.warn("refused calls", || {
                let trace_id = TraceId::of(headers).map(tracing::field::display);
                tracing::warn!(%peer, caller, trace_id, "grpc call refused: {detail}");
            });
            let is_unknown = problem.status == StatusCode::UNAUTHORIZED;
            CallError::new(if is_unknown { Code::Unauthenticated } else { Code::PermissionDenied }, detail)
        })
    }

    async fn call(
        &self,
        head: &Parts,
        mut incoming: Incoming,
        response: &mut Outgoing,
        shutdown: Shutdown,
    ) -> Result<RequestStatus, CallError> {
        let path = head.uri.path();
        let gate = &self.gate;
        let trace = gate.trace(&head.headers);
        let unknown = || CallError::new(Code::Unimplemented, format!("there is no method {path}"));
        let (service, method) = split(path).ok_or_else(unknown)?;
        match (service, method) {
            (rate_limit::SERVICE, "ShouldRateLimit") => match incoming.single(BODY_TIMEOUT).await {
                Err(error) if error.is_too_long() => return Ok(rate_limit::deny(response)),
                message => return rate_limit::should_rate_limit(gate, &message?, response, trace).await,
            },
            (authorization::SERVICE, "Check") => match incoming.single(BODY_TIMEOUT).await {
                Err(error) if error.is_too_long() => return Ok(authorization::deny(response).await),
                message => return authorization::check(gate, &message?, response, trace).await,
            },
            (health::SERVICE, "Check") => {
                health::check(&incoming.single(BODY_TIMEOUT).await?, &shutdown, response)
            }
            (health::SERVICE, "Watch") => {
                health::watch(&incoming.single(BODY_TIMEOUT).await?, shutdown, response).await
            }
            (reflection::SERVICE | reflection::SERVICE_ALPHA, "ServerReflectionInfo") => {
                reflection::answer_all(&mut incoming, response, shutdown).await
            }
            _ => Err(unknown()),
        }?;
        Ok(RequestStatus::Grpc(OK))
    }
}

/// The service and the method of a path.
fn split(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.split_once('/')
}
