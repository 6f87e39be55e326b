//! From a verdict to the inner service: denied at once, admitted at once, or held until its turn.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use tokio::time::{Instant, sleep};
use tollgate::Time;
use tollgate::internal::EngineVerdict;
use tollgate::internal::hold::HeldRequest;
use tollgate::internal::http::HeaderValues;
use tollgate::internal::settlement::{HeldCharge, Permits, RefundOnDrop, Settle, UnsettledCharges};

use crate::limiter::RateLimiter;
use crate::request::{IncomingRequest, Protocol};
use crate::{denied, grpc};

/// The result of admission.
pub(crate) enum RequestAdmission {
    Denied(Response<Bytes>),
    Admitted(Admitted),
    Held(Box<Held>),
}

/// What a response needs of the decision.
pub(crate) struct Admitted {
    pub(crate) headers: Option<HeaderValues>,
    pub(crate) open: Option<Box<OpenCharges>>,
}

/// A request in a hold queue. Dropping it refunds all of its charges.
pub(crate) struct Held {
    limiter: Arc<RateLimiter>,
    headers: Option<HeaderValues>,
    protocol: Protocol,
    decided_at: Time,
    request: HeldRequest<RateLimiter>,
    /// The rule that holds, if the request can move up in its queue.
    rule: Option<tollgate::internal::rule::RuleRef>,
    charges: RefundOnDrop<Arc<RateLimiter>, Box<UnsettledCharges>>,
}

/// Charges that depend on the response, and permits that last as long as it.
pub(crate) struct OpenCharges {
    limiter: Arc<RateLimiter>,
    charges: UnsettledCharges,
    permits: Option<Permits<RateLimiter>>,
    protocol: Protocol,
    /// The headers of a gRPC response whose trailers are to come.
    head: Option<HeaderMap>,
}

impl RequestAdmission {
    #[inline]
    pub(crate) fn of(
        limiter: &Arc<RateLimiter>,
        verdict: &mut EngineVerdict,
        decided_at: Time,
        head: IncomingRequest<'_>,
    ) -> RequestAdmission {
        if !verdict.allowed {
            let ticket = limiter.ticket(verdict, decided_at);
            let response = denied::response(verdict, ticket.as_deref(), limiter.settings.headers, head);
            return RequestAdmission::Denied(limiter.map_denial(response));
        }
        let headers = HeaderValues::of(verdict, limiter.settings.headers);
        let may_hold = limiter.hold_queues.has_requests() && UnsettledCharges::any_held(verdict);
        if !may_hold && !UnsettledCharges::any_unsettled(verdict) {
            return RequestAdmission::Admitted(Admitted { headers, open: None });
        }
        RequestAdmission::with_charges(limiter, verdict, headers, decided_at, head)
    }

    fn with_charges(
        limiter: &Arc<RateLimiter>,
        verdict: &mut EngineVerdict,
        headers: Option<HeaderValues>,
        decided_at: Time,
        head: IncomingRequest<'_>,
    ) -> RequestAdmission {
        let protocol = head.protocol();
        let charges = Box::new(UnsettledCharges::take_from(verdict));
        let mut charges = RefundOnDrop::new(Arc::clone(limiter), charges);
        let queue = charges.charges().queue();
        let is_behind = queue.is_some_and(|queue| limiter.hold_queues.has_requests_for(queue));
        let held = if verdict.delay.is_zero() && !is_behind { None } else { charges.charges().take_held() };
        let Some((queue, charge)) = held else {
            let mut charges = charges.complete();
            charges.finish_wait(None);
            let open = OpenCharges::new(limiter, *charges, protocol);
            return RequestAdmission::Admitted(Admitted { headers, open: Some(open) });
        };
        let (rule, mut charge) = charge.unzip();
        let release_at = decided_at + verdict.delay;
        let max_held = limiter.settings.max_held;
        match limiter.hold_queues.enqueue(limiter, queue, release_at, &mut charge, max_held) {
            Some(request) => RequestAdmission::Held(Box::new(Held {
                limiter: Arc::clone(limiter),
                headers,
                protocol,
                decided_at,
                request,
                rule,
                charges,
            })),
            None => {
                charge.into_iter().for_each(|charge| limiter.refund(charge));
                let response = denied::hold_queue_full(verdict.delay, head);
                RequestAdmission::Denied(limiter.map_denial(response))
            }
        }
    }

    /// Waits for the request's turn, if it is held.
    #[cfg(feature = "_store")]
    pub(crate) async fn wait_until_admitted(self) -> Result<Admitted, Response<Bytes>> {
        match self {
            RequestAdmission::Denied(response) => Err(response),
            RequestAdmission::Admitted(admitted) => Ok(admitted),
            RequestAdmission::Held(held) => Ok(held.wait().await),
        }
    }
}

impl Held {
    pub(crate) async fn wait(self: Box<Self>) -> Admitted {
        let Held { limiter, headers, protocol, decided_at, mut request, rule, charges } = *self;
        // By the timer's own clock, which tests can pause.
        let entered = Instant::now();
        let charge = request.wait(|| decided_at + entered.elapsed(), sleep).await;
        let mut charges = charges.complete();
        let own: Option<HeldCharge> = rule.zip(charge);
        charges.finish_wait(own);
        Admitted { headers, open: Some(OpenCharges::new(&limiter, *charges, protocol)) }
    }
}

impl OpenCharges {
    fn new(
        limiter: &Arc<RateLimiter>,
        mut charges: UnsettledCharges,
        protocol: Protocol,
    ) -> Box<OpenCharges> {
        let permits = charges.permits(limiter);
        Box::new(OpenCharges { limiter: Arc::clone(limiter), charges, permits, protocol, head: None })
    }

    /// Settles by the head of the response. Returns what stays open until the end of its body.
    pub(crate) fn settle_by_head(
        mut self: Box<Self>,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Box<OpenCharges>> {
        match headers.get("grpc-status").filter(|_| self.protocol.is_grpc()) {
            Some(status) => self.settle(grpc::http_status(status.as_bytes()), headers, None),
            None if self.protocol == Protocol::Grpc && status == StatusCode::OK => {
                self.head = self.charges.is_open().then(|| headers.clone());
            }
            None => self.settle(status.as_u16(), headers, None),
        }
        (self.head.is_some() || self.permits.is_some()).then_some(self)
    }

    /// Settles by the trailers of a gRPC response.
    pub(crate) fn settle_by_trailers(&mut self, trailers: &HeaderMap) {
        let Some(head) = self.head.take() else { return };
        let status = trailers.get("grpc-status").map_or(&b""[..], HeaderValue::as_bytes);
        self.settle(grpc::http_status(status), trailers, Some(&head));
    }

    /// The inner service has failed without a response: a failure of the server.
    pub(crate) fn settle_by_error(mut self: Box<Self>) {
        self.settle(StatusCode::INTERNAL_SERVER_ERROR.as_u16(), &HeaderMap::new(), None);
    }

    fn settle(&mut self, status: u16, headers: &HeaderMap, more: Option<&HeaderMap>) {
        let header = |name: &str| {
            let value = headers.get(name).or_else(|| more?.get(name));
            value.map(HeaderValue::as_bytes)
        };
        self.charges.settle(&*self.limiter, status, header);
    }
}

impl RateLimiter {
    fn map_denial(&self, response: Response<Bytes>) -> Response<Bytes> {
        match &self.settings.map_denial {
            Some(map) => map(response),
            None => response,
        }
    }
}

impl fmt::Debug for OpenCharges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenCharges").finish_non_exhaustive()
    }
}
