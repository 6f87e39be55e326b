//! Charges in a central store, and the handling of failures.
//!
//! A denial by a limit that answered is final. Otherwise a rule that fails closed denies, one that fails to local
//! charges its share in memory, and one that fails open is skipped. Shadow rules never affect the verdict.

use std::borrow::Cow;
use std::sync::Arc;

use crate::algorithm::Quota;
use crate::engine::{DecisionContext, DecisionMode, EngineCore};
use crate::fingerprint::Fingerprint;
use crate::hit::Hit;
use crate::identity::{Attribute, EncodedKeyPart, FieldSource, Key};
use crate::limit::Limit;
use crate::plan::{Plan, PlannedRule};
use crate::policy::PolicySnapshot;
use crate::rule::{OnStoreError, Rule};
use crate::store::central::{CentralCounter, CentralCounterStore, CentralOutcome, CounterId, StoreError};
use crate::store::{Charge, ChargeReceipt, CounterKey, Enforcement, KeyPart, LimitOutcome, Sensitivity};
use crate::time::Time;
use crate::verdict::{EngineVerdict, Reason};

/// The verdict of a hit whose counters are in a central store.
pub struct CentralVerdict {
    pub verdict: EngineVerdict,
    /// Charges of a request that was denied after all: to be refunded.
    pub to_refund: Option<ChargeReceipt>,
    /// Why a charge failed, if one did.
    pub error: Option<StoreError>,
}

/// An enforced charge that failed: its index in the plan, and how its rule handles that.
pub(super) type FailedCharge = (usize, OnStoreError);

/// The charges of a plan after failures are handled.
struct CentralCharges {
    /// In the order of the plan; `None` if a charge does not affect the verdict.
    outcomes: Vec<Option<LimitOutcome>>,
    failed: Vec<FailedCharge>,
    error: Option<StoreError>,
}

impl EngineCore {
    /// As [`decide`](Self::decide), with counters in a central store.
    pub async fn decide_central(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        now: Time,
        mode: DecisionMode,
        store: &impl CentralCounterStore,
    ) -> CentralVerdict {
        let context = DecisionContext { policy, hit, now, mode };
        let mut verdict = EngineVerdict::new(self.next_id(policy));
        let mut plan = Plan::new(&mut verdict);
        if let Err(exempt) = policy.plan(&mut plan, hit, &self.plan_context(now), |_| ()) {
            self.finish_exempt(&context, &mut verdict, exempt);
            return CentralVerdict { verdict, to_refund: None, error: None };
        }
        name_counters(policy, &mut plan, hit);
        let charged = self.charge_central(&context, &mut plan, store).await;
        let outcomes = charged.outcomes.iter().map(Option::as_ref);
        self.finish(&context, &mut plan, outcomes, &charged.failed);
        if mode == DecisionMode::Check {
            self.record_tracked(&context, &plan);
        }
        let to_refund = if verdict.allowed { None } else { verdict.take_receipt() };
        CentralVerdict { verdict, to_refund, error: charged.error }
    }

    async fn charge_central(
        &self,
        context: &DecisionContext<'_, '_>,
        plan: &mut Plan<'_, '_>,
        store: &impl CentralCounterStore,
    ) -> CentralCharges {
        let DecisionContext { policy, now, mode, .. } = *context;
        if mode == DecisionMode::Peek {
            let outcome = store.peek(plan.charges(), now).await;
            return self.handle_failures(context, plan, outcome);
        }
        let outcome = match self.deny_cache.find(policy, plan, now) {
            Some(known) => known,
            None => {
                let outcome = match context.may_charge(plan) {
                    true => store.charge(plan.charges(), now).await,
                    false => store.peek(plan.charges(), now).await,
                };
                self.deny_cache.update(policy, plan, &outcome, now);
                outcome
            }
        };
        self.handle_failures(context, plan, outcome)
    }

    /// Charges the node's share of the limits that fail to local, all or none; these charges replace those of the plan.
    fn handle_failures(
        &self,
        context: &DecisionContext<'_, '_>,
        plan: &mut Plan<'_, '_>,
        outcome: CentralOutcome,
    ) -> CentralCharges {
        let DecisionContext { policy, now, mode, .. } = *context;
        let failed = failures(policy, plan, &outcome);
        let error = outcome.limits.iter().find_map(|result| result.error()).cloned();
        let mut outcomes: Vec<_> = outcome.limits.iter().map(|result| result.outcome().copied()).collect();
        let closed = failed.iter().any(|(_, mode)| *mode == OnStoreError::Closed);
        if outcome.admitted
            && !plan.is_denied_by_key
            && !closed
            && !self.apply_known_denials(policy, plan, &failed, &mut outcomes, now)
        {
            let (indices, shares) = node_shares(policy, plan, &failed);
            let decided = match mode {
                DecisionMode::Check => self.store.charge(&shares, now),
                DecisionMode::Peek => self.store.peek(&shares, now),
            };
            for ((n, share), outcome) in indices.into_iter().zip(shares).zip(decided.limits) {
                plan.verdict.charges[n] = share;
                outcomes[n] = Some(outcome);
            }
        }
        CentralCharges { outcomes, failed, error }
    }

    /// Whether a limit that fails to local is known to have denied such a charge, and still would. Then nothing is
    /// charged here either.
    fn apply_known_denials(
        &self,
        policy: &PolicySnapshot,
        plan: &Plan<'_, '_>,
        failed: &[FailedCharge],
        outcomes: &mut [Option<LimitOutcome>],
        now: Time,
    ) -> bool {
        let mut denied = false;
        for (n, (rule, limit, charge)) in plan.charged().enumerate() {
            if failed.contains(&(n, OnStoreError::Local))
                && let Some(outcome) = self.deny_cache.last_known(policy, (rule, &limit.limit, charge), now)
            {
                outcomes[n] = Some(outcome);
                denied = true;
            }
        }
        denied
    }
}

