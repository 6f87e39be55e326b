//! Decisions with counters in a central store: the same plan, the same verdict, and the handling of failures.
//!
//! A denial by a limit that answered is final. Otherwise a rule that fails closed denies, one that fails to local
//! charges its share in memory, and one that fails open is skipped. Shadow rules never affect the verdict.

use std::borrow::Cow;
use std::time::Duration;

use crate::algorithm::Quota;
use crate::engine::inspect::{CounterReport, DOMAIN};
use crate::engine::{CounterDetail, Engine, InspectError, KeyReport, TrackScope};
use crate::fingerprint::Fingerprint;
use crate::hit::Hit;
use crate::identity::{Attribute, EncodedKeyPart, FieldSource, Key};
use crate::limit::Limit;
use crate::plan::{Plan, PlannedRule, check_key_parts};
use crate::policy::Policy;
use crate::rule::{OnStoreError, Rule, RuleInForce};
use crate::store::central::{
    CentralCharge, CentralCounterStore, CentralOutcome, CentralReceipt, CounterId, StoreError,
};
use crate::store::{
    CentralCounter, Charge, CounterKey, Enforcement, KeyPart, LimitOutcome, Receipt, ReceiptItem, Sensitivity,
};
use crate::time::Time;
use crate::track::central::CentralTrackStore;
use crate::verdict::{Reason, Verdict};

/// The verdict of a hit whose counters are in a central store.
pub struct CentralVerdict {
    pub verdict: Verdict,
    /// Charges of a request that was denied after all: to be refunded.
    pub to_refund: Option<CentralReceipt>,
    /// Why a charge failed, if one did.
    pub error: Option<StoreError>,
}

impl Engine {
    /// As [`check`](Self::check), with counters in a central store.
    pub async fn check_central(
        &self,
        hit: &Hit<'_>,
        now: Time,
        central: &impl CentralCounterStore,
    ) -> CentralVerdict {
        let policy = self.policy.load_full();
        let mut plan = Plan::default();
        if let Err(exempt) = policy.plan(&mut plan, hit, &self.plan_context(now), |_| ()) {
            let verdict = Verdict::exempt(self.next_id(&policy), exempt, now);
            return CentralVerdict::of(self.record_exempt(verdict, hit, now));
        }
        let charges = central_charges(&policy, &plan, hit);
        let outcome = match self.deny_cache.find(&policy, &plan, now) {
            Some(known) => known,
            None => {
                let outcome = match plan.is_denied_by_key() {
                    true => central.peek(&charges, now).await,
                    false => central.charge(&charges, now).await,
                };
                self.deny_cache.update(&policy, &plan, &outcome, now);
                outcome
            }
        };
        let mut verdict = Verdict::new(self.next_id(&policy));
        plan.draft(&mut verdict);
        let concluded = self.conclude(&policy, &plan, verdict, charges, outcome, now);
        self.record(&policy, &plan, &concluded.verdict, hit, now);
        self.record_tracked(&policy, &plan, &concluded.verdict, hit, now);
        self.decisions.count(concluded.verdict.reason);
        concluded
    }

    /// As [`peek`](Self::peek), with counters in a central store.
    pub async fn peek_central(
        &self,
        hit: &Hit<'_>,
        now: Time,
        central: &impl CentralCounterStore,
    ) -> Verdict {
        let policy = self.policy.load_full();
        let mut plan = Plan::default();
        let id = self.next_id(&policy);
        if let Err(exempt) = policy.plan(&mut plan, hit, &self.plan_context(now), |_| ()) {
            return Verdict::exempt(id, exempt, now);
        }
        let outcome = central.peek(&central_charges(&policy, &plan, hit), now).await;
        let mut verdict = Verdict::new(id);
        plan.draft(&mut verdict);
        let failed = failures(&policy, &plan, &outcome);
        let mut parts: Vec<_> = outcome.limits.into_iter().map(Result::ok).collect();
        if !self.apply_known_denials(&policy, &plan, &failed, &mut parts, now) {
            let shares = node_shares(&policy, &plan, &failed);
            let charges: Vec<Charge> = shares.iter().map(|(_, charge)| charge.clone()).collect();
            fill_shares(&shares, self.store.peek(&charges, now).limits, &mut parts);
        }
        plan.conclude_partial(&mut verdict, &parts);
        apply_failures(&mut verdict, &failed);
        verdict
    }

