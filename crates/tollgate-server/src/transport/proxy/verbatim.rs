//! Verbatim exchanges: plain requests whose header lines are copied to the upstream, and the lines of its response to the client.
//!
//! A request is verbatim if nothing of it needs a map of headers (`accept/verbatim_head`), its counters are in memory, its peer
//! is not a trusted proxy, and its upstream speaks HTTP/1.1 without TLS. Any other one takes the general path
//! ([`exchange`](super::exchange)), and so does the rest of an exchange in which something unusual happens: a denial, a charge
//! to be settled, a failed attempt, a response that is not whole after one read.

use std::mem::MaybeUninit;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::ACCEPT;
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::Instant;
use tollgate::Hit;
use tollgate::internal::EngineVerdict;
use tollgate::internal::headers::{HeaderStyle, Headers};
use tollgate::internal::http::merge_headers;
use tollgate::internal::identity::FieldSource;
use tollgate::internal::settlement::UnsettledCharges;

use crate::config::{Balance, HostHeader, Timeouts};
use crate::connection::{ReadWatch, Shutdown};
use crate::error_response::{self, ErrorFormat};
use crate::gate::GateSnapshot;
use crate::http1::push_header;
use crate::metrics::{RequestStatus, Transport};
use crate::trace_id::TraceId;
use crate::transport::proxy::RouteSnapshot;
use crate::transport::proxy::accept::forwarded::Peer;
use crate::transport::proxy::accept::hop_by_hop;
use crate::transport::proxy::accept::plain_head;
use crate::transport::proxy::accept::verbatim_head::{MAX_LINES, VerbatimHead, may_be_verbatim};
use crate::transport::proxy::body::{RequestBody, ResponseBody, Upload};
use crate::transport::proxy::decide::identify::ProxyDecision;
use crate::transport::proxy::exchange::{ConnectionContext, ExchangeError};
use crate::transport::proxy::respond::response_writer::ResponseWriter;
use crate::transport::proxy::upstream::balance;
use crate::transport::proxy::upstream::connect::{Requires, connect_plain};
use crate::transport::proxy::upstream::forward::{
    FailedAttempt, ForwardError, OutgoingRequest, choose_untried, classify_plain, forward_again,
};
use crate::transport::proxy::upstream::plain_body::UpstreamBody;
use crate::transport::proxy::upstream::plain_connection::{Exchanged, MAX_BODY_BYTES, PlainConnection};
use crate::transport::proxy::upstream::server::{InFlightGuard, Upstream};

/// The buffers of an idle connection.
const IDLE_BYTES: usize = 1 << 10;

/// The buffers of a connection for its verbatim requests.
#[derive(Default)]
pub struct VerbatimBuffers {
    /// The request as it is sent to the upstream.
    request: Vec<u8>,
    /// The headers of its verdict.
    headers: Headers,
    forwarding: ForwardingLines,
}

/// The forwarding headers of the last request: most connections use one host.
#[derive(Default)]
struct ForwardingLines {
    host: Vec<u8>,
    lines: Vec<u8>,
}

/// A verbatim request that was decided.
pub struct VerbatimRequest {
    /// Its bytes in the input.
    pub bytes: usize,
    pub next: VerbatimStep,
}

pub enum VerbatimStep {
    /// It was admitted, and is in the buffers.
    Send(VerbatimExchange),
    /// It goes on as any other request.
    General(Box<GeneralExchange>),
}

/// An admitted request on its way to an upstream.
pub struct VerbatimExchange {
    route: Arc<RouteSnapshot>,
    upstream: Arc<Upstream>,
    pub method: Method,
    sticky: Option<u64>,
    has_body: bool,
}

/// A decided request that is not verbatim from here on.
pub struct GeneralExchange {
    pub method: Method,
    request: Request<RequestBody>,
    snapshot: GateSnapshot,
    decision: ProxyDecision,
}

