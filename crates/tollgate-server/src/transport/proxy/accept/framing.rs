//! Where each HTTP/1.1 message of a connection begins and ends (RFC 9112, 6 and 7.1).
//!
//! A state machine over the bytes as they are read. It processes each byte once and buffers only the unfinished line of
//! a head, so its work is linear in the input. It mirrors hyper's parser; at bytes that hyper rejects it stops, and
//! every later head is rejected too.

use std::collections::VecDeque;

use crate::connection::MAX_HEADER_BYTES;
use crate::transport::proxy::chunks::{ChunkState, ChunkStep, shorter};

/// Hyper reads a head of at most [`MAX_HEADER_BYTES`], and as much again in one read.
const MAX_HEAD: usize = 2 * MAX_HEADER_BYTES;
/// Heads that were read and not yet taken: hyper reads ahead no more than this many of the shortest ones.
const MAX_PENDING_HEADS: usize = MAX_HEAD / "GET / HTTP/1.1\n\n".len() + 1;

/// How the end of a body is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyLength {
    Bytes(u64),
    Chunked,
    /// The head has both a length and a transfer encoding.
    Both,
}

pub struct Framing {
    state: FramingState,
    head: PartialHead,
    pending_heads: VecDeque<BodyLength>,
}

enum FramingState {
    Head,
    Bytes(u64),
    Chunks(ChunkState),
    /// The framing of all following bytes is unknown.
    Stopped,
}

/// A partially read head.
#[derive(Default)]
struct PartialHead {
    /// The start of a line that is not complete yet.
    line: Vec<u8>,
    bytes: usize,
    has_first_line: bool,
    chunked: bool,
    length: Option<u64>,
}

impl Default for Framing {
    fn default() -> Framing {
        Framing { state: FramingState::Head, head: PartialHead::default(), pending_heads: VecDeque::new() }
    }
}

impl Framing {
    /// Processes bytes that were read.
    pub fn add(&mut self, mut read: &[u8]) {
        while !read.is_empty() {
            let used = match &mut self.state {
                FramingState::Stopped => return,
                FramingState::Head => self.add_line(read),
                FramingState::Bytes(left) => {
                    let used = shorter(read, *left);
                    *left -= used as u64;
                    if *left == 0 {
                        self.state = FramingState::Head;
                    }
                    used
                }
                FramingState::Chunks(chunk) => match chunk.add(read) {
                    ChunkStep::Next(next, used) => {
                        *chunk = next;
                        used
                    }
                    ChunkStep::Ended => {
                        self.state = FramingState::Head;
                        1
                    }
                    ChunkStep::Malformed => return self.stop(),
                },
            };
            read = &read[used..];
        }
    }

    /// The next complete head; `None` if there is none, or its start is unknown.
    pub fn next_head(&mut self) -> Option<BodyLength> {
        self.pending_heads.pop_front()
    }

    /// No more heads follow; complete heads from before remain available.
    pub fn stop(&mut self) {
        self.state = FramingState::Stopped;
        self.head = PartialHead::default();
    }

    /// Consumes the rest of a line, or all of `read` if the line goes on; returns the number of bytes.
    fn add_line(&mut self, read: &[u8]) -> usize {
        let end = read.iter().position(|byte| *byte == b'\n');
        let used = end.map_or(read.len(), |end| end + 1);
        self.head.bytes += used;
        if self.head.bytes > MAX_HEAD {
            self.stop();
            return used;
        }
        if end.is_none() {
            self.head.line.extend_from_slice(read);
            return used;
        }
        let ended = if self.head.line.is_empty() {
            self.head.take_line(&read[..used])
        } else {
            self.head.line.extend_from_slice(&read[..used]);
            let mut line = std::mem::take(&mut self.head.line);
            let ended = self.head.take_line(&line);
            line.clear();
            self.head.line = line;
            ended
        };
        match ended {
            Ok(false) => {}
            Ok(true) => self.end_head(),
            Err(Malformed) => self.stop(),
        }
        used
    }

    fn end_head(&mut self) {
        let head = std::mem::take(&mut self.head);
        let length = match (head.chunked, head.length) {
            (true, Some(_)) => BodyLength::Both,
            (true, None) => BodyLength::Chunked,
            (false, length) => BodyLength::Bytes(length.unwrap_or(0)),
        };
        self.pending_heads.push_back(length);
        self.state = match length {
            BodyLength::Bytes(0) => FramingState::Head,
            BodyLength::Bytes(left) => FramingState::Bytes(left),
            BodyLength::Chunked => FramingState::Chunks(ChunkState::START),
            BodyLength::Both => FramingState::Stopped,
        };
        if self.pending_heads.len() > MAX_PENDING_HEADS {
            self.stop();
        }
    }
}

