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
        Some(key) => {
            refuse_encoded_mark("key", key)?;
            parse_key_candidates(key)?
        }
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

/// Reads a key that is to be counted, banned, allowed or limited; a mark is refused.
pub(super) fn read_key(field: &str, text: &str) -> Result<Key, ProblemDetails> {
    refuse_mark(field, text)?;
    Key::parse(text).map_err(|error| ProblemDetails::bad_field(field, error.to_string()))
}

/// Refuses a key of a query or a path that is a mark.
pub(super) fn refuse_encoded_mark(field: &str, raw: &str) -> Result<(), ProblemDetails> {
    refuse_mark(field, &percent::text(percent::decode(raw, Plus::Literal).collect()))
}

/// Refuses a mark: read as a value it would name a key that no request has.
fn refuse_mark(field: &str, text: &str) -> Result<(), ProblemDetails> {
    let Some(mark) = mark_in(text) else { return Ok(()) };
    let detail = format!(
        "'{mark}' is the mark of a key that lists do not show: name the key itself, or list keys with log_keys: plain (a \
         '#' that belongs to a key is written %23)"
    );
    Err(ProblemDetails::bad_field(field, detail))
}

/// The part of a key that is a mark: `email:#1f…`, `#1f…` for a key without a text, or the end of a long key that was cut.
pub(super) fn mark_in(text: &str) -> Option<&str> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.split('+').find(|part| {
        let Some((before, mark)) = part.rsplit_once('#') else { return false };
        let is_mark = mark.len() == 16 && mark.bytes().all(is_digit);
        is_mark && (before.is_empty() || before.ends_with([':', '…']))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_values() {
        let mark = "#0123456789abcdef";
        for (key, expected) in [
            (format!("email:{mark}"), Some(format!("email:{mark}"))),
            (format!("ip:192.0.2.1+user:{mark}"), Some(format!("user:{mark}"))),
            (format!("cookie:sid:{mark}"), Some(format!("cookie:sid:{mark}"))),
            (format!("user:aaa…{mark}"), Some(format!("user:aaa…{mark}"))),
            (mark.to_owned(), Some(mark.to_owned())),
            ("user:%230123456789abcdef".to_owned(), None),
            ("user:#0123456789abcde".to_owned(), None),
            ("user:#0123456789abcdef0".to_owned(), None),
            ("user:#0123456789ABCDEF".to_owned(), None),
            (format!("user:channel{mark}"), None),
            ("ip:192.0.2.1".to_owned(), None),
        ] {
            assert_eq!(mark_in(&key), expected.as_deref(), "{key}");
        }
    }
}
