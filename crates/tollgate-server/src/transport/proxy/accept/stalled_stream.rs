//! Resets HTTP/2 streams whose client reads nothing.
//!
//! Hyper polls a response's body only while the client's window has room, so a body cannot time out by itself. The task
//! of each stream is watched from outside instead: if a frame was passed to hyper and the next one is not polled for
//! within the idle timeout, the task is dropped. That resets the stream and frees what its body holds.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::rt::Executor;
use tokio::time::{Instant, sleep_until};

/// Size of a frame. A client must read a frame within the idle timeout, so the lowest rate that it may read at is this
/// many bytes in 60 seconds by default.
const PIECE_BYTES: usize = 16 << 10;

tokio::task_local! {
    static STREAM: Arc<StreamWatch>;
}

/// What the body of a stream waits for.
#[derive(Default)]
struct StreamWatch {
    /// The number of the frame that hyper is sending; 0 while hyper waits for the next frame, which is not the client's
    /// fault.
    last_frame: AtomicU64,
}

impl StreamWatch {
    /// Returns when hyper has had a frame for `idle` without polling for the next one. It must be polled after the
    /// stream's own task, which sets `last_frame`.
    async fn stalled(&self, idle: Duration) {
        let deadline = sleep_until(Instant::now());
        tokio::pin!(deadline);
        let mut known = 0;
        poll_fn(|cx| {
            let frame_number = self.last_frame.load(Ordering::Relaxed);
            if frame_number != known {
                known = frame_number;
                deadline.as_mut().reset(Instant::now() + idle);
            }
            if frame_number == 0 { Poll::Pending } else { deadline.as_mut().poll(cx) }
        })
        .await;
    }
}

/// Runs the streams of a connection, and ends those whose client reads nothing for `idle`.
#[derive(Clone)]
pub struct StreamExecutor {
    pub idle: Duration,
}

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let stream = Arc::<StreamWatch>::default();
        let idle = self.idle;
        tokio::spawn(async move {
            let task = STREAM.scope(Arc::clone(&stream), task);
            tokio::select! {
                biased;
                () = task => {}
                () = stream.stalled(idle) => tracing::debug!("a client took nothing of a response for too long"),
            }
        });
    }
}

/// The body of a response on a stream of a [`StreamExecutor`], with a guard that is dropped at its end.
pub struct WatchedBody<B, G> {
    body: B,
    /// The rest of a chunk that exceeds one frame.
    rest: Bytes,
    frames: u64,
    stream: Option<Arc<StreamWatch>>,
    _guard: G,
}

impl<B, G> WatchedBody<B, G> {
    /// It must be called on the stream's task. The client has to read the first frame, too.
    pub fn new(body: B, guard: G) -> WatchedBody<B, G> {
        let stream = STREAM.try_with(Arc::clone).ok();
        let mut watched = WatchedBody { body, rest: Bytes::new(), frames: 0, stream, _guard: guard };
        watched.frame_passed();
        watched
    }

    fn frame_passed(&mut self) {
        self.frames += 1;
        self.set_last_frame(self.frames);
    }

    fn set_last_frame(&self, frame_number: u64) {
        if let Some(stream) = &self.stream {
            stream.last_frame.store(frame_number, Ordering::Relaxed);
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin, G: Unpin> Body for WatchedBody<B, G> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.set_last_frame(0);
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => {
                        self.frame_passed();
                        return Poll::Ready(Some(Ok(trailers)));
                    }
                },
                ended => return Poll::Ready(ended),
            }
        }
        self.frame_passed();
        let piece = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        let body = self.body.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http_body_util::Full;
    use hyper::server::conn::http2;
    use hyper::service::service_fn;
    use hyper::{Request, Response};
    use hyper_util::rt::TokioIo;
    use tokio::io::duplex;
    use tokio::sync::mpsc;
    use tokio::time::{advance, timeout};

    use super::*;

    const IDLE: Duration = Duration::from_secs(60);
    const BODY_BYTES: usize = 100 << 10;

    /// Signals its drop.
    struct Guard(#[expect(dead_code, reason = "its end is the message")] mpsc::Sender<()>);

    /// How long a client with a window of `window` can hold a response, and how many bytes it has received. It reads up
    /// to `bytes` bytes per second.
    async fn held_for(window: u32, bytes: usize) -> (Duration, usize) {
        let (client, server) = duplex(1 << 20);
        let (guard, mut dropped) = mpsc::channel(1);
        let guard = Arc::new(std::sync::Mutex::new(Some(Guard(guard))));
        let service = service_fn(move |_| {
            let guard = guard.lock().expect("no panic").take();
            async move {
                let body = Full::new(Bytes::from(vec![b'x'; BODY_BYTES]));
                Ok::<_, Infallible>(Response::new(WatchedBody::new(body, guard)))
            }
        });
        let served = http2::Builder::new(StreamExecutor { idle: IDLE });
        let served = tokio::spawn(served.serve_connection(TokioIo::new(server), service));
        let (mut send, connection) = h2::client::Builder::new()
            .initial_window_size(window)
            .handshake::<_, Bytes>(client)
            .await
            .expect("it speaks HTTP/2");
        let connection = tokio::spawn(connection);
        let (response, _) = send.send_request(Request::new(()), true).expect("it is sent");
        let mut body = response.await.expect("a response").into_body();
        let start = Instant::now();
        let mut got = 0;
        loop {
            if timeout(Duration::from_millis(1), dropped.recv()).await.is_ok() {
                break;
            }
            let mut left = bytes;
            while left > 0
                && let Ok(Some(Ok(data))) = timeout(Duration::from_millis(1), body.data()).await
            {
                got += data.len();
                left = left.saturating_sub(data.len());
                body.flow_control().release_capacity(data.len()).expect("it was received");
            }
            advance(Duration::from_secs(1)).await;
            assert!(start.elapsed() < IDLE * 20, "it is held for ever");
        }
        served.abort();
        connection.abort();
        (start.elapsed(), got)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_whose_window_stays_closed_is_cut_off() {
        for window in [0, 1, 20 << 10] {
            let (held, got) = held_for(window, 0).await;
            assert!((IDLE..IDLE * 2).contains(&held), "window {window}: {held:?}");
            assert_eq!(got, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_gets_everything() {
        // The last frame is buffered in the connection once there is room for its first byte.
        let (held, got) = held_for(1 << 10, 1 << 10).await;
        assert!(got >= BODY_BYTES - 2 * PIECE_BYTES, "{got} in {held:?}");
        assert!(held > IDLE, "it took longer than the idle time: {held:?}");
    }
}
