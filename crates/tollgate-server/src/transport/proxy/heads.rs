//! What a client really wrote: a head with both a length and chunks.
//!
//! Hyper reads chunks then and drops the length; a server in front of us may have read the length. Only the
//! bytes tell, so the bytes of a head are kept until its request is looked at.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hyper::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use hyper::http::request::Parts;

use crate::answer::Problem;
use crate::connection::MAX_HEADER_BYTES;
use crate::transport::proxy::inspect::both_lengths;

/// What may lie between the start of a head and the last byte that was read when its request is looked at.
const MAX_KEPT: usize = 2 * MAX_HEADER_BYTES + (16 << 10);

/// The latest bytes of a connection.
#[derive(Default)]
pub struct Heads(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    bytes: Vec<u8>,
    /// Bytes of a body that are still to come: no head begins in them.
    skip: u64,
    /// After chunks we do not know where the next head begins.
    lost: bool,
}

impl Heads {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was read.
    pub fn add(&self, read: &[u8]) {
        if !read.is_empty() {
            self.lock().add(read);
        }
    }

    /// Looks at the head of the request that has just been read.
    pub fn check(&self, parts: &Parts) -> Result<(), Problem> {
        let mut kept = self.lock();
        let chunked = parts.headers.contains_key(TRANSFER_ENCODING);
        if kept.lost {
            return if chunked { kept.search(parts) } else { Ok(()) };
        }
        let Some(end) = end_of_head(&kept.bytes) else { return Err(both_lengths()) };
        if chunked {
            kept.lost = true;
            return if has_length(&kept.bytes[..end]) { Err(both_lengths()) } else { Ok(()) };
        }
        let length = parts
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|length| length.to_str().ok()?.trim().parse::<u64>().ok());
        let message = end as u64 + length.unwrap_or(0);
        let held = kept.bytes.len().min(usize::try_from(message).unwrap_or(usize::MAX));
        kept.bytes.drain(..held);
        kept.skip = message - held as u64;
        Ok(())
    }
}

impl Kept {
    fn add(&mut self, mut read: &[u8]) {
        let skipped = read.len().min(usize::try_from(self.skip).unwrap_or(usize::MAX));
        self.skip -= skipped as u64;
        read = &read[skipped..];
        if read.is_empty() {
            return;
        }
        self.bytes.extend_from_slice(read);
        if self.bytes.len() > 2 * MAX_KEPT {
            self.bytes.drain(..self.bytes.len() - MAX_KEPT);
        }
    }

    /// Looks at every head that may be the request's: it is among the latest bytes. One of them is enough.
    fn search(&self, parts: &Parts) -> Result<(), Problem> {
        let line = format!("{} ", parts.method);
        let path = parts.uri.path_and_query().map_or("", |path| path.as_str());
        let mut found = false;
        for at in (0..self.bytes.len()).filter(|at| self.bytes[*at..].starts_with(line.as_bytes())) {
            let rest = &self.bytes[at..];
            let first = rest.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
            let target = first.strip_suffix(b" HTTP/1.1").unwrap_or_default();
            if !target.windows(path.len().max(1)).any(|window| window == path.as_bytes()) {
                continue;
            }
            let Some(end) = end_of_head(rest) else { continue };
            if has_length(&rest[..end]) && has_line(&rest[..end], b"transfer-encoding") {
                return Err(both_lengths());
            }
            found = true;
        }
        if found { Ok(()) } else { Err(both_lengths()) }
    }
}

/// Where the first empty line ends; lines may end without a carriage return.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let mut line = 0;
    // Empty lines before the first one are no head (RFC 9112, 2.2).
    while let Some(ended) = empty_line(&bytes[line..]) {
        line += ended;
    }
    loop {
        line += bytes[line..].iter().position(|byte| *byte == b'\n')? + 1;
        if let Some(ended) = empty_line(&bytes[line..]) {
            return Some(line + ended);
        }
    }
}

fn empty_line(bytes: &[u8]) -> Option<usize> {
    match bytes {
        [b'\n', ..] => Some(1),
        [b'\r', b'\n', ..] => Some(2),
        _ => None,
    }
}

fn has_length(head: &[u8]) -> bool {
    has_line(head, b"content-length")
}

fn has_line(head: &[u8], name: &[u8]) -> bool {
    let mut lines = head.split(|byte| *byte == b'\n').skip(1);
    lines.any(|line| {
        line.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
            && line[name.len()..].trim_ascii_start().starts_with(b":")
    })
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    /// Whether each of `requests`, all sent in pieces of `size` bytes, is let through.
    fn check(requests: &[(&str, &str)], size: usize) -> Vec<bool> {
        let heads = Heads::default();
        let mut passed = Vec::new();
        for (head, body) in requests {
            head.as_bytes().chunks(size).for_each(|piece| heads.add(piece));
            let mut words = head.split_whitespace();
            let request = Request::builder().method(words.next().unwrap()).uri(words.next().unwrap());
            let lines = head.lines().skip(1).filter_map(|line| line.split_once(": "));
            let chunked = head.to_lowercase().contains("transfer-encoding: ");
            let lines =
                lines.filter(|(name, _)| !(chunked && name.trim().eq_ignore_ascii_case("content-length")));
            let request = lines.fold(request, |request, (name, value)| request.header(name, value));
            passed.push(heads.check(&request.body(()).unwrap().into_parts().0).is_ok());
            body.as_bytes().chunks(size).for_each(|piece| heads.add(piece));
        }
        passed
    }

    #[test]
    fn both_a_length_and_chunks_are_seen_wherever_they_stand() {
        let good =
            ("POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", "3\r\nabc\r\n0\r\n\r\n");
        let bad =
            ("POST /b HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\n\r\n");
        let also = ("POST /b HTTP/1.1\nTransfer-Encoding: chunked\nContent-Length : 3\n\n", "0\r\n\r\n");
        let get = ("GET /a HTTP/1.1\r\nhost: x\r\n\r\n", "");
        let long = ("POST /c HTTP/1.1\r\ncontent-length: 10\r\n\r\n", "POST /b HT");
        for size in [1, 7, 1000] {
            assert_eq!(
                check(&[get, long, good, get, good, bad], size),
                [true, true, true, true, true, false]
            );
            assert_eq!(check(&[get, long, bad], size), [true, true, false]);
            assert_eq!(check(&[long, also], size), [true, false]);
        }
    }

    #[test]
    fn what_stands_in_a_body_is_no_head() {
        let text = "POST / HTTP/1.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n";
        let mail = ("POST /mail HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n", text);
        assert_eq!(check(&[mail, mail, mail], 1000), [true; 3]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let heads = Heads::default();
        (0..100).for_each(|_| heads.add(&[b'x'; 64 << 10]));
        assert!(heads.lock().bytes.len() <= 2 * MAX_KEPT);
        let kept = Heads::default();
        kept.lock().skip = 1 << 30;
        (0..100).for_each(|_| kept.add(&[b'x'; 64 << 10]));
        assert!(kept.lock().bytes.is_empty());
    }
}
