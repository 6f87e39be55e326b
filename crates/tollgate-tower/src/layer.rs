//! The layer and the service that it makes.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::admission::RequestAdmission;
use crate::body::LimitedBody;
use crate::builder::{LayerError, RateLimitBuilder};
use crate::future::{LimitedFuture, PendingAdmission};
use crate::limiter::RateLimiter;
use crate::request::IncomingRequest;

/// Limits the requests of a service. Its clones share their counters.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    limiter: Arc<RateLimiter>,
}

/// A service whose requests are limited.
#[derive(Clone, Debug)]
pub struct RateLimitService<S> {
    inner: S,
    limiter: Arc<RateLimiter>,
}

impl RateLimitLayer {
    /// Allows each client address a rate such as `100/m`. Requests without an address share one counter.
    pub fn limit(rate: &str) -> Result<RateLimitLayer, LayerError> {
        RateLimitLayer::limit_by("ip", rate)
    }

    /// Allows a rate for each value of an attribute such as `header:x-api-key`. Requests without one share one counter.
    pub fn limit_by(attribute: &str, rate: &str) -> Result<RateLimitLayer, LayerError> {
        RateLimitLayer::builder().limit_by(attribute, rate).build()
    }

    /// Rules from YAML or JSON, as in the server's file.
    pub fn rules(text: &str) -> Result<RateLimitLayer, LayerError> {
        RateLimitLayer::builder().rules(text).build()
    }

    /// Everything else.
    pub fn builder() -> RateLimitBuilder {
        RateLimitBuilder::default()
    }

    pub(crate) fn new(limiter: RateLimiter) -> RateLimitLayer {
        RateLimitLayer { limiter: Arc::new(limiter) }
    }

    /// For changes while requests are served: new rules, bans.
    pub fn limiter(&self) -> &Arc<RateLimiter> {
        &self.limiter
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimitService<S>;

    fn layer(&self, inner: S) -> RateLimitService<S> {
        RateLimitService { inner, limiter: Arc::clone(&self.limiter) }
    }
}

impl<S, B, R> Service<Request<B>> for RateLimitService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    type Future = LimitedFuture<S, B>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> LimitedFuture<S, B> {
        #[cfg(feature = "_store")]
        if self.limiter.shared.is_some() {
            return self.call_shared(request);
        }
        let head = IncomingRequest::of(&request);
        let admission =
            self.limiter.check(head, |verdict, now| RequestAdmission::of(&self.limiter, verdict, now, head));
        match admission {
            RequestAdmission::Admitted(admitted) => LimitedFuture::called(self.inner.call(request), admitted),
            RequestAdmission::Denied(response) => LimitedFuture::denied(response),
            RequestAdmission::Held(held) => {
                let (parts, body) = request.into_parts();
                let admission: PendingAdmission = Box::pin(async move { (parts, Ok(held.wait().await)) });
                LimitedFuture::waiting(admission, self.take_ready(), body)
            }
        }
    }
}

impl<S: Clone> RateLimitService<S> {
    /// The inner service that is ready: a clone may not be.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }

    #[cfg(feature = "_store")]
    fn call_shared<B>(&mut self, request: Request<B>) -> LimitedFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        use crate::shared_counters::{SharedDecision, StoreCall};

        let limiter = Arc::clone(&self.limiter);
        let (parts, body) = request.into_parts();
        let admission: PendingAdmission = Box::pin(async move {
            let shared = limiter.shared.as_ref().expect("it has a store");
            let SharedDecision { parts, mut verdict, decided_at } =
                StoreCall::new(&limiter, shared, parts).await;
            let head = IncomingRequest::of_parts(&parts);
            let admission = RequestAdmission::of(&limiter, &mut verdict, decided_at, head);
            (parts, admission.wait_until_admitted().await)
        });
        LimitedFuture::waiting(admission, self.take_ready(), body)
    }
}
