//! Replays queued requests to the API at the rate that their rules allow.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::header::{HOST, HeaderName, HeaderValue};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate::Time;
use tollgate::internal::EngineVerdict;
use tollgate::internal::http::ProxyTrust;
use tollgate::internal::settlement::UnsettledCharges;

use crate::connection::{DRAIN_TIMEOUT, Shutdown, shutdown_requested};
use crate::queue::{QueuedRequest, QueuedState};
use crate::transport::proxy::Proxy;
use crate::transport::proxy::accept::forwarded::{Peer, Scheme};
use crate::transport::proxy::body::Upload;
use crate::transport::proxy::upstream::connect::Requires;
use crate::transport::proxy::upstream::forward::{self, OutgoingRequest};
use crate::transport::proxy::wait::enqueue::RequestQueue;

/// Bound on replayed requests in flight.
const MAX_IN_FLIGHT: usize = 16;
/// Poll interval where nothing is known to be due sooner.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const SWEEP_EVERY: u32 = 120;
const MAX_BACKOFF: Duration = Duration::from_secs(300);
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Runs until the shutdown. Requests in flight may finish then; those that do not are sent again.
pub async fn run(proxy: Arc<Proxy>, mut shutdown: Shutdown) {
    let Some(queue) = proxy.request_queue.clone() else { return };
    let mut in_flight = JoinSet::new();
    for round in 0u32.. {
        while in_flight.try_join_next().is_some() {}
        if let Err(error) = queue.backend.renew_deliveries().await {
            queue.failures.warn("errors of the queue", || {
                tracing::warn!(%error, "queued requests in flight may also be sent by another node");
            });
        }
        let free = MAX_IN_FLIGHT - in_flight.len().min(MAX_IN_FLIGHT);
        let now = proxy.gate.now();
        let pause = match queue.backend.take_due(now, free).await {
            Ok((due, next)) => {
                for item in due {
                    // Sequential: the oldest request passes first.
                    if let Some((item, verdict)) = decide(&proxy, &queue, item).await {
                        in_flight.spawn(send(Arc::clone(&proxy), Arc::clone(&queue), item, verdict));
                    }
                }
                // Without free capacity nothing is taken, due or not; the end of a request in flight wakes this loop.
                let next = next.filter(|_| free > 0);
                next.map_or(POLL_INTERVAL, |next| {
                    next.since(now).clamp(Duration::from_millis(1), POLL_INTERVAL)
                })
            }
            Err(error) => {
                queue.failures.warn("errors of the queue", || {
                    tracing::error!(%error, "queued requests cannot be sent");
                });
                POLL_INTERVAL
            }
        };
        if round.is_multiple_of(SWEEP_EVERY)
            && let Err(error) = queue.backend.sweep(proxy.gate.now()).await
        {
            tracing::error!(%error, "the queue cannot be swept");
        }
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => break,
            _ = in_flight.join_next(), if !in_flight.is_empty() => {}
            () = sleep(pause) => {}
        }
    }
    let drained = async { while in_flight.join_next().await.is_some() {} };
    timeout(DRAIN_TIMEOUT, drained).await.ok();
}

/// Charges a request like any other; `None` if it has to wait longer, or is too old.
async fn decide(
    proxy: &Proxy,
    queue: &RequestQueue,
    mut item: QueuedRequest,
) -> Option<(QueuedRequest, EngineVerdict)> {
    let now = proxy.gate.now();
    let too_old = now >= item.expires_at;
    // Attempts with an unknown result count, too.
    if too_old || item.tries >= queue.config.max_tries {
        let why = if too_old { "too old".to_owned() } else { item.error.unwrap_or_default() };
        item.state = QueuedState::Dead;
        item.next_at = now;
        item.error = Some(why);
        save(proxy, queue, item).await;
        return None;
    }
    // Peeked first: a denial of a queued request does not count as a violation.
    let snapshot = proxy.gate.snapshot();
    let mut verdict = proxy.gate.peek(&snapshot, &item.hit(), now).await;
    if verdict.allowed {
        verdict = proxy.gate.check(&snapshot, &item.hit(), now).await;
    }
    if !verdict.allowed {
        let next_at = queue.retry_schedule.reschedule(&snapshot.policy, &item.hit(), &verdict, now);
        item.reschedule(next_at.min(item.expires_at));
        save(proxy, queue, item).await;
        return None;
    }
    Some((item, verdict))
}

