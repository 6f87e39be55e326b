//! `/v1/keys?rule=…&key=…`: what a key has used, and forgetting it.

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::engine::{CounterReport, InspectError, KeyReport, Reading};
use tollgate::identity::Key;
use tollgate::request::percent::{self, Plus};
use tollgate::time::calendar::rfc3339;

use crate::admin::call::Call;
use crate::answer::{self, Problem};
use crate::connection::Answer;

pub async fn show(call: Call) -> Result<Answer, Problem> {
    let report = find(&call).await?;
    Ok(answer::json(StatusCode::OK, &written(&report)))
}

/// Forgets what a key has used, and says what was forgotten.
pub async fn reset(call: Call) -> Result<Answer, Problem> {
    let found = find(&call).await?;
    let (gate, rule) = (call.gate(), found.rule.to_string());
    let report = gate.reset_key(&rule, found.key, gate.now()).await.map_err(not_found)?;
    tracing::info!(rule, who = call.who, "a key was reset by hand");
    Ok(answer::json(StatusCode::OK, &json!({ "reset": written(&report) })))
}

/// What is known of the key under the first of its readings that the rule is counted by.
async fn find(call: &Call) -> Result<KeyReport, Problem> {
    let [rule, key] = call.raw_parameters(["rule", "key"])?;
    let rule = rule.ok_or_else(|| Problem::bad_field("rule", "'rule' is missing"))?;
    let keys = match key {
        None | Some("") => vec![Key::default()],
        Some(key) => candidates(key)?,
    };
    let (gate, now) = (call.gate(), call.gate().now());
    let mut tried = Vec::with_capacity(keys.len());
    for key in keys {
        tried.push(gate.key(rule, key, now).await);
    }
    let at = tried.iter().position(Result::is_ok).unwrap_or(0);
    tried.swap_remove(at).map_err(not_found)
}

fn not_found(error: InspectError) -> Problem {
    match &error {
        InspectError::NoRule(_) => Problem::new(StatusCode::NOT_FOUND, error.to_string()),
        InspectError::Key { .. } => Problem::bad_field("key", error.to_string()),
        InspectError::Store(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    }
}

/// A key in a URL is encoded once more, as every value there; one written as it is does too, where
/// that can be told. Its readings, the better one first.
pub(super) fn candidates(raw: &str) -> Result<Vec<Key>, Problem> {
    let decoded = percent::text(percent::decode(raw, Plus::Literal).collect());
    let readings = [Key::parse(&decoded), Key::parse(raw)];
    let keys: Vec<_> = readings.iter().flatten().cloned().collect();
    match (keys.is_empty(), readings) {
        (false, _) => Ok(keys),
        (true, [Err(error), _]) => Err(Problem::bad_field("key", error.to_string())),
        (true, _) => Err(Problem::bad_field("key", "no key")),
    }
}

fn written(report: &KeyReport) -> Value {
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
    match report.reading {
        Reading::Plain => {}
        Reading::Counts { previous, current } => {
            body["previous"] = previous.into();
            body["current"] = current.into();
        }
        Reading::Buckets { read } => body["buckets_read"] = read.into(),
    }
    body
}
