//! Authorization of callers: by token and role or, without tokens, by being local.
//!
//! A browser on the same machine counts as local only for pages of this server: a page of another site may send
//! requests to any address (cross-site requests), and another site's name may resolve to a loopback address (DNS
//! rebinding).

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN};
use hyper::http::uri::Authority;
use hyper::{Request, StatusCode};
use tollgate::internal::request::{fields, host};

use crate::log_rate::LogLimiter;
use crate::response::ProblemDetails;
use crate::tokens::{Role, Tokens};
use crate::trace_id::TraceId;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Why a caller is refused.
#[derive(Debug)]
pub struct RefusedCaller {
    /// Empty if the token is unknown.
    pub token_name: Box<str>,
    pub problem: ProblemDetails,
}

impl RefusedCaller {
    pub fn without_token(problem: ProblemDetails) -> RefusedCaller {
        RefusedCaller { token_name: Box::default(), problem }
    }

    fn unknown(status: StatusCode, detail: &str) -> RefusedCaller {
        RefusedCaller::without_token(ProblemDetails::new(status, detail))
    }
}

/// The name of the token, if it has the required role.
pub fn authorize_token(tokens: &Tokens, headers: &HeaderMap, needed: Role) -> Result<String, RefusedCaller> {
    require_single_host(headers)?;
    let unknown = |detail: &str| RefusedCaller::unknown(StatusCode::UNAUTHORIZED, detail);
    let authorization = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some(token) = authorization.and_then(fields::bearer) else {
        return Err(unknown("send a token: Authorization: Bearer …"));
    };
    match tokens.find(token, needed) {
        None => Err(unknown("the token is unknown")),
        Some((role, name)) if !role.includes(needed) => {
            let detail =
                format!("the token's role is {}, and this needs the role {}", role.name(), needed.name());
            let problem = ProblemDetails::new(StatusCode::FORBIDDEN, detail);
            Err(RefusedCaller { token_name: name.into(), problem })
        }
        Some((_, name)) => Ok(name),
    }
}

/// Whether a caller is local, by its Host, Origin and fetch metadata.
pub fn authorize_local(target: Option<&Authority>, headers: &HeaderMap) -> Result<(), RefusedCaller> {
    require_single_host(headers)?;
    let forbidden = |detail: &str| Err(RefusedCaller::unknown(StatusCode::FORBIDDEN, detail));
    let Some(host_header) = headers.get(HOST).and_then(|value| value.to_str().ok()) else {
        return forbidden("the Host header is missing");
    };
    if !is_local(host_header) || target.is_some_and(|target| !is_local(target.as_str())) {
        return forbidden(
            "the Host header is not a local address: without tokens only local callers are served",
        );
    }
    let is_own = |origin: &str| origin.split_once("://").is_some_and(|(_, host)| host == host_header);
    // An origin that is not text is foreign.
    let is_foreign = |value: &hyper::header::HeaderValue| !value.to_str().is_ok_and(is_own);
    if headers.get_all(ORIGIN).iter().any(is_foreign) {
        return forbidden("calls from other origins are refused");
    }
    let sites = headers.get_all(SEC_FETCH_SITE).iter();
    if sites.into_iter().any(|site| site != "same-origin" && site != "none") {
        return forbidden("cross-site calls from a browser are refused");
    }
    Ok(())
}

/// Like [`authorize_local`], but a caller that is not a browser may use any Host. A browser sends an Origin with each
/// POST, also to a site whose name resolves to this machine (Fetch, 3.2).
pub fn authorize_program(target: Option<&Authority>, headers: &HeaderMap) -> Result<(), RefusedCaller> {
    match headers.contains_key(ORIGIN) || headers.contains_key(SEC_FETCH_SITE) {
        true => authorize_local(target, headers),
        false => require_single_host(headers),
    }
}

/// RFC 9112, 3.2: several Host headers make a request ambiguous.
fn require_single_host(headers: &HeaderMap) -> Result<(), RefusedCaller> {
    match headers.get_all(HOST).iter().nth(1) {
        None => Ok(()),
        Some(_) => Err(RefusedCaller::unknown(StatusCode::BAD_REQUEST, "there are several Host headers")),
    }
}

