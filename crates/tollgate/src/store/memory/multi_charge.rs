//! Several charges of one request, all applied or none, while their limits are in force.

use std::cell::Cell;

use smallvec::SmallVec;

use crate::algorithm::{Admission, Decision, Grant, Quota};
use crate::collections::InlineList;
use crate::fingerprint::Fingerprint;
use crate::store::memory::classes::WIDE;
use crate::store::memory::packed::{ChargeOp, ChargeOpKind};
use crate::store::memory::slot::{Slot, SlotValue};
use crate::store::memory::table::{class_number, tag_matches};
use crate::store::memory::{MemoryStore, charge_op_kind};
use crate::store::{ChargeItem, ChargeRef, DeniedHits, Enforcement, LimitOutcome};
use crate::time::Time;

/// Checks that the policy of the charges is current before a counter is created, and records if it was not.
pub(crate) struct PolicyCheck<'f> {
    /// `None` if the charges are made under any policy.
    is_current: Option<&'f dyn Fn() -> bool>,
    /// Whether charges were skipped because the policy was replaced.
    was_replaced: Cell<bool>,
}

impl<'f> PolicyCheck<'f> {
    pub(crate) const fn always() -> PolicyCheck<'f> {
        PolicyCheck { is_current: None, was_replaced: Cell::new(false) }
    }

    pub(crate) fn while_current(is_current: &'f dyn Fn() -> bool) -> PolicyCheck<'f> {
        PolicyCheck { is_current: Some(is_current), was_replaced: Cell::new(false) }
    }

    pub(super) fn is_current(&self) -> bool {
        self.is_current.is_none_or(|is_current| is_current())
    }

    /// Records that no charge is made; returns a placeholder for the outcome of the skipped charge.
    #[cold]
    pub(super) fn note_replaced(&self) -> LimitOutcome {
        self.was_replaced.set(true);
        LimitOutcome::PENDING
    }

    #[inline]
    pub(crate) fn was_replaced(&self) -> bool {
        self.was_replaced.get()
    }
}

/// The enforced charges of a request with several: their fingerprints and their indexes, in the order in which they are
/// applied.
type ApplyOrder = InlineList<(Fingerprint, usize), INLINE_CHARGES>;

/// For each charge of a request the bucket that it was decided on, if it is enforced and a stored bucket.
type DecidedBuckets<'s> = InlineList<Option<DecidedBucket<'s>>, INLINE_CHARGES>;

/// Charges of a request for which no list is allocated.
const INLINE_CHARGES: usize = 8;

/// A bucket that was found to admit a charge.
#[derive(Clone, Copy)]
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
        policy_check: &PolicyCheck<'_>,
    ) -> bool {
        // Decided first: a denied request charges nothing, not even temporarily (I3).
        let mut order = ApplyOrder::new();
        let mut decided = DecidedBuckets::new();
        let mut any_shadow = false;
        let mut any_denied = false;
        for (n, item) in items.iter().enumerate() {
            let enforced = item.charge().inspect(|charge| any_shadow |= charge.is_shadow());
            let Some(charge) = enforced.filter(|charge| !charge.is_shadow()) else {
                decided.push(None);
                continue;
            };
            order.push((charge.fingerprint, n));
            match self.forecast(&charge, now) {
                Forecast::Admitted(bucket) => decided.push(bucket),
                Forecast::Denied => {
                    any_denied = true;
                    decided.push(None);
                }
            }
        }
        let mut may_admit = true;
        if any_denied {
            // Reads the states again and writes the outcomes. It may admit what a forecast denied: a forecast may have
            // read tag and word of different entries, and a charge may have been refunded in between.
            may_admit = self.write_peek(items, now);
            decided.fill(None); // what is charged after all is decided again
        }
        let admitted = may_admit && self.charge_all(items, &mut order, &decided, now, policy_check);
        if admitted && any_shadow {
            self.charge_shadows(items, now, policy_check);
        }
        if !admitted && !policy_check.was_replaced() {
            self.drain_denied(items, now, policy_check);
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
        order: &mut [(Fingerprint, usize)],
        decided: &[Option<DecidedBucket<'_>>],
        now: Time,
        policy_check: &PolicyCheck<'_>,
    ) -> bool {
        // One order for all requests: of two that want the same keys, the first one gets them all.
        sort_few(order);
        for (_, n) in order {
            let item = &mut items[*n];
            let Some(charge) = item.charge() else { continue };
            if let Some(bucket) = &decided[*n]
                && let Some(charged) = self.charge_decided(&charge, bucket, now)
            {
                *item.outcome() = charged;
                continue;
            }
            // A denial is counted once, at the end.
            let limit = self.run(&charge, ChargeOpKind::Charge, now, policy_check);
            let limit = limit.unwrap_or_else(|| policy_check.note_replaced());
            *item.outcome() = limit;
            if limit.grant.is_none() {
                self.revert(items, now, policy_check); // another request won the race
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
    fn charge_shadows<I: ChargeItem>(&self, items: &mut [I], now: Time, policy_check: &PolicyCheck<'_>) {
        for item in items {
            let shadow = item.charge().filter(|charge| charge.enforcement == Enforcement::Shadow);
            let Some(charge) = shadow else { continue };
            let limit = self.run(&charge, charge_op_kind(&charge), now, policy_check);
            *item.outcome() = limit.unwrap_or_else(|| self.peek_one(&charge, now));
        }
    }

    /// Reverts the charges that were applied. A denying limit keeps its outcome; the others report their present state.
    #[cold]
    fn revert<I: ChargeItem>(&self, items: &mut [I], now: Time, policy_check: &PolicyCheck<'_>) {
        let mut granted: SmallVec<[Option<Grant>; 8]> =
            items.iter_mut().map(|item| item.outcome().grant.take()).collect();
        for (item, grant) in items.iter().zip(&granted) {
            if let (Some(charge), Some(grant)) = (item.charge(), grant) {
                self.settle_grant(charge.fingerprint, charge.quota, grant, 0, now);
            }
        }
        if policy_check.was_replaced() {
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
    fn drain_denied<I: ChargeItem>(&self, items: &mut [I], now: Time, policy_check: &PolicyCheck<'_>) {
        for item in items {
            let is_allowed = item.outcome().decision.is_allowed();
            if let Some(charge) = item.charge()
                && charge.denied_hits == DeniedHits::Counted
                && !is_allowed
                && let Some(drained) = self.run(&charge, ChargeOpKind::Drain, now, policy_check)
                && !drained.decision.is_allowed()
            // a limit that would allow it by now has still denied the request
            {
                *item.outcome() = drained;
            }
        }
    }
}

/// Insertion sort, because most requests have few charges: a call of the library's sort costs more.
#[inline(always)]
fn sort_few(order: &mut [(Fingerprint, usize)]) {
    if order.len() > INLINE_CHARGES {
        return order.sort_unstable();
    }
    for end in 1..order.len() {
        let mut at = end;
        while at > 0 && order[at] < order[at - 1] {
            order.swap(at, at - 1);
            at -= 1;
        }
    }
}
