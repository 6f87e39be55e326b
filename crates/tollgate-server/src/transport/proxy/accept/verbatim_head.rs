//! Heads of requests whose header lines are copied to the upstream, without a map of headers. It must not decide what any
//! other head means.
//!
//! A head is verbatim if each of its lines is either copied, replaced by the proxy's own, or removed whatever its value is.
//! A line that needs more thought (framing, upgrades, other spellings of names) leaves the request to the general path,
//! which gives a verbatim request the same meaning.

use std::mem::MaybeUninit;

use hyper::Method;
use hyper::header::HeaderName;

use crate::http1::{parse_plain_length, push_line};
use crate::request_head;

/// Requests with more header lines are not verbatim.
pub const MAX_LINES: usize = 56;

/// Room for the lines of a head.
pub type LineBuffer<'i> = [MaybeUninit<httparse::Header<'i>>; MAX_LINES];

/// The head of a verbatim request.
pub struct VerbatimHead<'i, 'l> {
    pub method: Method,
    pub target: &'i str,
    pub host: &'i str,
    /// Its length, with the empty line at its end.
    pub bytes: usize,
    pub body_bytes: usize,
    states_length: bool,
    lines: &'l [httparse::Header<'i>],
    uses: [LineUse; MAX_LINES],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LineUse {
    Copied,
    /// Rules may count by it; the proxy writes its own.
    Replaced,
    /// Neither the rules nor the API see it.
    Removed,
}

/// What a name means for its line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LineKind {
    Host,
    Length,
    /// About the connection to this proxy: removed if it keeps the connection open.
    Connection,
    HopByHop,
    Forwarding,
    NotVerbatim,
    Other,
}

/// Whether verbatim requests may be served where these headers are stripped or counted by: only if no usual name can be
/// another spelling of one of them, and none of them has a meaning of its own.
pub fn may_be_verbatim(names: &[HeaderName]) -> bool {
    names.iter().all(|name| has_usual_bytes(name.as_str()))
}

/// As [`may_be_verbatim`], for headers that are removed.
pub fn may_be_stripped(names: &[HeaderName]) -> bool {
    may_be_verbatim(names) && names.iter().all(|name| kind(name.as_str()) == LineKind::Other)
}

impl<'i, 'l> VerbatimHead<'i, 'l> {
    /// Parses a head that is complete; `None` unless it is verbatim. `strip` are the names of headers to be removed.
    pub fn parse(input: &'i [u8], lines: &'l mut LineBuffer<'i>, strip: &[HeaderName]) -> Option<Self> {
        if !matches!(input.first(), Some(b'A'..=b'Z')) {
            return None;
        }
        let mut parsed = httparse::Request::new(&mut []);
        let Ok(httparse::Status::Complete(bytes)) = parsed.parse_with_uninit_headers(input, lines) else {
            return None;
        };
        let httparse::Request { method, path, version, headers } = parsed;
        let target =
            path.filter(|target| target.starts_with('/') && target.bytes().all(is_usual_in_target))?;
        let mut head = VerbatimHead {
            method: usual_method(method?)?,
            target,
            host: "",
            bytes,
            body_bytes: 0,
            states_length: false,
            lines: headers,
            uses: [LineUse::Copied; MAX_LINES],
        };
        if version != Some(1) {
            return None;
        }
        for (n, line) in head.lines.iter().enumerate() {
            head.uses[n] = match kind(line.name) {
                LineKind::Other if strip.iter().any(|name| is(line.name, name.as_str())) => LineUse::Removed,
                LineKind::Other if has_usual_bytes(line.name) => LineUse::Copied,
                LineKind::Other | LineKind::NotVerbatim => return None,
                LineKind::Host if !head.host.is_empty() => return None,
                LineKind::Host => {
                    // An empty one would leave room for another.
                    head.host = request_head::as_host(line.value).filter(|host| !host.is_empty())?;
                    LineUse::Replaced
                }
                LineKind::Length if head.states_length => return None,
                LineKind::Length => {
                    head.states_length = true;
                    head.body_bytes = parse_plain_length(line.value)?;
                    LineUse::Replaced
                }
                LineKind::Connection if line.value.eq_ignore_ascii_case(b"keep-alive") => LineUse::Removed,
                LineKind::Connection => return None,
                LineKind::HopByHop => LineUse::Removed,
                LineKind::Forwarding => LineUse::Replaced,
            };
        }
        (!head.host.is_empty()).then_some(head)
    }

