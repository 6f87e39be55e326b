//! Tunnels upgraded connections: copies bytes both ways until both ends are closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{MissedTickBehavior, interval};

/// A tunnel without data in either direction for this long is closed.
const MAX_IDLE: Duration = Duration::from_secs(3600);
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// Joins the two ends; `held` is dropped when the tunnel ends.
pub fn spawn(client: OnUpgrade, upstream: OnUpgrade, guard: impl Send + 'static) {
    tokio::spawn(async move {
        let ends = tokio::try_join!(client, upstream);
        if let Ok((client, upstream)) = ends {
            tunnel(client, upstream).await;
        }
        drop(guard);
    });
}

async fn tunnel(client: Upgraded, upstream: Upgraded) {
    let activity = Arc::new(AtomicU64::new(0));
    let mut client = CountedIo { io: TokioIo::new(client), activity: Arc::clone(&activity) };
    let mut upstream = CountedIo { io: TokioIo::new(upstream), activity: Arc::clone(&activity) };
    tokio::select! {
        ended = copy_bidirectional(&mut client, &mut upstream) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a tunnel was cut");
            }
        }
        () = wait_idle(&activity) => tracing::debug!("a silent tunnel was closed"),
    }
}

/// Returns when there was no data for [`MAX_IDLE`].
async fn wait_idle(activity: &AtomicU64) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut known = 0;
    let mut silent = Duration::ZERO;
    while silent < MAX_IDLE {
        ticks.tick().await;
        let now = activity.load(Ordering::Relaxed);
        silent = if now == known { silent + CHECK_INTERVAL } else { Duration::ZERO };
        known = now;
    }
}

/// One end, which counts its data.
struct CountedIo<S> {
    io: S,
    activity: Arc<AtomicU64>,
}

impl<S: AsyncRead + Unpin> AsyncRead for CountedIo<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        if read.is_ready() {
            self.activity.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for CountedIo<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
