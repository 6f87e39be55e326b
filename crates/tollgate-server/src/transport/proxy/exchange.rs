//! One exchange: a request from its head to the end of its response.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Body;
use hyper::header::{ACCEPT, CONNECTION, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderValue, UPGRADE};
use hyper::http::request::Parts;
use hyper::upgrade::OnUpgrade;
use hyper::{Request, Response, StatusCode, Version};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tollgate::Time;
use tollgate::internal::EngineVerdict;
use tollgate::internal::headers::headers;
use tollgate::internal::http::merge_headers;
use tollgate::internal::settlement::{RefundOnDrop, UnsettledCharges};

use crate::config::{HostHeader, ProxyConfig};
use crate::error_response;
use crate::gate::GateSnapshot;
use crate::queue::RequestSender;
use crate::response::{self, ProblemDetails};
use crate::transport::proxy::accept::client_connection::{ActiveStream, StreamActivity};
use crate::transport::proxy::accept::forwarded::Peer;
use crate::transport::proxy::accept::hop_by_hop;
use crate::transport::proxy::accept::inspect::{self, FramingCheck};
use crate::transport::proxy::accept::sanitize::{self, RequestOrigin, TrailerFilter};
use crate::transport::proxy::accept::websocket::WebSocketHandshake;
use crate::transport::proxy::body::{Download, RequestBody, ResponseBody, StallLimits, Upload};
use crate::transport::proxy::decide::identify::ProxyDecision;
use crate::transport::proxy::respond::tunnel::PendingUpgrade;
use crate::transport::proxy::upstream::connect::Requires;
use crate::transport::proxy::upstream::forward::{self, ForwardError, OutgoingRequest};
use crate::transport::proxy::upstream::plain_body::UpstreamBody;
use crate::transport::proxy::upstream::server::InFlightGuard;
use crate::transport::proxy::wait::budget::BudgetReservation;
use crate::transport::proxy::wait::enqueue::{DeniedRequest, RequestQueue, STATUS_PATH};
use crate::transport::proxy::{Proxy, RouteSnapshot};

/// How much of a rejected request's body is read and discarded, so that the client gets to read the response.
const DISCARD_BYTES: usize = 1 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// How much of a held request's body is read ahead.
const READ_AHEAD_BYTES: usize = 16 << 10;
/// Bound on the read-ahead of all held requests together.
pub const MAX_READ_AHEAD_BYTES: usize = 64 << 20;

/// The connection that a request arrived on.
pub struct ConnectionContext {
    pub proxy: Arc<Proxy>,
    pub worker: usize,
    pub peer: Peer,
    /// The bytes of request heads as received, for HTTP/1.1.
    pub framing_check: Option<Arc<FramingCheck>>,
    /// The other streams of the connection, for HTTP/2.
    pub stream_activity: Option<Arc<StreamActivity>>,
}

/// A request while the proxy processes it.
pub struct ProxiedRequest {
    pub parts: Parts,
    pub host: HeaderValue,
    pub upload: Upload,
    /// The protocol that the client requests an upgrade to.
    pub upgrade: Option<HeaderValue>,
    /// Set for a WebSocket over HTTP/2.
    pub handshake: Option<WebSocketHandshake>,
    pub route: Arc<RouteSnapshot>,
    pub snapshot: GateSnapshot,
}

impl ConnectionContext {
    /// Handles one request.
    pub async fn exchange(&self, request: Request<RequestBody>) -> Response<ResponseBody> {
        let accept = request.headers().get(ACCEPT).cloned();
        let gate = &self.proxy.gate;
        let snapshot = gate.snapshot().with_trace(gate.trace(request.headers()));
        let header_style = snapshot.live.headers;
        let served = self.serve(request, snapshot).await;
        self.conclude(served, error_response::format(accept.as_ref()), header_style)
    }

    async fn serve(
        &self,
        request: Request<RequestBody>,
        snapshot: GateSnapshot,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let mut request = self.receive(request, snapshot)?;
        match self.decide(&mut request).await {
            Ok(decision) => self.serve_decided(request, decision).await,
            Err(error) => {
                discard(request);
                Err(error.into())
            }
        }
    }

    /// Rejects an ambiguous request, and removes the headers that the API must not see.
    pub fn receive(
        &self,
        request: Request<RequestBody>,
        snapshot: GateSnapshot,
    ) -> Result<ProxiedRequest, ExchangeError> {
        let (mut parts, body) = request.into_parts();
        let host = self.inspect(&parts, &snapshot).map_err(ExchangeError::Ambiguous)?;
        let handshake = WebSocketHandshake::of(&mut parts).map_err(ExchangeError::Ambiguous)?;
        if let Some(egress) = &self.proxy.egress {
            egress.check_target(&mut parts, &host).map_err(ExchangeError::Problem)?;
        }
        let route = self.proxy.route.load_full();
        let may_upgrade = parts.version == Version::HTTP_11;
        let upgrade = if may_upgrade { hop_by_hop::requested_upgrade(&parts.headers) } else { None };
        let mut upload = Upload::new(body, stall_limits(&parts, &route.config));
        self.sanitize(&mut parts.headers, &mut upload, &route, &snapshot);
        Ok(ProxiedRequest { parts, host, upload, upgrade, handshake, route, snapshot })
    }

