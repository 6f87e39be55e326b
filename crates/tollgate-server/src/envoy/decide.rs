//! The decision of a rate limit request: every descriptor is charged, or none.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::internal::engine::DecisionMode;
use tollgate::internal::headers::headers;
use tollgate::internal::hit::{self, AttributeValues};
use tollgate::internal::rule::RuleId;
use tollgate::internal::store::ChargeReceipt;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

use super::answer::{DescriptorStatus, RateLimitAnswer};
use super::config::{ConfiguredLimit, FoundLimit, Quantity};
use super::hit::{counter_hit, counter_key, rules_hit};
use super::request::{Descriptor, RateLimitRequest, RequestError};
use super::{Compat, EnvoyLimits, overrides};
use crate::gate::{Gate, GateSnapshot, call_each};
use crate::trace_id::TraceId;

/// One decision of a request.
struct Question<'q> {
    /// The descriptor's position.
    descriptor: usize,
    asked: AskedPolicy<'q>,
    hit: Hit<'q>,
    cost: u64,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Charge,
    /// Nothing is charged.
    Look,
    /// The cost is given back. It denies nothing.
    Refund,
}

impl Purpose {
    fn of(descriptor: &Descriptor<'_>, cost: Option<u64>) -> Purpose {
        match cost {
            None => Purpose::Look,
            Some(_) if descriptor.is_refund => Purpose::Refund,
            Some(_) => Purpose::Charge,
        }
    }

    fn mode(self) -> DecisionMode {
        match self {
            Purpose::Charge => DecisionMode::Check,
            Purpose::Look | Purpose::Refund => DecisionMode::Peek,
        }
    }
}

enum AskedPolicy<'q> {
    InForce,
    Override(Arc<PolicySnapshot>),
    Configured(&'q PolicySnapshot, &'q ConfiguredLimit),
}

/// The answer to a question.
struct Answered {
    verdict: EngineVerdict,
    purpose: Purpose,
    /// What was charged first and refunded because of another descriptor.
    refunded: u64,
}

impl Answered {
    fn new(question: &Question<'_>, verdict: EngineVerdict) -> Answered {
        Answered { verdict, purpose: question.purpose, refunded: 0 }
    }

    fn denies(&self) -> bool {
        !self.verdict.allowed && self.purpose != Purpose::Refund
    }
}

