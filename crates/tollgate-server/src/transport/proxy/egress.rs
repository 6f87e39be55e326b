//! The gateway to one API: calls wait for their turn, and go to that API only.
//!
//! A request cannot choose another host: not by `Host`, which is replaced, nor by its target, nor by `CONNECT`. A
//! `Location` at the API becomes a path, so that a client that follows it stays with the gateway; others are left alone.

use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::{CONTENT_LOCATION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Response, StatusCode, Uri, Version};
use tollgate_client::{CallPermit, Throttle, ThrottleError};

use crate::caller_auth;
use crate::config::{UpstreamAddress, UpstreamProtocol};
use crate::log_rate::LogLimiter;
use crate::response::ProblemDetails;
use crate::transport::proxy::exchange::{ConnectionContext, ExchangeError, ProxiedRequest};
use crate::transport::proxy::upstream::forward::ForwardError;

/// The headers of a response that name a resource of the API.
const REFERENCES: [HeaderName; 2] = [LOCATION, CONTENT_LOCATION];

pub struct Egress {
    pub throttle: Throttle,
    pub api: UpstreamAddress,
    /// The header that calls are counted by; without one they are counted together.
    pub key: Option<HeaderName>,
    pub callers: EgressCallers,
    pub failures: LogLimiter,
}

/// Which requests the gateway accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EgressCallers {
    /// Programs on this machine, and no pages of other sites in a browser.
    Local,
    /// Any that can reach the address.
    Anyone,
}

impl EgressCallers {
    pub fn at(address: SocketAddr) -> EgressCallers {
        match address.ip().to_canonical().is_loopback() {
            true => EgressCallers::Local,
            false => EgressCallers::Anyone,
        }
    }
}

impl Egress {
    /// Rejects requests for any other host.
    pub fn check_target(&self, parts: &mut Parts, host: &HeaderValue) -> Result<(), ProblemDetails> {
        // An HTTP/1.1 client that takes this for a proxy names another host here, and may send credentials for it.
        let absolute = parts.uri.authority().filter(|_| parts.version < Version::HTTP_2);
        if absolute.is_some_and(|target| !self.is_api(parts.uri.scheme_str(), target)) {
            let detail = format!("this gateway sends requests to {} and to no other host", self.api);
            return Err(ProblemDetails::new(StatusCode::MISDIRECTED_REQUEST, detail));
        }
        // HTTP/2 has the host in the target only.
        parts.headers.entry(HOST).or_insert_with(|| host.clone());
        match self.callers {
            EgressCallers::Anyone => Ok(()),
            EgressCallers::Local => caller_auth::authorize_local(None, &parts.headers)
                .map_err(|(_, refusal)| ProblemDetails { status: StatusCode::FORBIDDEN, ..refusal }),
        }
    }

    /// Turns references to the API into paths.
    fn rewrite_references(&self, headers: &mut HeaderMap) {
        for name in REFERENCES {
            let path = headers.get(&name).and_then(|value| self.path_at_api(value));
            if let Some(path) = path {
                headers.insert(name, path);
            }
        }
    }

