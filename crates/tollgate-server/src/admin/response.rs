//! Response bodies of the admin listener: complete ones, and ones that are streamed while they are read.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::Response;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use tollgate_stores::rules::DbError;

pub type AdminResponse = Response<Either<Full<Bytes>, ChunkedBody>>;

/// A body in chunks. An error aborts the connection, so that a truncated body is not mistaken for a complete one.
pub struct ChunkedBody(pub mpsc::Receiver<Result<Bytes, DbError>>);

impl Body for ChunkedBody {
    type Data = Bytes;
    type Error = DbError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, DbError>>> {
        let next = ready!(self.0.poll_recv(cx));
        Poll::Ready(next.map(|chunk| chunk.map(Frame::data)))
    }
}
