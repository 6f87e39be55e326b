//! The decision of a rate limit request: every descriptor is charged, or none.

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tollgate::internal::engine::{DecisionMode, RequestViolations};
use tollgate::internal::headers::headers;
use tollgate::internal::hit;
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

/// One decision of a request: a descriptor under one policy.
struct DescriptorCheck<'q> {
    /// The descriptor's position.
    descriptor: usize,
    policy: PolicyChoice<'q>,
    hit: Hit<'q>,
    cost: u64,
    purpose: Purpose,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Charge,
    /// Nothing is charged.
    Peek,
    /// The cost is given back. It denies nothing.
    Refund,
}

impl Purpose {
    fn of(descriptor: &Descriptor<'_>, cost: Option<u64>) -> Purpose {
        match cost {
            None => Purpose::Peek,
            Some(_) if descriptor.is_refund => Purpose::Refund,
            Some(_) => Purpose::Charge,
        }
    }

    fn mode(self) -> DecisionMode {
        match self {
            Purpose::Charge => DecisionMode::Check,
            Purpose::Peek | Purpose::Refund => DecisionMode::Peek,
        }
    }
}

enum PolicyChoice<'q> {
    InForce,
    Override(Arc<PolicySnapshot>),
    Configured(&'q PolicySnapshot, &'q ConfiguredLimit),
}

/// The outcome of a check.
struct DescriptorOutcome {
    verdict: EngineVerdict,
    purpose: Purpose,
    /// What was charged first and refunded because of another descriptor.
    refunded: u64,
}

impl DescriptorOutcome {
    fn new(check: &DescriptorCheck<'_>, verdict: EngineVerdict) -> DescriptorOutcome {
        DescriptorOutcome { verdict, purpose: check.purpose, refunded: 0 }
    }

    fn denies(&self) -> bool {
        !self.verdict.allowed && self.purpose != Purpose::Refund
    }
}

type Outcomes = SmallVec<[DescriptorOutcome; 2]>;

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
    let checks = checks(&snapshot, limits, request, now);
    let compat = limits.settings.compat;
    let violations = gate.engine.request_violations(now);
    let decider = RequestDecider { gate, snapshot: &snapshot, now, violations: &violations };
    let mut outcomes = match (&checks[..], compat) {
        ([_], _) | (_, Compat::Envoy) => decider.decide_each(&checks).await,
        (_, Compat::Tollgate) => decider.decide_all_or_none(&checks).await,
    };
    let has_refunds = checks.iter().any(|check| check.purpose == Purpose::Refund);
    if has_refunds && (compat == Compat::Envoy || !outcomes.iter().any(DescriptorOutcome::denies)) {
        decider.refund_as_requested(&checks, &mut outcomes).await;
    }
    let statuses = (0..request.descriptors.len()).map(|n| status_of(n, &checks, &outcomes)).collect();
    let reported = reported(&outcomes);
    let headers = reported.map(|verdict| headers(verdict, snapshot.live.headers)).unwrap_or_default();
    let mut answer = RateLimitAnswer { statuses, headers, body: None, compat };
    if let Some(denied) = reported.filter(|verdict| !verdict.allowed && answer.is_over_limit()) {
        // envoyproxy/ratelimit has no such header.
        let ticket = gate.ticket(denied, now).filter(|_| compat == Compat::Tollgate);
        answer.describe(denied, ticket.as_deref());
    }
    Ok(answer)
}

fn checks<'q>(
    snapshot: &GateSnapshot,
    limits: &'q EnvoyLimits,
    request: &'q RateLimitRequest<'_>,
    now: Time,
) -> SmallVec<[DescriptorCheck<'q>; 2]> {
    let domain = request.domain.as_ref();
    let config = limits.config.as_ref();
    let descriptors = request.descriptors.iter();
    let found = config.map(|config| config.limits(domain, descriptors.map(|one| &one.entries[..])));
    let mut found = found.unwrap_or_default().into_iter();
    let mut checks = SmallVec::new();
    for (n, descriptor) in request.descriptors.iter().enumerate() {
        let cost = request.cost_of(descriptor);
        let purpose = Purpose::of(descriptor, cost);
        let cost = cost.unwrap_or(1);
        let hit = snapshot.identify(rules_hit(domain, descriptor, cost), now);
        let is_exempt = snapshot.policy.is_hit_allow_listed(&hit);
        checks.push(DescriptorCheck { descriptor: n, policy: PolicyChoice::InForce, hit, cost, purpose });
        let configured = found.next().flatten();
        if is_exempt {
            continue;
        }
        if let Some((policy, hit)) = beside_the_rules(limits, domain, descriptor, configured, cost) {
            checks.push(DescriptorCheck { descriptor: n, policy, hit, cost, purpose });
        }
    }
    checks
}

