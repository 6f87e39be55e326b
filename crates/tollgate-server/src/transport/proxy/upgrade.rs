//! A connection that has changed its protocol: bytes go through both ways until both ends are done.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{MissedTickBehavior, interval};

/// A tunnel in which nobody says anything for this long is closed.
const MAX_SILENCE: Duration = Duration::from_secs(3600);
const LOOK_EVERY: Duration = Duration::from_secs(60);

/// Joins the two ends for as long as they talk; what is `held` is dropped then.
pub fn join(client: OnUpgrade, upstream: OnUpgrade, held: impl Send + 'static) {
    tokio::spawn(async move {
        let ends = tokio::try_join!(client, upstream);
        if let Ok((client, upstream)) = ends {
            tunnel(client, upstream).await;
        }
        drop(held);
    });
}

async fn tunnel(client: Upgraded, upstream: Upgraded) {
    let heard = Arc::new(AtomicU64::new(0));
    let mut client = Heard { end: TokioIo::new(client), heard: Arc::clone(&heard) };
    let mut upstream = Heard { end: TokioIo::new(upstream), heard: Arc::clone(&heard) };
    tokio::select! {
        ended = copy_bidirectional(&mut client, &mut upstream) => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a tunnel was cut");
            }
        }
        () = silence(&heard) => tracing::debug!("a silent tunnel was closed"),
    }
}

/// Returns when nothing was heard for [`MAX_SILENCE`].
async fn silence(heard: &AtomicU64) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut known, mut silent) = (0, Duration::ZERO);
    while silent < MAX_SILENCE {
        ticks.tick().await;
        let now = heard.load(Ordering::Relaxed);
        silent = if now == known { silent + LOOK_EVERY } else { Duration::ZERO };
        known = now;
    }
}

/// An end that counts what it says.
struct Heard<S> {
    end: S,
    heard: Arc<AtomicU64>,
}

impl<S: AsyncRead + Unpin> AsyncRead for Heard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let read = Pin::new(&mut self.end).poll_read(cx, buf);
        if read.is_ready() {
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Heard<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.end).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.end).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.end).poll_shutdown(cx)
    }
}
