//! One downstream connection: protocol detection, timeouts and size limits.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{sleep, timeout};

use crate::connection::{
    AddressLimiter, ClientSocket, Listener, MAX_HEADER_BYTES, Shutdown, WorkerService, WriteTimeoutStream,
    closing_if, has_long_head, serve_on_workers, shutdown_requested,
};
use crate::transport::proxy::Proxy;
use crate::transport::proxy::accept::forwarded::{Peer, Scheme};
use crate::transport::proxy::accept::inspect::FramingCheck;
use crate::transport::proxy::accept::stalled_stream::{StreamExecutor, WatchedBody};
use crate::transport::proxy::exchange::ConnectionContext;

/// From the end of one request to the last byte of the next one's head.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_STREAMS: u32 = 128;
const WINDOW_BYTES: u32 = 1 << 20;
/// The first bytes of an HTTP/2 connection (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Accepts connections until the shutdown.
pub async fn serve(
    proxy: Arc<Proxy>,
    listener: Listener,
    per_address: Arc<AddressLimiter>,
    shutdown: Shutdown,
) -> anyhow::Result<()> {
    let workers = proxy.workers;
    serve_on_workers(Arc::new(ProxyListener { proxy }), workers, listener, per_address, shutdown).await
}

struct ProxyListener {
    proxy: Arc<Proxy>,
}

impl WorkerService for ProxyListener {
    const NAME: &'static str = "proxy";

    fn start_worker(&self, worker: usize) {
        tokio::spawn(Arc::clone(&self.proxy).run_heartbeat(worker));
    }

    async fn serve(&self, worker: usize, stream: ClientSocket, peer: SocketAddr, shutdown: Shutdown) {
        serve_client(Arc::clone(&self.proxy), worker, stream, peer, shutdown).await;
    }
}

/// Serves one connection to its end.
async fn serve_client(
    proxy: Arc<Proxy>,
    worker: usize,
    stream: ClientSocket,
    from: SocketAddr,
    shutdown: Shutdown,
) {
    let scheme = if stream.is_tls() { Scheme::Https } else { Scheme::Http };
    let Some((stream, protocol)) = detect(stream).await else { return };
    let peer = Peer::new(from, scheme);
    let context = ConnectionContext { proxy, worker, peer, framing_check: None, stream_activity: None };
    let result = match protocol {
        ClientProtocol::Http1 => serve_http1(stream, context, shutdown).await,
        ClientProtocol::Http2 => Box::pin(serve_http2(stream, context, shutdown)).await,
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Determines the protocol, by ALPN with TLS and otherwise by the first bytes; `None` if these do not arrive.
async fn detect(stream: ClientSocket) -> Option<(ClientStream<ClientSocket>, ClientProtocol)> {
    if !stream.is_tls() {
        return timeout(IDLE_TIMEOUT, ClientStream::detect_protocol(stream)).await.ok()?.ok();
    }
    let protocol = match stream.alpn_protocol() {
        Some(b"h2") => ClientProtocol::Http2,
        _ => ClientProtocol::Http1,
    };
    Some((ClientStream::new(stream), protocol))
}

pub(in crate::transport::proxy) async fn serve_http1<S>(
    stream: ClientStream<S>,
    context: ConnectionContext,
    mut shutdown: Shutdown,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, framing_check) = stream.with_framing_check();
    let context = Arc::new(ConnectionContext { framing_check: Some(framing_check), ..context });
    let service = service_fn(move |request| {
        let context = Arc::clone(&context);
        let is_long = has_long_head(&request);
        // Boxed: the future is large, and an idle connection has none.
        Box::pin(async move { Ok::<_, Infallible>(closing_if(is_long, context.exchange(request).await)) })
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_header_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream)), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => result,
        () = shutdown_requested(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

pub(in crate::transport::proxy) async fn serve_http2<S>(
    stream: ClientStream<S>,
    context: ConnectionContext,
    mut shutdown: Shutdown,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = Arc::new(StreamActivity::default());
    let idle = context.proxy.route.load().config.timeouts.idle;
    let streams = Arc::clone(&activity);
    let context = Arc::new(ConnectionContext { stream_activity: Some(Arc::clone(&activity)), ..context });
    let service = service_fn(move |request| {
        let context = Arc::clone(&context);
        let active_stream = ActiveStream::new(&streams);
        async move {
            let response = context.exchange(request).await;
            Ok::<_, Infallible>(response.map(|body| WatchedBody::new(body, active_stream)))
        }
    });
    let connection = http2::Builder::new(StreamExecutor { idle })
        .timer(TokioTimer::new())
        .keep_alive_interval(IDLE_TIMEOUT)
        .enable_connect_protocol()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream)), service);
    tokio::pin!(connection);
    tokio::select! {
        result = connection.as_mut() => return result,
        () = shutdown_requested(&mut shutdown) => {}
        () = activity.wait_idle() => {}
    }
    connection.as_mut().graceful_shutdown();
    // Without the timeout, data buffered for a client that reads nothing would keep the connection open for ever.
    timeout(IDLE_TIMEOUT, connection).await.unwrap_or(Ok(()))
}

