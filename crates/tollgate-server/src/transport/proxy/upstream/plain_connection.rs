//! Connections to upstreams for plain requests: HTTP/1.1 without TLS, the request's body in memory, no upgrade. The exchange
//! itself writes the request and reads the response, without a task and without hyper.
//!
//! Why not hyper: an exchange took 18.9 µs of CPU with hyper on both sides and takes 17.3 µs without, where nginx takes 12.8 µs
//! (`bench/wire/run --quick proxy`), and 42,500 instead of 62,600 instructions (callgrind). Verbatim
//! requests take fewer still ([`verbatim`](crate::transport::proxy::verbatim)).

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::ext::ReasonPhrase;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode, Version};
use thiserror::Error;
use tokio::io::{AsyncRead as _, AsyncReadExt as _, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;

use crate::http1::{HeadSearch, header_map, push_header};
use crate::transport::proxy::chunks::ChunkState;
use crate::transport::proxy::upstream::connect::MAX_HEAD_BYTES;
use crate::transport::proxy::upstream::plain_body::{BodyEnd, PlainBody};

/// Requests with longer bodies are not plain: an upstream may answer before it reads them.
pub const MAX_BODY_BYTES: usize = 16 << 10;
/// As hyper accepts them.
const MAX_HEADERS: usize = 100;
const READ_BYTES: usize = 8 << 10;
const READ_BUFFER_BYTES: usize = 16 << 10;

/// A connection on which no request is in flight, or one.
pub struct PlainConnection {
    pub stream: TcpStream,
}

/// What came of a request that was sent as it is written.
pub enum Exchanged<T> {
    /// All of the response was copied, and the connection can be used again.
    Copied(T, PlainConnection),
    /// Boxed: most are copied.
    Response(Box<Response<PlainBody>>),
}

thread_local! {
    /// What the first read of a response brings. Shared by the connections of a worker: it is empty between polls.
    static READ_BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; READ_BUFFER_BYTES].into());
}

/// Why there is no response.
#[derive(Debug, Error)]
pub enum PlainError {
    /// The upstream got nothing of the request.
    #[error("{0}")]
    Unsent(io::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("the connection was closed before a response")]
    Closed,
    #[error("invalid HTTP: {0}")]
    Invalid(String),
    /// It switched protocols without a request to do so.
    #[error("an upgrade that was not requested")]
    Upgrade,
}

impl PlainConnection {
    pub fn new(stream: TcpStream) -> PlainConnection {
        PlainConnection { stream }
    }

