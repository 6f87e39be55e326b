//! Several charges of one request, all taken or none, while their limits are in force.

use smallvec::SmallVec;

use crate::store::memory::packed::Intent;
use crate::store::memory::{MemoryStore, intent};
use crate::store::{Charge, DeniedHits, Outcome, Part, Receipt, Weight};
use crate::time::Time;

/// Whether the limits of a charge are those in force.
#[derive(Clone, Copy)]
pub(crate) struct InForce<'f>(Option<&'f dyn Fn() -> bool>);

impl<'f> InForce<'f> {
    pub(crate) const ALWAYS: InForce<'f> = InForce(None);

    pub(crate) fn as_long_as(holds: &'f dyn Fn() -> bool) -> InForce<'f> {
        InForce(Some(holds))
    }

    pub(super) fn holds(self) -> bool {
        self.0.is_none_or(|holds| holds())
    }
}

impl MemoryStore {
    /// Takes every charge that is enforced, or none; then the shadow charges, each for itself.
    /// `None` if a limit is not in force any more; then none is taken.
    pub(super) fn take_all(
        &self,
        charges: &[Charge],
        outcome: &mut Outcome,
        now: Time,
        in_force: InForce<'_>,
    ) -> Option<()> {
        let enforced = |n: &usize| charges[*n].weight == Weight::Enforced;
        let mut order: SmallVec<[usize; 16]> = (0..charges.len()).filter(enforced).collect();
        let mut replaced = false;
        // One order for all: of two that want the same keys, the first one gets them all.
        order.sort_unstable_by_key(|n| charges[*n].fingerprint);
        for n in order {
            // A denial is counted at the end, once.
            let part = self.run(&charges[n], Intent::Take, now, in_force);
            replaced = part.is_none();
            outcome.parts[n] = part.unwrap_or(Part::UNASKED);
            if outcome.parts[n].grant.is_none() {
                outcome.admitted = false; // another request was faster
                break;
            }
        }
        if !outcome.admitted {
            for item in Receipt::of(charges, outcome).iter().flat_map(|receipt| &receipt.items) {
                self.settle_item(item, 0, now);
            }
            if replaced {
                return None;
            }
            for (charge, part) in charges.iter().zip(&mut outcome.parts) {
                match part.grant.take() {
                    Some(grant) => part.remaining += grant.cost,
                    // The one that denies has said so; the others are told as they are now.
                    None if part.decision.is_allowed() => *part = self.look(charge, now),
                    None => {}
                }
            }
            return Some(());
        }
        for n in (0..charges.len()).filter(|n| !enforced(n)) {
            let part = self.run(&charges[n], intent(&charges[n]), now, in_force);
            outcome.parts[n] = part.unwrap_or_else(|| self.look(&charges[n], now));
        }
        Some(())
    }

    /// Counts a denied request under the limits that deny it and say so.
    pub(super) fn drain_denied(
        &self,
        charges: &[Charge],
        outcome: &mut Outcome,
        now: Time,
        in_force: InForce<'_>,
    ) {
        for (charge, part) in charges.iter().zip(&mut outcome.parts) {
            if charge.denied == DeniedHits::Counted
                && !part.decision.is_allowed()
                && let Some(drained) = self.run(charge, Intent::Drain, now, in_force)
                && !drained.decision.is_allowed() // one that would pass by now has still denied the request
            {
                *part = drained;
            }
        }
    }
}
