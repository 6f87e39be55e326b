//! Who may call what: by token and role, or, without tokens, by being local.

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, ORIGIN};
use hyper::{Request, StatusCode};
use tollgate::request::{fields, host};

use crate::admin::Admin;
use crate::answer::Problem;
use crate::tokens::{Role, Tokens};

/// Whoever calls where there are no tokens.
const LOCAL: &str = "local";

impl Admin {
    /// The name of the caller, if the call is allowed; else the refusal, which is logged without what is secret.
    pub(super) fn guard(&self, request: &Request<Incoming>, needed: Role) -> Result<String, Problem> {
        let header = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
        let judged = match &self.tokens {
            Some(tokens) => by_token(tokens, header(AUTHORIZATION), needed),
            None => by_origin(header(HOST), header(ORIGIN)).map(|()| LOCAL),
        };
        judged.map(str::to_owned).map_err(|(who, problem)| {
            // The collection only: what follows it may be a key.
            let path: Vec<_> = request.uri().path().splitn(4, '/').take(3).collect();
            let (status, path) = (problem.status.as_u16(), path.join("/"));
            let (method, detail) = (request.method(), &problem.detail);
            tracing::warn!(status, path, %method, who, "admin call refused: {detail}");
            problem
        })
    }
}

/// A refusal: who was refused, as far as that is known, and why.
type Refused<'t> = (&'t str, Problem);

fn by_token<'t>(
    tokens: &'t Tokens,
    authorization: Option<&str>,
    needed: Role,
) -> Result<&'t str, Refused<'t>> {
    let nobody = |detail: &str| ("", Problem::new(StatusCode::UNAUTHORIZED, detail));
    let Some(token) = authorization.and_then(fields::bearer) else {
        return Err(nobody("send a token: Authorization: Bearer …"));
    };
    match tokens.find(token) {
        None => Err(nobody("the token is not known")),
        Some((role, name)) if role < needed => {
            let detail =
                format!("the token's role is {}, and this needs the role {}", role.name(), needed.name());
            Err((name, Problem::new(StatusCode::FORBIDDEN, detail)))
        }
        Some((_, name)) => Ok(name),
    }
}

fn by_origin(asked_host: Option<&str>, origin: Option<&str>) -> Result<(), Refused<'static>> {
    let forbidden = |detail: &str| Err(("", Problem::new(StatusCode::FORBIDDEN, detail)));
    let Some(asked_host) = asked_host else { return forbidden("the Host header is missing") };
    if !is_local(asked_host) {
        return forbidden(
            "the Host header names no local address: without tokens only local callers are served",
        );
    }
    match origin {
        Some(origin) if origin.split_once("://").is_none_or(|(_, host)| host != asked_host) => {
            forbidden("calls from other origins are refused")
        }
        _ => Ok(()),
    }
}

fn is_local(asked_host: &str) -> bool {
    let name = host::canonical(asked_host);
    let ip = name.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    name == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_hosts_and_origins_are_served_without_tokens() {
        fn refused(host: &str, origin: Option<&str>) -> bool {
            by_origin(Some(host), origin).is_err()
        }
        for host in ["localhost:7070", "127.0.0.1:7070", "[::1]:7070", "127.0.0.1"] {
            assert!(!refused(host, None), "{host}");
            assert!(!refused(host, Some(&format!("http://{host}"))), "{host}");
            assert!(refused(host, Some("http://evil.example")), "{host}");
            assert!(refused(host, Some("null")), "{host}");
        }
        for host in
            ["evil.example:7070", "127.0.0.1.evil.example", "localhost.evil.example", "10.0.0.1:7070", ""]
        {
            assert!(refused(host, None), "{host}");
        }
        assert!(by_origin(None, None).is_err());
    }
}
