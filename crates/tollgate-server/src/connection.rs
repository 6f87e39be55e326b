//! Connections: accepts them, bounds the resources of each, and closes them.
//!
//! A client that is slow to send, to read or to close is disconnected by a named bound. A stop closes idle connections
//! at once and lets the others finish within [`DRAIN_TIMEOUT`].

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::header::{CONNECTION, EXPECT, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

mod acceptor;
mod delegate_write;
pub mod heartbeat;
mod listener;
mod open_connections;
pub mod per_address;
mod proxy_header;
mod read_watch;
mod resumed_stream;
mod send;
mod socket;
#[cfg(feature = "testing")]
pub mod testing;
mod worker;

pub use acceptor::{AcceptedConnection, Acceptor, ConnectionPermits, connection_slots};
pub(crate) use delegate_write::delegate_write;
pub use listener::{ConnectionOpener, Listener, TrustedSenders};
pub use open_connections::{ConnectionGauge, OpenConnections};
pub use per_address::AddressLimiter;
use per_address::AddressSlot;
pub use read_watch::{ReadEvent, ReadWatch};
pub use resumed_stream::ResumedStream;
pub use send::send_replies;
pub use socket::{BACKLOG, ClientSocket, ListenSocket, tcp_socket};
pub use worker::{WorkerService, default_workers, serve_on_workers};

/// Open connections per listener; more wait to be accepted.
pub const MAX_CONNECTIONS: usize = 16_384;
/// From the end of one request to the last byte of the next one's headers.
pub const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
pub const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may not read.
pub const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
/// How much of an oversized body is read and discarded.
const DISCARD_BYTES: usize = 32 << 20;
pub const MAX_HEADER_BYTES: usize = 64 << 10;
/// Share of a listener's connections that one client address may have.
pub const DEFAULT_MAX_PER_ADDRESS: usize = MAX_CONNECTIONS / 8;
/// Maximum bytes per read from a client. hyper keeps a read buffer as large as its last reads, also while the
/// connection is idle; a read of less than 16 KiB does not make it grow.
const MAX_READ_BYTES: u64 = (16 << 10) - 1;
/// The buffer of a longer head would be retained while the connection is idle, so the connection is closed instead.
const MAX_KEPT_HEAD_BYTES: usize = 16 << 10;
/// How long requests in flight may take to finish at a stop.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

pub type FullResponse = Response<Full<Bytes>>;

/// Turns true when the process is to stop.
pub type Shutdown = watch::Receiver<bool>;

/// Returns when the process is to stop.
pub async fn shutdown_requested(shutdown: &mut Shutdown) {
    shutdown.wait_for(|stop| *stop).await.ok();
}

/// Serves HTTP/1.1 until the shutdown turns true.
pub async fn serve<H, F, B>(
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
    handler: Arc<H>,
) where
    H: Fn(Request<Incoming>, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let Listener { socket, opener, gauge } = listener;
    let mut acceptor = Acceptor::new(socket, gauge, connection_slots(), per_address, shutdown.clone());
    let mut connections = JoinSet::new();
    while let Some(AcceptedConnection { stream, peer }) = acceptor.next().await {
        let handler = Arc::clone(&handler);
        let shutdown = shutdown.clone();
        let opener = Arc::clone(&opener);
        connections.spawn(async move {
            if let Some((stream, peer)) = opener.open(stream, peer, &shutdown).await {
                serve_connection(stream, peer, shutdown, handler).await;
            }
        });
        while connections.try_join_next().is_some() {}
    }
    drop(acceptor);
    drain(&mut connections).await;
}

/// At a stop: waits for the connections, at most [`DRAIN_TIMEOUT`].
async fn drain(connections: &mut JoinSet<()>) {
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN_TIMEOUT, drained).await.is_err() {
        tracing::warn!("some connections did not finish in time and were closed");
    }
}

