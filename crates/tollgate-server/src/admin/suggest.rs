//! `/v1/suggest`: the limits that the live sample of requests suggests, and the clients that each would catch.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use tollgate::internal::hit::client;

use crate::admin::guarded_work::run_guarded;
use crate::admin::request::AdminRequest;
use crate::cli::suggest::{PeakCounter, PeakQuery, parse_window};
use crate::connection::FullResponse;
use crate::insight::Sampled;
use crate::response::{self, ProblemDetails};

/// Attributes that are counted together.
const MAX_ATTRIBUTES: usize = 8;

/// `?by=ip&window=1m&match=PATTERN`
pub async fn suggest(call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    let [by, window, pattern] = call.parameters(["by", "window", "match"])?;
    let by: Vec<String> = by.as_deref().unwrap_or("ip").split(',').map(str::to_owned).collect();
    if by.len() > MAX_ATTRIBUTES {
        let detail = format!("'by' has more than {MAX_ATTRIBUTES} attributes");
        return Err(ProblemDetails::bad_field("by", detail));
    }
    let window = parse_window(window.as_deref().unwrap_or("1m"))
        .map_err(|why| ProblemDetails::bad_field("window", format!("'window': {why}")))?;
    let counter = PeakCounter::new(PeakQuery { by, window, pattern })
        .map_err(|wrong| ProblemDetails::bad_field(wrong.field(), wrong.to_string()))?;
    call.insight()?;
    let admin = Arc::clone(&call.admin);
    let run = move || {
        let insight = admin.gate.insight.get()?;
        let sampled = insight.sample();
        Some(report(counter, &sampled, |key| insight.shown_key(key)))
    };
    // With simulations one at a time: each holds a copy of the sample.
    let guard = Arc::clone(&call.admin.simulating).lock_owned().await;
    let failed = || ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the sample cannot be read");
    let (answer, _guard) = run_guarded(guard, run).await.map_err(|_| failed())?;
    let answer = answer.ok_or_else(failed)?;
    Ok(response::json(StatusCode::OK, &answer))
}

fn report(mut counter: PeakCounter, sampled: &Sampled, shown: impl Fn(&str) -> String) -> Value {
    let mut is_shared = false;
    for request in sampled.each() {
        let hit = request.hit();
        if counter.add(&hit, request.at) {
            is_shared |= client(&hit).is_some_and(|(attribute, _)| !counter.is_by(&attribute));
        }
    }
    let mut notes = sampled.notes();
    if counter.without_key > 0 {
        notes.push(format!(
            "{} requests have no such key and are left out: fields that no rule uses are not recorded",
            counter.without_key
        ));
    }
    if sampled.one_in > 1 && is_shared {
        notes.push(format!(
            "one client in {} is recorded, by user, API key or address: a key that several of them share has had more \
             requests",
            sampled.one_in
        ));
    }
    let mut answer = json!(counter.report(sampled.one_in, shown));
    answer["from"] = sampled.requests.first().map(|first| first.at.secs()).into();
    answer["to"] = sampled.requests.last().map(|last| last.at.secs()).into();
    answer["notes"] = notes.into();
    answer
}