/// Whether a Host names this machine.
pub fn is_local(host_header: &str) -> bool {
    let name = host::canonical(host_header);
    let ip = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// Logs a refused call at a bounded rate, without secrets.
pub fn log_refused(
    rate: &LogLimiter,
    api: &'static str,
    request: &Request<Incoming>,
    refused: &RefusedCaller,
) {
    let caller = &*refused.token_name;
    let problem = &refused.problem;
    rate.warn("refused calls", || {
        // Only the collection: the rest of the path may be a key.
        let path: Vec<_> = request.uri().path().splitn(4, '/').take(3).collect();
        let status = problem.status.as_u16();
        let path = path.join("/");
        let method = request.method();
        let detail = &problem.detail;
        let trace_id = TraceId::of(request.headers()).map(tracing::field::display);
        tracing::warn!(status, path, %method, caller, trace_id, "{api} call refused: {detail}");
    });
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&HeaderName, &[u8])]) -> HeaderMap {
        let value = |bytes: &[u8]| HeaderValue::from_bytes(bytes).expect("a value");
        pairs.iter().map(|(name, bytes)| ((*name).clone(), value(bytes))).collect()
    }

    fn refused(pairs: &[(&HeaderName, &[u8])]) -> bool {
        let mut map = HeaderMap::new();
        for (name, value) in headers(pairs).iter() {
            map.append(name, value.clone());
        }
        authorize_local(None, &map).is_err()
    }

    #[test]
    fn only_local_hosts_and_origins_are_served_without_tokens() {
        for host in ["localhost:7070", "127.0.0.1:7070", "[::1]:7070", "127.0.0.1"] {
            let origin = format!("http://{host}");
            let host = (&HOST, host.as_bytes());
            assert!(!refused(&[host]));
            assert!(!refused(&[host, (&ORIGIN, origin.as_bytes())]));
            for origin in [&b"http://evil.example"[..], b"null", b"", b"http://\xe4.example", b"\xff"] {
                assert!(refused(&[host, (&ORIGIN, origin)]), "{origin:?}");
            }
            for (site, is_refused) in [
                ("same-origin", false),
                ("none", false),
                ("cross-site", true),
                ("same-site", true),
                ("", true),
            ] {
                assert_eq!(refused(&[host, (&SEC_FETCH_SITE, site.as_bytes())]), is_refused, "{site}");
            }
        }
        for host in
            ["evil.example:7070", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1:7070", ""]
        {
            assert!(refused(&[(&HOST, host.as_bytes())]), "{host}");
        }
        assert!(refused(&[]));
    }

    #[test]
    fn a_program_may_use_any_host_and_a_page_of_another_site_none() {
        let is_refused = |pairs: &[(&HeaderName, &[u8])]| authorize_program(None, &headers(pairs)).is_err();
        let foreign = (&HOST, &b"ratelimit:8080"[..]);
        let local = (&HOST, &b"127.0.0.1:8080"[..]);
        assert!(!is_refused(&[foreign]) && !is_refused(&[local]));
        assert!(!is_refused(&[local, (&ORIGIN, b"http://127.0.0.1:8080")]));
        assert!(is_refused(&[local, (&ORIGIN, b"https://evil.example")]), "a page of another site");
        assert!(is_refused(&[foreign, (&ORIGIN, b"http://ratelimit:8080")]), "DNS rebinding");
        assert!(is_refused(&[local, (&SEC_FETCH_SITE, b"cross-site")]));
        assert!(is_refused(&[foreign, (&SEC_FETCH_SITE, b"same-origin")]));
        assert!(is_refused(&[local, (&ORIGIN, b"null")]), "a sandboxed frame");
    }

    #[test]
    fn several_hosts_and_foreign_targets_are_refused() {
        let mut several = headers(&[(&HOST, b"localhost")]);
        several.append(HOST, HeaderValue::from_static("localhost"));
        let refused = authorize_local(None, &several).expect_err("two of them");
        assert_eq!(refused.problem.status, StatusCode::BAD_REQUEST);
        let target = Authority::from_static("evil.example");
        assert!(authorize_local(Some(&target), &headers(&[(&HOST, b"localhost")])).is_err());
    }
}
