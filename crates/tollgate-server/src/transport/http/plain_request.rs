//! Plain calls of `POST /v1/check` and `POST /json` in a buffer. It must not decide what any other call means.

use tollgate::internal::request::fields;

use crate::http1::{HeadSearch, parse_plain_length};

/// Longer calls are not plain.
pub const MAX_CALL_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 32;
/// The request lines of plain calls.
const REQUEST_LINES: [(PlainRoute, &[u8]); 2] = [
    (PlainRoute::Check, b"POST /v1/check HTTP/1.1\r\n"),
    (PlainRoute::RateLimit, b"POST /json HTTP/1.1\r\n"),
];

/// What a plain call asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlainRoute {
    Check,
    /// A rate limit request of Envoy.
    RateLimit,
}

/// Finds the first call of a buffer that grows. A head that arrives in pieces is parsed when it is complete, and once more
/// with its body.
#[derive(Default)]
pub struct CallScanner {
    /// Used once a head has turned out to be partial.
    search: HeadSearch,
    is_partial: bool,
    /// The length of the call, once its head is complete.
    length: usize,
}

/// What a buffer begins with.
#[derive(Debug, PartialEq, Eq)]
pub enum Scanned<'a> {
    Call {
        head: PlainHead<'a>,
        body: &'a [u8],
    },
    PartialHead,
    /// A head that has just been completed. Its body has not; until then the next scans return [`Scanned::PartialBody`].
    CompleteHead(PlainHead<'a>),
    PartialBody,
    NotPlain,
}

impl<'a> Scanned<'a> {
    /// The head, if this scan is the first or the last one that sees it whole.
    pub fn head(&self) -> Option<&PlainHead<'a>> {
        match self {
            Scanned::Call { head, .. } | Scanned::CompleteHead(head) => Some(head),
            Scanned::PartialHead | Scanned::PartialBody | Scanned::NotPlain => None,
        }
    }
}

impl CallScanner {
    /// Looks at the buffer again, which has grown, or begins with another call since the last one was returned.
    pub fn scan<'a>(&mut self, input: &'a [u8]) -> Scanned<'a> {
        if input.len() < self.length {
            return Scanned::PartialBody;
        }
        if self.is_partial && self.search.end(input).is_none() {
            return Scanned::PartialHead;
        }
        let head = match parse_head(input) {
            Head::Plain(head) => head,
            Head::Partial => {
                self.is_partial = true;
                return Scanned::PartialHead;
            }
            Head::Other => return Scanned::NotPlain,
        };
        let length = head.bytes + head.body_bytes;
        if length > MAX_CALL_BYTES {
            return Scanned::NotPlain;
        }
        self.search.restart();
        self.is_partial = false;
        match input.get(head.bytes..length) {
            Some(body) => {
                self.length = 0;
                Scanned::Call { head, body }
            }
            None => {
                self.length = length;
                Scanned::CompleteHead(head)
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Head<'a> {
    Plain(PlainHead<'a>),
    Partial,
    /// Another call, or a head that is not valid or not plain.
    Other,
}

#[derive(Debug, PartialEq, Eq)]
pub struct PlainHead<'a> {
    pub route: PlainRoute,
    /// Its length, with the empty line at its end.
    pub bytes: usize,
    pub body_bytes: usize,
    pub host: &'a [u8],
    pub bearer: Option<&'a str>,
    pub traceparent: Option<&'a [u8]>,
}

/// Parses a head. One without a single Host and a single Content-Length is not plain, nor is one with a header that
/// changes the framing, the connection or the access.
fn parse_head(bytes: &[u8]) -> Head<'_> {
    let known = REQUEST_LINES.into_iter().find(|(_, line)| bytes.starts_with(line));
    let Some((route, line)) = known else {
        let is_partial = REQUEST_LINES.iter().any(|(_, line)| line.starts_with(bytes));
        return if is_partial { Head::Partial } else { Head::Other };
    };
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let (length, headers) = match httparse::parse_headers(&bytes[line.len()..], &mut headers) {
        Ok(httparse::Status::Complete((length, headers))) => (line.len() + length, headers),
        Ok(httparse::Status::Partial) => return Head::Partial,
        Err(_) => return Head::Other,
    };
    let mut host = None;
    let mut body_bytes = None;
    let mut bearer = None;
    let mut traceparent = None;
    for header in headers {
        let is_plain = match field(header.name) {
            HeadField::Host => host.replace(header.value).is_none(),
            HeadField::Length => {
                parse_plain_length(header.value).is_some_and(|length| body_bytes.replace(length).is_none())
            }
            HeadField::Authorization => std::str::from_utf8(header.value)
                .ok()
                .and_then(fields::bearer)
                .is_some_and(|token| bearer.replace(token).is_none()),
            HeadField::Trace => traceparent.replace(header.value).is_none(),
            HeadField::Connection => header.value.eq_ignore_ascii_case(b"keep-alive"),
            HeadField::NotPlain => false,
            HeadField::Ignored => true,
        };
        if !is_plain {
            return Head::Other;
        }
    }
    match (host, body_bytes) {
        (Some(host), Some(body_bytes)) => {
            Head::Plain(PlainHead { route, bytes: length, body_bytes, host, bearer, traceparent })
        }
        _ => Head::Other,
    }
}

