//! Bodies on their way through: frame by frame, as fast as the slower side takes them.
//!
//! Nothing is collected. A side that sends or takes nothing for too long ends the exchange.

use std::error::Error;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::transport::proxy::lease::Lease;

/// How long we wait for an upstream's 100 before the body is sent unasked (RFC 9110, 10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);

pub type BodyError = Box<dyn Error + Send + Sync>;

/// Nothing came for as long as one may wait.
#[derive(Debug, Error)]
#[error("nothing was sent for too long")]
pub struct Stalled;

/// A body from the client on its way to an upstream.
pub struct Upload {
    /// What was read of it already: one buffer, however small the pieces were that it came in.
    prefix: BytesMut,
    /// The trailers, if they were read already.
    trailers: Option<HeaderMap>,
    rest: Option<Incoming>,
    patience: Patience,
    go_ahead: Option<GoAhead>,
    progress: Option<Arc<Progress>>,
}

/// Whether an upload is still under way: as long as it is, nobody waits for a response.
#[derive(Default)]
pub struct Progress(AtomicBool);

impl Progress {
    pub fn has_ended(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.end();
    }
}

/// Waits until the upstream asks for the body.
struct GoAhead {
    asked: Pin<Box<OwnedNotified>>,
    unasked: Pin<Box<Sleep>>,
}

impl Upload {
    pub fn new(rest: Incoming, idle: Duration) -> Upload {
        let rest = Some(rest).filter(|rest| !rest.is_end_stream());
        let mut upload = Upload::empty();
        upload.rest = rest;
        upload.patience = Patience::new(idle);
        upload
    }

    pub fn empty() -> Upload {
        Upload {
            prefix: BytesMut::new(),
            trailers: None,
            rest: None,
            patience: Patience::new(Duration::MAX),
            go_ahead: None,
            progress: None,
        }
    }

    /// A body that is there already.
    pub fn of(bytes: Bytes) -> Upload {
        let mut upload = Upload::empty();
        upload.prefix = BytesMut::from(bytes);
        upload
    }

    /// Sends nothing before the notice, or until waiting for it has become pointless.
    pub fn wait_for(&mut self, asked: Arc<Notify>) {
        let unasked = Box::pin(sleep_until(Instant::now() + CONTINUE_TIMEOUT));
        self.go_ahead = Some(GoAhead { asked: Box::pin(asked.notified_owned()), unasked });
    }

    /// How far it is; `None` if there is nothing to send.
    pub fn progress(&mut self) -> Option<Arc<Progress>> {
        (!self.is_end_stream()).then(|| Arc::clone(self.progress.get_or_insert_default()))
    }

    /// What was read ahead.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Takes what was read ahead.
    pub fn take_prefix(&mut self) -> Bytes {
        self.prefix.split().freeze()
    }

    /// Reads one frame ahead; `false` at the end of the body.
    pub async fn read_ahead(&mut self) -> Result<bool, BodyError> {
        let Some(rest) = &mut self.rest else { return Ok(false) };
        let Some(frame) = std::future::poll_fn(|cx| self.patience.poll_frame(rest, cx)).await else {
            self.rest = None;
            return Ok(false);
        };
        match frame?.into_data() {
            Ok(data) => self.prefix.extend_from_slice(&data),
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
        Ok(true)
    }

    fn end(&self) {
        if let Some(progress) = &self.progress {
            progress.0.store(true, Ordering::Relaxed);
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(waiting) = &mut self.go_ahead {
            if waiting.asked.as_mut().poll(cx).is_pending() {
                ready!(waiting.unasked.as_mut().poll(cx));
            }
            self.go_ahead = None;
        }
        if !self.prefix.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.take_prefix()))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let Upload { rest, patience, .. } = &mut *self;
        let frame = match rest {
            Some(rest) => ready!(patience.poll_frame(rest, cx)),
            None => None,
        };
        if self.is_end_stream() || frame.is_none() {
            self.end();
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let has_more = self.rest.as_ref().is_some_and(|rest| !rest.is_end_stream());
        self.prefix.is_empty() && self.trailers.is_none() && !has_more
    }

    fn size_hint(&self) -> SizeHint {
        let read = self.prefix.len() as u64;
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        match rest.exact() {
            Some(rest) => SizeHint::with_exact(rest + read),
            None => {
                let mut hint = SizeHint::new();
                hint.set_lower(rest.lower() + read);
                hint
            }
        }
    }
}

/// A body on its way to the client: our own answer, or an upstream's response.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are streamed, and a box would be one for each request"
)]
pub enum Reply {
    Whole(Full<Bytes>),
    Streamed(Download),
}

/// A response from an upstream, and what is given back when it has ended.
pub struct Download {
    rest: Incoming,
    patience: Patience,
    lease: Lease,
}

impl Download {
    pub fn new(rest: Incoming, idle: Duration, lease: Lease) -> Download {
        Download { rest, patience: Patience::new(idle), lease }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // A response that was cut off leaves bytes of its own on the connection.
        if self.rest.is_end_stream() {
            self.lease.give_back();
        }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Reply::Whole(full) => Pin::new(full).poll_frame(cx).map_err(|never| match never {}),
            Reply::Streamed(Download { rest, patience, lease }) => {
                let frame = ready!(patience.poll_frame(rest, cx));
                if frame.is_none() {
                    lease.give_back();
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Whole(full) => full.is_end_stream(),
            Reply::Streamed(download) => download.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Whole(full) => full.size_hint(),
            Reply::Streamed(download) => download.rest.size_hint(),
        }
    }
}

/// How long a body may stand still. The clock starts when it first does, not before.
struct Patience {
    idle: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    waiting: bool,
}

impl Patience {
    fn new(idle: Duration) -> Patience {
        Patience { idle, deadline: None, waiting: false }
    }

    fn poll_frame(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            self.waiting = false;
            return Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)));
        }
        let at = Instant::now() + self.idle;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(at)));
        if !self.waiting {
            self.waiting = true;
            deadline.as_mut().reset(at);
        }
        ready!(deadline.as_mut().poll(cx));
        Poll::Ready(Some(Err(Stalled.into())))
    }
}
