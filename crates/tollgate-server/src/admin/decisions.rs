//! `/v1/decisions`: the latest decisions. Denials and allowed requests are listed separately, and of one key only a few
//! in each second, so that an attack does not replace the rest.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::admin::live::decision_json;
use crate::admin::request::{self, AdminRequest};
use crate::connection::FullResponse;
use crate::response::{self, ProblemDetails};

/// `?outcome=denied|allowed&rule=ID&key=KEY&limit=100`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [outcome, rule, key, limit] = call.parameters(["outcome", "rule", "key", "limit"])?;
    let denied = request::choice("outcome", outcome.as_deref(), [("denied", true), ("allowed", false)])?;
    let limit = request::limit(limit.as_deref())?;
    let data = call.insight()?.data();
    let found = data.decisions(denied).filter(|decision| {
        let has_rule =
            rule.as_deref().is_none_or(|rule| decision.rule.as_ref().is_some_and(|id| id.as_str() == rule));
        has_rule && key.as_deref().is_none_or(|key| decision.key.as_deref() == Some(key))
    });
    let decisions: Value = found.take(limit).map(decision_json).collect();
    drop(data);
    Ok(response::json(StatusCode::OK, &json!({ "decisions": decisions })))
}