    fn conclude(
        &self,
        policy: &Policy,
        plan: &Plan<'_>,
        mut verdict: Verdict,
        charges: Vec<CentralCharge>,
        outcome: CentralOutcome,
        now: Time,
    ) -> CentralVerdict {
        let failed = failures(policy, plan, &outcome);
        let error = outcome.limits.iter().find_map(|part| part.as_ref().err()).cloned();
        let mut parts: Vec<_> = outcome.limits.into_iter().map(Result::ok).collect();
        let closed = failed.iter().any(|(_, mode)| *mode == OnStoreError::Closed);
        let mut local = Vec::new();
        if outcome.admitted
            && !plan.is_denied_by_key()
            && !closed
            && !self.apply_known_denials(policy, plan, &failed, &mut parts, now)
        {
            local = node_shares(policy, plan, &failed);
            self.charge_locally(&local, &mut parts, now);
        }
        plan.conclude_partial(&mut verdict, &parts);
        apply_failures(&mut verdict, &failed);
        if !verdict.allowed {
            return CentralVerdict { verdict, to_refund: outcome.receipt, error };
        }
        let place =
            |central: CentralCharge| CentralCounter { counter: central.counter, limit: central.limit };
        let mut charged: Vec<_> = plan
            .charges
            .iter()
            .cloned()
            .zip(charges.into_iter().map(|central| Some(Box::new(place(central)))))
            .collect();
        local.into_iter().for_each(|(n, charge)| charged[n] = (charge, None));
        verdict.receipt = receipt(charged, &parts);
        CentralVerdict { verdict, to_refund: None, error }
    }

    /// Charges the node's shares of limits, all or none.
    fn charge_locally(&self, shares: &[(usize, Charge)], parts: &mut [Option<LimitOutcome>], now: Time) {
        let charges: Vec<Charge> = shares.iter().map(|(_, charge)| charge.clone()).collect();
        fill_shares(shares, self.store.charge(&charges, now).limits, parts);
    }

    /// Whether a limit that fails to local is known to have denied such a charge, and still would. Then nothing is
    /// charged here either.
    fn apply_known_denials(
        &self,
        policy: &Policy,
        plan: &Plan<'_>,
        failed: &[(usize, OnStoreError)],
        parts: &mut [Option<LimitOutcome>],
        now: Time,
    ) -> bool {
        let mut denied = false;
        for (n, (rule, limit, charge)) in plan.charged().enumerate() {
            if failed.contains(&(n, OnStoreError::Local))
                && let Some(part) = self.deny_cache.last_known(policy, (rule, &limit.limit, charge), now)
            {
                parts[n] = Some(part);
                denied = true;
            }
        }
        denied
    }

    /// The state of a key, from the central store. If that fails, tracking data comes from this node only.
    pub async fn key_central(
        &self,
        rule: &str,
        key: Key,
        now: Time,
        central: &(impl CentralCounterStore + CentralTrackStore),
    ) -> Result<KeyReport, InspectError> {
        let policy = self.policy.load_full();
        let (found, key) = self.find_rule(&policy, rule, key)?;
        let (print, charges) = self.charges_of(&policy, found, &key, now);
        // First, because it has the longer deadline: once it has connected, the limits can use the connection, too.
        let tracked = match found.track {
            Some(tracking) => {
                let counter = counter(DOMAIN, found, &key);
                Some(self.shared_track(&counter, print, tracking, central).await)
            }
            None => None,
        };
        let limits = counter_reports(&charges, central.peek(&charges, now).await, now);
        let (track, scope, track_error) = match tracked {
            Some(Ok(track)) => (Some(track), TrackScope::Fleet, None),
            Some(Err(error)) => (Some(self.local_track(found, print, now)), TrackScope::Node, Some(error)),
            None => (None, TrackScope::Node, None),
        };
        let (limits, limits_error) = match limits {
            Ok(limits) => (limits, None),
            Err(error) if track.is_none() => return Err(InspectError::Store(error)),
            Err(error) => (Vec::new(), Some(error)),
        };
        let store_error = limits_error.or(track_error);
        Ok(KeyReport { rule: rule.to_owned(), key, limits, track, scope, store_error })
    }

