//! Pieces of HTTP/1.1 messages that are read and written without hyper. It decides nothing about a message.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tollgate::Time;

/// Finds the end of a head in a buffer that grows: each byte is searched once, and the head is parsed only when it seems
/// complete.
#[derive(Default)]
pub struct HeadSearch {
    /// Bytes without the end of a head.
    searched: usize,
}

impl HeadSearch {
    /// The end of what seems to be a head: the first empty line of `input`, which has grown since the last call.
    pub fn end(&mut self, input: &[u8]) -> Option<usize> {
        let from = self.searched.saturating_sub(2);
        self.searched = input.len();
        Some(from + head_end(input.get(from..)?)?)
    }

    /// Whether nothing of the message was searched.
    pub fn is_new(&self) -> bool {
        self.searched == 0
    }

    /// The next call is about another message.
    pub fn restart(&mut self) {
        self.searched = 0;
    }
}

/// The end of the first empty line after a line.
fn head_end(bytes: &[u8]) -> Option<usize> {
    let mut from = 0;
    loop {
        from += memchr::memchr(b'\n', &bytes[from..])? + 1;
        match bytes[from..] {
            [b'\n', ..] => return Some(from + 1),
            [b'\r', b'\n', ..] => return Some(from + 2),
            _ => {}
        }
    }
}

/// Parsed header lines as a map whose values share `head`, in which the lines are. `None` if hyper would reject one.
pub fn header_map(lines: &[httparse::Header<'_>], head: &Bytes, more: usize) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(lines.len() + more);
    for line in lines {
        let name = HeaderName::from_bytes(line.name.as_bytes()).ok()?;
        let value = HeaderValue::from_maybe_shared(head.slice_ref(line.value)).ok()?;
        headers.append(name, value);
    }
    Some(headers)
}

/// A length of digits only, and few enough that the number fits: what a plain message may state.
pub fn parse_plain_length(value: &[u8]) -> Option<usize> {
    let is_number = (1..=6).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0')))
}

pub fn push_header(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    // One check of the capacity for the line.
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Copies a header line, with its name in lower case as hyper writes it.
pub fn push_line(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    let start = out.len();
    out.extend_from_slice(name.as_bytes());
    out[start..].make_ascii_lowercase();
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// The `Date` of responses, formatted once a second.
#[derive(Default)]
pub struct CachedDate {
    second: u64,
    text: String,
}

impl CachedDate {
    pub fn at(&mut self, now: Time) -> &[u8] {
        if self.second != now.secs() || self.text.is_empty() {
            self.second = now.secs();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(self.second);
            self.text = httpdate::fmt_http_date(time);
        }
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_head_is_found_however_it_arrives() {
        for (text, end) in [
            ("GET /\r\na: b\r\n\r\nbody", 15),
            ("GET /\na: b\n\nbody", 12),
            ("a\n\r\n\r\n", 4),
            ("\r\n\r\n", 4),
        ] {
            for piece in [1, 2, 3, text.len()] {
                let mut search = HeadSearch::default();
                let lengths = (1..=text.len()).filter(|length| length % piece == 0 || *length == text.len());
                let found =
                    lengths.map(|length| search.end(&text.as_bytes()[..length])).find(Option::is_some);
                assert_eq!(found.flatten(), Some(end), "{text:?} in pieces of {piece}");
            }
        }
        let mut search = HeadSearch::default();
        assert_eq!(search.end(b"GET /\r\na: b\r\n"), None);
        assert_eq!(search.end(b"GET /\r\na: b\r\n\r"), None);
        assert_eq!(search.end(b"GET /\r\na: b\r\n\r\n"), Some(15));
    }
}
