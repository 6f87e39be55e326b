//! The gateway to one API: calls wait for their turn, and go to that API only.
//!
//! A request cannot choose another host: not by `Host`, which is replaced, nor by its target, nor by `CONNECT`. If the
//! API's URL has a path, requests stay below it. A `Location` at the API becomes a path, so that a client that follows it
//! stays with the gateway; others are left alone.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use hyper::header::{CONTENT_LOCATION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION};
use hyper::http::request::Parts;
use hyper::http::uri::{Authority, PathAndQuery};
use hyper::{Response, StatusCode, Uri, Version};
use tollgate::internal::request::percent::{self, Plus};
use tollgate_client::{CallPermit, Throttle, ThrottleError};

use crate::caller_auth;
use crate::config::UpstreamAddress;
use crate::log_rate::LogLimiter;
use crate::response::ProblemDetails;
use crate::transport::proxy::exchange::{ConnectionContext, ExchangeError, ProxiedRequest};
use crate::transport::proxy::upstream::forward::ForwardError;

/// The headers of a response that name a resource of the API.
const REFERENCES: [HeaderName; 2] = [LOCATION, CONTENT_LOCATION];

pub struct Egress {
    pub throttle: Throttle,
    pub api: ApiUrl,
    /// The header that calls are counted by; without one they are counted together.
    pub key: Option<HeaderName>,
    pub callers: EgressCallers,
    pub failures: LogLimiter,
}

/// The URL of the API. The path of a request is appended to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiUrl {
    pub address: UpstreamAddress,
    /// Empty, or a path that begins with a slash and ends without one.
    base: Box<str>,
}

impl ApiUrl {
    pub fn parse(text: &str) -> Result<ApiUrl, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let path_at = rest.find(['/', '?', '#']).map_or(text.len(), |at| at + text.len() - rest.len());
        let (origin, base) = if scheme.is_empty() { (text, "") } else { text.split_at(path_at) };
        let address = UpstreamAddress::parse(origin)?;
        let base = base.trim_end_matches('/');
        if base.contains(['?', '#']) {
            return Err(format!("'{address}…' has a query: requests have their own"));
        }
        if base.parse::<PathAndQuery>().is_err() && !base.is_empty() || leaves_base(base) {
            return Err(format!("the path behind '{address}' is not valid"));
        }
        Ok(ApiUrl { address, base: base.into() })
    }

    /// The path of a request at the API.
    fn target(&self, path: &PathAndQuery) -> Result<PathAndQuery, ProblemDetails> {
        if leaves_base(path.path()) {
            let detail = format!("this gateway sends requests to paths below {self} only");
            return Err(ProblemDetails::new(StatusCode::BAD_REQUEST, detail));
        }
        let too_long = |_| ProblemDetails::new(StatusCode::URI_TOO_LONG, "the path is too long");
        format!("{}{path}", self.base).parse().map_err(too_long)
    }

    /// The gateway's path for a path at the API, if it is below this URL.
    fn below<'p>(&self, path: &'p str) -> Option<&'p str> {
        path.strip_prefix(&*self.base).filter(|rest| rest.is_empty() || rest.starts_with(['/', '?']))
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address, self.base)
    }
}

