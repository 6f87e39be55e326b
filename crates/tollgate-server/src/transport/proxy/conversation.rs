//! One client's connection: TLS, the choice of protocol, and its bounds.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::connection::{MAX_HEADER_BYTES, Patient, Shutdown, closing_if, has_long_head, told_to_stop};
use crate::transport::proxy::Proxy;
use crate::transport::proxy::exchange::Entrance;
use crate::transport::proxy::forwarded::{Peer, Scheme};
use crate::transport::proxy::stall::{StreamExecutor, Watched};
use crate::transport::proxy::stream::{ClientStream, Protocol};

/// From the end of one request to the last byte of the next one's head.
const IDLE: Duration = Duration::from_secs(60);
/// From the connection to the end of its TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
const MAX_STREAMS: u32 = 128;
const WINDOW_BYTES: u32 = 1 << 20;

/// Serves one connection to its end.
pub async fn converse(
    proxy: Arc<Proxy>,
    worker: usize,
    stream: TcpStream,
    from: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    shutdown: Shutdown,
) {
    let entrance =
        |scheme| Entrance { proxy, worker, peer: Peer::new(from, scheme), heads: None, traffic: None };
    let ended = match tls {
        None => match timeout(IDLE, ClientStream::greet(stream)).await {
            Ok(Ok((stream, Protocol::Http2))) => serve_http2(stream, entrance(Scheme::Http), shutdown).await,
            Ok(Ok((stream, Protocol::Http1))) => serve_http1(stream, entrance(Scheme::Http), shutdown).await,
            Ok(Err(_)) | Err(_) => return,
        },
        Some(config) => match timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await {
            Ok(Ok(stream)) if stream.get_ref().1.alpn_protocol() == Some(b"h2") => {
                Box::pin(serve_http2(ClientStream::new(stream), entrance(Scheme::Https), shutdown)).await
            }
            Ok(Ok(stream)) => {
                Box::pin(serve_http1(ClientStream::new(stream), entrance(Scheme::Https), shutdown)).await
            }
            Ok(Err(_)) | Err(_) => return,
        },
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended early");
    }
}

pub(super) async fn serve_http1<S>(
    stream: ClientStream<S>,
    entrance: Entrance,
    mut shutdown: Shutdown,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (stream, heads) = stream.remembered();
    let entrance = Arc::new(Entrance { heads: Some(heads), ..entrance });
    let service = service_fn(move |request| {
        let entrance = Arc::clone(&entrance);
        let is_long = has_long_head(&request);
        // Boxed: it is large, and a connection that idles has none.
        Box::pin(async move { Ok::<_, Infallible>(closing_if(is_long, entrance.exchange(request).await)) })
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_buf_size(MAX_HEADER_BYTES)
        .max_header_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(Patient::new(stream)), service)
        .with_upgrades();
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => ended,
        () = told_to_stop(&mut shutdown) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    }
}

async fn serve_http2<S>(
    stream: ClientStream<S>,
    entrance: Entrance,
    mut shutdown: Shutdown,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let traffic = Arc::new(Traffic::default());
    let idle = entrance.proxy.route.load().config.timeouts.idle;
    let counted = Arc::clone(&traffic);
    let entrance = Arc::new(Entrance { traffic: Some(Arc::clone(&traffic)), ..entrance });
    let service = service_fn(move |request| {
        let (entrance, under_way) = (Arc::clone(&entrance), UnderWay::new(&counted));
        async move {
            let response = entrance.exchange(request).await;
            Ok::<_, Infallible>(response.map(|reply| Watched::new(reply, under_way)))
        }
    });
    let connection = http2::Builder::new(StreamExecutor { idle })
        .timer(TokioTimer::new())
        .keep_alive_interval(IDLE)
        .enable_connect_protocol()
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_BYTES as u32)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .serve_connection(TokioIo::new(Patient::new(stream)), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = told_to_stop(&mut shutdown) => {}
        () = traffic.idle() => {}
    }
    connection.as_mut().graceful_shutdown();
    // What is buffered for a client that takes nothing would keep the connection for ever.
    timeout(IDLE, connection).await.unwrap_or(Ok(()))
}

/// The requests of a connection that serves several at once. A request is under way until its response, or the tunnel
/// that it became, has ended.
#[derive(Default)]
pub struct Traffic {
    seen: AtomicU64,
    under_way: AtomicUsize,
}

impl Traffic {
    /// Returns when there was none for [`IDLE`].
    async fn idle(&self) {
        let mut known = None;
        loop {
            let now = (self.seen.load(Ordering::Relaxed), self.under_way.load(Ordering::Relaxed));
            if now.1 == 0 && known == Some(now) {
                return;
            }
            known = Some(now);
            sleep(IDLE).await;
        }
    }
}

pub struct UnderWay(Arc<Traffic>);

impl UnderWay {
    pub fn new(traffic: &Arc<Traffic>) -> UnderWay {
        traffic.seen.fetch_add(1, Ordering::Relaxed);
        traffic.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(traffic))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