    /// Whether an idle connection can be used: the upstream has neither closed it nor sent anything. No system call where
    /// nothing has happened.
    pub fn is_open(&self) -> bool {
        let read = self.stream.try_read(&mut [0]);
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Sends a request; returns the response once its head has arrived.
    pub async fn send(mut self, parts: &Parts, body: &[u8]) -> Result<Response<PlainBody>, PlainError> {
        self.write(&request_bytes(parts, body)).await?;
        self.receive(BytesMut::new(), &parts.method).await
    }

    /// Sends a request as it is written. `copy` gets what the first read of the response brings, and returns a result if
    /// that was all of it.
    pub async fn exchange<T>(
        mut self,
        request: &[u8],
        method: &Method,
        mut copy: impl FnMut(&[u8]) -> Option<T>,
    ) -> Result<Exchanged<T>, PlainError> {
        self.write(request).await?;
        let first = poll_fn(|cx| {
            READ_BUFFER.with_borrow_mut(|buffer| {
                let mut read = ReadBuf::new(buffer);
                ready!(Pin::new(&mut self.stream).poll_read(cx, &mut read))?;
                if read.filled().is_empty() {
                    return Poll::Ready(Err(PlainError::Closed));
                }
                Poll::Ready(Ok(copy(read.filled()).ok_or_else(|| BytesMut::from(read.filled()))))
            })
        });
        match first.await? {
            Ok(copied) => Ok(Exchanged::Copied(copied, self)),
            Err(read) => {
                // Boxed: the future is large, and rarely needed.
                let response = Box::pin(self.receive(read, method)).await?;
                Ok(Exchanged::Response(Box::new(response)))
            }
        }
    }

    /// Receives a response, of which `input` was read already.
    async fn receive(
        mut self,
        mut input: BytesMut,
        method: &Method,
    ) -> Result<Response<PlainBody>, PlainError> {
        let mut search = HeadSearch::default();
        loop {
            while let Some(end) = search.end(&input).filter(|end| *end <= MAX_HEAD_BYTES) {
                let ResponseHead { response, end, keeps_open } =
                    parse_head(&input.split_to(end).freeze(), method)?;
                if !response.status().is_informational() {
                    let body = PlainBody::new(self, input.freeze(), end, keeps_open);
                    return Ok(response.map(|()| body));
                }
                search.restart();
            }
            if input.len() > MAX_HEAD_BYTES {
                return Err(PlainError::Invalid("the head is too long".to_owned()));
            }
            input.reserve(READ_BYTES);
            if self.stream.read_buf(&mut input).await? == 0 {
                return Err(PlainError::Closed);
            }
        }
    }

    async fn write(&mut self, mut request: &[u8]) -> Result<(), PlainError> {
        let written = self.stream.write(request).await.map_err(PlainError::Unsent)?;
        request = &request[written..];
        if !request.is_empty() {
            self.stream.write_all(request).await?;
        }
        Ok(())
    }
}

/// A request as it is sent. Its length is that of the body, whatever its headers say.
fn request_bytes(parts: &Parts, body: &[u8]) -> Vec<u8> {
    let mut request = Vec::with_capacity(512 + body.len());
    request.extend_from_slice(parts.method.as_str().as_bytes());
    request.push(b' ');
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    request.extend_from_slice(target.as_bytes());
    request.extend_from_slice(b" HTTP/1.1\r\n");
    let mut has_length =
        !body.is_empty() || [Method::POST, Method::PUT, Method::PATCH].contains(&parts.method);
    for (name, value) in &parts.headers {
        match *name {
            CONTENT_LENGTH => has_length = true,
            TRANSFER_ENCODING => {}
            _ => push_header(&mut request, name.as_str(), value.as_bytes()),
        }
    }
    if has_length {
        push_header(&mut request, "content-length", itoa::Buffer::new().format(body.len()).as_bytes());
    }
    request.extend_from_slice(b"\r\n");
    request.extend_from_slice(body);
    request
}

/// The head of a response, and what follows from it.
struct ResponseHead {
    response: Response<()>,
    end: BodyEnd,
    /// Whether the connection may be used again.
    keeps_open: bool,
}

/// Parses all bytes up to the first empty line.
fn parse_head(bytes: &Bytes, method: &Method) -> Result<ResponseHead, PlainError> {
    let invalid = |what: &str| PlainError::Invalid(what.to_owned());
    let mut lines = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let config = httparse::ParserConfig::default();
    match config.parse_response_with_uninit_headers(&mut parsed, bytes, &mut lines) {
        Ok(httparse::Status::Complete(length)) if length == bytes.len() => {}
        Ok(_) => return Err(invalid("an empty line before the head")),
        Err(error) => return Err(PlainError::Invalid(error.to_string())),
    }
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let status = status.ok_or_else(|| invalid("not a status"))?;
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Err(PlainError::Upgrade);
    }
    let headers = header_map(parsed.headers, bytes, EXPECTED_HEADERS).ok_or_else(|| invalid("a header"))?;
    let is_http11 = parsed.version == Some(1);
    let (end, is_clear) = body_end(&headers, method, status, is_http11).map_err(invalid)?;
    let keeps_open = is_http11 && is_clear && !says_close(&headers);
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.version_mut() = Version::HTTP_11;
    *response.headers_mut() = headers;
    let reason = parsed.reason.unwrap_or_default();
    if Some(reason) != status.canonical_reason()
        && let Ok(reason) = ReasonPhrase::try_from(reason.as_bytes())
    {
        response.extensions_mut().insert(reason);
    }
    Ok(ResponseHead { response, end, keeps_open })
}

/// Room for the headers of a verdict.
const EXPECTED_HEADERS: usize = 4;

