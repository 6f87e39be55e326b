//! `/v1/simulate`: what other rules would have done with the live sample of requests, or with those of a log.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::internal::PolicySnapshot;
use tollgate::internal::hit::client;
use tollgate::internal::http::FieldSelection;
use tollgate::internal::identity::Key;
use tollgate::internal::policy::PolicyParts;
use tollgate::internal::rule::Rule;
use tollgate::{Hit, Time};

use crate::admin::guarded_work::run_guarded;
use crate::admin::request::AdminRequest;
use crate::cli::access_log::{AccessLog, AccessLogError};
use crate::cli::simulate::{
    Simulation, SimulationOptions, SimulationPlan, SimulationReport, SimulationRun, policy_of,
};
use crate::connection::FullResponse;
use crate::insight::{Insight, Sampled, SampledRequest};
use crate::json_body::{self, JsonObject};
use crate::response::{self, ProblemDetails};

const MAX_BODY_BYTES: usize = 1 << 20;
/// Of a body with a log. Such bodies are received one at a time.
const MAX_LOG_BYTES: usize = 16 << 20;
/// Rules in force that are compared: with more, the comparison would take too long.
const MAX_RULES: usize = 10_000;
/// Clients that are counted: as many as the longest log may have.
const MAX_CLIENTS: usize = 1 << 18;
/// Clients and rules that are listed.
const MAX_LISTED: usize = 100;
/// Counters of one simulation.
const MEMORY_BYTES: usize = 32 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SimulateRequest {
    rules: String,
    sample: Option<String>,
    /// An access log, in place of the sample.
    log: Option<String>,
    /// Asks for the report of `tollgate simulate`.
    report: Option<ReportRequest>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportRequest {
    /// Other rules to compare with; by default those in force.
    compare: Option<String>,
    #[serde(default)]
    algorithms: bool,
    #[serde(default)]
    timeline: bool,
}

pub async fn simulate(mut call: AdminRequest) -> Result<FullResponse, ProblemDetails> {
    call.parameters([])?;
    let admin = Arc::clone(&call.admin);
    let length = call.header("content-length")?.and_then(|length| length.parse::<usize>().ok());
    if length.is_some_and(|length| length > MAX_LOG_BYTES) {
        let detail = format!("the body has more than {MAX_LOG_BYTES} bytes: send a part of the log");
        return Err(ProblemDetails::new(StatusCode::PAYLOAD_TOO_LARGE, detail));
    }
    let is_long = length.is_some_and(|length| length > MAX_BODY_BYTES);
    // One at a time: each has counters of its own.
    let lock = || Arc::clone(&admin.simulating).lock_owned();
    let early_guard = if is_long { Some(lock().await) } else { None };
    let body = call.read_body(if is_long { MAX_LOG_BYTES } else { MAX_BODY_BYTES }).await?;
    let JsonObject(request): JsonObject<SimulateRequest> = json_body::parse(&body)?;
    drop(body);
    let expected = if request.log.is_some() { "log" } else { "live" };
    if request.sample.is_some_and(|sample| sample != expected) {
        let detail = "'sample' must be live, or log with a 'log'";
        return Err(ProblemDetails::bad_field("sample", detail));
    }
    let draft = policy_of(&request.rules).map_err(ProblemDetails::from)?;
    let in_force = copy_of(&call.gate().engine.policy())?;
    let report = request.report.map(|report| report_plan(&request.rules, report, &call)).transpose()?;
    call.insight()?;
    let running = Arc::clone(&call.admin);
    let run = move || {
        let Some(insight) = running.gate.insight.get() else { return Ok(Value::Null) };
        let source = match request.log {
            Some(log) => Source::Log(log.into()),
            None => Source::Live(insight.sample()),
        };
        let mut answer = outcome(draft, &source, insight)?;
        answer["compare"] = in_force.map_or(Ok(Value::Null), |policy| outcome(policy, &source, insight))?;
        answer["sampled_one_in"] = source.one_in().into();
        if let Some((plan, options)) = report {
            let options = SimulationOptions { sampled_one_in: Some(source.one_in()), ..options };
            let mut run = SimulationRun::new(plan, options);
            let fields = run.fields().clone();
            let read = source.each(&fields, |hit, at, status| run.decide(hit, at, status))?;
            let mut report = run.report(|key| insight.shown_key(key));
            report.notes.extend(source.notes());
            let SourceSpan { unreadable, late, .. } = read;
            answer["report"] = json!(SimulationReport { unreadable, out_of_order: late, ..report });
        }
        Ok(answer)
    };
    let guard = match early_guard {
        Some(guard) => guard,
        None => lock().await,
    };
    let failed = |_| ProblemDetails::new(StatusCode::INTERNAL_SERVER_ERROR, "the simulation failed");
    let (answer, _guard) = run_guarded(guard, run).await.map_err(failed)?;
    let unreadable = |error: AccessLogError| ProblemDetails::bad_field("log", error.to_string());
    Ok(response::json(StatusCode::OK, &answer.map_err(unreadable)?))
}

/// Where the requests come from.
enum Source {
    Live(Sampled),
    Log(Bytes),
}

/// What was read of a source.
#[derive(Default)]
struct SourceSpan {
    /// In seconds since 1970.
    from: Option<u64>,
    to: Option<u64>,
    unreadable: u64,
    /// Requests dated before an earlier one.
    late: u64,
}

impl Source {
    fn one_in(&self) -> u64 {
        match self {
            Source::Live(sampled) => sampled.one_in,
            Source::Log(_) => 1,
        }
    }

    fn notes(&self) -> Vec<String> {
        match self {
            Source::Live(sampled) => sampled.notes(),
            Source::Log(_) => Vec::new(),
        }
    }

    /// Calls `visit` with each request, its time, and the status of its response if it is known.
    fn each(
        &self,
        fields: &FieldSelection,
        mut visit: impl FnMut(&Hit<'_>, Time, Option<u16>),
    ) -> Result<SourceSpan, AccessLogError> {
        match self {
            Source::Live(sampled) => {
                sampled.each().for_each(|request| visit(&request.hit(), request.at, None));
                let seconds = |request: Option<&SampledRequest>| request.map(|request| request.at.secs());
                let from = seconds(sampled.requests.first());
                Ok(SourceSpan { from, to: seconds(sampled.requests.last()), ..SourceSpan::default() })
            }
            Source::Log(text) => {
                let mut log = AccessLog::of_text("log", text.clone());
                let read =
                    log.read_lines(fields, |_| {}, |record, at| visit(&record.hit(), at, record.status));
                read.map(|read| SourceSpan {
                    from: read.first.map(Time::secs),
                    to: read.first.map(|_| read.last.secs()),
                    unreadable: read.unreadable,
                    late: read.late,
                })
            }
        }
    }
}

/// What is needed for a report. Counters are made later, for one simulation at a time.
fn report_plan(
    rules: &str,
    report: ReportRequest,
    call: &AdminRequest,
) -> Result<(SimulationPlan, SimulationOptions), ProblemDetails> {
    let plan = |policy| SimulationPlan { policy, memory_bytes: MEMORY_BYTES };
    let compare = match &report.compare {
        Some(other) => Some(("compare", policy_of(other).map_err(ProblemDetails::from)?)),
        None => copy_of(&call.gate().engine.policy())?.map(|policy| ("the rules in force", policy)),
    };
    let options = SimulationOptions {
        compare: compare.map(|(name, policy)| (name.to_owned(), plan(policy))),
        has_algorithms: report.algorithms,
        has_timeline: report.timeline,
        sampled_one_in: None,
    };
    Ok((plan(policy_of(rules).map_err(ProblemDetails::from)?), options))
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
    requests: u64,
    denied: u64,
}

/// Decides the requests by a policy.
fn outcome(policy: PolicySnapshot, source: &Source, insight: &Insight) -> Result<Value, AccessLogError> {
    let fields = FieldSelection::of_policy(&policy, &[]);
    let plan = SimulationPlan { policy, memory_bytes: MEMORY_BYTES };
    let mut simulation = Simulation::of_sample(plan, source.one_in()).with_denied_keys();
    let mut clients: HashMap<String, ClientOutcome> = HashMap::new();
    let read = source.each(&fields, |hit, at, status| {
        let is_denied = simulation.decide(hit, at, status).is_some();
        let key = client(hit)
            .and_then(|(attribute, value)| Key::new(vec![(attribute, value.into_owned())]).ok())
            .map(|key| key.to_string())
            .unwrap_or_default();
        if clients.len() >= MAX_CLIENTS && !clients.contains_key(&key) {
            return;
        }
        let one = clients.entry(key).or_default();
        one.requests += 1;
        one.denied += u64::from(is_denied);
    })?;
    let by_key = simulation.denied_keys(0);
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
    let mut clients: Vec<_> = clients.into_iter().collect();
    clients.sort_by(|(key, a), (other, b)| {
        (b.denied, b.requests).cmp(&(a.denied, a.requests)).then_with(|| key.cmp(other))
    });
    let shown = |(key, one): &(String, ClientOutcome)| json!({ "key": insight.shown_key(key), "requests": one.requests, "denied": one.denied });
    let clients: Value = clients.iter().take(MAX_LISTED).map(shown).collect();
    let notes = [source.notes(), simulation.notes()].concat();
    Ok(json!({
        "requests": simulation.requests,
        "denied": simulation.denied,
        "by_rule": by_rule,
        "clients": clients,
        "notes": notes,
        "from": read.from,
        "to": read.to,
        "unreadable": read.unreadable,
    }))
}