/// The first attempt to send a request.
struct VerbatimAttempt<'x> {
    timeouts: &'x Timeouts,
    upstream: &'x Upstream,
    method: &'x Method,
    is_repeatable: bool,
    started: Instant,
}

/// How an exchange ended.
pub enum VerbatimEnd {
    /// The response is in the writer.
    Written { closes: bool },
    /// It is to be written.
    Response(Box<Response<ResponseBody>>),
}

impl ForwardingLines {
    fn of(&mut self, peer: &Peer, host: &str) -> &[u8] {
        if self.host != host.as_bytes() {
            self.host = host.as_bytes().to_vec();
            self.lines.clear();
            peer.write_forwarding_lines(&mut self.lines, host);
            self.lines.shrink_to_fit();
        }
        &self.lines
    }

    /// Frees the lines of an unusually long host.
    fn shrink(&mut self) {
        if self.lines.len() > IDLE_BYTES {
            *self = ForwardingLines::default();
        }
    }
}

impl VerbatimBuffers {
    /// Frees buffers that had to grow.
    pub fn shrink(&mut self) {
        if self.request.capacity() > IDLE_BYTES {
            self.request = Vec::new();
        }
        self.forwarding.shrink();
    }
}

impl ConnectionContext {
    /// Decides the request that the input begins with. `None`, with nothing decided, unless all of it is there and it is
    /// verbatim.
    pub fn decide_verbatim(&self, input: &[u8], buffers: &mut VerbatimBuffers) -> Option<VerbatimRequest> {
        let proxy = &self.proxy;
        let gate = &proxy.gate;
        if input.is_empty()
            || proxy.egress.is_some()
            || proxy.request_queue.is_some()
            || !gate.counts_in_memory()
        {
            return None;
        }
        let route = proxy.route.load_full();
        let mut lines = [const { MaybeUninit::uninit() }; MAX_LINES];
        let head = VerbatimHead::parse(input, &mut lines, &route.config.strip_headers)?;
        let bytes = head.bytes + head.body_bytes;
        let body = input.get(head.bytes..bytes).filter(|body| body.len() <= MAX_BODY_BYTES)?;
        let snapshot = gate.snapshot();
        let reads_body = !snapshot.fields.body.is_empty() && !body.is_empty();
        let is_verbatim = route.may_be_verbatim && may_be_verbatim(&snapshot.fields.headers) && !reads_body;
        if !is_verbatim || self.peer.is_trusted(&snapshot.live.trusted) {
            return None;
        }
        let trace = if gate.wants_traces(&snapshot.live) { trace(&head) } else { None };
        let snapshot = snapshot.with_trace(trace);
        let mut hit = Hit::on(head.method.as_str(), head.host, head.target).ip(self.peer.ip());
        for name in &snapshot.fields.headers {
            for value in head.counted(name.as_str()) {
                hit = hit.field(FieldSource::Header, name.as_str(), String::from_utf8_lossy(value));
            }
        }
        let now = gate.now();
        let hit = snapshot.identify(hit, now);
        let sticky = match &route.config.balance {
            Balance::Hash(attribute) => {
                snapshot.policy.value(&hit, attribute).map(|value| balance::hash_key(&value))
            }
            _ => None,
        };
        let verdict = gate.check_in_memory(&snapshot, &hit, now);
        drop(hit);
        let is_settled = verdict.allowed && !self.leaves_charges(&verdict);
        // Chosen only for requests that are sent from here: a choice advances the round robin.
        let upstream = is_settled.then(|| choose_untried(proxy, &route, sticky, None));
        let Some(Ok(upstream)) = upstream else {
            let decision = ProxyDecision { verdict, decided_at: now, sticky, sender: None };
            let next = general(&input[..head.bytes], body, snapshot, decision);
            return Some(VerbatimRequest { bytes, next });
        };
        let upstream = Arc::clone(upstream);
        buffers.headers.write(&verdict, snapshot.live.headers);
        let request = &mut buffers.request;
        request.clear();
        let own_host = route.config.host == HostHeader::Upstream;
        head.write_start(request, if own_host { upstream.host.as_bytes() } else { head.host.as_bytes() });
        head.write_lines(request);
        request.extend_from_slice(buffers.forwarding.of(&self.peer, head.host));
        let has_body = !body.is_empty();
        if has_body || head.has_length() {
            push_header(request, "content-length", itoa::Buffer::new().format(body.len()).as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body);
        let exchange = VerbatimExchange { route, upstream, method: head.method, sticky, has_body };
        Some(VerbatimRequest { bytes, next: VerbatimStep::Send(exchange) })
    }

    /// Whether the response to an admitted request settles charges, or the request waits for its release time.
    fn leaves_charges(&self, verdict: &EngineVerdict) -> bool {
        let may_wait = self.proxy.hold_queues.has_requests() && UnsettledCharges::any_held(verdict);
        may_wait || UnsettledCharges::any_unsettled(verdict)
    }

    /// Goes on with a request that was decided as a verbatim one.
    pub async fn exchange_decided(&self, exchange: GeneralExchange) -> Response<ResponseBody> {
        let GeneralExchange { request, snapshot, mut decision, .. } = exchange;
        let accept = request.headers().get(ACCEPT).cloned();
        let style = snapshot.live.headers;
        let served = match self.receive(request, snapshot) {
            Ok(request) => self.serve_decided(request, decision).await,
            // Verbatim requests are not ambiguous; if one is, it costs its client nothing.
            Err(error) => {
                UnsettledCharges::take_from(&mut decision.verdict).refund_all(&*self.proxy.gate);
                Err(error)
            }
        };
        self.conclude(served, error_response::format(accept.as_ref()), style)
    }

    /// Sends the request in the buffers, and copies the response to the writer or returns it.
    pub async fn exchange_verbatim(
        &self,
        exchange: VerbatimExchange,
        buffers: &VerbatimBuffers,
        writer: &mut ResponseWriter,
        reads: &mut ReadWatch,
        shutdown: &Shutdown,
    ) -> VerbatimEnd {
        let started = Instant::now();
        let VerbatimExchange { route, upstream, method, sticky, has_body } = exchange;
        let in_flight = InFlightGuard::new(upstream, self.worker);
        let upstream = in_flight.upstream();
        let is_safe = matches!(method, Method::GET | Method::HEAD | Method::OPTIONS);
        let attempt = VerbatimAttempt {
            timeouts: &route.config.timeouts,
            upstream,
            method: &method,
            is_repeatable: is_safe && !has_body,
            started,
        };
        let attempted = self.attempt_verbatim(attempt, buffers, writer, reads, shutdown).await;
        let response = match attempted {
            Ok(exchanged) => {
                let ended = Instant::now();
                self.proxy.latencies.record(ended - started);
                upstream.record_success();
                match exchanged {
                    Exchanged::Copied((status, closes), connection) => {
                        upstream.pool(self.worker).put_plain(connection, ended);
                        self.proxy.gate.requests.add(Transport::Proxy, RequestStatus::Http(status), 1);
                        return VerbatimEnd::Written { closes };
                    }
                    Exchanged::Response(response) => Ok(((*response).map(UpstreamBody::Plain), in_flight)),
                }
            }
            Err((failed, may_resend)) => {
                let upstream = Arc::clone(upstream);
                drop(in_flight);
                let mut outgoing = if may_resend { outgoing_request(&buffers.request, sticky) } else { None };
                // Boxed: the future is large, and rarely needed.
                Box::pin(forward_again(&self.proxy, &route, self.worker, &mut outgoing, &upstream, failed))
                    .await
            }
        };
        let idle = route.config.timeouts.idle;
        let served = self.complete_verbatim(response, &buffers.headers, idle);
        let format = if served.is_err() { error_format(&buffers.request) } else { ErrorFormat::Json };
        VerbatimEnd::Response(Box::new(self.conclude(served, format, HeaderStyle::None)))
    }

    async fn attempt_verbatim(
        &self,
        attempt: VerbatimAttempt<'_>,
        buffers: &VerbatimBuffers,
        writer: &mut ResponseWriter,
        reads: &mut ReadWatch,
        shutdown: &Shutdown,
    ) -> Result<Exchanged<(StatusCode, bool)>, (FailedAttempt, bool)> {
        let VerbatimAttempt { timeouts, upstream, method, is_repeatable, started } = attempt;
        let pooled = upstream.pool(self.worker).take_plain(timeouts.keep_alive, started);
        let is_reused = pooled.is_some();
        let connection: PlainConnection = match pooled {
            Some(connection) => connection,
            // Boxed: the future is large, and rarely needed.
            None => Box::pin(connect_plain(upstream, timeouts))
                .await
                .map_err(|error| (FailedAttempt { error: error.into(), is_stale: false }, true))?,
        };
        let gate = &self.proxy.gate;
        let copy = |read: &[u8]| {
            if *method == Method::HEAD {
                return None;
            }
            let closes = shutdown.has_changed().unwrap_or(true);
            let status = writer.copy_whole(read, &buffers.headers, gate.now(), closes)?;
            Some((status, closes))
        };
        // The time for a response begins once there is a connection.
        let sent_at = if is_reused { started } else { Instant::now() };
        let sending = pin!(connection.exchange(&buffers.request, method, copy));
        let error = match reads.within(sent_at.checked_add(timeouts.response), sending).await {
            Some(Ok(exchanged)) => return Ok(exchanged),
            Some(Err(error)) => Some(error),
            None => None,
        };
        Err(classify_plain(error, timeouts.response, is_reused, is_repeatable))
    }

    /// The response on the general path.
    fn complete_verbatim(
        &self,
        response: Result<(Response<UpstreamBody>, InFlightGuard), ForwardError>,
        verdict: &Headers,
        idle: std::time::Duration,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let (mut response, in_flight) = response?;
        hop_by_hop::remove_from_response(response.headers_mut());
        merge_headers(response.headers_mut(), verdict);
        self.build_response(response, in_flight, None, idle)
    }
}

/// A request that was written, as the general path sends it.
fn outgoing_request(written: &[u8], sticky: Option<u64>) -> Option<OutgoingRequest> {
    let (request, body) = parse_written(written)?;
    let (parts, ()) = request.into_parts();
    Some(OutgoingRequest { parts, upload: Upload::from_bytes(body), requires: Requires::Any, sticky })
}

/// The format of errors for the client of a request that was written.
fn error_format(written: &[u8]) -> ErrorFormat {
    let request = parse_written(written).map(|(request, _)| request);
    error_response::format(request.as_ref().and_then(|request| request.headers().get(ACCEPT)))
}

/// A decided request for the general path.
fn general(head: &[u8], body: &[u8], snapshot: GateSnapshot, decision: ProxyDecision) -> VerbatimStep {
    let head = plain_head::parse(&Bytes::copy_from_slice(head)).expect("verbatim requests are plain");
    let request = head.request.map(|()| RequestBody::Whole(Bytes::copy_from_slice(body)));
    let method = request.method().clone();
    VerbatimStep::General(Box::new(GeneralExchange { method, request, snapshot, decision }))
}

/// A request that was written to be sent, and its body.
fn parse_written(written: &[u8]) -> Option<(Request<()>, Bytes)> {
    let end = memchr::memmem::find(written, b"\r\n\r\n")? + 4;
    let head = plain_head::parse(&Bytes::copy_from_slice(&written[..end]))?;
    Some((head.request, Bytes::copy_from_slice(&written[end..])))
}

/// The trace that a request names. Two values name none.
fn trace(head: &VerbatimHead<'_, '_>) -> Option<TraceId> {
    let mut values = head.sent("traceparent");
    let value = values.next()?;
    if values.next().is_some() { None } else { TraceId::parse(value) }
}