/// The limit of a descriptor beside the rules: its own, else that of the configuration.
fn beside_the_rules<'q>(
    limits: &'q EnvoyLimits,
    domain: &'q str,
    descriptor: &'q Descriptor<'_>,
    configured: Option<FoundLimit<'q>>,
    cost: u64,
) -> Option<(PolicyChoice<'q>, Hit<'q>)> {
    if let Some(limit) = descriptor.limit.filter(|_| limits.has_overrides_in(domain)) {
        let entries = descriptor.entries.iter();
        let key = counter_key(entries.map(|entry| (entry.key.as_ref(), entry.value.as_ref())));
        let hit = counter_hit(domain, overrides::PATH, key, cost);
        return Some((PolicyChoice::Override(limits.overrides.policy(limit)), hit));
    }
    let FoundLimit { limit, counter } = configured?;
    let policy = limits.config.as_ref()?.policy();
    Some((PolicyChoice::Configured(policy, limit), counter_hit(domain, &limit.path, counter, cost)))
}

/// Decides the checks of one request.
struct RequestDecider<'a> {
    gate: &'a Gate,
    snapshot: &'a GateSnapshot,
    now: Time,
    /// A request is one violation of a rule, whatever the number of its descriptors.
    violations: &'a RequestViolations<'a>,
}

