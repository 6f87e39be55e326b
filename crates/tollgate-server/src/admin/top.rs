//! `/v1/top`: the keys with the most decisions, each with the bounds of its count.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::admin::request::{self, AdminRequest};
use crate::connection::FullResponse;
use crate::insight::{TopOutcome, TopWindow};
use crate::response::{self, ProblemDetails};

/// `?outcome=denied|allowed|near&window=1m|5m|1h&rule=ID&limit=100`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [outcome, window, rule, limit] = call.parameters(["outcome", "window", "rule", "limit"])?;
    let outcomes =
        [("denied", TopOutcome::Denied), ("allowed", TopOutcome::Allowed), ("near", TopOutcome::Near)];
    let windows = [("1m", TopWindow::Minute), ("5m", TopWindow::FiveMinutes), ("1h", TopWindow::Hour)];
    let top_outcome = request::choice("outcome", outcome.as_deref(), outcomes)?;
    let top_window = request::choice("window", window.as_deref(), windows)?;
    let limit = request::limit(limit.as_deref())?;
    let (from, keys) = call.insight()?.data().top.top(top_outcome, top_window, rule.as_deref(), limit);
    let keys = keys.iter().map(|key| {
        let rule = key.rule.as_ref().map(|rule| rule.as_str());
        json!({ "rule": rule, "key": key.key, "count": key.count, "error": key.error })
    });
    let node = format!("{:08x}", call.gate().engine.node());
    let body = json!({
        "outcome": outcome.as_deref().unwrap_or("denied"),
        "window": window.as_deref().unwrap_or("1m"),
        "from": from,
        "keys": keys.collect::<Value>(),
        "nodes": { "answered": [node], "missing": [] },
    });
    Ok(response::json(StatusCode::OK, &body))
}