    /// The values that rules may count by.
    pub fn counted<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'i [u8]> + use<'h, 'i, 'l> {
        let lines = self.lines.iter().zip(&self.uses).filter(|(_, used)| **used != LineUse::Removed);
        lines.filter(|(line, _)| is(line.name, name)).map(|(line, _)| line.value)
    }

    /// The values of a header as the client sent it.
    pub fn sent<'h>(&'h self, name: &'h str) -> impl Iterator<Item = &'i [u8]> + use<'h, 'i, 'l> {
        self.lines.iter().filter(|line| is(line.name, name)).map(|line| line.value)
    }

    /// Writes the request line and a Host.
    pub fn write_start(&self, out: &mut Vec<u8>, host: &[u8]) {
        let method = self.method.as_str();
        out.reserve(self.bytes + host.len());
        out.extend_from_slice(method.as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.target.as_bytes());
        out.extend_from_slice(b" HTTP/1.1\r\nhost: ");
        out.extend_from_slice(host);
        out.extend_from_slice(b"\r\n");
    }

    /// Writes the lines that are copied.
    pub fn write_lines(&self, out: &mut Vec<u8>) {
        for (line, used) in self.lines.iter().zip(&self.uses) {
            if *used == LineUse::Copied {
                push_line(out, line.name, line.value);
            }
        }
    }

    /// Whether the request states the length of its body, even if that is 0.
    pub fn has_length(&self) -> bool {
        self.states_length || [Method::POST, Method::PUT, Method::PATCH].contains(&self.method)
    }
}

fn usual_method(name: &str) -> Option<Method> {
    Some(match name {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "DELETE" => Method::DELETE,
        "HEAD" => Method::HEAD,
        "OPTIONS" => Method::OPTIONS,
        "PATCH" => Method::PATCH,
        _ => return None,
    })
}

fn is(name: &str, known: &str) -> bool {
    name.len() == known.len() && name.eq_ignore_ascii_case(known)
}

fn kind(name: &str) -> LineKind {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        2 if is("te") => LineKind::NotVerbatim,
        4 if is("host") => LineKind::Host,
        5 if is("proxy") => LineKind::HopByHop,
        6 if is("expect") => LineKind::NotVerbatim,
        7 if is("upgrade") || is("trailer") => LineKind::NotVerbatim,
        9 if is("forwarded") => LineKind::Forwarding,
        10 if is("connection") => LineKind::Connection,
        10 if is("keep-alive") => LineKind::HopByHop,
        14 if is("content-length") => LineKind::Length,
        14 if is("http2-settings") => LineKind::NotVerbatim,
        15 if is("x-forwarded-for") => LineKind::Forwarding,
        16 if is("x-forwarded-host") => LineKind::Forwarding,
        16 if is("proxy-connection") => LineKind::NotVerbatim,
        17 if is("x-forwarded-proto") => LineKind::Forwarding,
        17 if is("transfer-encoding") => LineKind::NotVerbatim,
        _ => LineKind::Other,
    }
}

/// Bytes of names that are no other spelling of a name with hyphens.
const USUAL_IN_NAMES: [bool; 256] = table(b"-");
/// Bytes of targets that every server reads alike and hyper passes on unchanged.
const USUAL_IN_TARGETS: [bool; 256] = table(b"-._~!$&'()*+,;=:@/?%");

const fn table(more: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        table[byte] = (byte as u8).is_ascii_alphanumeric();
        byte += 1;
    }
    let mut n = 0;
    while n < more.len() {
        table[more[n] as usize] = true;
        n += 1;
    }
    table
}

fn has_usual_bytes(name: &str) -> bool {
    name.bytes().all(|byte| USUAL_IN_NAMES[usize::from(byte)])
}

