//! Opens connections to upstreams.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use crate::config::{Timeouts, UpstreamProtocol};
use crate::connection::WriteTimeoutStream;
use crate::transport::proxy::upstream::plain_connection::PlainConnection;
use crate::transport::proxy::upstream::server::{Upstream, UpstreamSender};

/// Responses with longer heads are not forwarded.
pub const MAX_HEAD_BYTES: usize = 64 << 10;
/// An HTTP/2 connection that does not answer a ping is closed.
const PING_EVERY: Duration = Duration::from_secs(20);
const WINDOW_BYTES: u32 = 1 << 20;

/// With or without TLS. One type, so that hyper's two protocols are compiled once and not for each.
type UpstreamSocket = Either<TcpSocket, Box<TlsStream<TcpSocket>>>;
type TcpSocket = WriteTimeoutStream<TcpStream>;

/// TLS configurations for connections to upstreams.
pub struct UpstreamTlsClient {
    /// Offers HTTP/2 and HTTP/1.1, and prefers HTTP/2.
    pub any: Arc<ClientConfig>,
    pub http1: Arc<ClientConfig>,
    pub server_name: Option<ServerName<'static>>,
}

/// The kind of connection that an exchange requires.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Requires {
    Any,
    /// An upgrade needs an HTTP/1.1 connection of its own.
    Http1,
}

#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("no connection within {0:?} (proxy.connect_timeout)")]
    Timeout(Duration),
    #[error("its name cannot be resolved: {0}")]
    Unresolved(io::Error),
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("the TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the HTTP handshake failed: {0}")]
    Http(#[from] hyper::Error),
    #[error("it supports HTTP/2 only, which has no upgrades")]
    NoUpgrades,
    #[error("no upstream is configured")]
    NoUpstream,
}

impl ConnectError {
    /// The cause without names and addresses, for clients.
    pub fn public_cause(&self) -> String {
        let cause = match self {
            ConnectError::Timeout(_) => "connecting took too long",
            ConnectError::Unresolved(_) => "its name cannot be resolved",
            ConnectError::Socket(error) => return error.kind().to_string(),
            ConnectError::Tls(_) => "the TLS handshake failed",
            ConnectError::Http(_) => "the HTTP handshake failed",
            ConnectError::NoUpgrades => "it supports HTTP/2 only, which has no upgrades",
            ConnectError::NoUpstream => "no upstream is configured",
        };
        cause.to_owned()
    }
}

pub async fn connect(
    upstream: &Upstream,
    tls: &UpstreamTlsClient,
    requires: Requires,
    timeouts: &Timeouts,
) -> Result<UpstreamSender, ConnectError> {
    let authority = &upstream.address.authority;
    let connecting = async {
        let stream = open(upstream).await?;
        // An upstream that reads nothing must not keep its connection, or the client's, open for ever.
        let stream = WriteTimeoutStream::with_timeout(stream, timeouts.idle);
        match (upstream.address.protocol, requires) {
            (UpstreamProtocol::Http1, _) => http1(Either::Left(stream)).await,
            (UpstreamProtocol::Http2, Requires::Any) => http2(Either::Left(stream)).await,
            (UpstreamProtocol::Http2, Requires::Http1) => Err(ConnectError::NoUpgrades),
            (UpstreamProtocol::Tls, requires) => {
                let config = if requires == Requires::Any { &tls.any } else { &tls.http1 };
                let name = match &tls.server_name {
                    Some(name) => name.clone(),
                    None => ServerName::try_from(authority.host().trim_matches(['[', ']']).to_owned())
                        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?,
                };
                let stream = TlsConnector::from(Arc::clone(config)).connect(name, stream).await;
                let stream = stream.map_err(ConnectError::Tls)?;
                let http2_agreed = stream.get_ref().1.alpn_protocol() == Some(b"h2");
                let stream = Either::Right(Box::new(stream));
                if http2_agreed { http2(stream).await } else { http1(stream).await }
            }
        }
    };
    timeout(timeouts.connect, connecting).await.unwrap_or(Err(ConnectError::Timeout(timeouts.connect)))
}

/// A connection for plain requests.
pub async fn connect_plain(
    upstream: &Upstream,
    timeouts: &Timeouts,
) -> Result<PlainConnection, ConnectError> {
    let opened = timeout(timeouts.connect, open(upstream)).await;
    opened.unwrap_or(Err(ConnectError::Timeout(timeouts.connect))).map(PlainConnection::new)
}

async fn open(upstream: &Upstream) -> Result<TcpStream, ConnectError> {
    let authority = &upstream.address.authority;
    let addresses = lookup_host(authority.as_str()).await.map_err(ConnectError::Unresolved)?;
    let addresses: Vec<_> = addresses.collect();
    let stream = TcpStream::connect(addresses.as_slice()).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn http1(stream: UpstreamSocket) -> Result<UpstreamSender, ConnectError> {
    let handshake = http1::Builder::new().max_buf_size(MAX_HEAD_BYTES).handshake(TokioIo::new(stream)).await;
    let (sender, connection) = handshake?;
    tokio::spawn(connection.with_upgrades());
    Ok(UpstreamSender::Http1(sender))
}

async fn http2(stream: UpstreamSocket) -> Result<UpstreamSender, ConnectError> {
    let handshake = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .handshake(TokioIo::new(stream))
        .await;
    let (sender, connection) = handshake?;
    tokio::spawn(connection);
    Ok(UpstreamSender::Http2(sender))
}