    /// Denies or enqueues a request, or forwards it.
    pub async fn serve_decided(
        &self,
        mut request: ProxiedRequest,
        decision: ProxyDecision,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let ProxyDecision { mut verdict, decided_at: at, sticky, sender } = decision;
        let queue = self.proxy.request_queue.as_ref();
        let status_id = request.parts.uri.path().strip_prefix(STATUS_PATH).map(str::to_owned);
        if verdict.allowed {
            return match (queue, status_id) {
                (Some(queue), Some(id)) => {
                    Box::pin(self.show_status(queue, &id, &mut request, &mut verdict, at)).await
                }
                _ => self.forward(&mut request, &mut verdict, at, sticky).await,
            };
        }
        match (queue, sender) {
            // Upgrades are not enqueued: the client's connection cannot be joined to an upstream later.
            (Some(queue), Some(sender)) if status_id.is_none() && request.upgrade.is_none() => {
                Box::pin(self.enqueue(queue, request, sender, &verdict, at)).await
            }
            _ => {
                discard(request);
                Err(ExchangeError::Denied { verdict: Box::new(verdict), at })
            }
        }
    }

    /// Waits for the request's release time; returns the charges to settle after its response.
    async fn admit(
        &self,
        request: &mut ProxiedRequest,
        verdict: &mut EngineVerdict,
        decided_at: Time,
    ) -> Result<Option<Box<UnsettledCharges>>, ExchangeError> {
        let may_wait = self.proxy.hold_queues.has_requests() && UnsettledCharges::any_held(verdict);
        if !may_wait && !UnsettledCharges::any_unsettled(verdict) {
            return Ok(None);
        }
        let mut charges = Box::new(UnsettledCharges::take_from(verdict));
        Box::pin(self.wait_for_release(request, &mut charges, verdict, decided_at)).await?;
        Ok(Some(charges))
    }

    /// Returns when the request is released. If the client disconnects meanwhile or the queue is full, all charges are
    /// refunded.
    async fn wait_for_release(
        &self,
        request: &mut ProxiedRequest,
        charges: &mut UnsettledCharges,
        verdict: &mut EngineVerdict,
        decided_at: Time,
    ) -> Result<(), ExchangeError> {
        let queue_is_busy =
            charges.queue().is_some_and(|queue| self.proxy.hold_queues.has_requests_for(queue));
        if verdict.delay.is_zero() && !queue_is_busy {
            charges.finish_wait(None);
            return Ok(());
        }
        let gate = &self.proxy.gate;
        let mut refund_guard = RefundOnDrop::new(&**gate, charges);
        let Some((queue, charge)) = refund_guard.charges().take_held() else { return Ok(()) };
        let (rule, mut charge) = charge.unzip();
        let release_at = decided_at + verdict.delay;
        let max_held = request.route.config.max_held;
        let Some(mut held) = self.proxy.hold_queues.enqueue(gate, queue, release_at, &mut charge, max_held)
        else {
            self.proxy.counts.hold_rejected.fetch_add(1, Ordering::Relaxed);
            charge.into_iter().for_each(|charge| gate.refund(charge));
            let detail = "Too many requests are held already";
            let retry_after = verdict.delay;
            verdict.refuse_hold();
            let ticket = gate.ticket(verdict, decided_at);
            return Err(ExchangeError::TooManyRequests { detail, retry_after, ticket });
        };
        self.proxy.counts.held.fetch_add(1, Ordering::Relaxed);
        let charge = self.read_ahead_until(request, held.wait(|| gate.now(), sleep)).await?;
        refund_guard.complete().finish_wait(rule.zip(charge));
        Ok(())
    }

    /// Awaits `ready` while a part of the body is read ahead: the end of the connection is detected only behind it.
    pub async fn read_ahead_until<T>(
        &self,
        request: &mut ProxiedRequest,
        ready: impl Future<Output = T>,
    ) -> Result<T, ExchangeError> {
        tokio::pin!(ready);
        let client = self.budget_client(&request.parts.headers, &request.snapshot);
        let mut reservation = BudgetReservation::of(&self.proxy.read_ahead, client);
        let mut may_read_ahead =
            !request.parts.headers.contains_key(EXPECT) && reservation.grow_to(READ_AHEAD_BYTES).is_ok();
        loop {
            tokio::select! {
                ready = ready.as_mut() => return Ok(ready),
                more = request.upload.read_ahead(), if may_read_ahead => {
                    may_read_ahead = more.map_err(ForwardError::from)? && request.upload.prefix().len() < READ_AHEAD_BYTES;
                }
            }
        }
    }

