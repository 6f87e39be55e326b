//! The head of a client's request: its host, and the hit that the rules see of it. The same for every transport that is
//! given whole requests.

use std::net::IpAddr;

use http_body_util::Full;
use hyper::header::{ACCEPT, HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Response, Version};
use tollgate::Hit;

use crate::connection::FullResponse;
use crate::error_response;
use crate::gate::{FieldSelection, Gate, GateSnapshot};
use crate::response::{self, ProblemDetails};

impl GateSnapshot {
    /// The requested host, as [`host`] reads it. A request without one is rejected if rules name hosts: the API would use
    /// its default host, and rules for that host would not match.
    pub fn requested_host(&self, parts: &Parts) -> Result<HeaderValue, ProblemDetails> {
        let host = host(parts)?;
        if host.is_empty() && self.policy.names_hosts() { Err(no_host()) } else { Ok(host) }
    }
}

/// Decides a request that arrived from `peer`: 200 without a body, or the denial for its client. Both have the headers of
/// its limits.
pub async fn decide(
    gate: &Gate,
    snapshot: &GateSnapshot,
    parts: &Parts,
    host: &HeaderValue,
    peer: IpAddr,
) -> FullResponse {
    let client = snapshot.live.trust().client(peer, &parts.headers);
    let now = gate.now();
    let hit = snapshot.identify(hit(parts, host, client, &snapshot.fields), now);
    let verdict = gate.check(snapshot, &hit, now).await;
    let mut answer = match verdict.allowed {
        true => Response::new(Full::default()),
        false => {
            let ticket = gate.ticket(&verdict, now);
            let format = error_response::format(parts.headers.get(ACCEPT));
            let mut denied = error_response::denied(&verdict, ticket.as_deref(), format);
            // Gateways such as nginx can pass on a header of this answer, but not its body.
            error_response::write_ticket(&mut denied, ticket.as_deref());
            denied
        }
    };
    response::write_headers(&mut answer, &verdict, snapshot.live.headers);
    answer
}

/// The hit of a request, with the fields that are selected.
pub fn hit<'r>(
    parts: &'r Parts,
    host: &'r HeaderValue,
    client: IpAddr,
    fields: &'r FieldSelection,
) -> Hit<'r> {
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let hit = Hit::on(parts.method.as_str(), host.to_str().unwrap_or_default(), path).ip(client);
    fields.add_headers(hit, &parts.headers)
}

/// The requested host as one header value; the request target has precedence over `Host`.
fn host(parts: &Parts) -> Result<HeaderValue, ProblemDetails> {
    let mut lines = parts.headers.get_all(HOST).iter();
    let header = lines.next();
    let more = lines.next();
    if more.is_some() {
        return Err(ProblemDetails::bad_field("host", "there is more than one Host header"));
    }
    if let Some(authority) = parts.uri.authority() {
        let named = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_user, host)| host);
        if parts.version == Version::HTTP_2
            && header.is_some_and(|host| !host.as_bytes().eq_ignore_ascii_case(named.as_bytes()))
        {
            return Err(ProblemDetails::bad_field("host", "Host and :authority name different hosts"));
        }
        return HeaderValue::from_str(named)
            .map_err(|_| ProblemDetails::bad_field("host", "the host cannot be read"));
    }
    match header {
        Some(host) if host.as_bytes().iter().all(|byte| is_host_byte(*byte)) => Ok(host.clone()),
        Some(_) => Err(ProblemDetails::bad_field("host", "the Host header is not a valid host")),
        None if parts.version < Version::HTTP_11 => Ok(HeaderValue::from_static("")),
        None => Err(no_host()),
    }
}

/// The value of a `Host`, if it is one.
pub fn as_host(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|host| host.bytes().all(is_host_byte))
}

fn no_host() -> ProblemDetails {
    ProblemDetails::bad_field("host", "the Host header is missing")
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'-' | b'.' | b'_' | b'~' | b'%' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')')
        || matches!(byte, b'*' | b'+' | b',' | b';' | b'=' | b':' | b'[' | b']')
}
