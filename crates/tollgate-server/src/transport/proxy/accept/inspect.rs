//! Rejects ambiguous requests before any decision (request smuggling): messages that two servers could read differently
//! are rejected, not repaired.

use hyper::header::{CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{StatusCode, Version};

use crate::response::ProblemDetails;

/// The requested host as one header value; the request target has precedence over `Host`.
pub fn host(parts: &Parts) -> Result<HeaderValue, ProblemDetails> {
    let mut lines = parts.headers.get_all(HOST).iter();
    let header = lines.next();
    let more = lines.next();
    if more.is_some() {
        return Err(bad("host", "there is more than one Host header"));
    }
    if let Some(authority) = parts.uri.authority() {
        let named = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_user, host)| host);
        if parts.version == Version::HTTP_2
            && header.is_some_and(|host| !host.as_bytes().eq_ignore_ascii_case(named.as_bytes()))
        {
            return Err(bad("host", "Host and :authority name different hosts"));
        }
        return HeaderValue::from_str(named).map_err(|_| bad("host", "the host cannot be read"));
    }
    match header {
        Some(host) if host.as_bytes().iter().all(|byte| is_host_byte(*byte)) => Ok(host.clone()),
        Some(_) => Err(bad("host", "the Host header is not a valid host")),
        None if parts.version < Version::HTTP_11 => Ok(HeaderValue::from_static("")),
        None => Err(no_host()),
    }
}

pub fn no_host() -> ProblemDetails {
    bad("host", "the Host header is missing")
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~%!$&'()*+,;=:[]".contains(&byte)
}

/// Rejects requests that cannot be forwarded faithfully.
pub fn check(parts: &Parts) -> Result<(), ProblemDetails> {
    if let Some(coding) = parts.headers.get(TRANSFER_ENCODING) {
        check_coding(&parts.headers, coding)?;
    }
    if let Some(expected) = parts.headers.get(EXPECT)
        && !expected.as_bytes().eq_ignore_ascii_case(b"100-continue")
    {
        return Err(ProblemDetails::new(
            StatusCode::EXPECTATION_FAILED,
            "only Expect: 100-continue is supported",
        ));
    }
    Ok(())
}

/// Requires `chunked` as the only coding, once, and no length beside it.
fn check_coding(headers: &HeaderMap, coding: &HeaderValue) -> Result<(), ProblemDetails> {
    if headers.contains_key(CONTENT_LENGTH) {
        return Err(conflicting_lengths());
    }
    if headers.get_all(TRANSFER_ENCODING).iter().count() > 1
        || !coding.as_bytes().eq_ignore_ascii_case(b"chunked")
    {
        return Err(ProblemDetails {
            field: Some("transfer-encoding".to_owned()),
            ..ProblemDetails::new(
                StatusCode::NOT_IMPLEMENTED,
                "the only supported transfer encoding is chunked",
            )
        });
    }
    Ok(())
}

pub fn conflicting_lengths() -> ProblemDetails {
    bad("content-length", "Content-Length and Transfer-Encoding contradict each other")
}

fn bad(field: &str, detail: &str) -> ProblemDetails {
    ProblemDetails::bad_field(field, detail)
}
