//! Upgrades: answers the client, and copies bytes both ways until both ends are closed.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};
use tokio::time::{MissedTickBehavior, interval};

use crate::connection::delegate_write;
use crate::transport::proxy::accept::client_connection::ActiveStream;
use crate::transport::proxy::accept::websocket::WebSocketHandshake;
use crate::transport::proxy::body::ResponseBody;
use crate::transport::proxy::upstream::forward::ForwardError;
use crate::transport::proxy::upstream::plain_body::UpstreamBody;
use crate::transport::proxy::upstream::server::InFlightGuard;

/// A tunnel without data in either direction for this long is closed.
const MAX_IDLE: Duration = Duration::from_secs(3600);
const CHECK_INTERVAL: Duration = Duration::from_secs(60);

/// A client connection that is about to be upgraded.
pub struct PendingUpgrade {
    pub client: OnUpgrade,
    pub protocol: HeaderValue,
    pub handshake: Option<WebSocketHandshake>,
    pub active_stream: Option<ActiveStream>,
}

impl PendingUpgrade {
    /// Joins both connections, and responds to the client.
    pub fn complete(
        self,
        response: Response<UpstreamBody>,
        in_flight: InFlightGuard,
    ) -> Result<Response<ResponseBody>, ForwardError> {
        let (head, body) = response.into_parts();
        let UpstreamBody::Hyper(body) = body else { return Err(ForwardError::InvalidUpgrade) };
        let mut response = Response::from_parts(head, body);
        if self.handshake.as_ref().is_some_and(|handshake| !handshake.is_answered_by(response.headers())) {
            return Err(ForwardError::InvalidUpgrade);
        }
        let upstream = hyper::upgrade::on(&mut response);
        spawn(self.client, upstream, (in_flight, self.active_stream));
        let mut response = response.map(|_| ResponseBody::Full(http_body_util::Full::default()));
        if self.handshake.is_some() {
            *response.status_mut() = StatusCode::OK;
            response.headers_mut().remove(SEC_WEBSOCKET_ACCEPT);
        } else {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
            response.headers_mut().entry(UPGRADE).or_insert(self.protocol);
        }
        Ok(response)
    }
}

/// Joins the two ends; `held` is dropped when the tunnel ends.
fn spawn(client: OnUpgrade, upstream: OnUpgrade, guard: impl Send + 'static) {
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

delegate_write!([<S: AsyncWrite + Unpin>] CountedIo<S>, io);
