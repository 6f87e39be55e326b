//! A stream of which some bytes were read already.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::connection::delegate_write;

pub struct ResumedStream<S> {
    stream: S,
    /// Returned before what is read from the stream.
    read: Vec<u8>,
    used: usize,
}

impl<S> ResumedStream<S> {
    pub fn new(stream: S, read: Vec<u8>) -> ResumedStream<S> {
        ResumedStream { stream, read, used: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ResumedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.read.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let rest = &self.read[self.used..];
        let taken = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..taken]);
        self.used += taken;
        if self.used == self.read.len() {
            self.read = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

delegate_write!([<S: AsyncWrite + Unpin>] ResumedStream<S>, stream);
