//! What the admin address answers with: a whole body, or one that is sent while it is being read.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::Response;
use hyper::body::{Body, Frame};
use tokio::sync::mpsc;
use tollgate_stores::rules::DbError;

pub type AdminResponse = Response<Either<Full<Bytes>, ChunkedBody>>;

/// Parts of a body as they come. One that fails ends the connection, so that nobody takes it for whole.
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