    /// Answers a status query for a queued request. Limits and bans apply to it as to any request.
    async fn show_status(
        &self,
        queue: &RequestQueue,
        id: &str,
        request: &mut ProxiedRequest,
        verdict: &mut EngineVerdict,
        decided_at: Time,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let mut charges = self.admit(request, verdict, decided_at).await?;
        let _permits = charges.as_mut().and_then(|charges| charges.permits(&self.proxy.gate));
        let answer = queue.status(&request.parts.method, id).await;
        let status = answer.as_ref().map_or_else(|problem| problem.status, |answer| answer.status());
        self.settle(charges, status, &HeaderMap::new());
        let mut response = answer.map_err(ExchangeError::Problem)?.map(ResponseBody::Full);
        response::write_headers(&mut response, verdict, request.snapshot.live.headers);
        Ok(response)
    }

    /// Waits for the request's release time and sends it to an upstream.
    async fn forward(
        &self,
        request: &mut ProxiedRequest,
        verdict: &mut EngineVerdict,
        decided_at: Time,
        sticky: Option<u64>,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let mut charges = self.admit(request, verdict, decided_at).await?;
        let permits = charges.as_mut().and_then(|charges| charges.permits(&self.proxy.gate));
        let call = self.wait_for_call(request).await?;
        let protocol = self.prepare(request);
        let client = request.parts.extensions.remove::<OnUpgrade>().zip(protocol);
        let requires = if client.is_some() { Requires::Http1 } else { Requires::Any };
        let route = &request.route;
        // Moved, not cloned: a request is large.
        let parts = std::mem::replace(&mut request.parts, Request::new(()).into_parts().0);
        let upload = std::mem::replace(&mut request.upload, Upload::empty());
        let mut outgoing = Some(OutgoingRequest { parts, upload, requires, sticky });
        let forwarded = forward::forward(&self.proxy, route, self.worker, &mut outgoing).await;
        let (mut response, mut in_flight) = match forwarded {
            Ok(forwarded) => forwarded,
            Err(failure) => {
                let problem = self.problem_and_cancel(failure, call);
                self.settle(charges, problem.status, &HeaderMap::new());
                return Err(ExchangeError::Problem(problem));
            }
        };
        in_flight.attach_permits(permits);
        self.settle(charges, response.status(), response.headers());
        self.observe_call(call, &mut response);
        hop_by_hop::remove_from_response(response.headers_mut());
        let client = client.map(|(client, protocol)| PendingUpgrade {
            client,
            protocol,
            handshake: request.handshake.take(),
            active_stream: self.stream_activity.as_ref().map(ActiveStream::new),
        });
        merge_headers(response.headers_mut(), &headers(verdict, request.snapshot.live.headers));
        self.build_response(response, in_flight, client, route.config.timeouts.idle)
    }

