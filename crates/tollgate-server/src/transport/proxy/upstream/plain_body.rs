//! Bodies of upstream responses: hyper's, and those of plain connections.

use std::io;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use tokio::io::AsyncReadExt as _;

use crate::http1::header_map;
use crate::transport::proxy::body::BoxError;
use crate::transport::proxy::chunks::{ChunkState, ChunkStep, shorter};
use crate::transport::proxy::upstream::plain_connection::PlainConnection;

/// The first read of a body; each that fills its buffer doubles the next one.
const MIN_READ_BYTES: usize = 8 << 10;
const MAX_READ_BYTES: usize = 128 << 10;
/// Bound on the trailers of a chunked body.
const MAX_TRAILER_BYTES: usize = 16 << 10;
const MAX_TRAILERS: usize = 100;

/// What ends a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyEnd {
    /// There is no more of it.
    Reached,
    /// So many more bytes.
    After(u64),
    Chunks(ChunkState),
    /// The end of the connection.
    Close,
}

impl BodyEnd {
    pub fn after(bytes: u64) -> BodyEnd {
        if bytes == 0 { BodyEnd::Reached } else { BodyEnd::After(bytes) }
    }
}

/// The body of a response on a plain connection, which is released at its end.
pub struct PlainBody {
    connection: PlainConnection,
    /// Bytes that were read.
    ready: Bytes,
    next_read: usize,
    end: BodyEnd,
    trailers: Vec<u8>,
    keeps_open: bool,
}

impl PlainBody {
    pub fn new(connection: PlainConnection, ready: Bytes, end: BodyEnd, keeps_open: bool) -> PlainBody {
        let trailers = Vec::new();
        PlainBody { connection, ready, next_read: MIN_READ_BYTES, end, trailers, keeps_open }
    }

    /// The connection, if it can be used again: the body was read to its end, and nothing follows it.
    fn into_reusable(self) -> Option<PlainConnection> {
        let is_clean = self.end == BodyEnd::Reached && self.ready.is_empty();
        (is_clean && self.keeps_open).then_some(self.connection)
    }

    /// Takes the next part of a chunked body that was read; `None` if none of it is data.
    fn take_chunk_part(&mut self, state: ChunkState) -> Result<Option<Frame<Bytes>>, BoxError> {
        match state.add(&self.ready) {
            ChunkStep::Next(next, used) => {
                self.end = BodyEnd::Chunks(next);
                match state {
                    ChunkState::Data { .. } => return Ok(Some(Frame::data(self.ready.split_to(used)))),
                    ChunkState::TrailerStart | ChunkState::Trailer | ChunkState::TrailerLf => {
                        if self.trailers.len() >= MAX_TRAILER_BYTES {
                            return Err("the trailers are too long".into());
                        }
                        self.trailers.extend_from_slice(&self.ready[..used]);
                    }
                    _ => {}
                }
                self.ready.advance(used);
                Ok(None)
            }
            ChunkStep::Ended => {
                self.ready.advance(1);
                self.end = BodyEnd::Reached;
                Ok(self.take_trailers()?.map(Frame::trailers))
            }
            ChunkStep::Malformed => Err("invalid chunked coding".into()),
        }
    }

    fn take_trailers(&mut self) -> Result<Option<HeaderMap>, BoxError> {
        // The last line end belongs to the body's end.
        let Some(lines) = self.trailers.strip_suffix(b"\r").map(|lines| [lines, b"\r\n"].concat()) else {
            return Ok(None);
        };
        self.trailers = Vec::new();
        let bytes = Bytes::from(lines);
        let mut parsed = [httparse::EMPTY_HEADER; MAX_TRAILERS];
        match httparse::parse_headers(&bytes, &mut parsed)? {
            httparse::Status::Complete((_, lines)) if !lines.is_empty() => {
                Ok(Some(header_map(lines, &bytes, 0).ok_or("invalid trailers")?))
            }
            _ => Ok(None),
        }
    }

    /// Reads more bytes; returns whether there were any.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut input = BytesMut::with_capacity(self.next_read);
        let read = ready!(pin!(self.connection.stream.read_buf(&mut input)).poll(cx))?;
        if read == self.next_read {
            self.next_read = (2 * self.next_read).min(MAX_READ_BYTES);
        }
        self.ready = input.freeze();
        Poll::Ready(Ok(read > 0))
    }
}

impl Body for PlainBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        loop {
            if self.end == BodyEnd::Reached {
                return Poll::Ready(None);
            }
            if self.ready.is_empty() && !ready!(self.poll_read(cx))? {
                let is_end = self.end == BodyEnd::Close;
                self.end = BodyEnd::Reached;
                self.keeps_open = false;
                let cut = || Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                return Poll::Ready((!is_end).then(cut));
            }
            match self.end {
                BodyEnd::Chunks(state) => match self.take_chunk_part(state) {
                    Ok(None) => {}
                    Ok(Some(frame)) => return Poll::Ready(Some(Ok(frame))),
                    Err(error) => {
                        self.end = BodyEnd::Reached;
                        self.keeps_open = false;
                        return Poll::Ready(Some(Err(error)));
                    }
                },
                BodyEnd::After(left) => {
                    let count = shorter(&self.ready, left);
                    self.end = BodyEnd::after(left - count as u64);
                    return Poll::Ready(Some(Ok(Frame::data(self.ready.split_to(count)))));
                }
                BodyEnd::Close | BodyEnd::Reached => {
                    return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.ready)))));
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.end == BodyEnd::Reached
    }

    fn size_hint(&self) -> SizeHint {
        match self.end {
            BodyEnd::Reached => SizeHint::with_exact(0),
            BodyEnd::After(left) => SizeHint::with_exact(left),
            BodyEnd::Chunks(_) | BodyEnd::Close => SizeHint::default(),
        }
    }
}

