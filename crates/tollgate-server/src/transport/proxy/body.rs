//! Request and response bodies, streamed frame by frame with backpressure.
//!
//! Bodies are not buffered as a whole. A side that sends or reads nothing for too long ends the exchange.

use std::error::Error;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

use crate::transport::proxy::accept::sanitize::TrailerFilter;
use crate::transport::proxy::upstream::plain_body::UpstreamBody;
use crate::transport::proxy::upstream::server::InFlightGuard;
use crate::transport::proxy::wait::budget::{Budget, BudgetReservation, OverBudget};

/// How long an upstream's 100 is awaited before the body is sent without it (RFC 9110, 10.1.1).
const CONTINUE_TIMEOUT: Duration = Duration::from_secs(1);
/// The window over which the rate of a body is averaged.
const RATE_WINDOW: Duration = Duration::from_secs(30);

pub type BoxError = Box<dyn Error + Send + Sync>;

/// No data within the idle timeout, or less than the minimum rate.
#[derive(Debug, Error)]
#[error("a body came too slowly")]
pub struct Stalled;

/// A request body, streamed from the client to an upstream.
pub struct Upload {
    /// The part that was read ahead: one buffer, however small the chunks were.
    prefix: BytesMut,
    /// The trailers, if they were read ahead.
    trailers: Option<HeaderMap>,
    rest: Option<Incoming>,
    stall_timer: StallTimer,
    continue_wait: Option<ContinueWait>,
    progress: Option<Arc<UploadProgress>>,
    trailer_filter: Option<Box<TrailerFilter>>,
    /// The memory of the prefix, until it is sent.
    reservation: Option<BudgetReservation>,
}

/// The progress of an upload.
#[derive(Default)]
pub struct UploadProgress {
    ended: AtomicBool,
    /// The upload waits for the client, which [`StallLimits`] bounds.
    waits_for_client: AtomicBool,
    /// Frames that the upstream's connection has accepted.
    frames: AtomicU64,
}

/// Checks an upload from time to time.
pub struct UploadProbe {
    progress: Arc<UploadProgress>,
    /// The frames at the last check.
    frames: u64,
}

impl UploadProbe {
    pub fn new(progress: Arc<UploadProgress>) -> UploadProbe {
        UploadProbe { progress, frames: 0 }
    }

    /// Whether the upload makes progress: frames were accepted since the last call, or the client is the slow side.
    pub fn is_progressing(&mut self) -> bool {
        let frames = self.progress.frames.load(Ordering::Relaxed);
        let moves = frames != self.frames || self.progress.waits_for_client.load(Ordering::Relaxed);
        self.frames = frames;
        moves && !self.progress.ended.load(Ordering::Relaxed)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.end();
    }
}

/// Delays the body until the upstream sends 100.
struct ContinueWait {
    continue_received: Pin<Box<OwnedNotified>>,
    timeout: Pin<Box<Sleep>>,
}

/// The body of a request as it was received.
pub enum RequestBody {
    Streamed(Incoming),
    /// It was in memory with its head.
    Whole(Bytes),
}

impl Upload {
    pub fn new(body: RequestBody, limits: StallLimits) -> Upload {
        let rest = match body {
            RequestBody::Streamed(rest) => rest,
            RequestBody::Whole(bytes) => return Upload::from_bytes(bytes),
        };
        let mut upload = Upload::empty();
        upload.rest = Some(rest).filter(|rest| !rest.is_end_stream());
        upload.stall_timer = StallTimer::new(limits);
        upload
    }

    pub fn empty() -> Upload {
        Upload {
            prefix: BytesMut::new(),
            trailers: None,
            rest: None,
            stall_timer: StallTimer::new(StallLimits::idle_only(Duration::MAX)),
            continue_wait: None,
            progress: None,
            trailer_filter: None,
            reservation: None,
        }
    }

    /// A body that is complete in memory.
    pub fn from_bytes(bytes: Bytes) -> Upload {
        let mut upload = Upload::empty();
        upload.prefix = BytesMut::from(bytes);
        upload
    }

    /// Filters the trailers when they are sent.
    pub fn filter_trailers(&mut self, filter: TrailerFilter) {
        self.trailer_filter = Some(Box::new(filter));
    }

