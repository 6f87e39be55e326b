//! Charges in a central store, and the handling of failures.
//!
//! A denial by a limit that answered is final. Otherwise a rule that fails closed denies, one that fails to local
//! charges its share in memory, and one that fails open is skipped. Shadow rules never affect the verdict.

use std::borrow::Cow;
use std::sync::Arc;

use crate::algorithm::Quota;
use crate::engine::{CounterCreation, DecisionContext, DecisionMode, EngineCore};
use crate::fingerprint::Fingerprint;
use crate::hit::Hit;
use crate::identity::{Attribute, EncodedKeyPart, FieldSource, Key};
use crate::limit::Limit;
use crate::plan::Plan;
use crate::policy::PolicySnapshot;
use crate::rule::{OnStoreError, Rule};
use crate::store::central::{CentralCounter, CentralCounterStore, CentralOutcome, CounterId, StoreError};
use crate::store::{Charge, ChargeReceipt, CounterKey, Enforcement, KeyPart, LimitOutcome, Sensitivity};
use crate::time::Time;
use crate::verdict::{EngineVerdict, LimitVerdict, Reason};

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
    /// As they were made: a node's share of a limit replaces the charge of the limit.
    charges: Vec<Charge>,
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
        let creation = CounterCreation::Always; // the counters in memory are those of node shares
        let context = DecisionContext { policy, hit, now, mode, creation, violations: None };
        self.decide_central_in(&context, store).await
    }

    /// As [`decide_in`](Self::decide_in), with counters in a central store.
    pub async fn decide_central_in(
        &self,
        context: &DecisionContext<'_, '_>,
        store: &impl CentralCounterStore,
    ) -> CentralVerdict {
        let DecisionContext { policy, hit, mode, .. } = *context;
        let mut verdict = EngineVerdict::new(self.next_id(policy));
        let mut plan = Plan::new(&mut verdict);
        if let Err(exempt) = self.begin(context, &mut plan, |_| ()) {
            self.finish_exempt(context, &mut verdict, exempt);
            return CentralVerdict { verdict, to_refund: None, error: None };
        }
        let charges = central_charges(policy, &plan, hit);
        let charged = self.charge_central(context, &plan, charges, store).await;
        let limits = plan.verdict.limits_mut().iter_mut().filter(|limit| limit.is_counted());
        for ((limit, charge), outcome) in limits.zip(charged.charges).zip(charged.outcomes) {
            limit.charge = Some(Box::new(charge));
            limit.skipped = outcome.is_none();
            limit.outcome = outcome.unwrap_or(LimitOutcome::PENDING);
        }
        self.finish(context, &mut plan, &charged.failed);
        if mode == DecisionMode::Check {
            self.record_tracked(context, &plan);
        }
        let to_refund = if verdict.allowed { None } else { verdict.take_receipt() };
        CentralVerdict { verdict, to_refund, error: charged.error }
    }

    async fn charge_central(
        &self,
        context: &DecisionContext<'_, '_>,
        plan: &Plan<'_>,
        charges: Vec<Charge>,
        store: &impl CentralCounterStore,
    ) -> CentralCharges {
        let DecisionContext { policy, now, mode, .. } = *context;
        if mode == DecisionMode::Peek {
            let outcome = store.peek(&charges, now).await;
            return self.handle_failures(context, plan, charges, outcome);
        }
        let outcome = match self.deny_cache.find(policy, plan, &charges, now) {
            Some(known) => known,
            None => {
                let outcome = match context.may_charge(plan) {
                    true => store.charge(&charges, now).await,
                    false => store.peek(&charges, now).await,
                };
                self.deny_cache.update(policy, plan, &charges, &outcome, now);
                outcome
            }
        };
        self.handle_failures(context, plan, charges, outcome)
    }

    /// Charges the node's share of the limits that fail to local, all or none; these charges replace those of the plan.
    fn handle_failures(
        &self,
        context: &DecisionContext<'_, '_>,
        plan: &Plan<'_>,
        mut charges: Vec<Charge>,
        outcome: CentralOutcome,
    ) -> CentralCharges {
        let DecisionContext { policy, now, mode, .. } = *context;
        let failed = failures(policy, plan, &charges, &outcome);
        let error = outcome.limits.iter().find_map(|result| result.error()).cloned();
        let mut outcomes: Vec<_> = outcome.limits.iter().map(|result| result.outcome().copied()).collect();
        let closed = failed.iter().any(|(_, mode)| *mode == OnStoreError::Closed);
        if outcome.admitted
            && !plan.is_denied_by_key
            && !closed
            && !self.apply_known_denials(context, plan, &charges, &failed, &mut outcomes)
        {
            let (indices, shares) = node_shares(policy, plan, &charges, &failed);
            let decided = match mode {
                DecisionMode::Check => self.store.charge(&shares, now),
                DecisionMode::Peek => self.store.peek(&shares, now),
            };
            for ((n, share), outcome) in indices.into_iter().zip(shares).zip(decided.limits) {
                charges[n] = share;
                outcomes[n] = Some(outcome);
            }
        }
        CentralCharges { charges, outcomes, failed, error }
    }

    /// Whether a limit that fails to local is known to have denied such a charge, and still would. Then nothing is
    /// charged here either.
    fn apply_known_denials(
        &self,
        context: &DecisionContext<'_, '_>,
        plan: &Plan<'_>,
        charges: &[Charge],
        failed: &[FailedCharge],
        outcomes: &mut [Option<LimitOutcome>],
    ) -> bool {
        let DecisionContext { policy, now, .. } = *context;
        let mut denied = false;
        for (n, (limit, charge)) in plan.counted().zip(charges).enumerate() {
            if failed.contains(&(n, OnStoreError::Local))
                && let Some(outcome) = self.deny_cache.last_known(policy, limit, charge, now)
            {
                outcomes[n] = Some(outcome);
                denied = true;
            }
        }
        denied
    }
}