    /// Removes the state and tracking data of a key; returns what was removed.
    pub async fn reset_key_central(
        &self,
        rule: &str,
        key: Key,
        now: Time,
        central: &(impl CentralCounterStore + CentralTrackStore),
    ) -> Result<KeyReport, InspectError> {
        let report = self.key_central(rule, key.clone(), now, central).await?;
        let policy = self.policy.load_full();
        let (found, key) = self.find_rule(&policy, rule, key)?;
        let (print, charges) = self.charges_of(&policy, found, &key, now);
        for charge in &charges {
            central.reset(&charge.counter, &charge.limit, now).await.map_err(InspectError::Store)?;
        }
        self.deny_cache.clear();
        self.forget_local_track(found, print, now);
        if found.track.is_some() {
            self.outbox.forget(print);
            let forgotten = central.forget_track(&counter(DOMAIN, found, &key)).await;
            forgotten.map_err(InspectError::Store)?;
        }
        Ok(report)
    }

    fn find_rule<'p>(
        &self,
        policy: &'p Policy,
        rule: &str,
        key: Key,
    ) -> Result<(&'p RuleInForce, Key), InspectError> {
        let found = policy.rule(rule).ok_or_else(|| InspectError::NoRule(rule.to_owned()))?;
        let key = key.grouped(policy.settings().ipv6_prefix);
        check_key_parts(found, &key).map_err(|wanted| InspectError::Key { rule: rule.to_owned(), wanted })?;
        Ok((found, key))
    }

    fn charges_of(
        &self,
        policy: &Policy,
        rule: &RuleInForce,
        key: &Key,
        now: Time,
    ) -> (Fingerprint, Vec<CentralCharge>) {
        let (print, counters) = policy.counters_of(rule, DOMAIN, key, &self.secret, now);
        let counter = counter(DOMAIN, rule, key);
        let charges =
            counters.iter().map(|(each, charge)| central_charge(counter.clone(), each.limit, charge));
        (print, charges.collect())
    }
}

impl CentralVerdict {
    fn of(verdict: Verdict) -> CentralVerdict {
        CentralVerdict { verdict, to_refund: None, error: None }
    }
}

/// The state of each limit; an error if one could not be read.
fn counter_reports(
    charges: &[CentralCharge],
    outcome: CentralOutcome,
    now: Time,
) -> Result<Vec<CounterReport>, StoreError> {
    let report = |(charge, part): (&CentralCharge, Result<LimitOutcome, StoreError>)| {
        let part = part?;
        Ok(CounterReport {
            limit: charge.limit,
            used: charge.limit.capacity().saturating_sub(part.decision.left),
            remaining: part.decision.left,
            reset_at: (part.reset_after > Duration::ZERO).then(|| now + part.reset_after),
            detail: CounterDetail::Plain,
        })
    };
    charges.iter().zip(outcome.limits).map(report).collect()
}

/// The enforced charges that failed, and how their rules handle that.
fn failures(policy: &Policy, plan: &Plan<'_>, outcome: &CentralOutcome) -> Vec<(usize, OnStoreError)> {
    let all = plan.charged().zip(&outcome.limits).enumerate();
    let failed = all
        .filter(|(_, ((_, _, charge), part))| part.is_err() && charge.enforcement == Enforcement::Enforced);
    failed.map(|(n, ((rule, _, _), _))| (n, policy.on_store_error(rule))).collect()
}

