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
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{sleep, timeout};

use crate::connection::{
    AddressLimiter, AfterResponse, ClientSocket, Listener, MAX_HEADER_BYTES, Shutdown, WorkerService,
    WriteTimeoutStream, delegate_write, heartbeat, run_connection, serve_on_workers, shutdown_requested,
};
use crate::transport::proxy::Proxy;
use crate::transport::proxy::accept::forwarded::{Peer, Scheme};
use crate::transport::proxy::accept::inspect::FramingCheck;
use crate::transport::proxy::accept::plain_requests::{PlainRequests, PlainRequestsEnd};
use crate::transport::proxy::accept::stalled_stream::{StreamExecutor, WatchedBody};
use crate::transport::proxy::body::{BoxError, RequestBody};
use crate::transport::proxy::exchange::ConnectionContext;

/// From the end of one request to the last byte of the next one's head.
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection without a request may take to answer its GOAWAY.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);
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

    fn start_worker(&self, _worker: usize) {
        heartbeat::start(&self.proxy.gate, Self::NAME);
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
    mut shutdown: Shutdown,
) {
    let scheme = if stream.is_tls() { Scheme::Https } else { Scheme::Http };
    let detected = tokio::select! {
        detected = detect(stream) => detected,
        () = shutdown_requested(&mut shutdown) => None,
    };
    let Some((stream, protocol)) = detected else { return };
    let peer = Peer::new(from, scheme);
    let context = ConnectionContext { proxy, worker, peer, framing_check: None, stream_activity: None };
    let result = match protocol {
        ClientProtocol::Http1 => serve_http1(stream, context, shutdown).await,
        ClientProtocol::Http2 => {
            Box::pin(serve_http2(stream, context, shutdown)).await.map_err(BoxError::from)
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended early");
    }
}

/// Determines the protocol, by ALPN with TLS and otherwise by the first bytes; `None` if these do not arrive in time, or
/// contradict ALPN. hyper has no timeout for the preface of HTTP/2, so it is read here.
async fn detect(stream: ClientSocket) -> Option<(ClientStream<ClientSocket>, ClientProtocol)> {
    let is_tls = stream.is_tls();
    if is_tls && stream.alpn_protocol() != Some(b"h2") {
        return Some((ClientStream::new(stream), ClientProtocol::Http1));
    }
    let detected = timeout(IDLE_TIMEOUT, ClientStream::detect_protocol(stream)).await.ok()?.ok()?;
    (!is_tls || detected.1 == ClientProtocol::Http2).then_some(detected)
}

/// Serves plain requests, and from the first other one on all by hyper.
pub(in crate::transport::proxy) async fn serve_http1<S>(
    stream: ClientStream<S>,
    context: ConnectionContext,
    shutdown: Shutdown,
) -> Result<(), BoxError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let context = Arc::new(context);
    let ClientStream { stream, read_ahead, .. } = stream;
    let plain = PlainRequests::new(stream, &read_ahead, Arc::clone(&context));
    drop(read_ahead);
    // Boxed: a connection that hyper serves has no room for this.
    let ended = Box::pin(plain.answer_all(&shutdown)).await?;
    let PlainRequestsEnd::NotPlain(stream, read_ahead) = ended else { return Ok(()) };
    let context = Arc::into_inner(context).expect("no request is in progress");
    let stream = ClientStream { stream, read_ahead, framing_check: None };
    // Boxed: a connection of plain requests has no room for hyper's.
    Box::pin(serve_by_hyper(stream, context, shutdown)).await.map_err(BoxError::from)
}

async fn serve_by_hyper<S>(
    stream: ClientStream<S>,
    context: ConnectionContext,
    mut shutdown: Shutdown,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, framing_check) = stream.with_framing_check();
    let context = Arc::new(ConnectionContext { framing_check: Some(framing_check), ..context });
    let service = service_fn(move |request: Request<Incoming>| {
        let context = Arc::clone(&context);
        let after = AfterResponse::for_request(&request);
        let request = request.map(RequestBody::Streamed);
        // Boxed: the future is large, and an idle connection has none.
        Box::pin(async move { Ok::<_, Infallible>(after.apply(context.exchange(request).await)) })
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_header_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream)), service)
        .with_upgrades();
    run_connection(connection, &mut shutdown, http1::UpgradeableConnection::graceful_shutdown).await
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
    let service = service_fn(move |request: Request<Incoming>| {
        let context = Arc::clone(&context);
        let active_stream = ActiveStream::new(&streams);
        async move {
            let response = context.exchange(request.map(RequestBody::Streamed)).await;
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
    if activity.started.load(Ordering::Relaxed) == 0 {
        let ended = timeout(GOAWAY_TIMEOUT, connection.as_mut()).await;
        if ended.is_ok() || activity.started.load(Ordering::Relaxed) == 0 {
            return ended.unwrap_or(Ok(()));
        }
    }
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
        if self.read_ahead.is_empty() {
            self.read_ahead = Bytes::new(); // an empty slice would keep its buffer
        }
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

delegate_write!([<S: AsyncWrite + Unpin>] ClientStream<S>, stream);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;
    use tokio::sync::watch;
    use tokio::task::JoinHandle;
    use tokio::time::Instant;

    use super::*;
    use crate::assemble;
    use crate::config::Config;

    /// A connection to a proxy, its task, and the sender of its shutdown.
    fn connect() -> (UnixStream, JoinHandle<()>, watch::Sender<bool>) {
        let text = "upstreams: ['http://127.0.0.1:1']";
        let mut config = Config::parse(text, Path::new("")).expect("a valid configuration");
        let gate = Arc::new(assemble::gate(&mut config, text.to_owned(), None).expect("a gate"));
        let proxy = assemble::proxy(&gate, &config).expect("a proxy").expect("it has upstreams");
        let (client, stream) = ClientSocket::pair();
        let (stop, shutdown) = watch::channel(false);
        let from = SocketAddr::from(([127, 0, 0, 1], 1));
        (client, tokio::spawn(serve_client(proxy, 0, stream, from, shutdown)), stop)
    }

    const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

    #[tokio::test(start_paused = true)]
    async fn clients_that_send_no_request_are_disconnected() {
        let whole = [PREFACE, SETTINGS].concat();
        for (sent, bound) in [
            (&b""[..], IDLE_TIMEOUT),
            (b"GET / HT", IDLE_TIMEOUT),
            (&PREFACE[..23], IDLE_TIMEOUT),
            (PREFACE, IDLE_TIMEOUT + GOAWAY_TIMEOUT),
            (&whole, IDLE_TIMEOUT + GOAWAY_TIMEOUT),
        ] {
            let (mut client, served, _stop) = connect();
            let start = Instant::now();
            client.write_all(sent).await.expect("sent");
            served.await.expect("no panic");
            let elapsed = start.elapsed();
            assert!(elapsed >= IDLE_TIMEOUT, "{sent:?}: {elapsed:?}");
            assert!(elapsed <= bound + Duration::from_millis(100), "{sent:?}: {elapsed:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_does_not_delay_a_stop() {
        let whole = [PREFACE, SETTINGS].concat();
        for sent in [&b""[..], b"P", &PREFACE[..23], PREFACE, &whole] {
            let (mut client, served, stop) = connect();
            client.write_all(sent).await.expect("sent");
            sleep(Duration::from_secs(1)).await;
            let start = Instant::now();
            stop.send_replace(true);
            served.await.expect("no panic");
            let elapsed = start.elapsed();
            assert!(elapsed <= GOAWAY_TIMEOUT + Duration::from_millis(10), "{sent:?}: {elapsed:?}");
        }
    }
}
