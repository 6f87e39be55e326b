//! `/v1/simulate`: what other rules would have done with the live sample of requests.

use std::collections::HashMap;
use std::sync::Arc;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::internal::PolicySnapshot;
use tollgate::internal::engine::LogKeys;
use tollgate::internal::hit::client;
use tollgate::internal::identity::Key;
use tollgate::internal::policy::PolicyParts;
use tollgate::internal::rule::Rule;

use crate::admin::request::AdminRequest;
use crate::cli::simulate::{Simulation, SimulationPlan, policy_of};
use crate::connection::FullResponse;
use crate::insight::{Sampled, key_text};
use crate::json_body::{self, JsonObject};
use crate::response::{self, ProblemDetails};

const MAX_BODY_BYTES: usize = 1 << 20;
/// Rules in force that are compared: with more, the comparison would take too long.
const MAX_RULES: usize = 10_000;
/// Clients and rules that are listed.
const MAX_LISTED: usize = 100;
/// Counters of one simulation.
const MEMORY_BYTES: usize = 32 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulateRequest {
    rules: String,
    sample: Option<String>,
}

pub async fn simulate(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    call.parameters([])?;
    let body = call.read_body(MAX_BODY_BYTES).await?;
    let JsonObject(request): JsonObject<SimulateRequest> = json_body::parse(&body)?;
    if request.sample.is_some_and(|sample| sample != "live") {
        return Err(ProblemDetails::bad_field("sample", "'sample' must be live"));
    }
    let draft = policy_of(&request.rules).map_err(ProblemDetails::from)?;
    let in_force = copy_of(&call.gate().engine.policy())?;
    let insight = call.insight()?;
    let sampled = insight.sample();
    let log_keys = insight.log_keys();
    let admin = Arc::clone(&call.admin);
    let run = move || {
        let mut answer = outcome(draft, &sampled, log_keys);
        answer["compare"] = in_force.map_or(Value::Null, |policy| outcome(policy, &sampled, log_keys));
        answer["sampled_one_in"] = sampled.one_in.into();
        answer["from"] = sampled.requests.first().map(|first| first.at.secs()).into();
        answer["to"] = sampled.requests.last().map(|last| last.at.secs()).into();
        answer
    };
    // One at a time: each has counters of its own.
    let _turn = admin.simulating.lock().await;
    let failed = |_| ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the simulation failed");
    let answer = tokio::task::spawn_blocking(run).await.map_err(failed)?;
    Ok(response::json(StatusCode::OK, &answer))
}

/// The rules in force with counts of their own; `None` if there are too many.
fn copy_of(policy: &PolicySnapshot) -> Result<Option<PolicySnapshot>, ProblemDetails> {
    if policy.rules().len() > MAX_RULES {
        return Ok(None);
    }
    let rules: Vec<Rule> = policy.rules().iter().map(|rule| Rule::clone(rule)).collect();
    let settings = policy.settings().clone();
    let parts = PolicyParts { rules, settings, ..PolicyParts::default() };
    PolicySnapshot::new(parts)
        .map(Some)
        .map_err(|error| ProblemDetails::bad_field("rules", error.to_string()))
}

#[derive(Default)]
struct ClientOutcome {
    key: String,
    requests: u64,
    denied: u64,
}

/// Decides the sample by a policy.
fn outcome(policy: PolicySnapshot, sampled: &Sampled, log_keys: LogKeys) -> Value {
    let mut simulation = Simulation::new(SimulationPlan { policy, memory_bytes: MEMORY_BYTES });
    let mut clients: HashMap<u64, ClientOutcome> = HashMap::new();
    for request in &sampled.requests {
        let hit = request.hit.hit();
        let is_denied = simulation.decide(&hit, request.at, None).is_some();
        let one = clients.entry(request.client).or_insert_with(|| {
            let key = client(&hit)
                .and_then(|(attribute, value)| Key::new(vec![(attribute, value.into_owned())]).ok());
            let key = key.map(|key| key_text(&key, request.client, log_keys).to_string());
            ClientOutcome { key: key.unwrap_or_default(), ..ClientOutcome::default() }
        });
        one.requests += 1;
        one.denied += u64::from(is_denied);
    }
    let by_key = simulation.keys.by_rule(0);
    let mut by_rule: Vec<_> = simulation
        .policy
        .rules()
        .iter()
        .map(|rule| (rule, rule.counts()))
        .filter(|(_, counts)| counts.allowed + counts.denied + counts.shadow_denied > 0)
        .collect();
    by_rule
        .sort_by_key(|(_, counts)| std::cmp::Reverse((counts.denied + counts.shadow_denied, counts.allowed)));
    let by_rule = by_rule.into_iter().take(MAX_LISTED).map(|(rule, counts)| {
        let denied = counts.denied + counts.shadow_denied;
        json!({
            "rule": rule.id.as_str(),
            "requests": counts.allowed + denied,
            "denied": denied,
            "clients": by_key.get(rule.id.as_str()).map_or(0, |denials| denials.clients),
        })
    });
    let by_rule: Value = by_rule.collect();
    let mut clients: Vec<_> = clients.into_values().collect();
    clients
        .sort_by(|a, b| (b.denied, b.requests).cmp(&(a.denied, a.requests)).then_with(|| a.key.cmp(&b.key)));
    let clients: Value = clients
        .iter()
        .take(MAX_LISTED)
        .map(|one| json!({ "key": one.key, "requests": one.requests, "denied": one.denied }))
        .collect();
    json!({
        "requests": simulation.requests,
        "denied": simulation.denied,
        "by_rule": by_rule,
        "clients": clients,
        "notes": simulation.notes(),
    })
}
