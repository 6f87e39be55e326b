//! The decision of a rate limit request: every descriptor is charged, or none.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::internal::engine::DecisionMode;
use tollgate::internal::headers::headers;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use super::answer::{DescriptorStatus, RateLimitAnswer};
use super::config::{ConfiguredLimit, FoundLimit, Quantity};
use super::hit::{counter_hit, counter_key, rules_hit};
use super::request::{Descriptor, RateLimitRequest, RequestError};
use super::{Compat, EnvoyLimits, overrides};
use crate::gate::{Gate, GateSnapshot};
use crate::trace_id::TraceId;

/// One decision of a request.
struct Question<'q> {
    /// The descriptor's position.
    descriptor: usize,
    asked: AskedPolicy<'q>,
    hit: Hit<'q>,
    cost: u64,
    mode: DecisionMode,
}

enum AskedPolicy<'q> {
    InForce,
    Override(Arc<PolicySnapshot>),
    Configured(&'q PolicySnapshot, &'q ConfiguredLimit),
}

/// The answer to a question.
struct Answered {
    verdict: EngineVerdict,
    /// What was charged first and refunded because of another descriptor.
    refunded: u64,
}

impl Answered {
    fn new(verdict: EngineVerdict) -> Answered {
        Answered { verdict, refunded: 0 }
    }
}

/// Decides a request. A denied descriptor leaves the counters of all of them as they were, unless requests are counted
/// as envoyproxy/ratelimit does.
pub async fn decide(
    gate: &Gate,
    request: &RateLimitRequest<'_>,
    trace: Option<TraceId>,
) -> Result<RateLimitAnswer, RequestError> {
    request.validate()?;
    let snapshot = gate.snapshot().with_trace(trace);
    let now = gate.now();
    let limits = &snapshot.live.envoy;
    let questions = questions(&snapshot, limits, request, now);
    let answers = match (&questions[..], limits.settings.compat) {
        ([_], _) | (_, Compat::Envoy) => ask_each(gate, &snapshot, &questions, now).await,
        (_, Compat::Tollgate) => ask_all_or_none(gate, &snapshot, &questions, now).await,
    };
    let statuses = (0..request.descriptors.len()).map(|n| status_of(n, &questions, &answers)).collect();
    let reported = reported(&answers);
    let headers = reported.map(|verdict| headers(verdict, snapshot.live.headers)).unwrap_or_default();
    let mut answer = RateLimitAnswer { statuses, headers, body: None };
    if let Some(denied) = reported.filter(|verdict| !verdict.allowed && answer.is_over_limit()) {
        // envoyproxy/ratelimit has no such header.
        let ticket = gate.ticket(denied, now).filter(|_| limits.settings.compat == Compat::Tollgate);
        answer.describe(denied, ticket.as_deref());
    }
    Ok(answer)
}

fn questions<'q>(
    snapshot: &GateSnapshot,
    limits: &'q EnvoyLimits,
    request: &'q RateLimitRequest<'_>,
    now: Time,
) -> SmallVec<[Question<'q>; 2]> {
    let domain = request.domain.as_ref();
    let config = limits.config.as_ref();
    let descriptors = request.descriptors.iter();
    let found = config.map(|config| config.limits(domain, descriptors.map(|one| &one.entries[..])));
    let mut found = found.unwrap_or_default().into_iter();
    let mut questions = SmallVec::new();
    for (n, descriptor) in request.descriptors.iter().enumerate() {
        let cost = request.cost_of(descriptor);
        let mode = if cost.is_some() { DecisionMode::Check } else { DecisionMode::Peek };
        let cost = cost.unwrap_or(1);
        let hit = snapshot.identify(rules_hit(domain, descriptor, cost), now);
        questions.push(Question { descriptor: n, asked: AskedPolicy::InForce, hit, cost, mode });
        let configured = found.next().flatten();
        if let Some((asked, hit)) = beside_the_rules(limits, domain, descriptor, configured, cost) {
            questions.push(Question { descriptor: n, asked, hit, cost, mode });
        }
    }
    questions
}

/// The limit of a descriptor beside the rules: its own, else that of the configuration.
fn beside_the_rules<'q>(
    limits: &'q EnvoyLimits,
    domain: &'q str,
    descriptor: &'q Descriptor<'_>,
    configured: Option<FoundLimit<'q>>,
    cost: u64,
) -> Option<(AskedPolicy<'q>, Hit<'q>)> {
    if let Some(limit) = descriptor.limit {
        let entries = descriptor.entries.iter();
        let key = counter_key(entries.map(|entry| (entry.key.as_ref(), entry.value.as_ref())));
        let hit = counter_hit(domain, overrides::PATH, key, cost);
        return Some((AskedPolicy::Override(limits.overrides.policy(limit)), hit));
    }
    let FoundLimit { limit, counter } = configured?;
    let policy = limits.config.as_ref()?.policy();
    Some((AskedPolicy::Configured(policy, limit), counter_hit(domain, &limit.path, counter, cost)))
}

