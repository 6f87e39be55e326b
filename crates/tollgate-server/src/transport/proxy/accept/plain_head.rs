//! Heads of plain requests. It must not decide what any other request means.

use std::mem::MaybeUninit;

use bytes::Bytes;
use hyper::header::CONTENT_LENGTH;
use hyper::{Method, Request, Uri, Version};

use crate::http1::{header_map, parse_plain_length};

const MAX_HEADERS: usize = 64;
const MAX_METHOD_BYTES: usize = 16;
/// Room for the forwarding headers.
const ADDED_HEADERS: usize = 4;

/// A plain request without its body.
pub struct PlainRequestHead {
    pub request: Request<()>,
    pub body_bytes: usize,
}

/// Parses a head, which ends with the first empty line. `None` unless the request is plain: HTTP/1.1, a path as its target,
/// and no header that changes the framing or how the connection goes on.
pub fn parse(head: &Bytes) -> Option<PlainRequestHead> {
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    // httparse skips empty lines before the request line.
    let begins_with_line = !matches!(head.first(), Some(b'\r' | b'\n'));
    let ended = parsed.parse_with_uninit_headers(head, &mut lines).ok()?;
    let is_whole = begins_with_line && ended == httparse::Status::Complete(head.len());
    let target = parsed.path.filter(|target| target.starts_with('/'))?;
    if !is_whole || parsed.version != Some(1) || !parsed.headers.iter().all(is_plain) {
        return None;
    }
    let mut request = Request::new(());
    *request.method_mut() = Method::from_bytes(parsed.method?.as_bytes()).ok()?;
    *request.uri_mut() = Uri::from_maybe_shared(head.slice_ref(target.as_bytes())).ok()?;
    *request.version_mut() = Version::HTTP_11;
    *request.headers_mut() = header_map(parsed.headers, head, ADDED_HEADERS)?;
    if *request.method() == Method::CONNECT {
        return None;
    }
    let mut lengths = request.headers().get_all(CONTENT_LENGTH).iter();
    let length = lengths.next();
    let body_bytes = length.map_or(Some(0), |length| parse_plain_length(length.as_bytes()))?;
    if lengths.next().is_some() {
        return None;
    }
    Some(PlainRequestHead { request, body_bytes })
}

/// Whether a plain head may begin with these bytes: what is not HTTP is rejected at once.
pub fn may_begin_with(bytes: &[u8]) -> bool {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match &bytes[method..] {
        [] => method <= MAX_METHOD_BYTES,
        [b' '] | [b' ', b'/', ..] => method > 0,
        _ => false,
    }
}

fn is_plain(header: &httparse::Header<'_>) -> bool {
    let is = |known: &str| header.name.eq_ignore_ascii_case(known);
    match header.name.len() {
        2 => !is("te"),
        6 => !is("expect"),
        7 => !is("upgrade") && !is("trailer"),
        10 if is("connection") => header.value.eq_ignore_ascii_case(b"keep-alive"),
        14 => !is("http2-settings"),
        16 => !is("proxy-connection"),
        17 => !is("transfer-encoding"),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<PlainRequestHead> {
        parse(&Bytes::copy_from_slice(text.as_bytes()))
    }

    #[test]
    fn a_plain_head_is_the_request_that_hyper_reads() {
        let head = parsed(
            "POST //a/../b?c#d HTTP/1.1\r\nHost: h\r\nX-A: 1\r\nx-a:  2 \r\nContent-Length: 12\r\n\r\n",
        );
        let PlainRequestHead { request, body_bytes } = head.expect("it is plain");
        assert_eq!((request.method(), request.uri().to_string().as_str()), (&Method::POST, "//a/../b?c"));
        let values: Vec<_> = request.headers().get_all("x-a").iter().collect();
        assert_eq!(values, ["1", "2"]);
        assert_eq!(body_bytes, 12);
        assert_eq!(
            parsed("GET / HTTP/1.1\nHost: h\nConnection: Keep-Alive\n\n").map(|head| head.body_bytes),
            Some(0)
        );
    }

    #[test]
    fn bytes_that_begin_no_request_are_left_to_hyper_at_once() {
        for start in ["", "G", "GET", "GET ", "GET /", "GET /a b HT"] {
            assert!(may_begin_with(start.as_bytes()), "{start}");
        }
        for start in ["\u{16}\u{3}", " ", "get /", "GET h", "GET  /", "ABCDEFGHIJKLMNOPQ", "\r\n"] {
            assert!(!may_begin_with(start.as_bytes()), "{start:?}");
        }
    }

    #[test]
    fn whatever_needs_a_decision_is_left_to_hyper() {
        for line in [
            "Transfer-Encoding: chunked",
            "Transfer-Encoding : chunked",
            "Content-Length: 1\r\nContent-Length: 1",
            "Content-Length: 1, 1",
            "Content-Length: +1",
            "Content-Length: 1234567",
            "Content-Length:",
            "Expect: 100-continue",
            "Upgrade: websocket",
            "Connection: close",
            "Connection: keep-alive, x-a",
            "Connection: upgrade",
            "Proxy-Connection: keep-alive",
            "HTTP2-Settings: AAMAAABk",
            "TE: trailers",
            "Trailer: x",
            "a b: c",
            " folded",
        ] {
            assert!(parsed(&format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n")).is_none(), "{line}");
        }
        for line in [
            "GET http://h/ HTTP/1.1",
            "OPTIONS * HTTP/1.1",
            "CONNECT h:1 HTTP/1.1",
            "CONNECT /h HTTP/1.1",
            "GET / HTTP/1.0",
            "GET / HTTP/2.0",
            "GET /",
            "GET /a b HTTP/1.1",
            "PRI * HTTP/2.0",
            "\r\nGET / HTTP/1.1",
            "nonsense",
        ] {
            assert!(parsed(&format!("{line}\r\nHost: h\r\n\r\n")).is_none(), "{line}");
        }
    }
}