    /// Converts the upstream's response to the client's.
    pub fn build_response(
        &self,
        mut response: Response<UpstreamBody>,
        in_flight: InFlightGuard,
        client: Option<PendingUpgrade>,
        idle: Duration,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        *response.version_mut() = Version::HTTP_11;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let over_http2 = client.is_some_and(|client| client.handshake.is_some());
            if over_http2 && response.status().is_success() {
                return Err(ForwardError::InvalidUpgrade.into()); // its client would take it for a WebSocket
            }
            return Ok(response.map(|rest| ResponseBody::Streamed(Download::new(rest, idle, in_flight))));
        }
        self.framing_check.iter().for_each(|check| check.stop());
        Ok(client.ok_or(ForwardError::InvalidUpgrade)?.complete(response, in_flight)?)
    }

    /// Stores the request for replay.
    async fn enqueue(
        &self,
        queue: &RequestQueue,
        request: ProxiedRequest,
        sender: RequestSender,
        verdict: &EngineVerdict,
        decided_at: Time,
    ) -> Result<Response<ResponseBody>, ExchangeError> {
        let ProxiedRequest { mut parts, host, upload, snapshot, .. } = request;
        hop_by_hop::remove_from_request(&mut parts.headers);
        let budget_client = self.budget_client(&parts.headers, &snapshot);
        let denied = DeniedRequest { parts: &parts, host: &host, sender, budget_client, verdict, decided_at };
        let queued = queue.enqueue(&self.proxy.gate, &snapshot, denied, upload).await;
        let ticket = self.proxy.gate.ticket(verdict, decided_at);
        let id = match queued {
            Ok(id) => id,
            Err(error) => {
                let problem = ProblemDetails::from(error);
                let is_denied = problem.status == StatusCode::TOO_MANY_REQUESTS;
                let ticket = ticket.filter(|_| is_denied);
                return Err(ExchangeError::Problem(match ticket {
                    Some(ticket) => problem.with_ticket(&ticket),
                    None => problem,
                }));
            }
        };
        self.proxy.counts.queued.fetch_add(1, Ordering::Relaxed);
        let format = error_response::format(parts.headers.get(ACCEPT));
        let mut response = queue.accepted_response(&id, verdict, ticket.as_deref(), format);
        response::write_headers(&mut response, verdict, snapshot.live.headers);
        Ok(response)
    }

    fn settle(&self, charges: Option<Box<UnsettledCharges>>, status: StatusCode, headers: &HeaderMap) {
        if let Some(mut charges) = charges {
            let header = |name: &str| headers.get(name).map(HeaderValue::as_bytes);
            charges.settle(&*self.proxy.gate, status.as_u16(), header);
        }
    }

    /// The requested host. Rejects ambiguous requests.
    fn inspect(&self, parts: &Parts, snapshot: &GateSnapshot) -> Result<HeaderValue, ProblemDetails> {
        self.framing_check.as_ref().map_or(Ok(()), |check| check.check(parts))?;
        inspect::check(parts)?;
        snapshot.requested_host(parts)
    }

    /// Removes headers that the API must not see. This precedes the decision.
    fn sanitize(
        &self,
        headers: &mut HeaderMap,
        upload: &mut Upload,
        route: &Arc<RouteSnapshot>,
        GateSnapshot { live, fields, .. }: &GateSnapshot,
    ) {
        hop_by_hop::remove_from_request(headers);
        let origin = match self.peer.is_trusted(&live.trusted) {
            true => RequestOrigin::TrustedProxy,
            false => RequestOrigin::Client,
        };
        sanitize::sanitize_headers(headers, &route.config.strip_headers, &fields.headers, origin);
        if !upload.is_end_stream() {
            let field_selection = Arc::clone(fields);
            upload.filter_trailers(TrailerFilter { route: Arc::clone(route), field_selection });
        }
    }

    /// Prepares the request for forwarding; returns the protocol that the client requests an upgrade to.
    fn prepare(&self, request: &mut ProxiedRequest) -> Option<HeaderValue> {
        let ProxiedRequest { parts, host, upload, upgrade, route, snapshot, .. } = request;
        let protocol = upgrade.take();
        // The API of a third party does not receive the addresses of callers.
        if self.proxy.egress.is_none() {
            self.peer.write_forwarding_headers(&mut parts.headers, host, snapshot.live.trust());
        }
        if route.config.host == HostHeader::Keep {
            parts.headers.insert(HOST, host.clone());
        } else {
            parts.headers.remove(HOST);
        }
        if let Some(protocol) = &protocol {
            parts.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            parts.headers.insert(UPGRADE, protocol.clone());
        } else {
            parts.extensions.clear();
        }
        if parts.headers.contains_key(EXPECT) {
            self.wait_for_continue(parts, upload);
        }
        protocol
    }

    /// Delays the body until the upstream sends 100; only then does the client get its own 100.
    fn wait_for_continue(&self, parts: &mut Parts, upload: &mut Upload) {
        if parts.version != Version::HTTP_11 {
            parts.headers.remove(EXPECT);
            return;
        }
        let continue_received = Arc::new(Notify::new());
        upload.wait_for_continue(Arc::clone(&continue_received));
        let mut carrier = Request::new(());
        hyper::ext::on_informational(&mut carrier, move |response| {
            if response.status() == StatusCode::CONTINUE {
                continue_received.notify_one();
            }
        });
        parts.extensions.extend(std::mem::take(carrier.extensions_mut()));
    }
}

/// The stall limits of a request body.
fn stall_limits(parts: &Parts, config: &ProxyConfig) -> StallLimits {
    let is_grpc = parts.version == Version::HTTP_2
        && parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    StallLimits { idle: config.timeouts.idle, min_rate: config.min_body_rate, is_grpc }
}

/// Reads and discards a rejected body, within bounds: a client that is still sending may not read the response. A
/// client that waits for 100 sends no body, so there is nothing to discard.
fn discard(request: ProxiedRequest) {
    let ProxiedRequest { parts, upload: mut body, .. } = request;
    if body.whole().is_some() || parts.headers.contains_key(EXPECT) {
        return;
    }
    let reading = async move {
        let mut read = 0;
        while let Some(Ok(frame)) = body.frame().await {
            read += frame.data_ref().map_or(0, bytes::Bytes::len);
            if read > DISCARD_BYTES {
                break;
            }
        }
    };
    tokio::spawn(timeout(DISCARD_TIME, reading));
}

mod exchange_error;

pub use exchange_error::ExchangeError;

#[cfg(test)]
mod tests;