    fn filtered(&self, mut frame: Frame<Bytes>) -> Frame<Bytes> {
        if let (Some(filter), Some(trailers)) = (&self.trailer_filter, frame.trailers_mut()) {
            filter.remove_forbidden(trailers);
        }
        frame
    }

    /// Sends nothing before the notice or the end of [`CONTINUE_TIMEOUT`].
    pub fn wait_for_continue(&mut self, continue_received: Arc<Notify>) {
        let timeout = Box::pin(sleep_until(Instant::now() + CONTINUE_TIMEOUT));
        self.continue_wait =
            Some(ContinueWait { continue_received: Box::pin(continue_received.notified_owned()), timeout });
    }

    /// The progress of the upload; `None` if there is nothing to send.
    pub fn progress(&mut self) -> Option<Arc<UploadProgress>> {
        (!self.is_end_stream()).then(|| Arc::clone(self.progress.get_or_insert_default()))
    }

    /// The bytes that were read ahead.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// The body, if all of it is in memory and nothing delays it.
    pub fn whole(&self) -> Option<&[u8]> {
        let is_whole = self.rest.is_none() && self.trailers.is_none() && self.continue_wait.is_none();
        is_whole.then_some(&self.prefix[..])
    }

    /// Reserves memory of a client's share for the bytes that were read ahead, until they are sent.
    pub fn reserve_prefix(&mut self, budget: &Arc<Budget>, client: Option<IpAddr>) -> Result<(), OverBudget> {
        let bytes = self.prefix.len();
        self.reservation.get_or_insert_with(|| BudgetReservation::of(budget, client)).grow_to(bytes)
    }

    /// It is sent over HTTP/2, where a gRPC call may be silent for long.
    pub fn lift_min_rate_of_calls(&mut self) {
        let limits = &mut self.stall_timer.limits;
        limits.min_rate = limits.min_rate.filter(|_| !limits.is_grpc);
    }

    /// Takes the bytes that were read ahead.
    pub fn take_prefix(&mut self) -> Bytes {
        self.reservation = None;
        self.prefix.split().freeze()
    }

    /// Reads one frame ahead; `false` at the end of the body.
    pub async fn read_ahead(&mut self) -> Result<bool, BoxError> {
        let Some(rest) = &mut self.rest else { return Ok(false) };
        let Some(frame) = std::future::poll_fn(|cx| self.stall_timer.poll_frame(rest, cx)).await else {
            self.rest = None;
            return Ok(false);
        };
        match frame?.into_data() {
            Ok(data) => self.prefix.extend_from_slice(&data),
            Err(frame) => self.trailers = frame.into_trailers().ok(),
        }
        Ok(true)
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.prefix.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.take_prefix()))));
        }
        if let Some(trailers) = self.trailers.take() {
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        match &mut self.rest {
            Some(rest) => self.stall_timer.poll_frame(rest, cx),
            None => Poll::Ready(None),
        }
    }

    fn end(&self) {
        if let Some(progress) = &self.progress {
            progress.ended.store(true, Ordering::Relaxed);
        }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(continue_wait) = &mut self.continue_wait {
            if continue_wait.continue_received.as_mut().poll(cx).is_pending() {
                ready!(continue_wait.timeout.as_mut().poll(cx));
            }
            self.continue_wait = None;
        }
        let frame = self.poll_next(cx);
        if let Some(progress) = &self.progress {
            progress.waits_for_client.store(frame.is_pending(), Ordering::Relaxed);
            progress.frames.fetch_add(u64::from(frame.is_ready()), Ordering::Relaxed);
        }
        let frame = ready!(frame);
        if self.is_end_stream() || frame.is_none() {
            self.end();
        }
        Poll::Ready(frame.map(|frame| frame.map(|frame| self.filtered(frame))))
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

/// A response body: the proxy's own, or an upstream's.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly all are streamed, and a box would be one for each request"
)]
pub enum ResponseBody {
    Full(Full<Bytes>),
    Streamed(Download),
}

