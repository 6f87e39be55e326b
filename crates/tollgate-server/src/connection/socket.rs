//! Sockets of listeners and clients: TCP or Unix, with or without TLS.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::connection::{ConnectionPermits, delegate_write};

/// The peer of a Unix socket: a process of this machine.
const LOCAL_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Bound on connections that wait to be accepted, for each listening socket.
pub const BACKLOG: u32 = 1024;
/// A peer that vanished is noticed after these, 3 minutes: clients of `resp` may be silent for ever.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 4;

/// A socket for listening on an address, which is not bound yet.
pub fn tcp_socket(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Accepted connections inherit these.
    socket.set_keepalive(true)?;
    sockopt::set_tcp_keepidle(&socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(&socket, KEEPALIVE_PROBES)?;
    Ok(socket)
}

pub enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl ListenSocket {
    pub async fn accept(&self) -> io::Result<(PlainSocket, SocketAddr)> {
        match self {
            ListenSocket::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                stream.set_nodelay(true).ok();
                Ok((PlainSocket { stream: PlainStream::Tcp(stream), permits: None }, peer))
            }
            ListenSocket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((PlainSocket { stream: PlainStream::Unix(stream), permits: None }, LOCAL_PEER))
            }
        }
    }
}

/// A listening socket that belongs to no runtime, on its way to a worker.
pub enum DetachedListener {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener),
}

impl DetachedListener {
    /// Joins the runtime of the caller.
    pub fn attach(self) -> io::Result<ListenSocket> {
        Ok(match self {
            DetachedListener::Tcp(listener) => ListenSocket::Tcp(TcpListener::from_std(listener)?),
            DetachedListener::Unix(listener) => ListenSocket::Unix(UnixListener::from_std(listener)?),
        })
    }
}

impl ListenSocket {
    /// A socket for each worker, at the same address. A Unix socket is only one, and so may others be where the system
    /// does not allow more.
    ///
    /// This socket listens already, without SO_REUSEPORT, so no other process listens at its address: a second node
    /// fails to start instead of taking half of the connections. Only then it is set, which lets processes of the same user
    /// join, and no others.
    pub fn for_workers(self, workers: usize) -> io::Result<Vec<DetachedListener>> {
        let first = match self {
            ListenSocket::Tcp(listener) => listener,
            ListenSocket::Unix(listener) => return Ok(vec![DetachedListener::Unix(listener.into_std()?)]),
        };
        let address = first.local_addr()?;
        let more = match sockopt::set_socket_reuseport(&first, true) {
            Ok(()) => (1..workers).map(|_| listen_beside(address)).collect(),
            Err(error) => Err(error.into()),
        };
        let mut sockets = vec![DetachedListener::Tcp(first.into_std()?)];
        match more {
            Ok(more) => sockets.extend::<Vec<_>>(more),
            Err(error) => tracing::debug!(%address, %error, "one socket for all workers"),
        }
        Ok(sockets)
    }
}

fn listen_beside(address: SocketAddr) -> io::Result<DetachedListener> {
    let socket = tcp_socket(address)?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(DetachedListener::Tcp(socket.listen(BACKLOG)?.into_std()?))
}

/// An accepted connection as the kernel has it.
pub struct PlainSocket {
    stream: PlainStream,
    /// Released when the socket is closed.
    pub permits: Option<ConnectionPermits>,
}

enum PlainStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket that belongs to no runtime, on its way to another one.
pub struct DetachedSocket {
    stream: DetachedStream,
    permits: Option<ConnectionPermits>,
}

enum DetachedStream {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl PlainSocket {
    pub fn detach(self) -> io::Result<DetachedSocket> {
        let stream = match self.stream {
            PlainStream::Tcp(stream) => DetachedStream::Tcp(stream.into_std()?),
            PlainStream::Unix(stream) => DetachedStream::Unix(stream.into_std()?),
        };
        Ok(DetachedSocket { stream, permits: self.permits })
    }
}

impl DetachedSocket {
    /// Joins the runtime of the caller.
    pub fn attach(self) -> io::Result<PlainSocket> {
        let stream = match self.stream {
            DetachedStream::Tcp(stream) => PlainStream::Tcp(TcpStream::from_std(stream)?),
            DetachedStream::Unix(stream) => PlainStream::Unix(UnixStream::from_std(stream)?),
        };
        Ok(PlainSocket { stream, permits: self.permits })
    }
}

/// A connection that is ready for its protocol.
pub enum ClientSocket {
    Plain(PlainSocket),
    Tls(Box<TlsStream<PlainSocket>>),
}

impl ClientSocket {
    pub fn is_tls(&self) -> bool {
        matches!(self, ClientSocket::Tls(_))
    }

    /// A client's end, and the server's end without TLS.
    #[cfg(test)]
    pub fn pair() -> (UnixStream, ClientSocket) {
        let (client, server) = UnixStream::pair().expect("a pair of sockets");
        (client, ClientSocket::Plain(PlainSocket::from_unix(server)))
    }

    /// The protocol that was negotiated with TLS.
    pub fn alpn_protocol(&self) -> Option<&[u8]> {
        match self {
            ClientSocket::Plain(_) => None,
            ClientSocket::Tls(stream) => stream.get_ref().1.alpn_protocol(),
        }
    }
}

/// Calls the same method of the stream in each variant.
macro_rules! delegate_io {
    ($socket:ty, $($variant:ident)|+) => {
        impl AsyncRead for $socket {
            fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() { $(Self::$variant(stream) => Pin::new(stream).poll_read(cx, buf),)+ }
            }
        }

        impl AsyncWrite for $socket {
            fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() { $(Self::$variant(stream) => Pin::new(stream).poll_write(cx, buf),)+ }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                parts: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() { $(Self::$variant(stream) => Pin::new(stream).poll_write_vectored(cx, parts),)+ }
            }

            fn is_write_vectored(&self) -> bool {
                match self { $(Self::$variant(stream) => stream.is_write_vectored(),)+ }
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() { $(Self::$variant(stream) => Pin::new(stream).poll_flush(cx),)+ }
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() { $(Self::$variant(stream) => Pin::new(stream).poll_shutdown(cx),)+ }
            }
        }
    };
}

delegate_io!(PlainStream, Tcp | Unix);
delegate_io!(ClientSocket, Plain | Tls);

#[cfg(test)]
impl PlainSocket {
    pub fn from_unix(stream: UnixStream) -> PlainSocket {
        PlainSocket { stream: PlainStream::Unix(stream), permits: None }
    }
}

impl AsyncRead for PlainSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

delegate_write!([] PlainSocket, stream);

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_probes_silent_peers_of_accepted_sockets() {
        let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let socket = tcp_socket(address).expect("a socket");
        socket.bind(address).expect("a port");
        let listener = socket.listen(BACKLOG).expect("it listens");
        let address = listener.local_addr().expect("bound");
        let listener = ListenSocket::Tcp(listener);
        let _client = TcpStream::connect(address).await.expect("connected");
        let (accepted, _) = listener.accept().await.expect("accepted");
        let PlainStream::Tcp(stream) = &accepted.stream else { unreachable!("it is TCP") };
        assert_eq!(sockopt::socket_keepalive(stream), Ok(true));
        assert_eq!(sockopt::tcp_keepidle(stream), Ok(KEEPALIVE_IDLE));
        assert_eq!(sockopt::tcp_keepintvl(stream), Ok(KEEPALIVE_INTERVAL));
        assert_eq!(sockopt::tcp_keepcnt(stream), Ok(KEEPALIVE_PROBES));
    }
}
