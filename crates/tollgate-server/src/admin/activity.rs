//! `/v1/activity`: the most active rules, with the clients that they limit and how much of their limits is used.

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::admin::request::AdminRequest;
use crate::connection::FullResponse;
use crate::insight::{InsightData, RuleHistory, SeriesName};
use crate::response::{self, ProblemDetails};

/// `?rule=ID`
pub async fn list(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [rule] = call.parameters(["rule"])?;
    let data = call.insight()?.data();
    let rules: Value = match rule.as_deref() {
        None => data.by_activity().into_iter().map(|series| activity_json(&data, series)).collect(),
        Some(id) => {
            let name = if id == "other" { SeriesName::Other } else { SeriesName::Rule(id) };
            data.series(name).into_iter().map(|series| activity_json(&data, series)).collect()
        }
    };
    drop(data);
    Ok(response::json(StatusCode::OK, &json!({ "rules": rules })))
}

fn activity_json(data: &InsightData, series: &RuleHistory) -> Value {
    let minute = series.last_minute();
    let seconds = data.last_minute();
    let mut recent: Vec<[u32; 2]> = vec![[0, 0]; seconds.clone().count()];
    for (second, point) in series.seconds.range(*seconds.start(), *seconds.end()) {
        recent[(second - seconds.start()) as usize] = [point.denied, point.allowed];
    }
    if let Some(current) = recent.last_mut() {
        *current = [series.current.denied, series.current.allowed];
    }
    json!({
        "rule": series.rule.as_ref().map_or("other", |rule| rule.as_str()),
        "allowed": minute.allowed,
        "denied": minute.denied,
        "shadow_denied": minute.shadow_denied,
        "clients_limited": series.clients_limited(),
        "near_limit": series.near_limit(),
        "headroom": series.headroom(),
        "recent": recent,
    })
}