/// Asks each question by itself.
async fn ask_each(
    gate: &Gate,
    snapshot: &GateSnapshot,
    questions: &[Question<'_>],
    now: Time,
) -> SmallVec<[Answered; 2]> {
    let mut answers = SmallVec::new();
    for question in questions {
        answers.push(Answered::new(ask(gate, snapshot, question, now, question.mode).await));
    }
    answers
}

/// Asks several questions. Where that is cheap each is looked at first, so that a denied request takes nothing from the
/// others even for a moment; what was charged before a denial is refunded.
async fn ask_all_or_none(
    gate: &Gate,
    snapshot: &GateSnapshot,
    questions: &[Question<'_>],
    now: Time,
) -> SmallVec<[Answered; 2]> {
    if gate.central.get().is_none() {
        let mut looked: SmallVec<[Answered; 2]> = SmallVec::new();
        for question in questions {
            looked.push(Answered::new(ask(gate, snapshot, question, now, DecisionMode::Peek).await));
        }
        if looked.iter().any(|answer| !answer.verdict.allowed) {
            for (question, answer) in questions.iter().zip(&mut looked) {
                // Denials are recorded; they charge nothing.
                if !answer.verdict.allowed {
                    answer.verdict = ask(gate, snapshot, question, now, question.mode).await;
                }
            }
            refund_if_denied(gate, questions, &mut looked);
            return looked;
        }
    }
    let mut answers = ask_each(gate, snapshot, questions, now).await;
    refund_if_denied(gate, questions, &mut answers);
    answers
}

fn refund_if_denied(gate: &Gate, questions: &[Question<'_>], answers: &mut [Answered]) {
    if answers.iter().all(|answer| answer.verdict.allowed) {
        return;
    }
    for (question, answer) in questions.iter().zip(answers) {
        if answer.verdict.allowed
            && let Some(receipt) = answer.verdict.take_receipt()
        {
            gate.refund(receipt);
            answer.refunded = question.cost;
        }
    }
}

async fn ask(
    gate: &Gate,
    snapshot: &GateSnapshot,
    question: &Question<'_>,
    now: Time,
    mode: DecisionMode,
) -> EngineVerdict {
    let hit = &question.hit;
    match (&question.asked, mode) {
        (AskedPolicy::InForce, DecisionMode::Check) => gate.check(snapshot, hit, now).await,
        (AskedPolicy::InForce, DecisionMode::Peek) => gate.peek(snapshot, hit, now).await,
        (AskedPolicy::Override(policy), mode) => gate.decide_separate(snapshot, policy, hit, now, mode).await,
        (AskedPolicy::Configured(policy, _), mode) => {
            gate.decide_separate(snapshot, policy, hit, now, mode).await
        }
    }
}

/// The status of a descriptor: by the denial if there is one, else by the limit beside the rules if there is one.
fn status_of(descriptor: usize, questions: &[Question<'_>], answers: &[Answered]) -> DescriptorStatus {
    let own = questions.iter().zip(answers).filter(|(question, _)| question.descriptor == descriptor);
    let rank = |(question, answer): &(&Question<'_>, &Answered)| {
        let is_beside = !matches!(question.asked, AskedPolicy::InForce);
        (!answer.verdict.allowed, is_beside)
    };
    let Some((question, Answered { verdict, refunded })) = own.max_by_key(rank) else {
        return DescriptorStatus::default();
    };
    match question.asked {
        AskedPolicy::Configured(_, limit) if limit.quantity == Quantity::Unlimited => {
            DescriptorStatus { remaining: u32::MAX, ..DescriptorStatus::default() }
        }
        AskedPolicy::Configured(_, limit) => DescriptorStatus::configured(limit, verdict, *refunded),
        _ => DescriptorStatus::of(verdict, *refunded),
    }
}

/// The verdict that headers show: the denial with the longest wait, else the limit that is nearest to its end.
fn reported(answers: &[Answered]) -> Option<&EngineVerdict> {
    let verdicts = || answers.iter().map(|answer| &answer.verdict);
    let wait = |verdict: &&EngineVerdict| verdict.retry_after.unwrap_or(Duration::MAX);
    let denied = verdicts().filter(|verdict| !verdict.allowed).max_by_key(wait);
    denied.or_else(|| {
        let limited = verdicts().filter_map(|verdict| Some((verdict.reported()?.remaining(), verdict)));
        limited.min_by_key(|(remaining, _)| *remaining).map(|(_, verdict)| verdict)
    })
}
