//! Connections: accepting them, bounding what each may take, and letting them go.
//!
//! A client that is slow to send, to read or to go away is cut off by a named bound; a stop closes idle
//! connections at once and gives the others a moment to finish.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep, timeout};

/// Connections open at once on one listener; more wait to be accepted.
pub const MAX_CONNECTIONS: usize = 16_384;
/// From the end of one request to the last byte of the next one's headers.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may refuse to read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);
const MAX_HEADER_BYTES: usize = 64 << 10;
/// How long requests under way may take to finish at a stop.
const DRAIN: Duration = Duration::from_secs(5);
/// After an error of `accept`, such as no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

pub type Answer = Response<Full<Bytes>>;

/// Turns true when the process is to stop.
pub type Shutdown = watch::Receiver<bool>;

/// Returns when the process is to stop.
pub async fn told_to_stop(shutdown: &mut Shutdown) {
    shutdown.wait_for(|stop| *stop).await.ok();
}

/// Serves HTTP/1.1 until the shutdown turns true.
pub async fn serve<H, F>(listener: TcpListener, mut shutdown: Shutdown, handler: Arc<H>)
where
    H: Fn(Request<Incoming>, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let place = Arc::clone(&places).acquire_owned();
        let accepted = tokio::select! {
            () = told_to_stop(&mut shutdown) => break,
            accepted = async { (place.await, listener.accept().await) } => accepted,
        };
        let (Ok(place), accepted) = accepted else { break };
        match accepted {
            Ok((stream, peer)) => {
                let (handler, shutdown) = (Arc::clone(&handler), shutdown.clone());
                connections.spawn(async move {
                    converse(stream, peer, shutdown, handler).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let drained = async { while connections.join_next().await.is_some() {} };
    if timeout(DRAIN, drained).await.is_err() {
        tracing::warn!("some connections did not finish in time and were closed");
    }
}

async fn converse<H, F>(stream: TcpStream, peer: SocketAddr, mut shutdown: Shutdown, handler: Arc<H>)
where
    H: Fn(Request<Incoming>, SocketAddr) -> F + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    stream.set_nodelay(true).ok();
    let service = service_fn(move |request| {
        let answer = handler(request, peer);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(Patient::new(stream)), service);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told_to_stop(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Why a body could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyError {
    TooLong { max: usize },
    TooSlow,
    Broken,
}

/// Reads a whole body of at most `max` bytes.
pub async fn read_body(body: Incoming, max: usize) -> Result<Bytes, BodyError> {
    match timeout(BODY_TIMEOUT, Limited::new(body, max).collect()).await {
        Err(_) => Err(BodyError::TooSlow),
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(BodyError::TooLong { max }),
        Ok(Err(_)) => Err(BodyError::Broken),
    }
}

/// A stream whose peer must read within [`WRITE_TIMEOUT`].
struct Patient {
    stream: TcpStream,
    deadline: Pin<Box<Sleep>>,
    waiting: bool,
}

impl Patient {
    fn new(stream: TcpStream) -> Patient {
        Patient { stream, deadline: Box::pin(sleep(WRITE_TIMEOUT)), waiting: false }
    }

    fn write_with<T>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<std::io::Result<T>>,
    ) -> Poll<std::io::Result<T>> {
        if let Poll::Ready(done) = write(Pin::new(&mut self.stream), cx) {
            self.waiting = false;
            return Poll::Ready(done);
        }
        if !self.waiting {
            self.waiting = true;
            self.deadline.as_mut().reset(Instant::now() + WRITE_TIMEOUT);
        }
        ready!(self.deadline.as_mut().poll(cx));
        Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.write_with(cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.write_with(cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        self.write_with(cx, |stream, cx| stream.poll_shutdown(cx))
    }
}