/// A response body of an upstream, with what is released at its end.
pub struct Download {
    rest: UpstreamBody,
    stall_timer: StallTimer,
    in_flight: InFlightGuard,
}

impl Download {
    pub fn new(rest: UpstreamBody, idle: Duration, in_flight: InFlightGuard) -> Download {
        Download { rest, stall_timer: StallTimer::new(StallLimits::idle_only(idle)), in_flight }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        // Only a complete response leaves the connection reusable: a truncated one leaves unread bytes on it.
        if self.rest.is_end_stream() {
            self.in_flight.release_connection(&mut self.rest);
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            ResponseBody::Full(full) => Pin::new(full).poll_frame(cx).map_err(|never| match never {}),
            ResponseBody::Streamed(Download { rest, stall_timer, in_flight }) => {
                let frame = ready!(stall_timer.poll_frame(rest, cx));
                if frame.is_none() {
                    in_flight.release_connection(rest);
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            ResponseBody::Full(full) => full.is_end_stream(),
            ResponseBody::Streamed(download) => download.rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Full(full) => full.size_hint(),
            ResponseBody::Streamed(download) => download.rest.size_hint(),
        }
    }
}

/// How slowly a body may arrive.
#[derive(Clone, Copy)]
pub struct StallLimits {
    /// The longest time without data.
    pub idle: Duration,
    /// Minimum average rate over [`RATE_WINDOW`] in bytes per second; `None` for any rate.
    pub min_rate: Option<u32>,
    /// A gRPC call: without a minimum rate once it is sent over HTTP/2. Until then it is a body like any other, because any
    /// client can call its body so.
    pub is_grpc: bool,
}

impl StallLimits {
    const fn idle_only(idle: Duration) -> StallLimits {
        StallLimits { idle, min_rate: None, is_grpc: false }
    }
}

/// Fails a body that arrives too slowly. Only time spent waiting for the sender counts: a slow receiver does not make a
/// body slow.
struct StallTimer {
    limits: StallLimits,
    deadline: Option<Pin<Box<Sleep>>>,
    /// Since when no data has arrived.
    idle_since: Option<Instant>,
    window: RateWindow,
}

/// The current averaging window.
#[derive(Default)]
struct RateWindow {
    bytes: u64,
    /// Time spent waiting for the sender, without the current wait, which began at `from`.
    waited: Duration,
    from: Option<Instant>,
}

impl StallTimer {
    fn new(limits: StallLimits) -> StallTimer {
        StallTimer { limits, deadline: None, idle_since: None, window: RateWindow::default() }
    }

    fn poll_frame<B>(
        &mut self,
        body: &mut B,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>>
    where
        B: Body<Data = Bytes, Error: Into<BoxError>> + Unpin,
    {
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            self.idle_since = None;
            if let Some(from) = self.window.from.take() {
                self.window.waited += from.elapsed();
            }
            if let Some(Ok(frame)) = &frame {
                self.window.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
            }
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        ready!(self.poll_stalled(cx));
        Poll::Ready(Some(Err(Stalled.into())))
    }

    /// Ready when the body has arrived too slowly.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_new = self.idle_since.is_none();
        let mut now = Instant::now();
        let silent = *self.idle_since.get_or_insert(now);
        loop {
            let from = *self.window.from.get_or_insert(now);
            let stalls_at = silent + self.limits.idle;
            let window_ends = from + RATE_WINDOW.saturating_sub(self.window.waited);
            let at = if self.limits.min_rate.is_some() { stalls_at.min(window_ends) } else { stalls_at };
            let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep_until(at)));
            if is_new || deadline.deadline() != at {
                deadline.as_mut().reset(at);
            }
            ready!(deadline.as_mut().poll(cx));
            if at == stalls_at || self.window.is_too_slow(self.limits) {
                return Poll::Ready(());
            }
            now = Instant::now();
            self.window = RateWindow { from: Some(now), ..RateWindow::default() };
        }
    }
}

impl RateWindow {
    fn is_too_slow(&self, limits: StallLimits) -> bool {
        limits.min_rate.is_some_and(|rate| self.bytes < u64::from(rate) * RATE_WINDOW.as_secs())
    }
}

#[cfg(test)]
mod tests;