fn is_usual_in_target(byte: u8) -> bool {
    USUAL_IN_TARGETS[usize::from(byte)]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::transport::proxy::accept::plain_head;

    const STRIP: [HeaderName; 1] = [HeaderName::from_static("x-real-ip")];

    fn with_head<T>(text: &str, look: impl FnOnce(Option<VerbatimHead<'_, '_>>) -> T) -> T {
        let mut lines = [const { MaybeUninit::uninit() }; MAX_LINES];
        look(VerbatimHead::parse(text.as_bytes(), &mut lines, &STRIP))
    }

    /// The request that is sent, which is also the one of the general path.
    fn written(text: &str) -> Option<String> {
        with_head(text, |head| {
            let head = head?;
            let plain = plain_head::parse(&Bytes::copy_from_slice(&text.as_bytes()[..head.bytes]));
            let plain = plain.expect("verbatim requests are plain");
            assert_eq!((plain.request.method(), plain.body_bytes), (&head.method, head.body_bytes));
            assert_eq!(plain.request.uri().to_string(), head.target);
            assert_eq!(plain.request.headers()["host"].as_bytes(), head.host.as_bytes());
            let mut out = Vec::new();
            head.write_start(&mut out, head.host.as_bytes());
            head.write_lines(&mut out);
            Some(String::from_utf8(out).expect("text"))
        })
    }

    const HEAD: &str = "POST /a?b=%20 HTTP/1.1\r\nX-A: 1\r\nHost: h\r\nx-a:  2 \r\nX-Real-IP: 1.1.1.1\r\n\
         Connection: Keep-Alive\r\nKeep-Alive: 5\r\nProxy: evil\r\nX-Forwarded-For: 2.2.2.2\r\n\
         Forwarded: for=2.2.2.2\r\nContent-Length: 3\r\n\r\n";

    #[test]
    fn lines_are_copied_unless_the_proxy_writes_or_removes_them() {
        let expected = "POST /a?b=%20 HTTP/1.1\r\nhost: h\r\nx-a: 1\r\nx-a: 2\r\n";
        assert_eq!(written(HEAD).as_deref(), Some(expected));
        with_head(&format!("{HEAD}abc"), |head| {
            let head = head.expect("it is verbatim");
            assert_eq!((head.bytes, head.body_bytes), (HEAD.len(), 3));
            assert_eq!(head.counted("x-a").collect::<Vec<_>>(), [b"1", b"2"]);
            assert_eq!(head.counted("x-forwarded-for").count(), 1);
            assert_eq!((head.counted("x-real-ip").count(), head.counted("proxy").count()), (0, 0));
            assert_eq!(head.sent("x-real-ip").count(), 1);
        });
    }

    #[test]
    fn every_usual_byte_of_a_target_is_sent_as_it_is() {
        for byte in (0..=255_u8).filter(|byte| is_usual_in_target(*byte)) {
            let target = format!("/{}//a", char::from(byte));
            let sent = written(&format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).expect("it is verbatim");
            assert_eq!(sent, format!("GET {target} HTTP/1.1\r\nhost: h\r\n"));
        }
    }

    #[test]
    fn whatever_needs_more_thought_is_not_verbatim() {
        for line in [
            "Transfer-Encoding: chunked",
            "Content-Length: 1\r\nContent-Length: 1",
            "Content-Length: +1",
            "Expect: 100-continue",
            "Upgrade: websocket",
            "Connection: close",
            "Connection: x-a",
            "Proxy-Connection: keep-alive",
            "HTTP2-Settings: AAMAAABk",
            "TE: trailers",
            "Trailer: x",
            "Host: h",
            "X_Forwarded_For: 1.1.1.1",
            "x.real.ip: 1.1.1.1",
            "a b: c",
        ] {
            assert!(written(&format!("GET / HTTP/1.1\r\nHost: h\r\n{line}\r\n\r\n")).is_none(), "{line}");
        }
        for start in [
            "GET http://h/ HTTP/1.1\r\nHost: h",
            "OPTIONS * HTTP/1.1\r\nHost: h",
            "BREW / HTTP/1.1\r\nHost: h",
            "GET / HTTP/1.0\r\nHost: h",
            "GET /#a HTTP/1.1\r\nHost: h",
            "GET /\u{e9} HTTP/1.1\r\nHost: h",
            "GET /\" HTTP/1.1\r\nHost: h",
            "GET / HTTP/1.1\r\nHost: a b",
            "GET / HTTP/1.1\r\nHost:",
            "GET / HTTP/1.1\r\nHost:\r\nHost: h",
            "GET / HTTP/1.1\r\nX-A: 1",
            "\r\nGET / HTTP/1.1\r\nHost: h",
        ] {
            assert!(written(&format!("{start}\r\n\r\n")).is_none(), "{start}");
        }
        assert!(written("GET / HTTP/1.1\r\nHost: h\r\n").is_none(), "it is not complete");
    }

    #[test]
    fn names_with_another_spelling_or_a_meaning_are_not_stripped_here() {
        let names = |name: &'static str| [HeaderName::from_static(name)];
        assert!(may_be_stripped(&names("x-real-ip")));
        assert!(may_be_verbatim(&names("x-forwarded-for")) && !may_be_stripped(&names("x-forwarded-for")));
        assert!(!may_be_verbatim(&names("x_api_key")));
    }
}