/// How the end of a response's body is determined (RFC 9112, 6.3), and whether that is beyond doubt.
fn body_end(
    headers: &HeaderMap,
    method: &Method,
    status: StatusCode,
    is_http11: bool,
) -> Result<(BodyEnd, bool), &'static str> {
    let without_body = status.is_informational()
        || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || *method == Method::HEAD;
    let coding = headers.get_all(TRANSFER_ENCODING).iter().next_back();
    if without_body {
        return Ok((BodyEnd::Reached, true));
    }
    if let Some(coding) = coding {
        if !is_http11 {
            return Err("HTTP/1.0 has no transfer encodings");
        }
        let last = coding.as_bytes().rsplit(|byte| *byte == b',').next().unwrap_or_default();
        return match last.trim_ascii().eq_ignore_ascii_case(b"chunked") {
            true => Ok((BodyEnd::Chunks(ChunkState::START), !headers.contains_key(CONTENT_LENGTH))),
            false => Ok((BodyEnd::Close, false)),
        };
    }
    let mut lengths =
        headers.get_all(CONTENT_LENGTH).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let Some(first) = lengths.next() else { return Ok((BodyEnd::Close, false)) };
    let length = parse_length(first).ok_or("the content-length is not a number")?;
    if lengths.any(|other| parse_length(other) != Some(length)) {
        return Err("different values of content-length");
    }
    Ok((BodyEnd::after(length), true))
}

fn parse_length(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()
}

/// Whether `Connection` has the option `close`.
pub fn says_close(headers: &HeaderMap) -> bool {
    let has_close = |line: &HeaderValue| {
        line.as_bytes()
            .split(|byte| *byte == b',')
            .any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
    };
    headers.get_all(CONNECTION).iter().any(has_close)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str, method: &Method) -> Result<(BodyEnd, bool), String> {
        let head = parse_head(&Bytes::copy_from_slice(text.as_bytes()), method);
        head.map(|head| (head.end, head.keeps_open)).map_err(|error| error.to_string())
    }

    #[test]
    fn the_end_of_a_body_follows_from_the_head() {
        let chunks = BodyEnd::Chunks(ChunkState::START);
        for (text, end, keeps_open) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", BodyEnd::After(5), true),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5, 5\r\ncontent-length: 5\r\n\r\n", BodyEnd::After(5), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", BodyEnd::Reached, true),
            ("HTTP/1.1 200 OK\r\n\r\n", BodyEnd::Close, false),
            ("HTTP/1.1 204 No Content\r\n\r\n", BodyEnd::Reached, true),
            ("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", BodyEnd::Reached, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n", chunks, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", chunks, true),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n", chunks, false),
            ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n", BodyEnd::Close, false),
            (
                "HTTP/1.1 200 OK\r\nconnection: x, Close\r\ncontent-length: 5\r\n\r\n",
                BodyEnd::After(5),
                false,
            ),
            ("HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\n", BodyEnd::After(5), false),
        ] {
            assert_eq!(head(text, &Method::GET), Ok((end, keeps_open)), "{text}");
        }
        let text = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(head(text, &Method::HEAD), Ok((BodyEnd::Reached, true)));
    }

    #[test]
    fn ambiguous_and_invalid_heads_are_errors() {
        for text in [
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5, 6\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: +5\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: \r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n",
            "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 99 x\r\n\r\n",
            "HTTP/1.1 200 OK\r\na b: c\r\n\r\n",
            "SSH-2.0-x\r\n\r\n",
            "\r\n\r\n",
        ] {
            assert!(head(text, &Method::GET).is_err(), "{text}");
        }
    }

    #[test]
    fn a_request_has_one_length_and_it_is_that_of_the_body() {
        let written = |method: Method, body: &str| {
            let request = hyper::Request::builder().method(method).uri("/a?b").header("host", "h");
            let request = request.header("content-length", "7").header("content-length", "8");
            let (parts, ()) = request.body(()).expect("a request").into_parts();
            String::from_utf8(request_bytes(&parts, body.as_bytes())).expect("text")
        };
        let expected = "POST /a?b HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\n\r\nabc";
        assert_eq!(written(Method::POST, "abc"), expected);
        assert_eq!(written(Method::GET, ""), "GET /a?b HTTP/1.1\r\nhost: h\r\ncontent-length: 0\r\n\r\n");
        let (parts, ()) = hyper::Request::new(()).into_parts();
        assert_eq!(request_bytes(&parts, b""), b"GET / HTTP/1.1\r\n\r\n");
    }
}