/// Serves one HTTP/1.1 connection to its end.
pub async fn serve_connection<S, H, F, B>(
    stream: S,
    peer: SocketAddr,
    mut shutdown: Shutdown,
    handler: Arc<H>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    H: Fn(Request<Incoming>, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let after = AfterResponse::for_request(&request);
        let answer = handler(request, peer);
        async move { Ok::<_, Infallible>(after.apply(answer.await)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream)), service);
    let ended = run_connection(connection, &mut shutdown, http1::Connection::graceful_shutdown).await;
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Runs a connection of hyper to its end. At a stop, the request in flight is its last one.
pub async fn run_connection<C: Future>(
    connection: C,
    shutdown: &mut Shutdown,
    graceful_shutdown: impl FnOnce(Pin<&mut C>),
) -> C::Output {
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown_requested(shutdown) => {
            graceful_shutdown(connection.as_mut());
            connection.await
        }
    }
}

/// What becomes of a connection after a response.
#[derive(Clone, Copy)]
pub enum AfterResponse {
    KeepOpen,
    /// After a request with a long head, so that its buffer is freed.
    Close,
}

impl AfterResponse {
    pub fn for_request<B>(request: &Request<B>) -> AfterResponse {
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        if target + header_bytes(request.headers()) > MAX_KEPT_HEAD_BYTES {
            AfterResponse::Close
        } else {
            AfterResponse::KeepOpen
        }
    }

    /// Tells the client, and hyper.
    pub fn apply<B>(self, mut response: Response<B>) -> Response<B> {
        if matches!(self, AfterResponse::Close) && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

fn header_bytes(headers: &HeaderMap) -> usize {
    const SEPARATORS: usize = ": \r\n".len();
    headers.iter().map(|(name, value)| name.as_str().len() + value.len() + SEPARATORS).sum()
}

/// Why a body could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadBodyError {
    TooLong { max: usize },
    TooSlow,
    Broken,
}

/// Reads a whole body of at most `max` bytes.
///
/// The rest of a longer body is read and discarded, within bounds: a client that is still sending when its connection
/// is closed would not read the response. A client that waits for 100 gets the response at once.
pub async fn read_body(request: Request<Incoming>, max: usize) -> Result<Bytes, ReadBodyError> {
    read_body_within(request, max, BODY_TIMEOUT).await
}

/// Like [`read_body`], with a timeout of `within`.
pub async fn read_body_within(
    request: Request<Incoming>,
    max: usize,
    within: Duration,
) -> Result<Bytes, ReadBodyError> {
    let discard = DISCARD_BYTES.max(max);
    let expects_continue = request.headers().contains_key(EXPECT);
    let mut body = request.into_body();
    let announced = body.size_hint().lower();
    if announced > discard as u64 || (expects_continue && announced > max as u64) {
        return Err(ReadBodyError::TooLong { max });
    }
    let read = async {
        let mut bytes = BytesMut::new();
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(|_| ReadBodyError::Broken)?.into_data() else { continue };
            length += data.len();
            if length <= max {
                bytes.extend_from_slice(&data);
            } else if length > discard {
                break;
            }
        }
        if length > max { Err(ReadBodyError::TooLong { max }) } else { Ok(bytes.freeze()) }
    };
    timeout(within, read).await.unwrap_or(Err(ReadBodyError::TooSlow))
}

/// A stream whose peer must read within a timeout, by default [`WRITE_TIMEOUT`].
pub struct WriteTimeoutStream<S> {
    stream: Take<S>,
    max_read: u64,
    timeout: Duration,
    deadline: Pin<Box<Sleep>>,
    is_stalled: bool,
}

impl<S: AsyncRead + Unpin> WriteTimeoutStream<S> {
    /// A client's stream, with bounded reads: see [`MAX_READ_BYTES`].
    pub fn new(stream: S) -> WriteTimeoutStream<S> {
        WriteTimeoutStream {
            max_read: MAX_READ_BYTES,
            ..WriteTimeoutStream::with_timeout(stream, WRITE_TIMEOUT)
        }
    }

    pub fn with_timeout(stream: S, within: Duration) -> WriteTimeoutStream<S> {
        let stream = stream.take(0);
        let deadline = Box::pin(sleep(within));
        WriteTimeoutStream { stream, max_read: u64::MAX, timeout: within, deadline, is_stalled: false }
    }

    pub fn into_inner(self) -> S {
        self.stream.into_inner()
    }

