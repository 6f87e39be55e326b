//! Several charges of one request, all applied or none, while their limits are in force.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::algorithm::{Admission, Decision, Grant, Quota};
use crate::collections::push_in_place;
use crate::fingerprint::Fingerprint;
use crate::store::memory::classes::WIDE;
use crate::store::memory::packed::{ChargeOp, ChargeOpKind};
use crate::store::memory::slot::{Slot, SlotValue};
use crate::store::memory::table::{class_number, tag_matches};
use crate::store::memory::{MemoryStore, charge_op_kind};
use crate::store::{ChargeItem, ChargeRef, DeniedHits, Enforcement, LimitOutcome};
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

/// An enforced charge of a request with several.
struct EnforcedCharge<'s> {
    /// Its fingerprint and its index, in the order in which charges are applied.
    order: (Fingerprint, usize),
    /// The bucket that it was decided on.
    bucket: Option<DecidedBucket<'s>>,
}

/// A bucket that was found to admit a charge.
struct DecidedBucket<'s> {
    slot: &'s Slot,
    loaded: SlotValue,
    left: u64,
    next: u64,
}

/// Whether a charge alone would be admitted.
enum Forecast<'s> {
    Denied,
    Admitted(Option<DecidedBucket<'s>>),
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
        let mut enforced = SmallVec::<[EnforcedCharge<'_>; 4]>::new();
        let mut any_shadow = false;
        let mut any_denied = false;
        for (n, item) in items.iter().enumerate() {
            let Some(charge) = item.charge() else { continue };
            if charge.enforcement == Enforcement::Shadow {
                any_shadow = true;
                continue;
            }
            let bucket = match self.forecast(&charge, now) {
                Forecast::Admitted(bucket) => bucket.filter(|_| !any_denied),
                Forecast::Denied => {
                    any_denied = true;
                    None
                }
            };
            push_in_place(&mut enforced, || EnforcedCharge { order: (charge.fingerprint, n), bucket });
        }
        let may_pass = !any_denied || self.write_peek(items, now);
        let admitted = may_pass && self.charge_all(items, &mut enforced, now, in_force);
        if admitted && any_shadow {
            self.charge_shadows(items, now, in_force);
        }
        if !admitted && !in_force.was_replaced() {
            self.drain_denied(items, now, in_force);
        }
        admitted
    }

    /// Decides a charge alone, and changes nothing.
    #[inline(always)]
    fn forecast(&self, charge: &ChargeRef<'_>, now: Time) -> Forecast<'_> {
        if let Quota::Bucket(meter) = charge.quota
            && let Some(slot) = self.find(charge.fingerprint)
        {
            // A torn pair is harmless: a denial is decided again by `peek`, and an admission fails its CAS.
            let loaded = slot.load_unconfirmed();
            if class_number(loaded.tag()) != WIDE && tag_matches(loaded.tag(), charge.fingerprint) {
                let decided = meter.try_charge_units(loaded.state(), meter.units_at(now), charge.cost);
                return match decided {
                    Some((Decision { left, .. }, next)) => {
                        Forecast::Admitted(Some(DecidedBucket { slot, loaded, left, next }))
                    }
                    None => Forecast::Denied,
                };
            }
        }
        match self.peek_one(charge, now).decision.is_allowed() {
            true => Forecast::Admitted(None),
            false => Forecast::Denied,
        }
    }

    /// Applies every enforced charge, or none. Nothing is applied if a limit is no longer in force. Returns whether the
    /// request is admitted.
    #[inline(always)]
    fn charge_all<I: ChargeItem>(
        &self,
        items: &mut [I],
        enforced: &mut [EnforcedCharge<'_>],
        now: Time,
        in_force: &InForce<'_>,
    ) -> bool {
        // One order for all requests: of two that want the same keys, the first one gets them all.
        if !enforced.is_sorted_by_key(|each| each.order) {
            enforced.sort_unstable_by_key(|each| each.order);
        }
        for EnforcedCharge { order: (_, n), bucket } in enforced {
            let item = &mut items[*n];
            let Some(charge) = item.charge() else { continue };
            let charged = match bucket {
                Some(bucket) => self.charge_decided(&charge, bucket, now),
                None => None,
            };
            if let Some(charged) = charged {
                *item.outcome() = charged;
                continue;
            }
            // A denial is counted once, at the end.
            let limit = self.run(&charge, ChargeOpKind::Charge, now, in_force);
            let limit = limit.unwrap_or_else(|| in_force.note_replaced());
            *item.outcome() = limit;
            if limit.grant.is_none() {
                self.revert(items, now, in_force); // another request won the race
                return false;
            }
        }
        true
    }

    /// Charges a bucket as it was decided; `None` if it has changed since.
    #[inline(always)]
    fn charge_decided(
        &self,
        charge: &ChargeRef<'_>,
        bucket: &DecidedBucket<'_>,
        now: Time,
    ) -> Option<LimitOutcome> {
        let Quota::Bucket(meter) = charge.quota else { return None };
        let DecidedBucket { slot, loaded, left, next } = *bucket;
        self.region.change(slot, || slot.cas_state(loaded, next)).ok()?;
        let op = ChargeOp { quota: charge.quota, cost: charge.cost, kind: ChargeOpKind::Charge, now };
        Some(op.charged_bucket(meter, Decision { admission: Admission::NOW, left }, next))
    }

    /// Applies the shadow charges, each independently.
    #[cold]
    fn charge_shadows<I: ChargeItem>(&self, items: &mut [I], now: Time, in_force: &InForce<'_>) {
        for item in items {
            let shadow = item.charge().filter(|charge| charge.enforcement == Enforcement::Shadow);
            let Some(charge) = shadow else { continue };
            let limit = self.run(&charge, charge_op_kind(&charge), now, in_force);
            *item.outcome() = limit.unwrap_or_else(|| self.peek_one(&charge, now));
        }
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
