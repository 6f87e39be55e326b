//! Rejects ambiguous requests before any decision (request smuggling): messages that two servers could read differently
//! are rejected, not repaired.
//!
//! hyper accepts a request with both Content-Length and Transfer-Encoding (RFC 9112, 6.3), reads chunks and drops the
//! length; a server in front of the proxy may have read the length. Only the raw bytes show both, so the framing of a
//! connection is tracked beside hyper ([`FramingCheck`]).

use std::sync::{Mutex, PoisonError};

use hyper::StatusCode;
use hyper::header::{CONTENT_LENGTH, EXPECT, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;

use crate::response::ProblemDetails;
use crate::transport::proxy::accept::framing::{BodyLength, Framing};

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

fn conflicting_lengths() -> ProblemDetails {
    bad("content-length", "Content-Length and Transfer-Encoding contradict each other")
}

fn bad(field: &str, detail: &str) -> ProblemDetails {
    ProblemDetails::bad_field(field, detail)
}

/// The request heads of a connection.
#[derive(Default)]
pub struct FramingCheck(Mutex<Framing>);

impl FramingCheck {
    /// Processes bytes that were read.
    pub fn add(&self, read: &[u8]) {
        self.with(|framing| framing.add(read));
    }

    /// Checks the head of the request that hyper has just returned. Rejects it if hyper reads it differently.
    pub fn check(&self, parts: &Parts) -> Result<(), ProblemDetails> {
        let written = self.with(Framing::next_head);
        let is_same = match written {
            Some(BodyLength::Bytes(length)) => {
                let read = parts.headers.get(CONTENT_LENGTH).map_or(Some(0), number);
                read == Some(length) && !parts.headers.contains_key(TRANSFER_ENCODING)
            }
            Some(BodyLength::Chunked) => parts.headers.contains_key(TRANSFER_ENCODING),
            Some(BodyLength::Both) | None => false,
        };
        if is_same { Ok(()) } else { Err(conflicting_lengths()) }
    }

    /// The following bytes are another protocol.
    pub fn stop(&self) {
        self.with(Framing::stop);
    }

    fn with<T>(&self, work: impl FnOnce(&mut Framing) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn number(value: &HeaderValue) -> Option<u64> {
    value.to_str().ok()?.trim().parse().ok()
}