enum HeadField {
    Host,
    Length,
    Authorization,
    Trace,
    Connection,
    /// Changes the framing, the connection or the access.
    NotPlain,
    Ignored,
}

fn field(name: &str) -> HeadField {
    let is = |known: &str| name.eq_ignore_ascii_case(known);
    match name.len() {
        2 if is("te") => HeadField::NotPlain,
        4 if is("host") => HeadField::Host,
        6 if is("origin") || is("expect") => HeadField::NotPlain,
        7 if is("upgrade") || is("trailer") => HeadField::NotPlain,
        10 if is("connection") => HeadField::Connection,
        11 if is("traceparent") => HeadField::Trace,
        13 if is("authorization") => HeadField::Authorization,
        14 if is("content-length") => HeadField::Length,
        14 if is("sec-fetch-site") || is("http2-settings") => HeadField::NotPlain,
        16 if is("proxy-connection") => HeadField::NotPlain,
        17 if is("transfer-encoding") => HeadField::NotPlain,
        _ => HeadField::Ignored,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: &str = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n";

    #[test]
    fn a_plain_head_is_parsed_wherever_it_is_cut() {
        let call = format!(
            "{START}Authorization: Bearer abc\r\nTraceparent: 00\r\nConnection: Keep-Alive\r\n\r\n{{}}"
        );
        let end = call.len() - 2;
        for cut in 0..end {
            assert_eq!(parse_head(&call.as_bytes()[..cut]), Head::Partial, "{cut}");
        }
        let head = PlainHead {
            route: PlainRoute::Check,
            bytes: end,
            body_bytes: 2,
            host: b"localhost",
            bearer: Some("abc"),
            traceparent: Some(b"00"),
        };
        assert_eq!(parse_head(call.as_bytes()), Head::Plain(head));
    }

    #[test]
    fn whatever_needs_a_decision_is_left_to_hyper() {
        for more in [
            "Host: localhost\r\n",
            "Content-Length: 2\r\n",
            "Transfer-Encoding: chunked\r\n",
            "Expect: 100-continue\r\n",
            "Upgrade: h2c\r\n",
            "Connection: close\r\n",
            "Connection: upgrade\r\n",
            "Origin: http://localhost\r\n",
            "Sec-Fetch-Site: none\r\n",
            "Traceparent: a\r\nTraceparent: b\r\n",
            "Authorization: Basic abc\r\n",
            "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n",
            "a b: c\r\n",
            " folded\r\n",
        ] {
            assert_eq!(parse_head(format!("{START}{more}\r\n").as_bytes()), Head::Other, "{more}");
        }
        for start in [
            "GET /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
            "POST /jsonp HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
            "POST /v1/check/ HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
            "POST /v1/check?a=b HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
            "POST http://a/v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
            "POST /v1/check HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\n",
            "POST /v1/check HTTP/1.1\r\nHost: a\r\n\r\n",
            "POST /v1/check HTTP/1.1\r\nContent-Length: 2\r\n\r\n",
            "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\n",
            "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\n",
            "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "nonsense\r\n\r\n",
            "\r\nPOST /v1/check HTTP/1.1\r\n",
            "G",
            "POST /v1/check HTTP/1.1\n",
        ] {
            assert_eq!(parse_head(start.as_bytes()), Head::Other, "{start}");
        }
    }

    #[test]
    fn calls_are_found_however_they_arrive() {
        let rate_limit = START.replace("/v1/check", "/json");
        let calls = format!("{START}\r\n{{}}{rate_limit}a: b\n\n[]POST");
        for piece in [1, 2, 3, 7, calls.len()] {
            let mut scanner = CallScanner::default();
            let mut bodies = Vec::new();
            let mut begin = 0;
            let mut last = Scanned::PartialHead;
            for end in (1..=calls.len()).filter(|end| end % piece == 0 || *end == calls.len()) {
                loop {
                    last = scanner.scan(&calls.as_bytes()[begin..end]);
                    let Scanned::Call { head, body } = &last else { break };
                    bodies.push((head.route, *body));
                    begin += head.bytes + head.body_bytes;
                }
            }
            let expected = [(PlainRoute::Check, &b"{}"[..]), (PlainRoute::RateLimit, b"[]")];
            assert_eq!(bodies, expected, "{piece}");
            assert_eq!(last, Scanned::PartialHead);
        }
    }

    #[test]
    fn a_call_that_does_not_fit_the_buffer_is_left_to_hyper() {
        let long = "POST /v1/check HTTP/1.1\r\nHost: a\r\nContent-Length: 16384\r\n\r\n";
        assert_eq!(CallScanner::default().scan(long.as_bytes()), Scanned::NotPlain);
    }
}
