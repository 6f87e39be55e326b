//! A tower layer for clients.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::HOST;
use http::{Request, Response};
use tower_layer::Layer;
use tower_service::Service;

use crate::request::{KeyOf, RequestHead};
use crate::throttle::{Throttle, ThrottleError};

/// Makes the calls of a service wait for their turn.
///
/// ```
/// use tollgate_client::{Throttle, ThrottleLayer};
///
/// let layer = ThrottleLayer::new(Throttle::new("100/m")?);
/// # Ok::<(), tollgate_client::BuildError>(())
/// ```
///
/// It sends nothing twice. With a retry layer above it, such as `tower::retry`, a call that the server has refused waits
/// here until the server allows it. A service that fails may have sent the call, so it is counted.
#[derive(Clone, Debug)]
pub struct ThrottleLayer {
    throttle: Throttle,
    key: KeyOf,
}

impl ThrottleLayer {
    /// One budget for each host.
    pub fn new(throttle: Throttle) -> ThrottleLayer {
        ThrottleLayer { throttle, key: KeyOf::host() }
    }

    /// Counts by another key.
    pub fn key(mut self, key: KeyOf) -> Self {
        self.key = key;
        self
    }
}

impl<S> Layer<S> for ThrottleLayer {
    type Service = ThrottleService<S>;

    fn layer(&self, inner: S) -> ThrottleService<S> {
        ThrottleService { inner, layer: self.clone() }
    }
}

/// A service that sends each call once the limits allow it.
#[derive(Clone, Debug)]
pub struct ThrottleService<S> {
    inner: S,
    layer: ThrottleLayer,
}

/// Why a call has no response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ThrottleServiceError<E> {
    /// It was not sent.
    Throttled(ThrottleError),
    /// The service below failed.
    Service(E),
}

impl<E: fmt::Display> fmt::Display for ThrottleServiceError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ThrottleServiceError::Throttled(error) => error.fmt(f),
            ThrottleServiceError::Service(error) => error.fmt(f),
        }
    }
}

impl<E: Error> Error for ThrottleServiceError<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ThrottleServiceError::Throttled(_) => None,
            ThrottleServiceError::Service(error) => error.source(),
        }
    }
}

impl<S, B, R> Service<Request<B>> for ThrottleService<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    R: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<R>;
    type Error = ThrottleServiceError<S::Error>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    /// Ready at any time: the service below is polled when a call has its turn, so that a waiting call occupies nothing.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(service.send(request))
    }
}

impl<S> ThrottleService<S> {
    async fn send<B, R>(self, request: Request<B>) -> Result<Response<R>, ThrottleServiceError<S::Error>>
    where
        S: Service<Request<B>, Response = Response<R>>,
    {
        let ThrottleService { mut inner, layer } = self;
        let key = layer.key.of(head(&request));
        let permit = layer.throttle.acquire(&key).await.map_err(ThrottleServiceError::Throttled)?;
        if let Err(error) = std::future::poll_fn(|context| inner.poll_ready(context)).await {
            permit.cancel();
            return Err(ThrottleServiceError::Service(error));
        }
        let response = inner.call(request).await.map_err(ThrottleServiceError::Service)?;
        permit.observe(response.status(), response.headers());
        Ok(response)
    }
}

fn head<B>(request: &Request<B>) -> RequestHead<'_> {
    let named = request.headers().get(HOST).and_then(|host| host.to_str().ok());
    let host = request.uri().authority().map(|authority| authority.as_str()).or(named);
    let host = host.map(|host| host.rsplit_once('@').map_or(host, |(_, host)| host));
    RequestHead {
        method: request.method(),
        host: without_usual_port(request.uri().scheme_str(), host.unwrap_or_default()),
        path: request.uri().path(),
        headers: request.headers(),
    }
}

/// The host without a port that its scheme implies: both spellings are the same server.
fn without_usual_port<'h>(scheme: Option<&str>, host: &'h str) -> &'h str {
    let usual = match scheme {
        Some("http") => ":80",
        Some("https") => ":443",
        _ => return host,
    };
    host.strip_suffix(usual).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_the_scheme_implies_is_no_other_host() {
        for (uri, host) in [
            ("https://api.example.com:443/a", "api.example.com"),
            ("https://user@api.example.com:443/a", "api.example.com"),
            ("https://api.example.com/a", "api.example.com"),
            ("http://api.example.com:80/a", "api.example.com"),
            ("http://[::1]:80/", "[::1]"),
            ("http://api.example.com:443/a", "api.example.com:443"),
            ("https://api.example.com:4443/a", "api.example.com:4443"),
        ] {
            let request = Request::get(uri).body(()).unwrap();
            assert_eq!(head(&request).host, host, "{uri}");
        }
    }
}