/// The enforced charges that failed, and how their rules handle that.
fn failures(policy: &PolicySnapshot, plan: &Plan<'_, '_>, outcome: &CentralOutcome) -> Vec<FailedCharge> {
    let all = plan.charged().zip(&outcome.limits).enumerate();
    let failed = all.filter(|(_, ((_, _, charge), result))| {
        result.error().is_some() && charge.enforcement == Enforcement::Enforced
    });
    failed.map(|(n, ((rule, _, _), _))| (n, policy.on_store_error(rule))).collect()
}

/// Applies failures to a verdict that is otherwise complete.
#[inline(always)]
pub(super) fn apply_failures(verdict: &mut EngineVerdict, failed: &[FailedCharge]) {
    if failed.is_empty() || !verdict.allowed {
        return; // a denial is final, whatever failed
    }
    verdict.reason = Reason::StoreError;
    verdict.allowed = failed.iter().all(|(_, mode)| *mode != OnStoreError::Closed);
}

/// The node's share of each limit that fails to local, with its index in the plan.
fn node_shares(
    policy: &PolicySnapshot,
    plan: &Plan<'_, '_>,
    failed: &[FailedCharge],
) -> (Vec<usize>, Vec<Charge>) {
    let nodes = policy.settings().store.nodes;
    let is_local = |n: usize| failed.contains(&(n, OnStoreError::Local));
    let local = plan.charged().enumerate().filter(|(n, _)| is_local(*n));
    local.map(|(n, (_, limit, charge))| (n, node_share(&limit.limit, charge, nodes))).unzip()
}

/// A share is a counter of its own: its state and that of the whole limit are independent.
fn node_share(limit: &Limit, charge: &Charge, nodes: u64) -> Charge {
    let fingerprint = Fingerprint(charge.fingerprint.0.rotate_left(32) ^ nodes);
    Charge {
        fingerprint,
        quota: Quota::new(&limit.node_share(nodes)),
        predecessors: Vec::new(),
        counter: None,
        ..charge.clone()
    }
}

/// Gives every charge of the plan its counter in the central store.
fn name_counters(policy: &PolicySnapshot, plan: &mut Plan<'_, '_>, hit: &Hit<'_>) {
    let mut counters = Vec::with_capacity(plan.charges().len());
    let mut last: Option<(&PlannedRule<'_>, CounterId)> = None;
    for (planned, limit, _) in plan.charged_keys() {
        let id = match last.take() {
            Some((same, id)) if std::ptr::eq(same, planned) => id,
            _ => counter_of(policy, plan, planned, hit),
        };
        counters.push(CentralCounter { id: id.clone(), limit: limit.limit });
        last = Some((planned, id));
    }
    for (charge, counter) in plan.verdict.charges.iter_mut().zip(counters) {
        charge.counter = Some(Arc::new(counter));
    }
}

/// The counter of a hit under a rule.
pub(super) fn counter_of(
    policy: &PolicySnapshot,
    plan: &Plan<'_, '_>,
    planned: &PlannedRule<'_>,
    hit: &Hit<'_>,
) -> CounterId {
    let rule = planned.rule;
    let value = |n: usize, attribute: &Attribute| match plan.values_of(planned) {
        Some(values) => values[n].clone(),
        None => policy.value(hit, attribute).map_or_else(String::new, Cow::into_owned),
    };
    let parts = rule.key.iter().enumerate();
    let parts = parts.map(|(n, attribute)| (attribute.clone(), value(n, attribute))).collect();
    // A rule names no attribute twice.
    counter_id(hit.domain_name(), rule, &Key::new(parts).unwrap_or_default())
}

/// The counter of a key under a rule.
pub(super) fn counter_id(domain: &str, rule: &Rule, key: &Key) -> CounterId {
    let ranked = key.parts().iter().enumerate().filter_map(|(n, (attribute, _))| Some((rank(attribute)?, n)));
    let owner = ranked.min();
    let parts = key.encoded_parts().map(KeyPart::from).collect();
    let key = match owner {
        Some((_, owner)) => CounterKey::owned(parts, owner),
        None => CounterKey::shared(parts),
    };
    CounterId { domain: domain.into(), rule: rule.id.as_str().into(), key }
}

impl From<EncodedKeyPart> for KeyPart {
    fn from(part: EncodedKeyPart) -> KeyPart {
        let sensitivity = match part.is_sensitive {
            true => Sensitivity::Sensitive,
            false => Sensitivity::Public,
        };
        KeyPart { name: part.name.into(), value: part.value.into(), sensitivity }
    }
}

/// How well an attribute identifies one client; `None` for an attribute that many clients share.
fn rank(attribute: &Attribute) -> Option<u8> {
    match attribute {
        Attribute::User => Some(0),
        Attribute::ApiKey => Some(1),
        Attribute::Email => Some(2),
        Attribute::Field(FieldSource::Jwt, _) => Some(3),
        Attribute::Field(
            FieldSource::Cookie | FieldSource::Header | FieldSource::Json | FieldSource::Form,
            _,
        ) => Some(4),
        Attribute::Mac => Some(5),
        Attribute::Ip => Some(6),
        Attribute::Field(FieldSource::Attr | FieldSource::Query, _)
        | Attribute::Path
        | Attribute::Method
        | Attribute::Host => None,
    }
}