/// The requests of a multiplexed connection. A request is in flight until its response, or the tunnel that it became,
/// has ended.
#[derive(Default)]
pub struct StreamActivity {
    started: AtomicU64,
    active: AtomicUsize,
}

impl StreamActivity {
    /// Returns when no request was in flight for [`IDLE_TIMEOUT`].
    async fn wait_idle(&self) {
        let mut known = None;
        loop {
            let now = (self.started.load(Ordering::Relaxed), self.active.load(Ordering::Relaxed));
            if now.1 == 0 && known == Some(now) {
                return;
            }
            known = Some(now);
            sleep(IDLE_TIMEOUT).await;
        }
    }
}

pub struct ActiveStream(Arc<StreamActivity>);

impl ActiveStream {
    pub fn new(activity: &Arc<StreamActivity>) -> ActiveStream {
        activity.started.fetch_add(1, Ordering::Relaxed);
        activity.active.fetch_add(1, Ordering::Relaxed);
        ActiveStream(Arc::clone(activity))
    }
}

impl Drop for ActiveStream {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's stream: its first bytes are read ahead to detect the protocol, and its request heads are tracked.
pub struct ClientStream<S> {
    stream: S,
    /// Bytes read ahead of hyper.
    read_ahead: Bytes,
    framing_check: Option<Arc<FramingCheck>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientProtocol {
    Http1,
    Http2,
}

impl<S: AsyncRead + Unpin> ClientStream<S> {
    /// A stream with nothing read ahead.
    pub fn new(stream: S) -> ClientStream<S> {
        ClientStream { stream, read_ahead: Bytes::new(), framing_check: None }
    }

    /// Reads until the protocol is certain.
    pub async fn detect_protocol(mut stream: S) -> io::Result<(ClientStream<S>, ClientProtocol)> {
        let mut preface = BytesMut::with_capacity(PREFACE.len());
        loop {
            let missing = (PREFACE.len() - preface.len()) as u64;
            let read = (&mut stream).take(missing).read_buf(&mut preface).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let http2 = preface[..] == PREFACE[..preface.len()];
            if !http2 || preface.len() == PREFACE.len() {
                let protocol = if http2 { ClientProtocol::Http2 } else { ClientProtocol::Http1 };
                return Ok((
                    ClientStream { stream, read_ahead: preface.freeze(), framing_check: None },
                    protocol,
                ));
            }
        }
    }

    /// Tracks the framing of all bytes read from now on.
    pub fn with_framing_check(self) -> (ClientStream<S>, Arc<FramingCheck>) {
        let framing_check = Arc::new(FramingCheck::default());
        (ClientStream { framing_check: Some(Arc::clone(&framing_check)), ..self }, framing_check)
    }

    fn poll_stream(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.read_ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = self.read_ahead.len().min(buf.remaining());
        buf.put_slice(&self.read_ahead[..count]);
        self.read_ahead.advance(count);
        // Usually the rest of the request has arrived, too.
        if buf.remaining() > 0
            && let Poll::Ready(Err(error)) = Pin::new(&mut self.stream).poll_read(cx, buf)
        {
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = self.poll_stream(cx, buf);
        if let Some(framing_check) = &self.framing_check {
            framing_check.add(&buf.filled()[before..]);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
