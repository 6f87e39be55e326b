//! A middleware for reqwest.

use async_trait::async_trait;
use http::Extensions;
use reqwest::{Request, Response, Url};
use reqwest_middleware::{Error, Middleware, Next};

use crate::request::{KeyOf, RequestHead};
use crate::throttle::Throttle;

/// Makes the calls of a client wait for their turn.
///
/// ```
/// use reqwest_middleware::ClientBuilder;
/// use tollgate_client::{Throttle, ThrottleMiddleware};
///
/// let throttle = ThrottleMiddleware::new(Throttle::new("100/m")?);
/// let client = ClientBuilder::new(reqwest::Client::new()).with(throttle).build();
/// # Ok::<(), tollgate_client::BuildError>(())
/// ```
///
/// A call that is not sent fails with [`reqwest_middleware::Error::Middleware`], which contains a
/// [`ThrottleError`](crate::ThrottleError). A call for which no connection can be made is not counted.
#[derive(Clone, Debug)]
pub struct ThrottleMiddleware {
    throttle: Throttle,
    key: KeyOf,
    retries: u32,
}

impl ThrottleMiddleware {
    /// One budget for each host.
    pub fn new(throttle: Throttle) -> ThrottleMiddleware {
        ThrottleMiddleware { throttle, key: KeyOf::host(), retries: 0 }
    }

    /// Counts by another key.
    pub fn key(mut self, key: KeyOf) -> Self {
        self.key = key;
        self
    }

    /// Sends a call that the server has refused up to this many times more, each time when the server allows it, if its
    /// body can be cloned. None unless it is set.
    pub fn retries(mut self, retries: u32) -> Self {
        self.retries = retries;
        self
    }

    fn key_of(&self, request: &Request) -> String {
        let host = authority(request.url());
        let head = RequestHead {
            method: request.method(),
            host: &host,
            path: request.url().path(),
            headers: request.headers(),
        };
        self.key.of(head)
    }
}

/// The host, with its port if it is not the usual one.
fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

#[async_trait]
impl Middleware for ThrottleMiddleware {
    async fn handle(
        &self,
        request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let key = self.key_of(&request);
        let mut retries = self.retries;
        let mut current = request;
        loop {
            let again = if retries > 0 { current.try_clone() } else { None };
            let permit = self.throttle.acquire(&key).await.map_err(Error::middleware)?;
            let response = match next.clone().run(current, extensions).await {
                Ok(response) => response,
                Err(error) => {
                    // Without a connection no server has counted it.
                    match &error {
                        Error::Reqwest(cause) if cause.is_connect() => permit.cancel(),
                        _ => drop(permit),
                    }
                    return Err(error);
                }
            };
            let refused = permit.observe(response.status(), response.headers());
            match again.filter(|_| refused.is_some()) {
                Some(again) => current = again,
                None => return Ok(response),
            }
            retries -= 1;
        }
    }
}
