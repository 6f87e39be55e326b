//! Writes responses of HTTP/1.1 as hyper does, into a buffer that is sent as a whole.

use hyper::body::Body as _;
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, CONTENT_LENGTH, DATE, HeaderMap, TRAILER, TRANSFER_ENCODING};
use hyper::http::response::Parts;
use hyper::{Method, StatusCode};
use tollgate::Time;

use crate::http1::{CachedDate, push_header};
use crate::transport::proxy::body::ResponseBody;
use crate::transport::proxy::upstream::plain_connection::says_close;

/// The buffer of an idle connection.
const IDLE_BYTES: usize = 2 << 10;
/// Longer pieces of a body are sent from where they are.
pub const MAX_COPIED_BYTES: usize = 16 << 10;

/// How the body follows the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// None is sent.
    Empty,
    /// So many bytes.
    Length(u64),
    Chunked,
}

#[derive(Default)]
pub struct ResponseWriter {
    pub out: Vec<u8>,
    pub(super) date: CachedDate,
}

/// A response whose head was written.
pub struct StartedResponse {
    pub coding: Coding,
    /// Whether the client is told that the connection is closed.
    pub closes: bool,
}

impl ResponseWriter {
    /// Writes the head.
    pub fn start(
        &mut self,
        head: &Parts,
        body: &ResponseBody,
        method: &Method,
        closes: bool,
        now: Time,
    ) -> StartedResponse {
        let out = &mut self.out;
        let closes = closes || says_close(&head.headers);
        let reason = head.extensions.get::<ReasonPhrase>().map(ReasonPhrase::as_bytes);
        let reason = reason.unwrap_or_else(|| head.status.canonical_reason().unwrap_or_default().as_bytes());
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(head.status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(reason);
        out.extend_from_slice(b"\r\n");
        let length = body.size_hint().exact();
        let coding = match length {
            _ if !has_body(method, head.status) => Coding::Empty,
            Some(length) => Coding::Length(length),
            None => Coding::Chunked,
        };
        let mut has_date = false;
        for (name, value) in &head.headers {
            match *name {
                CONTENT_LENGTH | TRANSFER_ENCODING | CONNECTION => continue,
                TRAILER if coding != Coding::Chunked => continue,
                DATE => has_date = true,
                _ => {}
            }
            push_header(out, name.as_str(), value.as_bytes());
        }
        match coding {
            Coding::Empty => write_unsent_length(out, &head.headers, length, head.status),
            Coding::Length(length) => {
                push_header(out, "content-length", itoa::Buffer::new().format(length).as_bytes());
            }
            Coding::Chunked => push_header(out, "transfer-encoding", b"chunked"),
        }
        if closes {
            push_header(out, "connection", b"close");
        }
        if !has_date {
            push_header(out, "date", self.date.at(now));
        }
        out.extend_from_slice(b"\r\n");
        StartedResponse { coding, closes }
    }

    /// Writes the start of a chunk; its data and [`end_chunk`](Self::end_chunk) follow.
    pub fn start_chunk(&mut self, bytes: usize) {
        self.out.extend_from_slice(format!("{bytes:x}\r\n").as_bytes());
    }

    pub fn end_chunk(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    /// Writes the end of a chunked body. Without trailers: the client of a plain request has not said that it takes them.
    pub fn end_chunks(&mut self) {
        self.out.extend_from_slice(b"0\r\n\r\n");
    }

    /// Empties the buffer, whose bytes were sent.
    pub fn clear(&mut self) {
        self.out.clear();
        if self.out.capacity() > MAX_COPIED_BYTES + IDLE_BYTES {
            self.out = Vec::new();
        }
    }

    /// Frees a buffer that had to grow.
    pub fn shrink(&mut self) {
        if self.out.capacity() > IDLE_BYTES {
            self.out = Vec::new();
        }
    }
}

fn has_body(method: &Method, status: StatusCode) -> bool {
    let is_empty = status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || *method == Method::HEAD;
    !is_empty
}

/// The length that a body would have (RFC 9110, 8.6).
fn write_unsent_length(out: &mut Vec<u8>, headers: &HeaderMap, length: Option<u64>, status: StatusCode) {
    if status.is_informational() || status == StatusCode::NO_CONTENT {
        return;
    }
    let stated = headers.get(CONTENT_LENGTH).map(|value| value.as_bytes());
    let mut buffer = itoa::Buffer::new();
    let known = length.filter(|length| *length > 0).map(|length| buffer.format(length).as_bytes());
    if let Some(length) = stated.or(known) {
        push_header(out, "content-length", length);
    }
}
