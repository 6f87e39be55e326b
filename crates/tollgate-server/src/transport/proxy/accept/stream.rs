//! A client's stream: its first bytes are read ahead to detect the protocol, and its request heads are tracked.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::transport::proxy::accept::framing_check::FramingCheck;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

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
