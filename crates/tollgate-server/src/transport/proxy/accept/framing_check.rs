//! What a client really wrote: a head with both a length and chunks.
//!
//! Hyper reads chunks then and drops the length; a server in front of us may have read the length. Only the bytes tell,
//! so the framing of a connection is tracked beside hyper.

use std::sync::{Mutex, PoisonError};

use hyper::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;

use crate::response::ProblemDetails;
use crate::transport::proxy::accept::framing::{BodyLength, Framing};
use crate::transport::proxy::accept::inspect::conflicting_lengths;

/// The heads of a connection.
#[derive(Default)]
pub struct FramingCheck(Mutex<Framing>);

impl FramingCheck {
    /// Takes what was read.
    pub fn add(&self, read: &[u8]) {
        self.with(|framing| framing.add(read));
    }

    /// Looks at the head of the request that has just been read. One that hyper reads in another way is refused.
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

    /// What follows is another protocol.
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