/// Bytes that hyper rejects, too.
struct Malformed;

impl PartialHead {
    /// Processes a complete line; returns whether it ends the head.
    fn take_line(&mut self, line: &[u8]) -> Result<bool, Malformed> {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if !self.has_first_line {
            // Empty lines before the request line are skipped (RFC 9112, 2.2).
            self.has_first_line = !line.is_empty();
            return Ok(false);
        }
        if line.is_empty() {
            return Ok(true);
        }
        if value_of(line, b"transfer-encoding").is_some() {
            self.chunked = true;
        } else if let Some(value) = value_of(line, b"content-length") {
            let length = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
            let same = |length: &u64| self.length.is_none_or(|known| known == *length);
            self.length = Some(length.filter(same).ok_or(Malformed)?);
        }
        Ok(false)
    }
}

/// The value of a header line, if it has this name.
fn value_of<'l>(line: &'l [u8], name: &[u8]) -> Option<&'l [u8]> {
    let rest = line.get(..name.len()).filter(|start| start.eq_ignore_ascii_case(name));
    let rest = rest.map(|_| line[name.len()..].trim_ascii_start())?;
    rest.strip_prefix(b":").map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::BodyLength::{Both, Bytes, Chunked};
    use super::*;

    /// The heads in `text`, read in pieces of `size` bytes.
    fn heads(text: &str, size: usize) -> Vec<BodyLength> {
        let mut framing = Framing::default();
        text.as_bytes().chunks(size).for_each(|piece| framing.add(piece));
        std::iter::from_fn(|| framing.next_head()).collect()
    }

    #[track_caller]
    fn check(text: &str, expected: &[BodyLength]) {
        for size in [1, 2, 7, text.len()] {
            assert_eq!(heads(text, size), expected, "in pieces of {size}: {text:?}");
        }
    }

    const CHUNKED: &str = "POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
    const LAST: &str = "GET /last HTTP/1.1\r\nhost: x\r\n\r\n";

    #[test]
    fn a_head_begins_where_the_previous_body_ends() {
        for body in [
            "0\r\n\r\n",
            "3\r\nabc\r\n0\r\n\r\n",
            "A;name=\"x\"\r\n0123456789\r\n00 \t\r\n\r\n",
            "1 ;x\r\n\n\r\n0\r\nx-a: b\r\nx-c:\r\n\r\n",
        ] {
            check(&format!("{CHUNKED}{body}{LAST}"), &[Chunked, Bytes(0)]);
        }
        let text = "POST / HTTP/1.1\ncontent-length: 4\n\nGET GET / HTTP/1.1\r\n\r\n";
        check(text, &[Bytes(4), Bytes(0)]);
        check(&format!("\r\n\n{LAST}\r\n{LAST}"), &[Bytes(0), Bytes(0)]);
    }

    #[test]
    fn text_in_a_body_is_not_a_head() {
        let text = format!("{CHUNKED}{:x}\r\n{LAST}\r\n0\r\n\r\n{LAST}", LAST.len());
        check(&text, &[Chunked, Bytes(0)]);
    }

    #[test]
    fn no_head_is_reported_after_malformed_or_ambiguous_bytes() {
        for body in
            ["x\r\n", "\r\n", "3\nabc", "3\r\nabcd", "3 3\r\n", "3;\n", "10000000000000000\r\n", "0\r\n\rx"]
        {
            check(&format!("{CHUNKED}{body}\r\n\r\n{LAST}"), &[Chunked]);
        }
        let both = "POST / HTTP/1.1\r\nContent-Length : 3\r\ntransfer-encoding: chunked\r\n\r\n";
        check(&format!("{both}0\r\n\r\n{LAST}"), &[Both]);
        check(&format!("POST / HTTP/1.1\r\ncontent-length: 4, 4\r\n\r\nabcd{LAST}"), &[]);
        check(&format!("POST / HTTP/1.1\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\n{LAST}"), &[]);
    }

    #[test]
    fn the_buffered_head_is_bounded() {
        let mut framing = Framing::default();
        (0..1000).for_each(|_| framing.add(&[b'x'; 1 << 10]));
        assert!(framing.head.line.capacity() <= 2 * MAX_HEAD);
        let mut framing = Framing::default();
        (0..2 * MAX_PENDING_HEADS).for_each(|_| framing.add(LAST.as_bytes()));
        assert!(framing.pending_heads.len() <= MAX_PENDING_HEADS + 1);
    }
}
