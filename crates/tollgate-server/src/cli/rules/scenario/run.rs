//! Runs the steps of a test on an engine of its own.

use serde_json::{Map, Value};
use tollgate::Time;
use tollgate::internal::engine::DecisionMode;
use tollgate::internal::time::format_duration;
use tollgate::internal::{EngineCore, EngineSetup, PolicySnapshot};

use super::{Action, Scenario};
use crate::cli::replay_settlement;
use crate::transport::http::{CheckRequest, CheckResponse};

const MEMORY_BYTES: usize = 64 << 20;

pub struct TestResult {
    pub name: String,
    pub failure: Option<StepFailure>,
}

/// The first step that did not go as expected.
pub struct StepFailure {
    pub line: u32,
    /// Which of several equal requests, from 1.
    pub request: u64,
    pub times: u64,
    /// Since the start of the test.
    pub after: String,
    /// Field, expected, found.
    pub differences: Vec<(String, Value, Value)>,
    /// The message of the verdict, if the request was denied.
    pub message: Option<String>,
}

impl StepFailure {
    /// A diff: `-` is expected, `+` was found.
    pub fn lines(&self) -> Vec<String> {
        let which = if self.times == 1 {
            String::new()
        } else {
            format!(", request {} of {}", self.request, self.times)
        };
        let mut lines = vec![format!("line {}{which}, {} after the start:", self.line, self.after)];
        for (name, expected, found) in &self.differences {
            lines.push(format!("- {name}: {}", text(expected)));
            lines.push(format!("+ {name}: {}", text(found)));
        }
        lines.extend(self.message.iter().map(|message| format!("  {message}")));
        lines
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

pub fn run(test: &Scenario, policy: PolicySnapshot, start: Time) -> TestResult {
    let needed = policy.rules().iter().flat_map(|rule| {
        rule.all_limits().map(|each| EngineSetup::min_memory_for(&each.limit)).collect::<Vec<_>>()
    });
    let memory_bytes = needed.max().unwrap_or_default().max(MEMORY_BYTES);
    let engine = EngineCore::with_setup(policy, EngineSetup { memory_bytes, ..EngineSetup::default() });
    let mut now = start;
    let mut failure = None;
    for step in &test.steps {
        match &step.action {
            Action::Wait(wait) => now = now + *wait,
            Action::Send { request, times, status, expected } => {
                let failed = (1..=*times).find_map(|n| {
                    let (differences, message) = send(&engine, request, *status, expected, now)?;
                    let after = format_duration(now.since(start));
                    Some(StepFailure {
                        line: step.line,
                        request: n,
                        times: *times,
                        after,
                        differences,
                        message,
                    })
                });
                failure = failed;
            }
        }
        if failure.is_some() {
            break;
        }
    }
    TestResult { name: test.name.clone(), failure }
}

type Mismatch = (Vec<(String, Value, Value)>, Option<String>);

/// Sends one request; `None` if the verdict is as expected.
fn send(
    engine: &EngineCore,
    request: &[u8],
    status: Option<u16>,
    expected: &Map<String, Value>,
    now: Time,
) -> Option<Mismatch> {
    let request = CheckRequest::parse(request).ok()?;
    let hit = request.hit().ok()?;
    let mode = if request.is_peek() { DecisionMode::Peek } else { DecisionMode::Check };
    let mut verdict = engine.decide(&engine.policy(), &hit, now, mode);
    let found: Value = serde_json::from_slice(&CheckResponse::of(&verdict).to_json()).unwrap_or_default();
    if verdict.allowed {
        replay_settlement::settle(engine, &mut verdict, now, status);
    }
    let differences: Vec<_> = expected
        .iter()
        .filter(|(name, value)| found[name.as_str()] != **value)
        .map(|(name, value)| (name.clone(), value.clone(), found[name.as_str()].clone()))
        .collect();
    let message = found["message"].as_str().map(str::to_owned);
    (!differences.is_empty()).then_some((differences, message))
}
