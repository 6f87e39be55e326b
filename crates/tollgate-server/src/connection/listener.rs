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

impl Listener {
    /// Its address for an HTTP client, such as `https://127.0.0.1:8443`, or `unix:` and a path.
    pub fn url(&self) -> Option<String> {
        match &self.socket {
            ListenSocket::Tcp(socket) => {
                let scheme = if self.opener.tls.is_some() { "https" } else { "http" };
                Some(format!("{scheme}://{}", socket.local_addr().ok()?))
            }
            ListenSocket::Unix(socket) => {
                Some(format!("unix:{}", socket.local_addr().ok()?.as_pathname()?.display()))
            }
        }
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
            // The client's address has its share of the connections; the load balancer has no bound.
            Ok(Some(client)) => {
                let has_slot = stream.permits.as_mut().is_none_or(|permits| permits.count_for(client.ip()));
                has_slot.then_some(client)
            }
            Ok(None) => Some(peer),
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

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::UnixStream;
    use tokio::sync::watch;
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A connection that begins with a PROXY header, and the sender of its shutdown.
    fn connect() -> (UnixStream, JoinHandle<bool>, watch::Sender<bool>) {
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        let (stop, shutdown) = watch::channel(false);
        let opener = ConnectionOpener::new("http", None, Some(Box::new(|_| true)));
        let peer = SocketAddr::from(([127, 0, 0, 1], 1));
        let opened =
            async move { opener.open(PlainSocket::from_unix(server), peer, &shutdown).await.is_some() };
        (client, tokio::spawn(opened), stop)
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_stalls_or_trickles_is_refused_within_the_timeout() {
        let whole = b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n";
        let second = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x07\xff";
        for (header, start) in [(&whole[..], 0), (whole, 5), (whole, 20), (second, 16)] {
            let (mut client, opened, _stop) = connect();
            let begun = Instant::now();
            client.write_all(&header[..start]).await.expect("sent");
            for byte in header[start..].iter().chain([b'1'; 20].iter()).take(20) {
                sleep(Duration::from_millis(900)).await;
                if client.write_all(&[*byte]).await.is_err() {
                    break;
                }
            }
            assert!(!opened.await.expect("no panic"), "{start} bytes at once");
            assert!(begun.elapsed() <= HANDSHAKE_TIMEOUT + Duration::from_secs(1), "{:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_is_awaited_does_not_delay_a_stop() {
        let (mut client, opened, stop) = connect();
        client.write_all(b"PROXY TCP4").await.expect("sent");
        sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        stop.send_replace(true);
        assert!(!opened.await.expect("no panic"));
        assert_eq!(start.elapsed().as_millis(), 0);
    }
}
