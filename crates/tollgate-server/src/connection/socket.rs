//! Sockets of listeners and clients: TCP or Unix, with or without TLS.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_rustls::server::TlsStream;

/// The peer of a Unix socket: a process of this machine.
const LOCAL_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

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
                Ok((PlainSocket::Tcp(stream), peer))
            }
            ListenSocket::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((PlainSocket::Unix(stream), LOCAL_PEER))
            }
        }
    }
}

/// An accepted connection as the kernel has it.
pub enum PlainSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// A socket that belongs to no runtime, on its way to another one.
pub enum DetachedSocket {
    Tcp(std::net::TcpStream),
    Unix(std::os::unix::net::UnixStream),
}

impl PlainSocket {
    pub fn detach(self) -> io::Result<DetachedSocket> {
        Ok(match self {
            PlainSocket::Tcp(stream) => DetachedSocket::Tcp(stream.into_std()?),
            PlainSocket::Unix(stream) => DetachedSocket::Unix(stream.into_std()?),
        })
    }
}

impl DetachedSocket {
    /// Joins the runtime of the caller.
    pub fn attach(self) -> io::Result<PlainSocket> {
        Ok(match self {
            DetachedSocket::Tcp(stream) => PlainSocket::Tcp(TcpStream::from_std(stream)?),
            DetachedSocket::Unix(stream) => PlainSocket::Unix(UnixStream::from_std(stream)?),
        })
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

delegate_io!(PlainSocket, Tcp | Unix);
delegate_io!(ClientSocket, Plain | Tls);
