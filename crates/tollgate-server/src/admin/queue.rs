//! `/v1/queue`: queued requests.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::request::fields;
use tollgate::internal::time::calendar;

use crate::admin::Admin;
use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::queue::{QueueError, QueuedRequest, QueuedState};
use crate::response::{self, ProblemDetails};
use crate::transport::proxy::RequestQueue;

const MAX_LISTED: usize = 1_000;
/// Headers without personal data; the values of others are not shown.
const SHOWN_HEADERS: [&str; 4] = ["accept", "content-encoding", "content-type", "idempotency-key"];

impl From<QueueError> for ProblemDetails {
    fn from(error: QueueError) -> ProblemDetails {
        ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

fn request_queue(admin: &Admin) -> Result<&RequestQueue, ProblemDetails> {
    let queue = admin.proxy.as_ref().and_then(|proxy| proxy.request_queue.as_deref());
    queue.ok_or_else(|| {
        ProblemDetails::new(StatusCode::NOT_FOUND, "there is no queue: no rule has on_exceed: queue")
    })
}

/// `?state=dead&count=100`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let queue = request_queue(&call.admin)?;
    let query = call.query();
    let parameter = |name| fields::query(query, name).filter(|value| !value.is_empty());
    let state =
        parameter("state").map(|name| QueuedState::parse(&name).ok_or_else(unknown_state)).transpose()?;
    let count = parameter("count").map_or(Ok(100), |count| count.parse::<usize>());
    let count =
        count.map_err(|_| ProblemDetails::bad_field("count", "'count' is not a number"))?.min(MAX_LISTED);
    let counts = queue.backend.counts().await?;
    let counts: serde_json::Map<_, _> =
        counts.into_iter().map(|(state, count)| (state.name().to_owned(), count.into())).collect();
    let items: Vec<_> = queue.backend.list(state, count).await?.iter().map(item_json).collect();
    Ok(response::json(StatusCode::OK, &json!({ "counts": counts, "items": items })))
}

fn unknown_state() -> ProblemDetails {
    let names = QueuedState::ALL.map(QueuedState::name).join(", ");
    ProblemDetails::bad_field("state", format!("'state' must be one of {names}"))
}

pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let (_, item) = find(&call).await?;
    Ok(response::json(StatusCode::OK, &item_json(&item)))
}

pub async fn remove(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let (queue, item) = find(&call).await?;
    queue.backend.remove(&item.id).await?;
    Ok(response::json(StatusCode::OK, &item_json(&item)))
}

pub async fn retry(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let (queue, item) = find(&call).await?;
    if item.state == QueuedState::Sending {
        return Err(ProblemDetails::new(StatusCode::CONFLICT, "the request is being sent: try again later"));
    }
    let now = call.gate().now();
    let expires_at = now + queue.config.ttl;
    let item = QueuedRequest { state: QueuedState::Queued, next_at: now, tries: 0, expires_at, ..item };
    queue.backend.update(item.clone()).await?;
    Ok(response::json(StatusCode::OK, &item_json(&item)))
}

async fn find(call: &AdminRequest) -> Result<(&RequestQueue, QueuedRequest), ProblemDetails> {
    let queue = request_queue(&call.admin)?;
    let id = &call.path_parameter;
    let found = queue.backend.find(id).await?;
    let item = found
        .ok_or_else(|| ProblemDetails::new(StatusCode::NOT_FOUND, format!("no queued request '{id}'")))?;
    Ok((queue, item))
}

/// An item without its sender's secrets.
fn item_json(item: &QueuedRequest) -> Value {
    let headers = item.headers.iter().map(|(name, value)| {
        let value = if SHOWN_HEADERS.contains(&name.as_str()) { value.as_str() } else { "…" };
        (name.clone(), value.into())
    });
    json!({
        "id": item.id,
        "state": item.state.name(),
        "method": item.method,
        "target": item.target,
        "host": item.host,
        "headers": headers.collect::<serde_json::Map<_, _>>(),
        "body_bytes": item.body_bytes,
        "queued_at": calendar::rfc3339(item.queued_at),
        "expires_at": calendar::rfc3339(item.expires_at),
        "next_at": calendar::rfc3339(item.next_at),
        "tries": item.tries,
        "status": item.status,
        "error": item.error,
    })
}