    fn path_at_api(&self, reference: &HeaderValue) -> Option<HeaderValue> {
        let text = reference.to_str().ok()?;
        let (without_fragment, fragment) = text.split_once('#').unwrap_or((text, ""));
        let uri: Uri = without_fragment.parse().ok()?;
        let authority = uri.authority()?;
        if !self.is_api(uri.scheme_str(), authority) {
            return None;
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        // A reference that begins with two slashes names a host.
        let path = path.trim_start_matches('/');
        let fragment = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
        HeaderValue::from_str(&format!("/{path}{fragment}")).ok()
    }

    fn is_api(&self, scheme: Option<&str>, authority: &Authority) -> bool {
        let own_scheme = if self.api.protocol == UpstreamProtocol::Tls { "https" } else { "http" };
        let default_port = self.api.default_port();
        let api = &self.api.authority;
        scheme == Some(own_scheme)
            && authority.host().eq_ignore_ascii_case(api.host())
            && authority.port_u16().unwrap_or(default_port) == api.port_u16().unwrap_or(default_port)
    }

    fn key_of(&self, headers: &HeaderMap) -> String {
        let Some(name) = &self.key else { return String::new() };
        let values: Vec<_> = headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
        String::from_utf8_lossy(&values.join(&b", "[..])).into_owned()
    }

    /// The callers are the operator's own programs, so the response has the cause.
    fn explain(&self, failure: ForwardError) -> ProblemDetails {
        let cause = match &failure {
            ForwardError::Unreachable(cause) => Some(format!("{} cannot be reached: {cause}", self.api)),
            ForwardError::Broken(cause) => Some(format!("{} broke off: {cause}", self.api)),
            _ => None,
        };
        let mut problem = ProblemDetails::from(failure);
        if let Some(cause) = cause {
            self.failures.warn("failed calls", || tracing::warn!("{cause}"));
            problem.detail = cause;
        }
        problem
    }
}

impl ConnectionContext {
    /// Waits for the turn of a call; nothing to wait for without a gateway.
    pub async fn wait_for_call(
        &self,
        request: &mut ProxiedRequest,
    ) -> Result<Option<CallPermit>, ExchangeError> {
        let Some(egress) = &self.proxy.egress else { return Ok(None) };
        let key = egress.key_of(&request.parts.headers);
        let permit = self.read_ahead_until(request, egress.throttle.acquire(&key)).await?;
        permit.map(Some).map_err(|error| match error {
            ThrottleError::TooLate { retry_after } => {
                ExchangeError::TooManyRequests { detail: NOT_IN_TIME, retry_after }
            }
            ThrottleError::Never => ExchangeError::Problem(ProblemDetails::new(
                StatusCode::TOO_MANY_REQUESTS,
                "the limit of this gateway is 0: it sends nothing",
            )),
            _ => ExchangeError::TooManyRequests { detail: TOO_MANY, retry_after: Duration::from_secs(1) },
        })
    }

    /// Learns from the response to a call.
    pub fn observe_call<B>(&self, call: Option<CallPermit>, response: &mut Response<B>) {
        let (Some(egress), Some(call)) = (&self.proxy.egress, call) else { return };
        call.observe(response.status(), response.headers());
        egress.rewrite_references(response.headers_mut());
    }

    /// The response to a request that could not be forwarded. A call that did not reach the API is not counted.
    pub fn explain(&self, failure: ForwardError, call: Option<CallPermit>) -> ProblemDetails {
        let (Some(egress), Some(call)) = (&self.proxy.egress, call) else { return failure.into() };
        if matches!(failure, ForwardError::Unreachable(_)) {
            call.cancel();
        }
        egress.explain(failure)
    }
}

const NOT_IN_TIME: &str = "The limit of this gateway does not allow the request within its maximum wait";
const TOO_MANY: &str = "Too many requests wait for their turn at this gateway";

#[cfg(test)]
mod tests {
    use super::*;

    fn rewritten(api: &str, location: &'static str) -> String {
        let egress = Egress {
            throttle: Throttle::learning(),
            api: UpstreamAddress::parse(api).unwrap(),
            key: None,
            callers: EgressCallers::Local,
            failures: LogLimiter::default(),
        };
        let mut headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(location))]);
        egress.rewrite_references(&mut headers);
        headers[LOCATION].to_str().unwrap().to_owned()
    }

    #[test]
    fn a_location_at_the_api_becomes_a_path_and_others_stay() {
        for (location, expected) in [
            ("https://api.example.com/a?b=c#d", "/a?b=c#d"),
            ("https://API.example.com:443", "/"),
            ("https://api.example.com//evil.example.com/x", "/evil.example.com/x"),
            ("/a", "/a"),
            ("a/b", "a/b"),
            ("//api.example.com/a", "//api.example.com/a"),
            ("http://api.example.com/a", "http://api.example.com/a"),
            ("https://api.example.com:8443/a", "https://api.example.com:8443/a"),
            ("https://api.example.com.evil.example/a", "https://api.example.com.evil.example/a"),
            (
                "https://evil.example/https://api.example.com/",
                "https://evil.example/https://api.example.com/",
            ),
        ] {
            assert_eq!(rewritten("https://api.example.com", location), expected);
        }
        assert_eq!(rewritten("http://[::1]:3000", "http://[::1]:3000/x"), "/x");
    }
}
