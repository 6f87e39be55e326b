//! A listener, and what its connections go through before their protocol begins: the PROXY header, the TLS handshake.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::connection::socket::{ClientSocket, ListenSocket, PlainSocket};
use crate::connection::{ConnectionGauge, Shutdown, proxy_header, shutdown_requested};
use crate::log_rate::LogLimiter;
use crate::tls::ListenerTls;

/// From the connection to the end of its TLS handshake, PROXY header included.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// TLS handshakes in progress per listener; further connections are closed.
pub const MAX_HANDSHAKES: usize = 4_096;

pub struct Listener {
    pub socket: ListenSocket,
    pub opener: Arc<ConnectionOpener>,
    pub gauge: ConnectionGauge,
}

impl From<TcpListener> for Listener {
    /// Without TLS and PROXY headers.
    fn from(listener: TcpListener) -> Listener {
        let opener = Arc::new(ConnectionOpener::new("", None, None));
        Listener { socket: ListenSocket::Tcp(listener), opener, gauge: ConnectionGauge::default() }
    }
}

/// The addresses whose PROXY headers are read.
pub type TrustedSenders = Box<dyn Fn(IpAddr) -> bool + Send + Sync>;

/// Makes clients' connections of accepted ones.
pub struct ConnectionOpener {
    listener: &'static str,
    tls: Option<Arc<ListenerTls>>,
    /// Set if connections begin with a PROXY header.
    proxy_protocol: Option<TrustedSenders>,
    handshakes: Semaphore,
    refusals: LogLimiter,
}

impl ConnectionOpener {
    pub fn new(
        listener: &'static str,
        tls: Option<Arc<ListenerTls>>,
        proxy_protocol: Option<TrustedSenders>,
    ) -> ConnectionOpener {
        let handshakes = Semaphore::new(MAX_HANDSHAKES);
        ConnectionOpener { listener, tls, proxy_protocol, handshakes, refusals: LogLimiter::default() }
    }

    /// The connection with its client's address; `None` if it was refused, or ended by itself or by the shutdown.
    pub async fn open(
        &self,
        stream: PlainSocket,
        peer: SocketAddr,
        shutdown: &Shutdown,
    ) -> Option<(ClientSocket, SocketAddr)> {
        if self.tls.is_none() && self.proxy_protocol.is_none() {
            return Some((ClientSocket::Plain(stream), peer));
        }
        let mut shutdown = shutdown.clone();
        // Boxed: the future of a handshake is large, and an idle connection has none.
        let opened = Box::pin(timeout(HANDSHAKE_TIMEOUT, self.handshake(stream, peer)));
        tokio::select! {
            opened = opened => opened.ok()?,
            () = shutdown_requested(&mut shutdown) => None,
        }
    }

    async fn handshake(
        &self,
        mut stream: PlainSocket,
        peer: SocketAddr,
    ) -> Option<(ClientSocket, SocketAddr)> {
        let client = match &self.proxy_protocol {
            Some(is_trusted) => self.read_header(&mut stream, peer, is_trusted).await?,
            None => peer,
        };
        let Some(tls) = &self.tls else { return Some((ClientSocket::Plain(stream), client)) };
        let Ok(_slot) = self.handshakes.try_acquire() else {
            self.refuse(peer, format_args!("{MAX_HANDSHAKES} TLS handshakes are in progress"));
            return None;
        };
        match TlsAcceptor::from(tls.server_config()).accept(stream).await {
            Ok(stream) => Some((ClientSocket::Tls(Box::new(stream)), client)),
            Err(error) => {
                tracing::debug!(listener = self.listener, %peer, %error, "a TLS handshake failed");
                None
            }
        }
    }

    /// The client's address of the PROXY header.
    async fn read_header(
        &self,
        stream: &mut PlainSocket,
        peer: SocketAddr,
        is_trusted: &TrustedSenders,
    ) -> Option<SocketAddr> {
        if !is_trusted(peer.ip().to_canonical()) {
            self.refuse(peer, format_args!("proxy_protocol is for peers in trusted_proxies"));
            return None;
        }
        match proxy_header::read(stream).await {
            Ok(client) => Some(client.unwrap_or(peer)),
            Err(error) => {
                self.refuse(peer, format_args!("{error}"));
                None
            }
        }
    }

    /// Logs a refused connection at a bounded rate.
    fn refuse(&self, peer: SocketAddr, why: std::fmt::Arguments<'_>) {
        self.refusals.warn("refused connections", || {
            tracing::warn!(listener = self.listener, %peer, "a connection was refused: {why}");
        });
    }
}
