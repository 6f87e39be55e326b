//! Detects requests with both Content-Length and Transfer-Encoding, which hyper accepts (request smuggling, RFC 9112,
//! 6.3).
//!
//! Hyper then reads chunks and drops the length; a server in front of the proxy may have read the length. Only the raw
//! bytes show both, so the framing of a connection is tracked beside hyper.

use std::sync::{Mutex, PoisonError};

use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;

use crate::response::ProblemDetails;
use crate::transport::proxy::accept::framing::{BodyLength, Framing};
use crate::transport::proxy::accept::inspect::conflicting_lengths;

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
