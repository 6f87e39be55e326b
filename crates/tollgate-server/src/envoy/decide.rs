//! The decision of a rate limit request: every descriptor is charged, or none.

use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::internal::engine::DecisionMode;
use tollgate::internal::headers::headers;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use super::answer::{DescriptorStatus, RateLimitAnswer};
use super::hit::{counter_hit, counter_key, rules_hit};
use super::overrides;
use super::request::{RateLimitRequest, RequestError};
use crate::gate::{Gate, GateSnapshot};

/// One decision of a request.
struct Question<'q> {
    /// The descriptor's position.
    descriptor: usize,
    asked: AskedPolicy,
    hit: Hit<'q>,
    cost: u64,
    mode: DecisionMode,
}

enum AskedPolicy {
    InForce,
    Separate(Arc<PolicySnapshot>),
}

/// The answer to a question.
struct Answered {
    verdict: EngineVerdict,
    /// What was charged first and refunded because of another descriptor.
    refunded: u64,
}

/// Decides a request. A denied descriptor leaves the counters of all of them as they were.
pub async fn decide(gate: &Gate, request: &RateLimitRequest<'_>) -> Result<RateLimitAnswer, RequestError> {
    request.validate()?;
    let snapshot = gate.snapshot();
    let now = gate.now();
    let questions = questions(&snapshot, request, now);
    let answers = ask_all(gate, &snapshot, &questions, now).await;
    let statuses = (0..request.descriptors.len()).map(|n| status_of(n, &questions, &answers)).collect();
    let reported = reported(&answers).map(|verdict| headers(verdict, snapshot.live.headers));
    Ok(RateLimitAnswer { statuses, headers: reported.unwrap_or_default() })
}

fn questions<'q>(
    snapshot: &GateSnapshot,
    request: &'q RateLimitRequest<'_>,
    now: Time,
) -> SmallVec<[Question<'q>; 2]> {
    let domain = request.domain.as_ref();
    let mut questions = SmallVec::new();
    for (n, descriptor) in request.descriptors.iter().enumerate() {
        let cost = request.cost_of(descriptor);
        let mode = if cost.is_some() { DecisionMode::Check } else { DecisionMode::Peek };
        let cost = cost.unwrap_or(1);
        let hit = snapshot.identify(rules_hit(domain, descriptor, cost), now);
        questions.push(Question { descriptor: n, asked: AskedPolicy::InForce, hit, cost, mode });
        if let Some(limit) = descriptor.limit {
            let asked = AskedPolicy::Separate(snapshot.live.envoy.overrides.policy(limit));
            let entries = descriptor.entries.iter();
            let key = counter_key(entries.map(|entry| (entry.key.as_ref(), entry.value.as_ref())));
            let hit = counter_hit(domain, overrides::PATH, key, cost);
            questions.push(Question { descriptor: n, asked, hit, cost, mode });
        }
    }
    questions
}

/// The answers to all questions, in their order. With several, each is looked at first where that is cheap, so that a
/// denied request does not take from the others even for a moment; what was charged before a denial is refunded.
async fn ask_all(
    gate: &Gate,
    snapshot: &GateSnapshot,
    questions: &[Question<'_>],
    now: Time,
) -> SmallVec<[Answered; 2]> {
    let mut answers = SmallVec::new();
    if let [single] = questions {
        answers.push(Answered { verdict: ask(gate, snapshot, single, now, single.mode).await, refunded: 0 });
        return answers;
    }
    let mut is_denied = false;
    if gate.central.get().is_none() {
        for question in questions {
            let verdict = ask(gate, snapshot, question, now, DecisionMode::Peek).await;
            is_denied |= !verdict.allowed;
            answers.push(Answered { verdict, refunded: 0 });
        }
    }
    if is_denied {
        for (question, answer) in questions.iter().zip(&mut answers) {
            // Denials are recorded; they charge nothing.
            if !answer.verdict.allowed {
                answer.verdict = ask(gate, snapshot, question, now, question.mode).await;
            }
        }
    } else {
        answers.clear();
        for question in questions {
            let verdict = ask(gate, snapshot, question, now, question.mode).await;
            answers.push(Answered { verdict, refunded: 0 });
        }
    }
    if answers.iter().any(|answer| !answer.verdict.allowed) {
        for (question, answer) in questions.iter().zip(&mut answers) {
            if let Some(receipt) = answer.verdict.take_receipt() {
                gate.refund(receipt);
                answer.refunded = question.cost;
            }
        }
    }
    answers
}

async fn ask(
    gate: &Gate,
    snapshot: &GateSnapshot,
    question: &Question<'_>,
    now: Time,
    mode: DecisionMode,
) -> EngineVerdict {
    match (&question.asked, mode) {
        (AskedPolicy::InForce, DecisionMode::Check) => gate.check(snapshot, &question.hit, now).await,
        (AskedPolicy::InForce, DecisionMode::Peek) => gate.peek(snapshot, &question.hit, now).await,
        (AskedPolicy::Separate(policy), mode) => gate.decide_separate(policy, &question.hit, now, mode).await,
    }
}

/// The status of a descriptor: by the denial if there is one, else by the limit beside the rules if there is one.
fn status_of(descriptor: usize, questions: &[Question<'_>], answers: &[Answered]) -> DescriptorStatus {
    let own = questions.iter().zip(answers).filter(|(question, _)| question.descriptor == descriptor);
    let rank = |(question, answer): &(&Question<'_>, &Answered)| {
        let is_separate = matches!(question.asked, AskedPolicy::Separate(_));
        (!answer.verdict.allowed, answer.verdict.reported().is_some(), is_separate)
    };
    let decisive = own.max_by_key(rank);
    decisive.map(|(_, answer)| DescriptorStatus::of(&answer.verdict, answer.refunded)).unwrap_or_default()
}

/// The verdict that headers show: the denial with the longest wait, else the limit that is nearest to its end.
fn reported(answers: &[Answered]) -> Option<&EngineVerdict> {
    let verdicts = || answers.iter().map(|answer| &answer.verdict);
    let wait = |verdict: &&EngineVerdict| verdict.retry_after.unwrap_or(std::time::Duration::MAX);
    let denied = verdicts().filter(|verdict| !verdict.allowed).max_by_key(wait);
    denied.or_else(|| {
        let limited = verdicts().filter_map(|verdict| Some((verdict.reported()?.remaining, verdict)));
        limited.min_by_key(|(remaining, _)| *remaining).map(|(_, verdict)| verdict)
    })
}
