//! One cost for one key of one limit: the shortest way through the store.
//!
//! What a lone decision does not need is left out: no parts, no receipts, no predecessors. Only a bucket
//! that is there goes this way; every other state, and every first hit, goes the way of all charges.

use crate::algorithm::gcra::Meter;
use crate::algorithm::{Decision, Quota};
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::{Class, Demand, Intent};
use crate::store::memory::slot::Slot;
use crate::store::memory::table::{Place, tag};
use crate::store::memory::{MemoryStore, shard_of};
use crate::time::Time;

/// How a store keeps the states of a quota: as what kind of slots, if they fit one.
#[derive(Clone, Copy)]
pub(crate) struct Kind(Option<u8>);

/// Where a key was charged last. It may have moved since, or made room for another.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    tag: u64,
    at: usize,
}

impl Spot {
    pub(crate) const NOWHERE: Spot = Spot { tag: 0, at: usize::MAX };
}

impl MemoryStore {
    /// What the states of a quota are known by in this store.
    pub(crate) fn kind(&self, quota: &Quota) -> Kind {
        Kind(Class::of(quota).and_then(|class| self.classes.number(class)))
    }

    /// Where a key is kept. It is worth knowing some time before it is charged: its memory may be far.
    #[inline(always)]
    pub(crate) fn place(&self, fingerprint: Fingerprint) -> Place<'_> {
        let n = shard_of(fingerprint);
        self.tables[n].place(self.region.shard(n), fingerprint)
    }

    /// Decides one cost for one key, and takes it if it is allowed. `charged` is told where.
    #[inline(always)]
    pub(crate) fn charge_at(
        &self,
        place: &Place<'_>,
        (quota, kind): (&Quota, Kind),
        cost: u64,
        now: Time,
        charged: impl FnOnce(Spot),
    ) -> Decision {
        if let (Quota::Bucket(meter), Kind(Some(kind))) = (quota, kind) {
            let tag = tag(place.fingerprint(), kind);
            if let Some(slot) = place.slot_of(tag)
                && let Some(decision) = charge_bucket(slot, tag, meter, cost, now)
            {
                charged(Spot { tag, at: self.region.number_of(slot) });
                return decision;
            }
        }
        self.charge_any(place.fingerprint(), quota, cost, now)
    }

    /// The same for a key that was charged at a spot before; `None` if it is no longer there.
    #[inline(always)]
    pub(crate) fn charge_again(&self, spot: Spot, quota: &Quota, cost: u64, now: Time) -> Option<Decision> {
        let Quota::Bucket(meter) = quota else { return None };
        let slot = self.region.slot(spot.at).filter(|slot| slot.tag() == spot.tag)?;
        charge_bucket(slot, spot.tag, meter, cost, now)
    }

    #[inline(never)]
    fn charge_any(&self, fingerprint: Fingerprint, quota: &Quota, cost: u64, now: Time) -> Decision {
        self.run_key(fingerprint, &Demand { quota, cost, intent: Intent::Take, now }, &[]).decision
    }
}

/// Charges a bucket; `None` if the slot is, or becomes, somebody else's.
#[inline(always)]
fn charge_bucket(slot: &Slot, tag: u64, meter: &Meter, cost: u64, now: Time) -> Option<Decision> {
    let mut full_at = slot.word();
    loop {
        let (decision, next) = meter.decided(full_at, now, cost);
        let stands = match next {
            Some(next) => slot.replace((tag, full_at), (tag, next)),
            None => slot.confirm((tag, full_at)),
        };
        match stands {
            Ok(()) => return Some(decision),
            Err(seen) if seen.0 == tag => full_at = seen.1, // somebody was faster
            Err(_) => return None,
        }
    }
}