/// Whether dot segments lead out of the path that a path is appended to, by any reading of escapes and backslashes.
fn leaves_base(path: &str) -> bool {
    let decoded: Vec<u8> = percent::decode(path, Plus::Literal).collect();
    let mut depth = 0usize;
    for segment in decoded.split(|byte| matches!(byte, b'/' | b'\\')) {
        match segment {
            b"" | b"." => {}
            b".." if depth == 0 => return true,
            b".." => depth -= 1,
            _ => depth += 1,
        }
    }
    false
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
        self.rewrite_target(parts)?;
        // HTTP/2 has the host in the target only.
        parts.headers.entry(HOST).or_insert_with(|| host.clone());
        match self.callers {
            EgressCallers::Anyone => Ok(()),
            EgressCallers::Local => caller_auth::authorize_local(None, &parts.headers)
                .map_err(|refused| ProblemDetails { status: StatusCode::FORBIDDEN, ..refused.problem }),
        }
    }

    fn rewrite_target(&self, parts: &mut Parts) -> Result<(), ProblemDetails> {
        let is_path = |path: &&PathAndQuery| path.as_str().starts_with('/');
        let Some(path) = parts.uri.path_and_query().filter(is_path) else { return Ok(()) };
        if self.api.base.is_empty() {
            return Ok(());
        }
        let path = self.api.target(path)?;
        let mut uri = std::mem::take(&mut parts.uri).into_parts();
        uri.path_and_query = Some(path);
        parts.uri = Uri::from_parts(uri).expect("only the path was replaced");
        Ok(())
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
        let fragment = if fragment.is_empty() { String::new() } else { format!("#{fragment}") };
        let is_path = without_fragment.starts_with('/') && !without_fragment.starts_with("//");
        if is_path && !self.api.base.is_empty() {
            return HeaderValue::from_str(&match self.api.below(without_fragment) {
                Some(below) => format!("/{}{fragment}", below.trim_start_matches('/')),
                // A path that the gateway does not have.
                None => format!("{}{text}", self.api.address.origin()),
            })
            .ok();
        }
        let uri: Uri = without_fragment.parse().ok()?;
        let authority = uri.authority()?;
        if !self.is_api(uri.scheme_str(), authority) {
            return None;
        }
        let path = self.api.below(uri.path_and_query().map_or("/", |path| path.as_str()))?;
        // A reference that begins with two slashes names a host.
        let path = path.trim_start_matches('/');
        HeaderValue::from_str(&format!("/{path}{fragment}")).ok()
    }

    fn is_api(&self, scheme: Option<&str>, authority: &Authority) -> bool {
        let address = &self.api.address;
        let default_port = address.default_port();
        let api = &address.authority;
        scheme == Some(address.scheme())
            && authority.host().eq_ignore_ascii_case(api.host())
            && authority.port_u16().unwrap_or(default_port) == api.port_u16().unwrap_or(default_port)
    }

    /// With the API: gateways to several APIs may use one store.
    fn key_of(&self, headers: &HeaderMap) -> String {
        let origin = self.api.address.origin().to_ascii_lowercase();
        let Some(name) = &self.key else { return origin };
        let values: Vec<_> = headers.get_all(name).iter().map(|value| value.as_bytes()).collect();
        format!("{origin} {}", String::from_utf8_lossy(&values.join(&b", "[..])))
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
                ExchangeError::TooManyRequests { detail: NOT_IN_TIME, retry_after, ticket: None }
            }
            ThrottleError::Never => ExchangeError::Problem(ProblemDetails::new(
                StatusCode::TOO_MANY_REQUESTS,
                "the limit of this gateway is 0: it sends nothing",
            )),
            _ => {
                let retry_after = Duration::from_secs(1);
                ExchangeError::TooManyRequests { detail: TOO_MANY, retry_after, ticket: None }
            }
        })
    }

    /// Learns from the response to a call.
    pub fn observe_call<B>(&self, call: Option<CallPermit>, response: &mut Response<B>) {
        let (Some(egress), Some(call)) = (&self.proxy.egress, call) else { return };
        call.observe(response.status(), response.headers());
        egress.rewrite_references(response.headers_mut());
    }

    /// The response to a request that could not be forwarded. A call that did not reach the API is not counted.
    pub fn problem_and_cancel(&self, failure: ForwardError, call: Option<CallPermit>) -> ProblemDetails {
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

    fn egress(api: &str) -> Egress {
        Egress {
            throttle: Throttle::learning(),
            api: ApiUrl::parse(api).unwrap(),
            key: None,
            callers: EgressCallers::Local,
            failures: LogLimiter::default(),
        }
    }

    fn rewritten(api: &str, location: &'static str) -> String {
        let egress = egress(api);
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

    #[test]
    fn a_location_below_the_path_of_the_url_loses_this_path() {
        for (location, expected) in [
            ("https://api.example.com/v1/a?b#c", "/a?b#c"),
            ("https://api.example.com/v1", "/"),
            ("/v1/a#c", "/a#c"),
            ("/v1//evil.example.com", "/evil.example.com"),
            ("/v1?b", "/?b"),
            ("a/b", "a/b"),
            ("/v10/a", "https://api.example.com/v10/a"),
            ("/login", "https://api.example.com/login"),
            ("https://api.example.com/v10", "https://api.example.com/v10"),
        ] {
            assert_eq!(rewritten("https://api.example.com/v1/", location), expected);
        }
    }

    #[test]
    fn requests_stay_below_the_path_of_the_url() {
        let target = |path: &'static str| {
            let mut parts = hyper::Request::get(path).body(()).unwrap().into_parts().0;
            let done = egress("http://api.example.com/v1/x").rewrite_target(&mut parts);
            done.map(|()| parts.uri.to_string()).map_err(|problem| problem.status)
        };
        for (path, expected) in [
            ("/", "/v1/x/"),
            ("/a?b=/../..", "/v1/x/a?b=/../.."),
            ("/a/../b", "/v1/x/a/../b"),
            ("http://api.example.com/a", "http://api.example.com/v1/x/a"),
            ("*", "*"),
        ] {
            assert_eq!(target(path).as_deref(), Ok(expected));
        }
        for path in ["/..", "/a/../../b", "/%2e%2E/b", "/a/..%2f..%2fb", "/..%5cb", "/.//../b"] {
            assert_eq!(target(path), Err(StatusCode::BAD_REQUEST), "{path}");
        }
    }

    #[test]
    fn a_url_has_a_host_and_perhaps_a_path() {
        for (url, shown) in [
            ("https://api.example.com", "https://api.example.com:443"),
            ("https://api.example.com/", "https://api.example.com:443"),
            ("h2c://[::1]:3000/a/b/", "h2c://[::1]:3000/a/b"),
        ] {
            assert_eq!(ApiUrl::parse(url).map(|url| url.to_string()).as_deref(), Ok(shown));
        }
        for url in [
            "",
            "/a",
            "api.example.com/a",
            "ftp://a/b",
            "http:///a",
            "http://a/b?c",
            "http://a/../b",
            "http://a/b c",
        ] {
            assert!(ApiUrl::parse(url).is_err(), "{url}");
        }
    }
}
