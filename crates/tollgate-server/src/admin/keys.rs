//! `/v1/keys?rule=…&key=…`: the usage of a key, and its reset.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::engine::{CounterDetail, CounterReport, InspectError, InspectMode, KeyReport};
use tollgate::internal::identity::Key;
use tollgate::internal::request::percent::{self, Plus};
use tollgate::internal::time::calendar::rfc3339;

use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::response::{self, ProblemDetails};

pub async fn show(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let report = find(&call).await?;
    Ok(response::json(StatusCode::OK, &report_json(&report)))
}

/// Resets the counters of a key, and returns their state before.
pub async fn reset(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let found = find(&call).await?;
    let gate = call.gate();
    let rule = found.rule.to_string();
    let report =
        gate.inspect_key(&rule, found.key, gate.now(), InspectMode::Reset).await.map_err(not_found)?;
    tracing::info!(rule, caller = call.caller, "a key was reset by hand");
    Ok(response::json(StatusCode::OK, &json!({ "reset": report_json(&report) })))
}

/// The state of the key, under the first candidate that fits the rule's key.
async fn find(call: &AdminRequest) -> Result<KeyReport, ProblemDetails> {
    let [rule, key] = call.raw_parameters(["rule", "key"])?;
    let rule = rule.ok_or_else(|| ProblemDetails::bad_field("rule", "'rule' is missing"))?;
    let keys = match key {
        None | Some("") => vec![Key::default()],
        Some(key) => parse_key_candidates(key)?,
    };
    let gate = call.gate();
    let now = call.gate().now();
    let mut tried = Vec::with_capacity(keys.len());
    for key in keys {
        tried.push(gate.inspect_key(rule, key, now, InspectMode::Read).await);
    }
    let at = tried.iter().position(Result::is_ok).unwrap_or(0);
    tried.swap_remove(at).map_err(not_found)
}

fn not_found(error: InspectError) -> ProblemDetails {
    match &error {
        InspectError::NoRule(_) => ProblemDetails::new(StatusCode::NOT_FOUND, error.to_string()),
        InspectError::Key { .. } => ProblemDetails::bad_field("key", error.to_string()),
        InspectError::Store(_) => ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// A key in a query is percent-encoded once more, like every value there; a key without this second encoding is
/// accepted, too. Returns the keys that it may mean, the likelier one first.
pub(super) fn parse_key_candidates(raw: &str) -> Result<Vec<Key>, ProblemDetails> {
    let decoded = percent::text(percent::decode(raw, Plus::Literal).collect());
    let readings = [Key::parse(&decoded), Key::parse(raw)];
    let keys: Vec<_> = readings.iter().flatten().cloned().collect();
    match (keys.is_empty(), readings) {
        (false, _) => Ok(keys),
        (true, [Err(error), _]) => Err(ProblemDetails::bad_field("key", error.to_string())),
        (true, _) => Err(ProblemDetails::bad_field("key", "no key")),
    }
}

fn report_json(report: &KeyReport) -> Value {
    let mut body = json!({
        "rule": report.rule,
        "key": report.key.to_string(),
        "limits": report.limits.iter().map(counter).collect::<Vec<_>>(),
    });
    if let Some(track) = &report.track {
        body["tries"] = track.tries.into();
        body["denials"] = track.denials.into();
        body["last_seen"] = (track.tries > 0).then(|| rfc3339(track.last_seen)).into();
        body["latest"] = track.latest.iter().rev().map(|at| rfc3339(*at)).collect();
        body["scope"] = report.scope.name().into();
    }
    if let Some(error) = &report.store_error {
        body["store_error"] = error.to_string().into();
    }
    body
}

fn counter(report: &CounterReport) -> Value {
    let mut body = json!({
        "limit": report.limit.to_string(),
        "algorithm": report.limit.shape().name(),
        "used": report.used,
        "remaining": report.remaining,
        "reset_at": report.reset_at.map(rfc3339),
    });
    match report.detail {
        CounterDetail::Plain => {}
        CounterDetail::Counts { previous, current } => {
            body["previous"] = previous.into();
            body["current"] = current.into();
        }
        CounterDetail::Buckets { read } => body["buckets_read"] = read.into(),
    }
    body
}