/// The enforced charges that failed, and how their rules handle that.
fn failures(
    policy: &PolicySnapshot,
    plan: &Plan<'_>,
    charges: &[Charge],
    outcome: &CentralOutcome,
) -> Vec<FailedCharge> {
    let all = plan.counted().zip(charges).zip(&outcome.limits).enumerate();
    let failed = all.filter(|(_, ((_, charge), result))| {
        result.error().is_some() && charge.enforcement == Enforcement::Enforced
    });
    failed.map(|(n, ((limit, _), _))| (n, policy.on_store_error(&limit.rule))).collect()
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
    plan: &Plan<'_>,
    charges: &[Charge],
    failed: &[FailedCharge],
) -> (Vec<usize>, Vec<Charge>) {
    let nodes = policy.settings().store.nodes;
    let is_local = |n: usize| failed.contains(&(n, OnStoreError::Local));
    let local = plan.counted().zip(charges).enumerate().filter(|(n, _)| is_local(*n));
    local.map(|(n, (limit, charge))| (n, node_share(&limit.limit, charge, nodes))).unzip()
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

/// The charges of the plan, each with its counter in the central store.
fn central_charges(policy: &PolicySnapshot, plan: &Plan<'_>, hit: &Hit<'_>) -> Vec<Charge> {
    let mut charges: Vec<Charge> = Vec::with_capacity(plan.verdict.limits().len());
    for limit in plan.counted() {
        let id = match charges.last() {
            Some(Charge { counter: Some(counter), .. }) if !limit.starts_key => counter.id.clone(),
            _ => counter_of(policy, plan, limit, hit),
        };
        let counter = Arc::new(CentralCounter { id, limit: *limit.limit });
        charges.push(Charge { counter: Some(counter), ..limit.to_charge() });
    }
    charges
}

/// The counter of a hit under the rule of a limit.
pub(super) fn counter_of(
    policy: &PolicySnapshot,
    plan: &Plan<'_>,
    limit: &LimitVerdict,
    hit: &Hit<'_>,
) -> CounterId {
    let rule = &limit.rule;
    let values = plan.values_of(limit.key);
    let value = |n: usize, attribute: &Attribute| match values {
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