/// The body of an upstream's response.
pub enum UpstreamBody {
    Hyper(Incoming),
    Plain(PlainBody),
    /// Its connection was released.
    Released,
}

impl UpstreamBody {
    /// Takes the plain connection of a body that has ended, if it can be used again.
    pub fn take_connection(&mut self) -> Option<PlainConnection> {
        match std::mem::replace(self, UpstreamBody::Released) {
            UpstreamBody::Plain(body) => body.into_reusable(),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            UpstreamBody::Hyper(body) => Pin::new(body).poll_frame(cx).map_err(BoxError::from),
            UpstreamBody::Plain(body) => Pin::new(body).poll_frame(cx),
            UpstreamBody::Released => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            UpstreamBody::Hyper(body) => body.is_end_stream(),
            UpstreamBody::Plain(body) => body.is_end_stream(),
            UpstreamBody::Released => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            UpstreamBody::Hyper(body) => body.size_hint(),
            UpstreamBody::Plain(body) => body.size_hint(),
            UpstreamBody::Released => SizeHint::with_exact(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use hyper::Request;
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const CHUNKED: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    /// What is read of a response that is sent in pieces, and whether its connection can be used again.
    async fn read(response: &str, piece: usize) -> Result<(Vec<u8>, Option<HeaderMap>, bool), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let stream =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
        let (mut server, _) = listener.accept().await.expect("a connection");
        let bytes = response.as_bytes().to_vec();
        let send = async {
            for piece in bytes.chunks(piece) {
                server.write_all(piece).await.ok();
            }
            server.shutdown().await.ok();
        };
        let read = async {
            let (parts, ()) = Request::new(()).into_parts();
            let response = PlainConnection::new(stream).send(&parts, b"").await;
            let mut body = response.map_err(|error| error.to_string())?.into_body();
            let collected = (&mut body).collect().await.map_err(|error| error.to_string())?;
            let trailers = collected.trailers().cloned();
            Ok((collected.to_bytes().to_vec(), trailers, body.into_reusable().is_some()))
        };
        tokio::join!(send, read).1
    }

    #[tokio::test]
    async fn chunks_are_read_however_they_arrive() {
        let response = format!("{CHUNKED}3;x\r\nabc\r\n0B\r\n0123456789-\r\n0\r\na: b\r\nc: d\r\n\r\n");
        for piece in [1, 2, 7, response.len()] {
            let (body, trailers, is_reusable) = read(&response, piece).await.expect("a body");
            assert_eq!(body, b"abc0123456789-", "in pieces of {piece}");
            let trailers = trailers.expect("two of them");
            assert_eq!(
                (trailers.len(), &trailers["a"], &trailers["c"]),
                (2, &"b".parse().unwrap(), &"d".parse().unwrap())
            );
            assert!(is_reusable);
        }
    }

    #[tokio::test]
    async fn bytes_after_a_body_end_its_connection() {
        for (response, is_reusable) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na".to_owned(), true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nab".to_owned(), false),
            (format!("{CHUNKED}1\r\na\r\n0\r\n\r\n"), true),
            (format!("{CHUNKED}1\r\na\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n"), false),
            ("HTTP/1.1 200 OK\r\n\r\na".to_owned(), false),
        ] {
            let (body, _, reusable) = read(&response, response.len()).await.expect("a body");
            assert_eq!((body.as_slice(), reusable), (&b"a"[..], is_reusable), "{response}");
        }
    }

    #[tokio::test]
    async fn trailers_are_bounded() {
        let trailers = "a: b\r\n".repeat(MAX_TRAILERS);
        let (_, found, _) = read(&format!("{CHUNKED}0\r\n{trailers}\r\n"), 1 << 20).await.expect("a body");
        assert_eq!(found.map(|trailers| trailers.len()), Some(MAX_TRAILERS));
        let more = "a: b\r\n".repeat(MAX_TRAILERS + 1);
        assert!(read(&format!("{CHUNKED}0\r\n{more}\r\n"), 1 << 20).await.is_err());
        let long = "x".repeat(MAX_TRAILER_BYTES);
        assert!(read(&format!("{CHUNKED}0\r\na: {long}\r\n\r\n"), 1 << 20).await.is_err());
    }

    #[tokio::test]
    async fn a_head_is_bounded_and_follows_any_number_of_informational_ones() {
        let many = "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n".repeat(1000);
        let (body, ..) = read(&format!("{many}HTTP/1.1 200 OK\r\n\r\na"), 1000).await.expect("a response");
        assert_eq!(body, b"a");
        let long = format!("HTTP/1.1 200 OK\r\na: {}\r\n\r\n", "x".repeat(80 << 10));
        assert!(read(&long, 4 << 10).await.expect_err("too long").contains("too long"));
    }
}