/// Applies failures to a verdict that is otherwise complete.
fn apply_failures(verdict: &mut Verdict, failed: &[(usize, OnStoreError)]) {
    if !verdict.allowed || failed.is_empty() {
        return; // a denial is final, whatever failed
    }
    verdict.reason = Reason::StoreError;
    verdict.allowed = failed.iter().all(|(_, mode)| *mode != OnStoreError::Closed);
}

/// Copies the outcomes of the node's shares to the positions of their charges.
fn fill_shares(
    shares: &[(usize, Charge)],
    decided: impl IntoIterator<Item = LimitOutcome>,
    parts: &mut [Option<LimitOutcome>],
) {
    for ((n, _), part) in shares.iter().zip(decided) {
        parts[*n] = Some(part);
    }
}

/// The node's share of each limit that fails to local.
fn node_shares(policy: &Policy, plan: &Plan<'_>, failed: &[(usize, OnStoreError)]) -> Vec<(usize, Charge)> {
    let nodes = policy.settings().store.nodes;
    let is_local = |n: usize| failed.contains(&(n, OnStoreError::Local));
    let local = plan.charged().enumerate().filter(|(n, _)| is_local(*n));
    local.map(|(n, (_, limit, charge))| (n, node_share(&limit.limit, charge, nodes))).collect()
}

/// A share is a counter of its own: its state and that of the whole limit are independent.
fn node_share(limit: &Limit, charge: &Charge, nodes: u64) -> Charge {
    let fingerprint = Fingerprint(charge.fingerprint.0.rotate_left(32) ^ nodes);
    Charge {
        fingerprint,
        quota: Quota::new(&limit.node_share(nodes)),
        predecessors: Vec::new(),
        ..charge.clone()
    }
}

/// The receipt for what was charged, centrally or here.
fn receipt(
    charged: Vec<(Charge, Option<Box<CentralCounter>>)>,
    parts: &[Option<LimitOutcome>],
) -> Option<Receipt> {
    let items = charged.into_iter().zip(parts).filter_map(|((charge, elsewhere), part)| {
        let Charge { fingerprint, quota, unit_cost, .. } = charge;
        Some(ReceiptItem { fingerprint, quota, unit_cost, grant: part.as_ref()?.grant?, central: elsewhere })
    });
    Some(Receipt { items: items.collect() }).filter(|receipt| !receipt.items.is_empty())
}

fn central_charges(policy: &Policy, plan: &Plan<'_>, hit: &Hit<'_>) -> Vec<CentralCharge> {
    let mut charges = Vec::with_capacity(plan.charges.len());
    let mut last: Option<(&PlannedRule<'_>, CounterId)> = None;
    for (planned, limit, charge) in plan.charged_keys() {
        let counter = match last.take() {
            Some((same, counter)) if std::ptr::eq(same, planned) => counter,
            _ => counter_of(policy, planned, hit),
        };
        charges.push(central_charge(counter.clone(), limit.limit, charge));
        last = Some((planned, counter));
    }
    charges
}

/// The counter of a hit under a rule.
pub(super) fn counter_of(policy: &Policy, planned: &PlannedRule<'_>, hit: &Hit<'_>) -> CounterId {
    let rule = planned.rule;
    let value = |n: usize, attribute: &Attribute| match &planned.values {
        Some(values) => values[n].clone(),
        None => policy.value(hit, attribute).map_or_else(String::new, Cow::into_owned),
    };
    let parts = rule.key.iter().enumerate();
    let parts = parts.map(|(n, attribute)| (attribute.clone(), value(n, attribute))).collect();
    // A rule names no attribute twice.
    counter(hit.domain_name(), rule, &Key::new(parts).unwrap_or_default())
}

fn central_charge(counter: CounterId, limit: Limit, charge: &Charge) -> CentralCharge {
    let Charge { cost, unit_cost, enforcement: weight, denied_hits: denied, .. } = *charge;
    CentralCharge { counter, limit, cost, unit_cost, enforcement: weight, denied_hits: denied }
}

fn counter(domain: &str, rule: &Rule, key: &Key) -> CounterId {
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