    fn write_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if let Poll::Ready(done) = write(Pin::new(self.stream.get_mut()), cx) {
            self.is_stalled = false;
            return Poll::Ready(done);
        }
        if !self.is_stalled {
            self.is_stalled = true;
            let at = Instant::now() + self.timeout;
            self.deadline.as_mut().reset(at);
        }
        ready!(self.deadline.as_mut().poll(cx));
        Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let max = self.max_read;
        self.stream.set_limit(max);
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.write_with(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        self.write_with(cx, |stream, cx| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.write_with(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.write_with(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::response::ProblemDetails;

    /// A connection that echoes request bodies, its task, and the sender of its shutdown.
    fn connect(buffer: usize) -> (DuplexStream, tokio::task::JoinHandle<()>, watch::Sender<bool>) {
        let (client, server) = duplex(buffer);
        let (stop, shutdown) = watch::channel(false);
        let handler = |request: Request<Incoming>, _| async move {
            match read_body(request, 1 << 20).await {
                Ok(body) => Response::new(Full::new(body)),
                Err(error) => ProblemDetails::from(error).into(),
            }
        };
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        (client, tokio::spawn(serve_connection(server, peer, shutdown, Arc::new(handler))), stop)
    }

    /// Sends `request` and nothing more; returns the response until the end, and the elapsed time.
    async fn silent_after(request: &[u8]) -> (String, Duration) {
        let (mut client, served, _stop) = connect(1 << 20);
        let start = Instant::now();
        client.write_all(request).await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        served.await.unwrap();
        (String::from_utf8(answer).unwrap(), start.elapsed())
    }

    /// The test clock has a resolution of one millisecond.
    fn is_close(elapsed: Duration, expected: Duration) -> bool {
        elapsed >= expected && elapsed < expected + Duration::from_millis(10)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_finishes_its_headers_is_cut_off() {
        for request in ["", "P", "POST / HTTP/1.1\r\nhost: x\r\nx-a: "] {
            let (answer, elapsed) = silent_after(request.as_bytes()).await;
            assert!(is_close(elapsed, HEADER_TIMEOUT), "'{request}': {elapsed:?} {answer}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn headers_that_trickle_in_get_no_more_time_than_others() {
        let (mut client, served, _stop) = connect(1 << 10);
        let start = Instant::now();
        client.write_all(b"POST / HTTP/1.1\r\nhost: x\r\n").await.unwrap();
        while client.write_all(b"a").await.is_ok() && start.elapsed() < HEADER_TIMEOUT * 2 {
            sleep(Duration::from_secs(1)).await;
        }
        served.await.unwrap();
        assert!(start.elapsed() <= HEADER_TIMEOUT + Duration::from_secs(2), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_408_and_the_end_of_its_connection() {
        for request in [
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n123456789",
            "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n",
        ] {
            let (answer, elapsed) = silent_after(request.as_bytes()).await;
            assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
            assert!(is_close(elapsed, BODY_TIMEOUT), "{elapsed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_kept_open_may_idle_for_as_long_as_headers_may_take() {
        let (answer, elapsed) =
            silent_after(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("hi"), "{answer}");
        assert!(is_close(elapsed, HEADER_TIMEOUT), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_never_reads_is_cut_off() {
        let (mut client, served, _stop) = connect(4 << 10);
        let start = Instant::now();
        let body = vec![b'x'; 64 << 10];
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        client.write_all(head.as_bytes()).await.unwrap();
        client.write_all(&body).await.unwrap();
        served.await.unwrap();
        assert!(is_close(start.elapsed(), WRITE_TIMEOUT), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_closes_idle_connections_at_once() {
        for (request, answered) in [("", 0), ("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 12)]
        {
            let (mut client, served, stop) = connect(1 << 10);
            client.write_all(request.as_bytes()).await.unwrap();
            let mut start_of_answer = vec![0; answered];
            client.read_exact(&mut start_of_answer).await.unwrap();
            let start = Instant::now();
            stop.send_replace(true);
            served.await.unwrap();
            assert_eq!(start.elapsed(), Duration::ZERO);
        }
    }
}
