//! `/v1/live`: each second as a server-sent event, with a replay of the last hour after a lost connection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Either;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tollgate::Time;
use tollgate_stores::rules::DbError;

use crate::admin::request::AdminRequest;
use crate::admin::response::{AdminResponse, ChunkedBody};
use crate::admin::{Admin, health};
use crate::connection::shutdown_requested;
use crate::insight::{ListedDecision, SecondSummary};
use crate::response::ProblemDetails;

/// Streams at the same time; a browser's tab has one.
pub const MAX_STREAMS: usize = 64;
/// Events that wait for a reader.
const MAX_WAITING: usize = 8;
/// How long an idle stream is silent.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// A header `Last-Event-ID` repeats what a reader has missed.
pub async fn show(call: AdminRequest) -> Result<AdminResponse, ProblemDetails> {
    call.parameters([])?;
    let last_id = call.header("last-event-id")?.filter(|id| !id.is_empty());
    let wrong = || ProblemDetails::bad_field("last-event-id", "'last-event-id' must be the id of an event");
    let last = last_id.map(|id| id.parse::<u64>().map_err(|_| wrong())).transpose()?;
    let insight = call.insight()?;
    let full = |_| {
        let detail = format!("{MAX_STREAMS} streams are open already: close one of them");
        ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, detail)
    };
    let permit = Arc::clone(&call.admin.streams).try_acquire_owned().map_err(full)?;
    // Subscribed before the replay, so that no second is missed between them.
    let seconds = insight.subscribe();
    let (events, body) = mpsc::channel(MAX_WAITING);
    let stream = LiveStream { admin: Arc::clone(&call.admin), events, last, _permit: permit };
    tokio::spawn(stream.run(seconds));
    let mut answer = Response::new(Either::Right(ChunkedBody(body)));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

struct LiveStream {
    admin: Arc<Admin>,
    events: mpsc::Sender<Result<Bytes, DbError>>,
    /// The second that was sent last, by this stream or by one that it resumes.
    last: Option<u64>,
    _permit: OwnedSemaphorePermit,
}

/// The reader is gone.
struct Closed;

impl LiveStream {
    async fn run(mut self, seconds: tokio::sync::broadcast::Receiver<Arc<SecondSummary>>) {
        let mut shutdown = self.admin.shutdown.clone();
        tokio::select! {
            _ = self.send_all(seconds) => {}
            () = shutdown_requested(&mut shutdown) => {
                // The reader may be too slow for it; the end of the body says the same.
                self.events.try_send(Ok(end_event("the node is stopping"))).ok();
            }
        }
    }

    async fn send_all(
        &mut self,
        mut seconds: tokio::sync::broadcast::Receiver<Arc<SecondSummary>>,
    ) -> Result<Infallible, Closed> {
        self.send(Bytes::from_static(b"retry: 1000\n\n")).await?;
        if let Some(last) = self.last {
            self.replay(last).await?;
        }
        loop {
            match timeout(HEARTBEAT, seconds.recv()).await {
                Err(_) => self.send(Bytes::from_static(b": idle\n\n")).await?,
                Ok(Ok(second)) if self.last.is_none_or(|last| second.at > last) => {
                    self.send_second(&second).await?
                }
                Ok(Ok(_)) => {}
                Ok(Err(RecvError::Lagged(missed))) => {
                    let why = format!(
                        "the stream was read too slowly, {missed} seconds were not sent: resume with Last-Event-ID"
                    );
                    self.send(end_event(&why)).await?;
                    return Err(Closed);
                }
                Ok(Err(RecvError::Closed)) => return Err(Closed),
            }
        }
    }

    /// Sends the seconds that followed `last`.
    async fn replay(&mut self, last: u64) -> Result<(), Closed> {
        let admin = Arc::clone(&self.admin);
        let Some(insight) = admin.gate.insight.get() else { return Ok(()) };
        let oldest = insight.data().oldest_second();
        let mut next = oldest.max(last.saturating_add(1));
        loop {
            let second = insight.data().replay(next);
            let Some(second) = second else { return Ok(()) };
            self.send_second(&second).await?;
            next += 1;
        }
    }

    async fn send_second(&mut self, second: &SecondSummary) -> Result<(), Closed> {
        self.last = Some(second.at);
        let data = second_json(second, &self.admin);
        self.send(format!("id: {}\nevent: second\ndata: {data}\n\n", second.at).into()).await
    }

    async fn send(&self, event: Bytes) -> Result<(), Closed> {
        self.events.send(Ok(event)).await.map_err(|_| Closed)
    }
}

fn end_event(reason: &str) -> Bytes {
    format!("event: end\ndata: {}\n\n", json!({ "reason": reason })).into()
}

fn second_json(second: &SecondSummary, admin: &Admin) -> Value {
    let total = &second.total;
    let rules = second.rules.iter().map(|(rule, point)| {
        json!({
            "rule": rule.as_str(),
            "allowed": point.allowed,
            "denied": point.denied,
            "shadow_denied": point.shadow_denied,
        })
    });
    json!({
        "at": second.at,
        "allowed": total.allowed,
        "denied": total.denied,
        "banned": total.banned,
        "shadow_denied": total.shadow_denied,
        "clients_limited": total.clients_limited,
        "near_limit": second.detail.near_limit,
        "latency": { "p50_us": second.detail.p50_us, "p99_us": second.detail.p99_us },
        "rules": rules.collect::<Value>(),
        "decisions": second.decisions.iter().map(DecisionReport::of).collect::<Vec<_>>(),
        "enforce": admin.gate.engine.enforce().name(),
        "status": health::status(&admin.gate, admin.proxy.as_deref()),
    })
}

/// A decision in a list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DecisionReport {
    id: String,
    /// Seconds since 1970.
    pub at: f64,
    allowed: bool,
    reason: String,
    rule: Option<String>,
    key: Option<String>,
    /// As the rule states it.
    #[serde(default)]
    limit: Option<String>,
    /// Of the limit, after the request.
    #[serde(default)]
    used: Option<u64>,
    #[serde(default)]
    cost: Option<u64>,
}

impl DecisionReport {
    pub fn of(decision: &ListedDecision) -> DecisionReport {
        DecisionReport {
            id: decision.id.to_string(),
            at: seconds(decision.at),
            allowed: decision.allowed,
            reason: decision.reason.name().to_owned(),
            rule: decision.rule.as_ref().map(|rule| rule.to_string()),
            key: decision.key.as_deref().map(str::to_owned),
            limit: decision.limit.map(|limit| limit.limit.to_string()),
            used: decision.limit.map(|limit| limit.used),
            cost: decision.limit.map(|limit| limit.cost),
        }
    }
}

/// Seconds since 1970, to the millisecond.
fn seconds(at: Time) -> f64 {
    (at.nanos() / 1_000_000) as f64 / 1_000.0
}
