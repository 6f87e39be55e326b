//! The response to a denied request.

use std::time::Duration;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;
use tollgate::HeaderStyle;
use tollgate::internal::EngineVerdict;
use tollgate::internal::denial::Denial;
use tollgate::internal::headers::headers;
use tollgate::internal::verdict::whole_seconds;

use crate::grpc;
use crate::request::Protocol;

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

/// The response to a request that a verdict denies.
pub(crate) fn response(verdict: &EngineVerdict, style: HeaderStyle, protocol: Protocol) -> Response<Bytes> {
    let mut response = denial(Denial::of(verdict), verdict.retry_after, protocol);
    for (name, value) in headers(verdict, style).iter() {
        let value = HeaderValue::from_str(value).expect("rule ids and numbers fit a header");
        response.headers_mut().insert(HeaderName::from_static(name), value);
    }
    response
}

/// The response to a request that would have been held, if there were room.
pub(crate) fn hold_queue_full(wait: Duration, protocol: Protocol) -> Response<Bytes> {
    let detail = "Too many requests are waiting for their turn".to_owned();
    let denied = Denial { status: 429, kind: "about:blank", detail, violated: Vec::new() };
    let mut response = denial(denied, Some(wait), protocol);
    let wait = HeaderValue::from(whole_seconds(wait).as_secs());
    response.headers_mut().insert(RETRY_AFTER, wait);
    response
}

fn denial(denial: Denial, retry_after: Option<Duration>, protocol: Protocol) -> Response<Bytes> {
    match protocol {
        Protocol::Http => problem(denial),
        Protocol::Grpc => trailers_only(denial, retry_after, "application/grpc"),
        Protocol::GrpcWeb => trailers_only(denial, retry_after, "application/grpc-web+proto"),
    }
}

/// Problem details (RFC 9457).
fn problem(denial: Denial) -> Response<Bytes> {
    let status = StatusCode::from_u16(denial.status).expect("denials have valid statuses");
    let mut body = json!({
        "type": denial.kind,
        "title": status.canonical_reason(),
        "status": denial.status,
        "detail": denial.detail,
    });
    if !denial.violated.is_empty() {
        body["violated-policies"] = denial.violated.into();
    }
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = status;
    write_type(response.headers_mut(), "application/problem+json");
    response
}

/// A gRPC response without messages has its trailers in place of the headers.
fn trailers_only(denial: Denial, retry_after: Option<Duration>, kind: &'static str) -> Response<Bytes> {
    let code = match denial.status {
        403 => grpc::PERMISSION_DENIED,
        503 => grpc::UNAVAILABLE,
        _ => grpc::RESOURCE_EXHAUSTED,
    };
    let mut response = Response::new(Bytes::new());
    let headers = response.headers_mut();
    write_type(headers, kind);
    headers.insert(GRPC_STATUS, HeaderValue::from(code));
    let message = HeaderValue::try_from(grpc::message(&denial.detail));
    headers.insert(GRPC_MESSAGE, message.expect("percent-encoded text fits a header"));
    if let Some(wait) = retry_after {
        let details = HeaderValue::try_from(grpc::details(code, &denial.detail, wait));
        headers.insert(GRPC_DETAILS, details.expect("base64 fits a header"));
    }
    response
}

fn write_type(headers: &mut HeaderMap, kind: &'static str) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}
