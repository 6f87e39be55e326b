//! One cost for one key of one limit: the shortest way through the store.
//!
//! What a lone decision does not need is left out: no parts, no receipts, no predecessors. Only a bucket
//! that is there goes this way; every other state, and every first hit, goes the way of all charges.

use crate::algorithm::gcra::Meter;
use crate::algorithm::{Algorithm, Decision, Quota};
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::{Class, Demand, Intent};
use crate::store::memory::slot::{Pair, Slot};
use crate::store::memory::table::{Place, tag};
use crate::store::memory::{MemoryStore, shard_of};
use crate::time::Time;

/// A quota that is charged by itself, and how a store keeps its states.
pub(crate) struct Lone {
    quota: Quota,
    /// The meter of a bucket, and the kind of its slots: what goes the short way.
    bucket: Option<(Meter, u8)>,
}

impl Lone {
    pub(crate) fn quota(&self) -> &Quota {
        &self.quota
    }
}

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
    /// What charging a quota by itself takes in this store.
    pub(crate) fn lone(&self, quota: Quota) -> Lone {
        let kind = Class::of(&quota).and_then(|class| self.classes.number(class));
        let bucket = match (&quota, kind) {
            (Quota::Bucket(meter), Some(kind)) => Some((*meter, kind)),
            _ => None,
        };
        Lone { quota, bucket }
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
        lone: &Lone,
        cost: u64,
        now: Time,
        charged: impl FnOnce(Spot),
    ) -> Decision {
        if let Some((meter, kind)) = &lone.bucket {
            let tag = tag(place.fingerprint(), *kind);
            if let Some(slot) = place.slot_of(tag)
                && let Some(decision) = charge_bucket(slot, tag, meter, cost, now)
            {
                charged(Spot { tag, at: self.region.number_of(slot) });
                return decision;
            }
        }
        self.charge_any(place.fingerprint(), &lone.quota, cost, now)
    }

    /// The same for a key that was charged at a spot before; `None` if it is no longer there.
    #[inline(always)]
    pub(crate) fn charge_again(&self, spot: Spot, lone: &Lone, cost: u64, now: Time) -> Option<Decision> {
        let (meter, _) = lone.bucket.as_ref()?;
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
    let (mut full_at, now_units) = (slot.word(), meter.units_at(now));
    loop {
        let (decision, stands) = match meter.allowed(full_at, now_units, cost) {
            Some((decision, next)) => (decision, slot.replace((tag, full_at), (tag, next))),
            None => denied(slot, (tag, full_at), meter, cost, now),
        };
        match stands {
            Ok(()) => return Some(decision),
            Err(seen) if seen.0 == tag => full_at = seen.1, // somebody was faster
            Err(_) => return None,
        }
    }
}

/// A denial, and whether what it was decided on still stands.
#[inline(always)]
fn denied(slot: &Slot, seen: Pair, meter: &Meter, cost: u64, now: Time) -> (Decision, Result<(), Pair>) {
    (meter.decide(&seen.1, now, cost), slot.confirm(seen))
}
