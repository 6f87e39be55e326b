//! Responses of upstreams that one read brings whole: their header lines are copied to the client, without a map of headers.
//! Any other response is left to the general path, which gives the same result.

use std::mem::MaybeUninit;

use hyper::StatusCode;
use tollgate::Time;
use tollgate::internal::headers::Headers;

use super::response_writer::ResponseWriter;
use crate::http1::{parse_plain_length, push_header, push_line};

/// Responses with more header lines are not copied.
const MAX_LINES: usize = 64;

/// What is done with a header line of a response.
enum ResponseLine {
    Copied,
    Date,
    Length,
    /// About the connection to the upstream: removed if it keeps the connection open.
    Connection,
    Removed,
    NotCopied,
}

impl ResponseWriter {
    /// Copies the response to a request other than HEAD, with the headers of the verdict. `None`, with nothing written, unless
    /// `read` is all of a response and its connection can be used again.
    pub fn copy_whole(
        &mut self,
        read: &[u8],
        verdict: &Headers,
        now: Time,
        closes: bool,
    ) -> Option<StatusCode> {
        let start = self.out.len();
        let copied = self.try_copy(read, verdict, now, closes);
        if copied.is_none() {
            self.out.truncate(start);
        }
        copied
    }

    fn try_copy(&mut self, read: &[u8], verdict: &Headers, now: Time, closes: bool) -> Option<StatusCode> {
        let mut lines = [const { MaybeUninit::uninit() }; MAX_LINES];
        let mut parsed = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let begins_with_line = read.first() == Some(&b'H');
        let parsing = config.parse_response_with_uninit_headers(&mut parsed, read, &mut lines);
        let Ok(httparse::Status::Complete(head)) = parsing else { return None };
        let status = StatusCode::from_u16(parsed.code?).ok().filter(|status| has_body(*status))?;
        if !begins_with_line || parsed.version != Some(1) {
            return None;
        }
        let body = &read[head..];
        let out = &mut self.out;
        out.reserve(read.len() + 256);
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(parsed.reason.unwrap_or_default().as_bytes());
        out.extend_from_slice(b"\r\n");
        let mut length = None;
        let mut has_date = false;
        for line in parsed.headers.iter() {
            match classify(line.name) {
                ResponseLine::Copied => push_line(out, line.name, line.value),
                ResponseLine::Date => {
                    has_date = true;
                    push_line(out, line.name, line.value);
                }
                ResponseLine::Length if length.is_some() => return None,
                ResponseLine::Length => length = Some(parse_plain_length(line.value)?),
                ResponseLine::Connection if line.value.eq_ignore_ascii_case(b"keep-alive") => {}
                ResponseLine::Removed => {}
                ResponseLine::Connection | ResponseLine::NotCopied => return None,
            }
        }
        if length != Some(body.len()) {
            return None;
        }
        verdict.iter().for_each(|(name, value)| push_header(out, name, value.as_bytes()));
        push_header(out, "content-length", itoa::Buffer::new().format(body.len()).as_bytes());
        if closes {
            push_header(out, "connection", b"close");
        }
        if !has_date {
            push_header(out, "date", self.date.at(now));
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(body);
        Some(status)
    }
}

/// Whether the length of the response's body is always what its head states.
fn has_body(status: StatusCode) -> bool {
    !status.is_informational() && !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
}

fn classify(name: &str) -> ResponseLine {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        2 if is("te") => ResponseLine::NotCopied,
        4 if is("date") => ResponseLine::Date,
        5 if is("proxy") => ResponseLine::NotCopied,
        7 if is("trailer") || is("upgrade") => ResponseLine::NotCopied,
        10 if is("connection") => ResponseLine::Connection,
        10 if is("keep-alive") => ResponseLine::Removed,
        11 if is("retry-after") => ResponseLine::NotCopied,
        14 if is("content-length") => ResponseLine::Length,
        14 if is("http2-settings") => ResponseLine::NotCopied,
        16 if is("proxy-connection") => ResponseLine::NotCopied,
        17 if is("transfer-encoding") => ResponseLine::NotCopied,
        // To be merged with those of the verdict.
        9.. if starts_with(name, "ratelimit") || starts_with(name, "x-ratelimit") => ResponseLine::NotCopied,
        _ => ResponseLine::Copied,
    }
}

fn starts_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);

    fn copied(response: &str) -> Option<String> {
        let mut writer = ResponseWriter::default();
        let mut verdict = Headers::default();
        verdict.add("ratelimit", "\"a\";r=1;t=1");
        let status = writer.copy_whole(response.as_bytes(), &verdict, NOW, false);
        assert_eq!(status.is_none(), writer.out.is_empty(), "{response}");
        status.map(|_| String::from_utf8(writer.out).expect("text"))
    }

    #[test]
    fn a_whole_response_is_copied_with_the_headers_of_the_verdict() {
        let response = "HTTP/1.1 299 Odd\r\nContent-Length: 2\r\nETag: \"a\"\r\nConnection: keep-alive\r\n\
             Keep-Alive: timeout=5\r\nSet-Cookie: a\r\nset-cookie: b\r\n\r\nhi";
        let expected = "HTTP/1.1 299 Odd\r\netag: \"a\"\r\nset-cookie: a\r\nset-cookie: b\r\n\
             ratelimit: \"a\";r=1;t=1\r\ncontent-length: 2\r\ndate: Fri, 15 Jan 2027 08:00:00 GMT\r\n\r\nhi";
        assert_eq!(copied(response).as_deref(), Some(expected));
        let dated = copied("HTTP/1.1 200 OK\r\nDate: x\r\nContent-Length: 0\r\n\r\n").expect("it is whole");
        assert_eq!(dated.matches("date").count(), 1);
    }

    #[test]
    fn whatever_is_not_whole_or_needs_more_thought_is_not_copied() {
        for response in [
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\n\r\nhi",
            "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n",
            "HTTP/1.1 204 No Content\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 103 Early Hints\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            "\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            "SSH-2.0-x\r\n\r\n",
        ] {
            assert!(copied(response).is_none(), "{response}");
        }
        for line in [
            "Connection: close",
            "Connection: keep-alive, x-a",
            "Transfer-Encoding: chunked",
            "Upgrade: h2c",
            "Trailer: x",
            "RateLimit: x",
            "RateLimit-Policy: x",
            "X-RateLimit-Remaining: 1",
            "Retry-After: 1",
            "Proxy-Connection: close",
            "a b: c",
        ] {
            let response = format!("HTTP/1.1 200 OK\r\n{line}\r\ncontent-length: 2\r\n\r\nhi");
            assert!(copied(&response).is_none(), "{line}");
        }
    }
}
