//! Several charges of one request, all applied or none, while their limits are in force.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::algorithm::Grant;
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::ChargeOpKind;
use crate::store::memory::{MemoryStore, charge_op_kind};
use crate::store::{ChargeItem, DeniedHits, Enforcement, LimitOutcome};
use crate::time::Time;

/// Whether the limits of the charges are in force, and whether charges were skipped because they were not.
pub(crate) struct InForce<'f> {
    holds: Option<&'f dyn Fn() -> bool>,
    replaced: Cell<bool>,
}

impl<'f> InForce<'f> {
    pub(crate) const fn always() -> InForce<'f> {
        InForce { holds: None, replaced: Cell::new(false) }
    }

    pub(crate) fn as_long_as(holds: &'f dyn Fn() -> bool) -> InForce<'f> {
        InForce { holds: Some(holds), replaced: Cell::new(false) }
    }

    pub(super) fn holds(&self) -> bool {
        self.holds.is_none_or(|holds| holds())
    }

    /// Records that no charge is made; returns a placeholder for the outcome of the skipped charge.
    #[cold]
    pub(super) fn note_replaced(&self) -> LimitOutcome {
        self.replaced.set(true);
        LimitOutcome::PENDING
    }

    #[inline]
    pub(crate) fn was_replaced(&self) -> bool {
        self.replaced.get()
    }
}

impl MemoryStore {
    /// As [`charge_while`](Self::charge_while), for several charges.
    #[inline(never)]
    pub(super) fn charge_several<I: ChargeItem>(
        &self,
        items: &mut [I],
        now: Time,
        in_force: &InForce<'_>,
    ) -> bool {
        // Decided first: a denied request charges nothing, not even temporarily (I3).
        let denies = |item: &I| {
            let charge = item.charge().filter(|charge| charge.enforcement == Enforcement::Enforced);
            charge.is_some_and(|charge| !self.allows(&charge, now))
        };
        let may_pass = !items.iter().any(denies) || self.write_peek(items, now);
        let admitted = may_pass && self.charge_all(items, now, in_force);
        if !admitted && !in_force.was_replaced() {
            self.drain_denied(items, now, in_force);
        }
        admitted
    }

    /// Applies every enforced charge, or none; then the shadow charges, each independently. Nothing is applied if a
    /// limit is no longer in force. Returns whether the request is admitted.
    fn charge_all<I: ChargeItem>(&self, items: &mut [I], now: Time, in_force: &InForce<'_>) -> bool {
        let enforced = |(n, item): (usize, &I)| {
            let charge = item.charge().filter(|charge| charge.enforcement == Enforcement::Enforced);
            charge.map(|charge| (charge.fingerprint, n))
        };
        let mut order: SmallVec<[(Fingerprint, usize); 8]> =
            items.iter().enumerate().filter_map(enforced).collect();
        // One order for all requests: of two that want the same keys, the first one gets them all.
        order.sort_unstable();
        for (_, n) in order {
            let Some(charge) = items[n].charge() else { continue };
            // A denial is counted once, at the end.
            let limit = self.charge_bucket(&charge, now).unwrap_or_else(|| {
                let limit = self.run(&charge, ChargeOpKind::Charge, now, in_force);
                limit.unwrap_or_else(|| in_force.note_replaced())
            });
            *items[n].outcome() = limit;
            if limit.grant.is_none() {
                self.revert(items, now, in_force); // another request won the race
                return false;
            }
        }
        for item in items {
            let shadow = item.charge().filter(|charge| charge.enforcement == Enforcement::Shadow);
            let Some(charge) = shadow else { continue };
            let limit = self.run(&charge, charge_op_kind(&charge), now, in_force);
            *item.outcome() = limit.unwrap_or_else(|| self.peek_one(&charge, now));
        }
        true
    }

    /// Reverts the charges that were applied. A denying limit keeps its outcome; the others report their present state.
    #[cold]
    fn revert<I: ChargeItem>(&self, items: &mut [I], now: Time, in_force: &InForce<'_>) {
        let mut granted: SmallVec<[Option<Grant>; 8]> =
            items.iter_mut().map(|item| item.outcome().grant.take()).collect();
        for (item, grant) in items.iter().zip(&granted) {
            if let (Some(charge), Some(grant)) = (item.charge(), grant) {
                self.settle_grant(charge.fingerprint, charge.quota, grant, 0, now);
            }
        }
        if in_force.was_replaced() {
            return;
        }
        for (item, grant) in items.iter_mut().zip(granted.drain(..)) {
            match grant {
                Some(grant) => item.outcome().remaining += grant.cost,
                None if item.outcome().decision.is_allowed() => self.peek_item(item, now),
                None => {}
            }
        }
    }

    /// Counts a denied request against the limits that deny it and count denials.
    fn drain_denied<I: ChargeItem>(&self, items: &mut [I], now: Time, in_force: &InForce<'_>) {
        for item in items {
            let is_allowed = item.outcome().decision.is_allowed();
            if let Some(charge) = item.charge()
                && charge.denied_hits == DeniedHits::Counted
                && !is_allowed
                && let Some(drained) = self.run(&charge, ChargeOpKind::Drain, now, in_force)
                && !drained.decision.is_allowed()
            // a limit that would allow it by now has still denied the request
            {
                *item.outcome() = drained;
            }
        }
    }
}