type Answers = SmallVec<[Answered; 2]>;

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
    let compat = limits.settings.compat;
    let asker = Asker { gate, snapshot: &snapshot, now };
    let mut answers = match (&questions[..], compat) {
        ([_], _) | (_, Compat::Envoy) => asker.ask_each(&questions).await,
        (_, Compat::Tollgate) => asker.ask_all_or_none(&questions).await,
    };
    let has_refunds = questions.iter().any(|question| question.purpose == Purpose::Refund);
    if has_refunds && (compat == Compat::Envoy || !answers.iter().any(Answered::denies)) {
        asker.refund_as_asked(&questions, &mut answers).await;
    }
    let statuses = (0..request.descriptors.len()).map(|n| status_of(n, &questions, &answers)).collect();
    let reported = reported(&answers);
    let headers = reported.map(|verdict| headers(verdict, snapshot.live.headers)).unwrap_or_default();
    let mut answer = RateLimitAnswer { statuses, headers, body: None, compat };
    if let Some(denied) = reported.filter(|verdict| !verdict.allowed && answer.is_over_limit()) {
        // envoyproxy/ratelimit has no such header.
        let ticket = gate.ticket(denied, now).filter(|_| compat == Compat::Tollgate);
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
        let purpose = Purpose::of(descriptor, cost);
        let cost = cost.unwrap_or(1);
        let hit = snapshot.identify(rules_hit(domain, descriptor, cost), now);
        let is_exempt = snapshot.policy.is_hit_allow_listed(&hit);
        questions.push(Question { descriptor: n, asked: AskedPolicy::InForce, hit, cost, purpose });
        let configured = found.next().flatten();
        if is_exempt {
            continue;
        }
        if let Some((asked, hit)) = beside_the_rules(limits, domain, descriptor, configured, cost) {
            questions.push(Question { descriptor: n, asked, hit, cost, purpose });
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
    if let Some(limit) = descriptor.limit.filter(|_| limits.has_overrides_in(domain)) {
        let entries = descriptor.entries.iter();
        let key = counter_key(entries.map(|entry| (entry.key.as_ref(), entry.value.as_ref())));
        let hit = counter_hit(domain, overrides::PATH, key, cost);
        return Some((AskedPolicy::Override(limits.overrides.policy(limit)), hit));
    }
    let FoundLimit { limit, counter } = configured?;
    let policy = limits.config.as_ref()?.policy();
    Some((AskedPolicy::Configured(policy, limit), counter_hit(domain, &limit.path, counter, cost)))
}

/// Whether to record a denial: unless it would be a violation only for rules and ban keys that the request has violated
/// before, which are `recorded`.
fn adds_violation(
    snapshot: &GateSnapshot,
    question: &Question<'_>,
    answer: &Answered,
    recorded: &mut Vec<(RuleId, Vec<AttributeValues<'static>>)>,
) -> bool {
    let denying = answer.verdict.enforced().filter(|limit| !limit.is_allowed());
    let violations: Vec<_> = denying
        .filter_map(|limit| {
            let ban = limit.rule.ban.as_ref()?;
            let values = ban.key.iter().map(|name| snapshot.policy.values(&question.hit, name).into_owned());
            Some((limit.rule.id.clone(), values.collect()))
        })
        .collect();
    let is_known = !violations.is_empty() && violations.iter().all(|each| recorded.contains(each));
    recorded.extend(violations);
    !is_known
}

/// Asks the questions of one request.
struct Asker<'a> {
    gate: &'a Gate,
    snapshot: &'a GateSnapshot,
    now: Time,
}

impl Asker<'_> {
    /// Asks each question by itself, all at once if they wait for a central store.
    async fn ask_each(&self, questions: &[Question<'_>]) -> Answers {
        if self.gate.central.get().is_some() && questions.len() > 1 {
            let hasher = RandomState::new();
            let origin = |question: &Question<'_>| hit::origin_hash(&question.hit, &hasher);
            return call_each(questions, origin, |question| self.ask(question)).await.into();
        }
        let mut answers = Answers::new();
        for question in questions {
            answers.push(self.ask(question).await);
        }
        answers
    }

    /// Asks several questions. In memory each is looked at first, so that a denied request takes nothing from the others
    /// even for a moment; what was charged before a denial is refunded.
    async fn ask_all_or_none(&self, questions: &[Question<'_>]) -> Answers {
        let mut answers = Answers::new();
        if self.gate.central.get().is_some() {
            answers = self.ask_each(questions).await;
        } else {
            for question in questions {
                answers.push(self.look(question).await);
            }
            let were_denied: SmallVec<[bool; 4]> = answers.iter().map(Answered::denies).collect();
            // Denials are recorded. One may be allowed now, and charged, after a refund by another request. A request is one
            // violation of a rule, whatever the number of its descriptors.
            let mut recorded = Vec::new();
            for (n, question) in questions.iter().enumerate().filter(|(n, _)| were_denied[*n]) {
                if adds_violation(self.snapshot, question, &answers[n], &mut recorded) {
                    answers[n] = self.ask(question).await;
                }
            }
            if !answers.iter().any(Answered::denies) {
                for (n, question) in questions.iter().enumerate().filter(|(n, _)| !were_denied[*n]) {
                    answers[n] = self.ask(question).await;
                }
            }
        }
        self.refund_if_denied(questions, &mut answers);
        answers
    }

    fn refund_if_denied(&self, questions: &[Question<'_>], answers: &mut [Answered]) {
        if !answers.iter().any(Answered::denies) {
            return;
        }
        for (question, answer) in questions.iter().zip(answers) {
            if answer.verdict.allowed
                && let Some(receipt) = answer.verdict.take_receipt()
            {
                self.gate.refund(receipt);
                answer.refunded = question.cost;
            }
        }
    }

    /// Gives back what descriptors ask for; their answers are what is available then.
    async fn refund_as_asked(&self, questions: &[Question<'_>], answers: &mut [Answered]) {
        let is_refund = |n: &usize| questions[*n].purpose == Purpose::Refund;
        let refunds: SmallVec<[usize; 2]> = (0..questions.len()).filter(is_refund).collect();
        let receipt = |n: usize| answers[n].verdict.uncharged_receipt(self.now);
        let refund = |n: &usize| self.refund(&questions[*n], receipt(*n));
        let after = call_each(&refunds, |n| *n, refund).await;
        for (n, verdict) in refunds.into_iter().zip(after) {
            answers[n].verdict = verdict;
        }
    }

    async fn refund(&self, question: &Question<'_>, receipt: Option<ChargeReceipt>) -> EngineVerdict {
        if let Some(receipt) = receipt {
            self.gate.refund_and_wait(receipt).await;
        }
        // What is back by the time of the refund is not available before it.
        let after = Asker { now: self.gate.now(), ..*self };
        after.decide(&question.asked, &question.hit.clone().cost(0), DecisionMode::Peek).await
    }

    async fn ask(&self, question: &Question<'_>) -> Answered {
        let verdict = self.decide(&question.asked, &question.hit, question.purpose.mode()).await;
        Answered::new(question, verdict)
    }

    /// Asks a question without any effect.
    async fn look(&self, question: &Question<'_>) -> Answered {
        Answered::new(question, self.decide(&question.asked, &question.hit, DecisionMode::Peek).await)
    }

    async fn decide(&self, asked: &AskedPolicy<'_>, hit: &Hit<'_>, mode: DecisionMode) -> EngineVerdict {
        let Asker { gate, snapshot, now } = *self;
        match (asked, mode) {
            (AskedPolicy::InForce, DecisionMode::Check) => gate.check(snapshot, hit, now).await,
            (AskedPolicy::InForce, DecisionMode::Peek) => gate.peek(snapshot, hit, now).await,
            (AskedPolicy::Override(policy), mode) => {
                gate.decide_separate(snapshot, policy, hit, now, mode).await
            }
            (AskedPolicy::Configured(policy, _), mode) => {
                gate.decide_separate(snapshot, policy, hit, now, mode).await
            }
        }
    }
}

/// The status of a descriptor: by the denial if there is one, else by the limit beside the rules if there is one.
fn status_of(descriptor: usize, questions: &[Question<'_>], answers: &[Answered]) -> DescriptorStatus {
    let own = questions.iter().zip(answers).filter(|(question, _)| question.descriptor == descriptor);
    let rank = |(question, answer): &(&Question<'_>, &Answered)| {
        let is_beside = !matches!(question.asked, AskedPolicy::InForce);
        (answer.denies(), is_beside)
    };
    let Some((question, answered)) = own.max_by_key(rank) else {
        return DescriptorStatus::default();
    };
    let Answered { verdict, refunded, .. } = answered;
    let status = match question.asked {
        AskedPolicy::Configured(_, limit) if limit.quantity == Quantity::Unlimited => {
            DescriptorStatus { remaining: u32::MAX, ..DescriptorStatus::default() }
        }
        AskedPolicy::Configured(_, limit) => DescriptorStatus::configured(limit, verdict, *refunded),
        _ => DescriptorStatus::of(verdict, *refunded),
    };
    DescriptorStatus { is_over_limit: status.is_over_limit && question.purpose != Purpose::Refund, ..status }
}

/// The verdict that headers show: the denial with the longest wait, else the limit that is nearest to its end.
fn reported(answers: &[Answered]) -> Option<&EngineVerdict> {
    let wait = |verdict: &&EngineVerdict| verdict.retry_after.unwrap_or(Duration::MAX);
    let denied = answers.iter().filter(|answer| answer.denies()).map(|answer| &answer.verdict);
    denied.max_by_key(wait).or_else(|| {
        let verdicts = answers.iter().map(|answer| &answer.verdict);
        let limited = verdicts.filter_map(|verdict| Some((verdict.reported()?.remaining(), verdict)));
        limited.min_by_key(|(remaining, _)| *remaining).map(|(_, verdict)| verdict)
    })
}
