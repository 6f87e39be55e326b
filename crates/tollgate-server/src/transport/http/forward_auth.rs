//! `/v1/forward-auth`: a gateway asks whether a request that it has received may pass (Traefik `forwardAuth`, Caddy
//! `forward_auth`, nginx `auth_request`).
//!
//! The gateway describes the request in `X-Forwarded-Method`, `-Uri`, `-Host` and `-For`, and passes its headers on. A
//! client could write all of these itself, so the gateway is identified by its address: it is one of `trusted_proxies`.

use std::net::IpAddr;

use hyper::body::Incoming;
use hyper::header::{ACCEPT, CACHE_CONTROL, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode, Uri};
use tollgate::internal::identity::forwarded::ForwardingHeader;

use super::CallerAccess;
use crate::caller_auth::RefusedCaller;
use crate::connection::FullResponse;
use crate::error_response;
use crate::gate::{Gate, GateSnapshot};
use crate::request_head;
use crate::response::ProblemDetails;

pub const PATH: &str = "/v1/forward-auth";

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Decides the request that a gateway describes: 200 without a body, or a denial for its client.
pub async fn decide(
    gate: &Gate,
    access: &CallerAccess,
    request: Request<Incoming>,
    peer: IpAddr,
) -> FullResponse {
    let snapshot = gate.snapshot().with_trace(gate.trace(request.headers()));
    if let Err(problem) = require_trusted(&snapshot, peer) {
        let refused = RefusedCaller::without_token(problem);
        access.log_refused(&request, &refused);
        return refused.problem.into();
    }
    let (parts, _body) = request.into_parts();
    let format = error_response::format(parts.headers.get(ACCEPT));
    match described_request(parts, &snapshot) {
        Ok((parts, host)) => {
            let mut answer = request_head::decide(gate, &snapshot, &parts, &host, peer).await;
            answer.headers_mut().entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
            answer
        }
        Err(problem) => error_response::problem(problem, format),
    }
}

fn require_trusted(snapshot: &GateSnapshot, peer: IpAddr) -> Result<(), ProblemDetails> {
    let peer = peer.to_canonical();
    if snapshot.live.trusted.contains(peer) {
        return Ok(());
    }
    let detail = format!(
        "{PATH} is for gateways whose address is in trusted_proxies, and {peer} is not: add it there, and nothing that \
         clients can connect from"
    );
    Err(ProblemDetails::new(StatusCode::FORBIDDEN, detail))
}

/// The request that the gateway has received, and its host.
fn described_request(
    mut parts: Parts,
    snapshot: &GateSnapshot,
) -> Result<(Parts, HeaderValue), ProblemDetails> {
    let method = required(&parts.headers, X_FORWARDED_METHOD)?;
    parts.method = Method::from_bytes(method.as_bytes())
        .map_err(|_| ProblemDetails::bad_field(X_FORWARDED_METHOD.as_str(), "not a valid method"))?;
    let uri = required(&parts.headers, X_FORWARDED_URI)?;
    let uri = Uri::try_from(uri.as_bytes()).ok().filter(|uri| uri.authority().is_none());
    parts.uri = uri.ok_or_else(|| {
        ProblemDetails::bad_field(
            X_FORWARDED_URI.as_str(),
            "not a valid path with its query: expected /path?query",
        )
    })?;
    require_client_address(&parts.headers, snapshot.live.trusted_header)?;
    let host = single(&parts.headers, X_FORWARDED_HOST)?.cloned();
    // An empty host is that of a client that sent none.
    parts.headers.insert(HOST, host.unwrap_or(HeaderValue::from_static("")));
    let host = snapshot.requested_host(&parts)?;
    Ok((parts, host))
}

/// Without the header the gateway would be taken for the client, and all clients for one.
fn require_client_address(headers: &HeaderMap, header: ForwardingHeader) -> Result<(), ProblemDetails> {
    let name = match header {
        ForwardingHeader::XForwardedFor => X_FORWARDED_FOR,
        ForwardingHeader::Forwarded => FORWARDED,
    };
    if headers.contains_key(&name) { Ok(()) } else { Err(missing(&name)) }
}

fn required(headers: &HeaderMap, name: HeaderName) -> Result<&HeaderValue, ProblemDetails> {
    single(headers, name.clone())?.ok_or_else(|| missing(&name))
}

/// The value of a header that only the gateway may write: if there are two, one is the client's.
fn single(headers: &HeaderMap, name: HeaderName) -> Result<Option<&HeaderValue>, ProblemDetails> {
    let mut values = headers.get_all(&name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => {
            let detail = format!("there is more than one {name}: the gateway must replace what clients send");
            Err(ProblemDetails::bad_field(name.as_str(), detail))
        }
    }
}

fn missing(name: &HeaderName) -> ProblemDetails {
    let detail = format!("{name} is missing: the gateway must send it");
    ProblemDetails::bad_field(name.as_str(), detail)
}
