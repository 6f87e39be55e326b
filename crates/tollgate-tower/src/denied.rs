//! The response to a denied request.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use tollgate::HeaderStyle;
use tollgate::internal::EngineVerdict;
use tollgate::internal::denial::{Denial, ErrorFormat, TICKET_HEADER, TICKET_URN_PREFIX, html_page};
use tollgate::internal::headers::headers;
use tollgate::internal::verdict::whole_seconds;

use crate::grpc;
use crate::request::{IncomingRequest, Protocol};

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// The response to a request that a verdict denies.
pub(crate) fn response(
    verdict: &EngineVerdict,
    ticket: Option<&str>,
    style: HeaderStyle,
    head: IncomingRequest<'_>,
) -> Response<Bytes> {
    let mut response = denial(Denial::of(verdict), verdict.client_wait(), ticket, head);
    for (name, value) in headers(verdict, style).iter() {
        let value = HeaderValue::from_str(value).expect("rule ids and numbers fit a header");
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
    response
}

/// The response to a request that would have been held, if there were room.
pub(crate) fn hold_queue_full(wait: Duration, head: IncomingRequest<'_>) -> Response<Bytes> {
    let detail = "Too many requests are waiting for their turn".to_owned();
    let mut response = denial(Denial::new(429, "about:blank", detail), Some(wait), None, head);
    let wait = HeaderValue::from(whole_seconds(wait).as_secs());
    response.headers_mut().insert(RETRY_AFTER, wait);
    response
}

fn denial(
    denial: Denial<'_>,
    retry_after: Option<Duration>,
    ticket: Option<&str>,
    head: IncomingRequest<'_>,
) -> Response<Bytes> {
    let (mut response, has_ticket) = match head.protocol() {
        Protocol::Http => http_response(denial, ticket, head.error_format()),
        Protocol::Grpc => (trailers_only(denial, retry_after, "application/grpc"), false),
        Protocol::GrpcWeb => (trailers_only(denial, retry_after, "application/grpc-web+proto"), false),
        Protocol::GrpcWebText => {
            (trailers_only(denial, retry_after, "application/grpc-web-text+proto"), false)
        }
    };
    if let Some(ticket) = ticket.filter(|_| !has_ticket) {
        let ticket = HeaderValue::from_str(ticket).expect("a ticket is base64");
        response.headers_mut().insert(HeaderName::from_static(TICKET_HEADER), ticket);
    }
    response
}

/// The body of the rule, a page, or problem details (RFC 9457); and whether the ticket is in it.
fn http_response(denial: Denial<'_>, ticket: Option<&str>, format: ErrorFormat) -> (Response<Bytes>, bool) {
    let status = StatusCode::from_u16(denial.status).expect("denials have valid statuses");
    let title = status.canonical_reason().unwrap_or("Error");
    let own = denial.own_body(format);
    let (content_type, body) = match (own, format) {
        (Some(own), _) => {
            let content_type = HeaderValue::from_str(&own.content_type).expect("media types fit a header");
            (content_type, own.text.as_bytes().to_vec())
        }
        (None, ErrorFormat::Html) => {
            let page = html_page(title, &denial.detail, ticket);
            (HeaderValue::from_static("text/html; charset=utf-8"), page.into_bytes())
        }
        (None, ErrorFormat::Json) => {
            (HeaderValue::from_static("application/problem+json"), problem(denial, title, ticket))
        }
    };
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    write_type(response.headers_mut(), content_type);
    (response, own.is_none())
}

/// Problem details, written in place: a flood of denied requests should cost little.
fn problem(denial: Denial<'_>, title: &str, ticket: Option<&str>) -> Vec<u8> {
    const USUAL_BYTES: usize = 320;
    let mut body = Vec::with_capacity(USUAL_BYTES);
    body.extend_from_slice(b"{\"type\":");
    push_json(&mut body, denial.kind);
    body.extend_from_slice(b",\"title\":");
    push_json(&mut body, title);
    body.extend_from_slice(b",\"status\":");
    body.extend_from_slice(denial.status.to_string().as_bytes());
    body.extend_from_slice(b",\"detail\":");
    push_json(&mut body, &denial.detail);
    if let Some(ticket) = ticket {
        body.extend_from_slice(b",\"instance\":");
        push_json(&mut body, &format!("{TICKET_URN_PREFIX}{ticket}"));
    }
    if !denial.violated.is_empty() {
        body.extend_from_slice(b",\"violated-policies\":[");
        for (n, policy) in denial.violated.iter().enumerate() {
            body.extend_from_slice(if n > 0 { b"," } else { b"" });
            push_json(&mut body, policy);
        }
        body.push(b']');
    }
    body.push(b'}');
    body
}

fn push_json(body: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(body, text).expect("writing text to memory cannot fail");
}

/// A gRPC response without messages has its trailers in place of the headers.
fn trailers_only(denial: Denial<'_>, retry_after: Option<Duration>, kind: &'static str) -> Response<Bytes> {
    let code = match denial.status {
        403 => grpc::PERMISSION_DENIED,
        503 => grpc::UNAVAILABLE,
        _ => grpc::RESOURCE_EXHAUSTED,
    };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    write_type(headers, HeaderValue::from_static(kind));
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    let message = HeaderValue::try_from(grpc::message(&denial.detail));
    headers.insert(GRPC_MESSAGE, message.expect("percent-encoded text fits a header"));
    if let Some(wait) = retry_after {
        let details = HeaderValue::try_from(grpc::details(code, &denial.detail, wait));
        headers.insert(GRPC_DETAILS, details.expect("base64 fits a header"));
    }
    response
}

fn write_type(headers: &mut HeaderMap, kind: HeaderValue) {
    headers.insert(CONTENT_TYPE, kind);
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}