/// One attempt with an admitted request.
async fn send(
    proxy: Arc<Proxy>,
    queue: Arc<RequestQueue>,
    mut item: QueuedRequest,
    mut verdict: EngineVerdict,
) {
    if !verdict.delay.is_zero() {
        sleep(verdict.delay).await;
    }
    let answered = match queue.backend.body(&item.id).await {
        Ok(Some(body)) => deliver(&proxy, &item, body, &mut verdict).await,
        Ok(None) => Err("it was removed".to_owned()),
        Err(error) => Err(error.to_string()),
    };
    item.tries += 1;
    let now = proxy.gate.now();
    match answered {
        // 5xx and 429 are retried; any other status is the result.
        Ok(status) if status < 500 && status != 429 => {
            item.state = QueuedState::Done;
            item.status = Some(status);
            item.error = None;
            item.next_at = now;
            proxy.counts.replayed.fetch_add(1, Ordering::Relaxed);
        }
        failed => {
            item.status = failed.as_ref().ok().copied();
            item.error = Some(failed.map_or_else(|why| why, |status| format!("answered with {status}")));
            let wait = queue.config.backoff.saturating_mul(1 << (item.tries - 1).min(16)).min(MAX_BACKOFF);
            if item.tries >= queue.config.max_tries {
                item.state = QueuedState::Dead;
                item.next_at = now;
                queue.failures.warn("queued requests", || {
                    tracing::warn!(id = item.id, tries = item.tries, "a queued request was given up");
                });
            } else {
                item.reschedule(now + wait);
            }
        }
    }
    save(&proxy, &queue, item).await;
}

impl QueuedRequest {
    /// Schedules the next attempt.
    fn reschedule(&mut self, until: Time) {
        self.state = QueuedState::Queued;
        self.next_at = until;
    }
}

async fn save(proxy: &Proxy, queue: &RequestQueue, item: QueuedRequest) {
    if item.state == QueuedState::Dead {
        proxy.counts.dead_lettered.fetch_add(1, Ordering::Relaxed);
    }
    if let Err(error) = queue.backend.update(item).await {
        queue.failures.warn("errors of the queue", || {
            tracing::error!(%error, "the result of a queued request could not be saved: it will be sent again");
        });
    }
}

/// The status of the API's response; its body is discarded.
async fn deliver(
    proxy: &Arc<Proxy>,
    item: &QueuedRequest,
    body: Vec<u8>,
    verdict: &mut EngineVerdict,
) -> Result<u16, String> {
    let route = proxy.route.load_full();
    let mut charges = UnsettledCharges::take_from(verdict);
    charges.finish_wait(None);
    let permits = charges.permits(&proxy.gate);
    let outgoing =
        outgoing(item, body, route.config.host).ok_or("it can no longer be written as a request")?;
    let forwarded = forward::forward(proxy, &route, proxy.workers, &mut Some(outgoing)).await;
    let (response, mut in_flight) = match forwarded {
        Ok(forwarded) => forwarded,
        Err(failure) => {
            let problem = crate::response::ProblemDetails::from(failure);
            charges.settle(&*proxy.gate, problem.status.as_u16(), |_| None);
            return Err(problem.detail);
        }
    };
    in_flight.attach_permits(permits);
    let header = |name: &str| response.headers().get(name).map(HeaderValue::as_bytes);
    charges.settle(&*proxy.gate, response.status().as_u16(), header);
    let status = response.status().as_u16();
    let mut body = response.into_body();
    let drained = async { while let Some(Ok(_)) = body.frame().await {} };
    if timeout(route.config.timeouts.idle, drained).await.is_ok() {
        in_flight.release_connection(&mut body);
    }
    Ok(status)
}

fn outgoing(
    item: &QueuedRequest,
    body: Vec<u8>,
    host_header: crate::config::HostHeader,
) -> Option<OutgoingRequest> {
    let mut request = Request::builder().method(item.method.as_str()).uri(item.target.as_str());
    for (name, value) in &item.headers {
        request = request.header(name, value);
    }
    let (mut parts, ()) = request.body(()).ok()?.into_parts();
    let host = HeaderValue::from_str(&item.host).ok()?;
    let trust = ProxyTrust { proxies: &Default::default(), header: Default::default() };
    Peer::new((item.sender.ip, 0).into(), Scheme::Http).write_forwarding_headers(
        &mut parts.headers,
        &host,
        trust,
    );
    if host_header == crate::config::HostHeader::Keep {
        parts.headers.insert(HOST, host);
    }
    let id = HeaderValue::from_str(&item.id).ok()?;
    parts.headers.entry(IDEMPOTENCY_KEY).or_insert(id);
    let upload = Upload::from_bytes(Bytes::from(body));
    Some(OutgoingRequest { parts, upload, requires: Requires::Any, sticky: None })
}
