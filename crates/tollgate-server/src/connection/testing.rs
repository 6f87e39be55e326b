//! PROXY headers, for fuzz targets and linearity tests.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::proxy_header;

/// The client's address in a PROXY header, and how many bytes the header has; `None` if it is invalid or cut off.
pub fn proxy_header(bytes: &[u8]) -> Option<(Option<SocketAddr>, usize)> {
    let mut rest = bytes;
    let client = {
        let read = pin!(proxy_header::read(&mut rest));
        match read.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(read) => read.ok()?,
            Poll::Pending => unreachable!("a read of bytes in memory never waits"),
        }
    };
    Some((client, bytes.len() - rest.len()))
}
