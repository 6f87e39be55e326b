//! A request body that is sent in chunks without copies, with a progress counter.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

/// Size of a chunk.
const PIECE_BYTES: usize = 64 << 10;

/// Bytes sent; shared by the sender and the progress display.
#[derive(Clone, Default)]
pub struct UploadCounter(Arc<AtomicU64>);

impl UploadCounter {
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

pub struct CountedBody {
    rest: Bytes,
    sent: UploadCounter,
}

impl CountedBody {
    pub fn new(body: Bytes, sent: UploadCounter) -> CountedBody {
        CountedBody { rest: body, sent }
    }
}

impl Body for CountedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(PIECE_BYTES);
        let piece = self.rest.split_to(length);
        self.sent.0.fetch_add(length as u64, Ordering::Relaxed);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn a_body_is_sent_in_pieces_without_copying() {
        let text = Bytes::from(vec![b'x'; 3 * PIECE_BYTES + 1]);
        let sent = UploadCounter::default();
        let mut upload = CountedBody::new(text.clone(), sent.clone());
        assert_eq!(upload.size_hint().exact(), Some(text.len() as u64));
        let mut at = 0;
        while let Some(Ok(frame)) = upload.frame().await {
            let piece = frame.into_data().expect("data");
            assert_eq!(piece.as_ptr(), text[at..].as_ptr(), "not a copy");
            at += piece.len();
            assert_eq!(sent.bytes(), at as u64);
        }
        assert!(at == text.len() && upload.is_end_stream());
    }
}