impl RequestDecider<'_> {
    /// Decides each check by itself, all at once if they wait for a central store.
    async fn decide_each(&self, checks: &[DescriptorCheck<'_>]) -> Outcomes {
        if !self.gate.counts_in_memory() && checks.len() > 1 {
            let hasher = RandomState::new();
            let origin = |check: &DescriptorCheck<'_>| hit::origin_hash(&check.hit, &hasher);
            return call_each(checks, origin, |check| self.decide_one(check)).await.into();
        }
        let mut outcomes = Outcomes::new();
        for check in checks {
            outcomes.push(self.decide_one(check).await);
        }
        outcomes
    }

    /// Decides several checks. In memory each is peeked first, so that a denied request takes nothing from the others
    /// even for a moment; what was charged before a denial is refunded.
    async fn decide_all_or_none(&self, checks: &[DescriptorCheck<'_>]) -> Outcomes {
        let mut outcomes = Outcomes::new();
        if !self.gate.counts_in_memory() {
            outcomes = self.decide_each(checks).await;
        } else {
            for check in checks {
                outcomes.push(self.peek_one(check).await);
            }
            let were_denied: SmallVec<[bool; 4]> = outcomes.iter().map(DescriptorOutcome::denies).collect();
            // Denials are recorded. One may be allowed now, and charged, after a refund by another request.
            for (n, check) in checks.iter().enumerate().filter(|(n, _)| were_denied[*n]) {
                outcomes[n] = self.decide_one(check).await;
            }
            if !outcomes.iter().any(DescriptorOutcome::denies) {
                for (n, check) in checks.iter().enumerate().filter(|(n, _)| !were_denied[*n]) {
                    outcomes[n] = self.decide_one(check).await;
                }
            }
        }
        self.refund_if_denied(checks, &mut outcomes);
        outcomes
    }

    fn refund_if_denied(&self, checks: &[DescriptorCheck<'_>], outcomes: &mut [DescriptorOutcome]) {
        if !outcomes.iter().any(DescriptorOutcome::denies) {
            return;
        }
        for (check, outcome) in checks.iter().zip(outcomes) {
            if outcome.verdict.allowed
                && let Some(receipt) = outcome.verdict.take_receipt()
            {
                self.gate.refund(receipt);
                outcome.refunded = check.cost;
            }
        }
    }

    /// Gives back what descriptors ask for; their outcomes are what is available then.
    async fn refund_as_requested(&self, checks: &[DescriptorCheck<'_>], outcomes: &mut [DescriptorOutcome]) {
        let is_refund = |n: &usize| checks[*n].purpose == Purpose::Refund;
        let refunds: SmallVec<[usize; 2]> = (0..checks.len()).filter(is_refund).collect();
        let receipt = |n: usize| outcomes[n].verdict.uncharged_receipt(self.now);
        let refund = |n: &usize| self.refund(&checks[*n], receipt(*n));
        let after = call_each(&refunds, |n| *n, refund).await;
        for (n, verdict) in refunds.into_iter().zip(after) {
            outcomes[n].verdict = verdict;
        }
    }

    async fn refund(&self, check: &DescriptorCheck<'_>, receipt: Option<ChargeReceipt>) -> EngineVerdict {
        if let Some(receipt) = receipt {
            self.gate.refund_and_wait(receipt).await;
        }
        // What is back by the time of the refund is not available before it.
        let after = RequestDecider { now: self.gate.now(), ..*self };
        after.decide(&check.policy, &check.hit.clone().cost(0), DecisionMode::Peek).await
    }

    async fn decide_one(&self, check: &DescriptorCheck<'_>) -> DescriptorOutcome {
        let verdict = self.decide(&check.policy, &check.hit, check.purpose.mode()).await;
        DescriptorOutcome::new(check, verdict)
    }

    /// Decides a check without any effect.
    async fn peek_one(&self, check: &DescriptorCheck<'_>) -> DescriptorOutcome {
        DescriptorOutcome::new(check, self.decide(&check.policy, &check.hit, DecisionMode::Peek).await)
    }

    async fn decide(&self, policy: &PolicyChoice<'_>, hit: &Hit<'_>, mode: DecisionMode) -> EngineVerdict {
        let RequestDecider { gate, snapshot, now, violations } = *self;
        match (policy, mode) {
            (PolicyChoice::InForce, DecisionMode::Check) => {
                gate.check_part(snapshot, hit, now, violations).await
            }
            (PolicyChoice::InForce, DecisionMode::Peek) => gate.peek(snapshot, hit, now).await,
            (PolicyChoice::Override(policy), mode) => {
                gate.decide_separate(snapshot, policy, hit, now, mode).await
            }
            (PolicyChoice::Configured(policy, _), mode) => {
                gate.decide_separate(snapshot, policy, hit, now, mode).await
            }
        }
    }
}

/// The status of a descriptor: by the denial if there is one, else by the limit beside the rules if there is one.
fn status_of(
    descriptor: usize,
    checks: &[DescriptorCheck<'_>],
    outcomes: &[DescriptorOutcome],
) -> DescriptorStatus {
    let own = checks.iter().zip(outcomes).filter(|(check, _)| check.descriptor == descriptor);
    let rank = |(check, outcome): &(&DescriptorCheck<'_>, &DescriptorOutcome)| {
        let is_beside = !matches!(check.policy, PolicyChoice::InForce);
        (outcome.denies(), is_beside)
    };
    let Some((check, outcome)) = own.max_by_key(rank) else {
        return DescriptorStatus::default();
    };
    let DescriptorOutcome { verdict, refunded, .. } = outcome;
    let status = match check.policy {
        PolicyChoice::Configured(_, limit) if limit.quantity == Quantity::Unlimited => {
            DescriptorStatus { remaining: u32::MAX, ..DescriptorStatus::default() }
        }
        PolicyChoice::Configured(_, limit) => DescriptorStatus::configured(limit, verdict, *refunded),
        _ => DescriptorStatus::of(verdict, *refunded),
    };
    DescriptorStatus { is_over_limit: status.is_over_limit && check.purpose != Purpose::Refund, ..status }
}

/// The verdict that headers show: the denial with the longest wait, else the limit that is nearest to its end.
fn reported(outcomes: &[DescriptorOutcome]) -> Option<&EngineVerdict> {
    let wait = |verdict: &&EngineVerdict| verdict.retry_after.unwrap_or(Duration::MAX);
    let denied = outcomes.iter().filter(|outcome| outcome.denies()).map(|outcome| &outcome.verdict);
    denied.max_by_key(wait).or_else(|| {
        let verdicts = outcomes.iter().map(|outcome| &outcome.verdict);
        let limited = verdicts.filter_map(|verdict| Some((verdict.reported()?.remaining(), verdict)));
        limited.min_by_key(|(remaining, _)| *remaining).map(|(_, verdict)| verdict)
    })
}
