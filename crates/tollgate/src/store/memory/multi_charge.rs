//! Several charges of one request, all applied or none, while their limits are in force.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::store::memory::packed::ChargeOpKind;
use crate::store::memory::{MemoryStore, charge_op_kind};
use crate::store::{Charge, ChargeOutcome, ChargeReceipt, DeniedHits, Enforcement, LimitOutcome};
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
    /// Applies every enforced charge, or none; then the shadow charges, each independently. Nothing is applied if a
    /// limit is no longer in force.
    pub(super) fn charge_all(
        &self,
        charges: &[Charge],
        outcome: &mut ChargeOutcome,
        now: Time,
        in_force: &InForce<'_>,
    ) {
        let enforced = |n: &usize| charges[*n].enforcement == Enforcement::Enforced;
        let mut order: SmallVec<[usize; 16]> = (0..charges.len()).filter(enforced).collect();
        // One order for all requests: of two that want the same keys, the first one gets them all.
        order.sort_unstable_by_key(|n| charges[*n].fingerprint);
        for n in order {
            // A denial is counted once, at the end.
            outcome.limits[n] = match self.charge_bucket(&charges[n], now) {
                Some(charged) => charged,
                None => {
                    let limit = self.run(&charges[n], ChargeOpKind::Charge, now, in_force);
                    limit.unwrap_or_else(|| in_force.note_replaced())
                }
            };
            if outcome.limits[n].grant.is_none() {
                outcome.admitted = false; // another request won the race
                break;
            }
        }
        if !outcome.admitted {
            for item in ChargeReceipt::of(charges, outcome).iter().flat_map(|receipt| &receipt.items) {
                self.settle_item(item, 0, now);
            }
            if in_force.was_replaced() {
                return;
            }
            for (charge, limit) in charges.iter().zip(&mut outcome.limits) {
                match limit.grant.take() {
                    Some(grant) => limit.remaining += grant.cost,
                    // The denying limit has its outcome; the others report their present state.
                    None if limit.decision.is_allowed() => *limit = self.peek_one(charge, now),
                    None => {}
                }
            }
            return;
        }
        for n in (0..charges.len()).filter(|n| !enforced(n)) {
            let limit = self.run(&charges[n], charge_op_kind(&charges[n]), now, in_force);
            outcome.limits[n] = limit.unwrap_or_else(|| self.peek_one(&charges[n], now));
        }
    }

    /// Counts a denied request against the limits that deny it and count denials.
    pub(super) fn drain_denied(
        &self,
        charges: &[Charge],
        outcome: &mut ChargeOutcome,
        now: Time,
        in_force: &InForce<'_>,
    ) {
        for (charge, limit) in charges.iter().zip(&mut outcome.limits) {
            if charge.denied_hits == DeniedHits::Counted
                && !limit.decision.is_allowed()
                && let Some(drained) = self.run(charge, ChargeOpKind::Drain, now, in_force)
                && !drained.decision.is_allowed()
            // a limit that would allow it by now has still denied the request
            {
                *limit = drained;
            }
        }
    }
}
