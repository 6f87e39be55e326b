//! The body of a response: the inner service's, that of a denial, or none.
//!
//! It holds what is settled at its end: concurrency permits, and charges of gRPC calls, whose status is in the
//! trailers.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::admission::OpenCharges;

pin_project! {
    /// The body of a response that has passed the layer.
    #[derive(Debug)]
    pub struct LimitedBody<B> {
        #[pin]
        source: BodySource<B>,
        open: Option<Box<OpenCharges>>,
    }
}

pin_project! {
    #[project = BodySourceProjection]
    #[derive(Debug)]
    enum BodySource<B> {
        Inner { #[pin] body: B },
        Denial { text: Option<Bytes> },
    }
}

impl<B> LimitedBody<B> {
    pub(crate) fn inner(body: B, open: Option<Box<OpenCharges>>) -> LimitedBody<B> {
        LimitedBody { source: BodySource::Inner { body }, open }
    }

    pub(crate) fn denial(text: Bytes) -> LimitedBody<B> {
        let text = Some(text).filter(|text| !text.is_empty());
        LimitedBody { source: BodySource::Denial { text }, open: None }
    }
}

/// An empty body, which other layers need for responses of their own.
impl<B> Default for LimitedBody<B> {
    fn default() -> Self {
        LimitedBody::denial(Bytes::new())
    }
}

impl<B: Body<Data = Bytes>> Body for LimitedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.project();
        let frame = match this.source.project() {
            BodySourceProjection::Denial { text } => {
                return Poll::Ready(text.take().map(Frame::data).map(Ok));
            }
            BodySourceProjection::Inner { body } => ready!(body.poll_frame(context)),
        };
        if let Some(open) = this.open {
            match &frame {
                Some(Ok(frame)) => {
                    frame.trailers_ref().into_iter().for_each(|trailers| open.settle_by_trailers(trailers))
                }
                Some(Err(_)) | None => *this.open = None,
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        match &self.source {
            BodySource::Inner { body } => body.is_end_stream(),
            BodySource::Denial { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.source {
            BodySource::Inner { body } => body.size_hint(),
            BodySource::Denial { text } => SizeHint::with_exact(text.as_ref().map_or(0, Bytes::len) as u64),
        }
    }
}
