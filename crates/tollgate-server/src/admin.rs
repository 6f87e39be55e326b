//! The admin address: health, metrics, rules, bans and keys.
//!
//! Without tokens it serves local callers only: it checks the `Host` header against DNS rebinding and
//! refuses calls from other origins.

use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HOST, HeaderName, HeaderValue, ORIGIN, WWW_AUTHENTICATE};
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use tollgate::Enforce;
use tollgate::request::{fields, host};

use crate::answer::{self, Problem};
use crate::connection::{Answer, Shutdown};
use crate::gate::Gate;
use crate::metrics;
use crate::tokens::{Role, Tokens};
use crate::transport::proxy::Proxy;

mod bans;
mod keys;
mod page;
mod queue;
mod rules;

pub struct Admin {
    pub gate: Arc<Gate>,
    pub proxy: Option<Arc<Proxy>>,
    pub tokens: Option<Tokens>,
    pub shutdown: Shutdown,
}

/// Answers one request.
pub async fn handle(admin: Arc<Admin>, request: Request<Incoming>) -> Answer {
    let answered = route(&admin, request).await;
    answered.unwrap_or_else(|problem| {
        let unauthorised = problem.status == StatusCode::UNAUTHORIZED;
        let mut answer = Answer::from(problem);
        if unauthorised {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    })
}

async fn route(admin: &Admin, request: Request<Incoming>) -> Result<Answer, Problem> {
    let (gate, method) = (&admin.gate, request.method().clone());
    let path = request.uri().path().to_owned();
    let only = |allowed: &'static str| {
        if allowed.split(", ").any(|each| each == method.as_str()) {
            Ok(())
        } else {
            Err(Problem::method(allowed))
        }
    };
    match path.as_str() {
        "/healthz" => return only("GET, HEAD").map(|()| health(gate)),
        "/readyz" => return only("GET, HEAD").map(|()| readiness(admin)),
        _ => {}
    }
    admin.guard(&request)?;
    match path.as_str() {
        "/" => only("GET, HEAD").map(|()| page::show(gate)),
        "/metrics" => {
            only("GET")?;
            let page = metrics::write(gate, admin.proxy.as_deref());
            Ok(answer::text(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", page))
        }
        "/v1/rules" => only("GET").map(|()| rules::list(gate)),
        "/v1/queue" => {
            only("GET")?;
            queue::list(admin, request.uri().query().unwrap_or_default()).await
        }
        "/v1/bans" => {
            only("GET, POST")?;
            if method == Method::POST { bans::add(gate, request).await } else { Ok(bans::list(gate)) }
        }
        "/v1/keys" => {
            only("GET, DELETE")?;
            keys::handle(gate, &method, request.uri().query().unwrap_or_default()).await
        }
        path => {
            if let Some(id) = path.strip_prefix("/v1/rules/") {
                only("GET")?;
                return rules::show(gate, id);
            }
            if let Some(rest) = path.strip_prefix("/v1/queue/") {
                return queue::one(admin, &method, rest).await;
            }
            if let Some(key) = path.strip_prefix("/v1/bans/") {
                only("DELETE")?;
                return bans::remove(gate, key);
            }
            Err(Problem::not_found(path))
        }
    }
}

/// Alive; and whether limits hold as they should.
fn health(gate: &Gate) -> Answer {
    let mut health = central_health(gate);
    let enforce = gate.engine.enforce();
    health["enforce"] = enforce.name().into();
    if enforce != Enforce::On {
        health["protection"] = "off".into();
    }
    if let Some(rulebook) = gate.rulebook.get() {
        let standing = rulebook.standing();
        if standing.trouble.is_some() || !standing.left_out.is_empty() {
            health["status"] = "impaired".into();
        }
        let left_out =
            standing.left_out.iter().map(|(item, why)| json!({ "what": item.kind.name(), "why": why }));
        health["rules_db"] = json!({
            "name": rulebook.name,
            "version": standing.version.map(|version| version.to_string()),
            "trouble": standing.trouble,
            "lag": standing.lag,
            "left_out": left_out.collect::<Value>(),
        });
    }
    answer::json(StatusCode::OK, &health)
}

fn central_health(gate: &Gate) -> Value {
    let Some(central) = gate.central.get() else { return json!({ "status": "ok" }) };
    let servers: Vec<_> = central
        .health()
        .iter()
        .map(|server| json!({ "server": server.server, "up": server.trouble.is_none(), "trouble": server.trouble }))
        .collect();
    let (status, protection) = if central.is_impaired() { ("impaired", "off") } else { ("ok", "on") };
    json!({ "status": status, "protection": protection, "store": servers })
}

/// By the time this answers, every listener is bound and the first rules are in force.
fn readiness(admin: &Admin) -> Answer {
    if *admin.shutdown.borrow() {
        return answer::json(StatusCode::SERVICE_UNAVAILABLE, &json!({ "status": "stopping" }));
    }
    if admin.gate.rulebook.get().is_some_and(|rulebook| !rulebook.is_ready()) {
        let body = json!({ "status": "waiting for the rules database" });
        return answer::json(StatusCode::SERVICE_UNAVAILABLE, &body);
    }
    let generation = admin.gate.engine.policy().generation();
    answer::json(StatusCode::OK, &json!({ "status": "ready", "rules_generation": generation }))
}

impl Admin {
    fn guard(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        let header = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
        let refused = match &self.tokens {
            Some(tokens) => refuse_by_token(tokens, header(AUTHORIZATION), needed(request)),
            None => refuse_by_origin(header(HOST), header(ORIGIN)),
        };
        let Some(problem) = refused else { return Ok(()) };
        // The collection only: what follows it may be a key.
        let path: Vec<_> = request.uri().path().splitn(4, '/').take(3).collect();
        let (status, path) = (problem.status.as_u16(), path.join("/"));
        tracing::warn!(status, path, method = %request.method(), "admin call refused");
        Err(problem)
    }
}

/// The role that a call needs.
fn needed(request: &Request<Incoming>) -> Role {
    match *request.method() {
        Method::GET | Method::HEAD => Role::Read,
        _ => Role::Operate,
    }
}

fn refuse_by_token(tokens: &Tokens, authorization: Option<&str>, needed: Role) -> Option<Problem> {
    let Some(token) = authorization.and_then(fields::bearer) else {
        return Some(Problem::new(StatusCode::UNAUTHORIZED, "send a token: Authorization: Bearer …"));
    };
    match tokens.role(token) {
        None => Some(Problem::new(StatusCode::UNAUTHORIZED, "the token is not known")),
        Some(role) if role < needed => {
            Some(Problem::new(StatusCode::FORBIDDEN, "the token's role does not allow this"))
        }
        Some(_) => None,
    }
}

fn refuse_by_origin(asked_host: Option<&str>, origin: Option<&str>) -> Option<Problem> {
    let forbidden = |detail: &str| Some(Problem::new(StatusCode::FORBIDDEN, detail));
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
        _ => None,
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
            refuse_by_origin(Some(host), origin).is_some()
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
        assert!(refuse_by_origin(None, None).is_some());
    }
}
