//! `/v1/keys?rule=…&key=…`: what a key has used, and forgetting it.

use hyper::{Method, StatusCode};
use serde_json::{Value, json};
use tollgate::engine::{CounterReport, InspectError, KeyReport, Reading};
use tollgate::identity::Key;
use tollgate::request::percent::{self, Plus};
use tollgate::time::calendar::rfc3339;

use crate::answer::{self, Problem};
use crate::connection::Answer;
use crate::gate::Gate;

pub async fn handle(gate: &Gate, method: &Method, query: &str) -> Result<Answer, Problem> {
    let [rule, key] = parameters(query, ["rule", "key"])?;
    let rule = rule.ok_or_else(|| Problem::bad_field("rule", "'rule' is missing"))?;
    let keys = match key {
        None | Some("") => vec![Key::default()],
        Some(key) => candidates(key)?,
    };
    let now = gate.now();
    let reset = method == Method::DELETE;
    // The first reading of the key that the rule is counted by.
    let mut tried = Vec::with_capacity(keys.len());
    for key in keys {
        tried.push(gate.key(rule, key, now).await);
    }
    let at = tried.iter().position(Result::is_ok).unwrap_or(0);
    let found = match tried.swap_remove(at) {
        Ok(found) if reset => gate.reset_key(rule, found.key, now).await,
        found => found,
    };
    let report = found.map_err(|error| match &error {
        InspectError::NoRule(_) => Problem::new(StatusCode::NOT_FOUND, error.to_string()),
        InspectError::Key { .. } => Problem::bad_field("key", error.to_string()),
        InspectError::Store(_) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    })?;
    let body = written(&report);
    Ok(answer::json(StatusCode::OK, &if reset { json!({ "reset": body }) } else { body }))
}

/// The raw values of the parameters, each at most once.
fn parameters<'q, const N: usize>(query: &'q str, names: [&str; N]) -> Result<[Option<&'q str>; N], Problem> {
    let mut values = [None; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let at = names.iter().position(|known| *known == name);
        match at.map(|at| values[at].replace(value)) {
            Some(None) => {}
            Some(Some(_)) => return Err(Problem::bad_field(name, format!("'{name}' is given twice"))),
            None => {
                let detail = format!("unknown parameter '{name}': use {}", names.join(" and "));
                return Err(Problem::bad_field(name, detail));
            }
        }
    }
    Ok(values)
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
