//! `/v1/queue`: requests that were put aside.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::request::fields;
use tollgate::time::calendar;

use crate::admin::Admin;
use crate::admin::call::Call;
use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::queue::{Item, QueueError, State};
use crate::transport::proxy::Aside;

const MAX_LISTED: usize = 1_000;
/// Headers that tell nothing of their sender; the values of others are not shown.
const SHOWN: [&str; 4] = ["accept", "content-encoding", "content-type", "idempotency-key"];

impl From<QueueError> for Problem {
    fn from(error: QueueError) -> Problem {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    }
}

fn aside(admin: &Admin) -> Result<&Aside, Problem> {
    let aside = admin.proxy.as_ref().and_then(|proxy| proxy.aside.as_deref());
    aside.ok_or_else(|| {
        Problem::new(StatusCode::NOT_FOUND, "there is no queue: no rule says on_exceed: queue")
    })
}

/// `?state=dead&count=100`
pub async fn list(call: Call) -> Result<Answer, Problem> {
    let (aside, query) = (aside(&call.admin)?, call.query());
    let asked = |name| fields::query(query, name).filter(|value| !value.is_empty());
    let state = asked("state").map(|name| State::parse(&name).ok_or_else(unknown_state)).transpose()?;
    let count = asked("count").map_or(Ok(100), |count| count.parse::<usize>());
    let count = count.map_err(|_| Problem::bad_field("count", "'count' is no number"))?.min(MAX_LISTED);
    let counts = aside.queue.counts().await?;
    let counts: serde_json::Map<_, _> =
        counts.into_iter().map(|(state, count)| (state.name().to_owned(), count.into())).collect();
    let items: Vec<_> = aside.queue.list(state, count).await?.iter().map(shown).collect();
    Ok(answer::json(StatusCode::OK, &json!({ "counts": counts, "items": items })))
}

fn unknown_state() -> Problem {
    let names = State::ALL.map(State::name).join(", ");
    Problem::bad_field("state", format!("'state' is one of {names}"))
}

pub async fn show(call: Call) -> Result<Answer, Problem> {
    let (_, item) = find(&call).await?;
    Ok(answer::json(StatusCode::OK, &shown(&item)))
}

pub async fn remove(call: Call) -> Result<Answer, Problem> {
    let (aside, item) = find(&call).await?;
    aside.queue.remove(&item.id).await?;
    Ok(answer::json(StatusCode::OK, &shown(&item)))
}

pub async fn retry(call: Call) -> Result<Answer, Problem> {
    let (aside, item) = find(&call).await?;
    if item.state == State::Sending {
        return Err(Problem::new(StatusCode::CONFLICT, "it is being sent just now"));
    }
    let now = call.gate().now();
    let expires_at = now + aside.config.ttl;
    let item = Item { state: State::Queued, next_at: now, tries: 0, expires_at, ..item };
    aside.queue.update(item.clone()).await?;
    Ok(answer::json(StatusCode::OK, &shown(&item)))
}

async fn find(call: &Call) -> Result<(&Aside, Item), Problem> {
    let (aside, id) = (aside(&call.admin)?, &call.name);
    let found = aside.queue.find(id).await?;
    let item =
        found.ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, format!("no queued request '{id}'")))?;
    Ok((aside, item))
}

/// An item without what is its sender's secret.
fn shown(item: &Item) -> Value {
    let headers = item.headers.iter().map(|(name, value)| {
        let value = if SHOWN.contains(&name.as_str()) { value.as_str() } else { "…" };
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
