//! One cost for one key of one limit: the shortest way through the store.
//!
//! What a lone decision does not need is left out: no parts, no receipts, no predecessors. Only a bucket
//! that is there goes this way; every other state, and every first hit, goes the way of all charges. The fewer
//! instructions a decision takes, the further a processor looks ahead for the memory of the next ones: so the
//! usual way is straight, and all else is a call.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::algorithm::gcra::Meter;
use crate::algorithm::{Algorithm, Decision, Quota};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::memory::packed::{Class, Demand, Intent};
use crate::store::memory::slot::{AGE, COUNT, COUNT_BITS, OWNER_AT, Slot, lent};
use crate::store::memory::table::{Place, mark};
use crate::store::memory::{MemoryStore, shard_of};
use crate::time::Time;

/// A quota that is charged by itself, and how a store keeps its states.
pub(crate) struct Lone {
    quota: Quota,
    /// What goes the short way.
    bucket: Option<Bucket>,
}

/// A bucket whose states are compared as they stand in words.
struct Bucket {
    meter: Meter,
    kind: u8,
    /// The meter in the units of words.
    raised: Meter,
    /// The age that goes the short way, that of the last who went the long way: where it begins, and in the bits
    /// that are zero there what its tags have beside their owners.
    age: AtomicU64,
    /// How much of an age goes the short way: at its end a burst would reach into the next.
    room: u64,
}

/// A moment of an age.
#[derive(Clone, Copy)]
struct Moment {
    /// In the units of words.
    raised: u64,
    /// What the tags of the bucket's slots have beside their owners.
    mark: u64,
}

/// Where a key was charged last. It may have moved since, or made room for another.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    owner: u64,
    at: usize,
}

impl Lone {
    pub(crate) fn quota(&self) -> &Quota {
        &self.quota
    }
}

impl Bucket {
    fn new(meter: Meter, kind: u8) -> Option<Bucket> {
        let raised = meter.raised(COUNT_BITS)?;
        let room = (AGE - meter.span()).saturating_sub(1 << OWNER_AT);
        let bucket = Bucket { meter, kind, raised, age: AtomicU64::new(0), room };
        bucket.keep_up_with(Time::EPOCH);
        Some(bucket)
    }

    /// `None` if the short way does not go there.
    #[inline(always)]
    fn moment(&self, now: Time) -> Option<Moment> {
        let (age, now) = (self.age.load(Ordering::Relaxed), self.meter.near_units_at(now));
        // What an age has in its lower bits is little: it shortens the way by so much at both ends.
        let goes = now.wrapping_sub(age) < self.room;
        goes.then_some(Moment { raised: now << COUNT_BITS, mark: u64::from(age as u16) })
    }

    fn keep_up_with(&self, now: Time) {
        let start = self.meter.units_at(now) / AGE * AGE;
        let age = start | lent(start) | mark(self.kind);
        // Of an age that reaches beyond the horizon not all moments are told apart.
        if self.age.load(Ordering::Relaxed) != age && start <= Limit::HORIZON.nanos() - AGE {
            self.age.store(age, Ordering::Relaxed);
        }
    }

    /// Charges the one whose slot it is.
    #[inline(always)]
    fn charge(&self, slot: &Slot, owner: u64, moment: Moment, cost: u64) -> Asked {
        while let Some(word) = slot.word_of(owner | moment.mark) {
            match self.raised.allowed(word & !COUNT, moment.raised, cost) {
                Some((decision, next)) if slot.set_word(word, next | word & COUNT) => {
                    return Asked::Allowed(decision);
                }
                Some(_) => {} // somebody was faster
                None => return Asked::Denied,
            }
        }
        Asked::Gone
    }

    /// The same at any moment, with the answer whatever it is; `None` if the slot is, or becomes, somebody else's.
    fn charge_any(&self, slot: &Slot, owner: u64, cost: u64, now: Time) -> Option<Decision> {
        let (tag, now_units) = (owner | mark(self.kind), self.meter.units_at(now));
        let mut seen = slot.glance();
        while seen.tag() == tag {
            let (decision, stands) = match self.meter.allowed(seen.state(), now_units, cost) {
                Some((decision, next)) => (decision, slot.set(seen, next)),
                None => (self.meter.decide(&seen.state(), now, cost), slot.confirm(seen)),
            };
            match stands {
                Ok(()) => return Some(decision),
                Err(now) => seen = now, // somebody was faster
            }
        }
        None
    }
}

/// What came of the short way.
pub(crate) enum Asked {
    Allowed(Decision),
    /// The whole answer is told by [`charge_spot`](MemoryStore::charge_spot).
    Denied,
    /// It is, or became, another's slot; or the short way does not go there.
    Gone,
}

impl Spot {
    pub(crate) const NOWHERE: Spot = Spot { owner: 0, at: usize::MAX };
}

impl MemoryStore {
    /// What charging a quota by itself takes in this store.
    pub(crate) fn lone(&self, quota: Quota) -> Lone {
        let kind = Class::of(&quota).and_then(|class| self.classes.number(class));
        let bucket = match (&quota, kind) {
            (Quota::Bucket(meter), Some(kind)) => Bucket::new(*meter, kind),
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
        place: Place<'_>,
        lone: &Lone,
        cost: u64,
        now: Time,
        charged: impl FnOnce(Spot),
    ) -> Decision {
        if let Some(bucket) = &lone.bucket
            && let Some(moment) = bucket.moment(now)
        {
            let owner = place.owner();
            if let Some(slot) = place.slot_of(owner | moment.mark) {
                let spot = Spot { owner, at: self.region.number_of(slot) };
                match bucket.charge(slot, owner, moment, cost) {
                    Asked::Allowed(decision) => {
                        charged(spot);
                        return decision;
                    }
                    Asked::Denied => {
                        charged(spot);
                        return self.charge_spot(spot, place.fingerprint(), lone, cost, now);
                    }
                    Asked::Gone => {}
                }
            }
        }
        self.charge_any(place.fingerprint(), lone, cost, now, charged)
    }

    /// The same for everybody, and whatever the answer is.
    #[inline(never)]
    fn charge_any(
        &self,
        fingerprint: Fingerprint,
        lone: &Lone,
        cost: u64,
        now: Time,
        charged: impl FnOnce(Spot),
    ) -> Decision {
        if let Some(bucket) = &lone.bucket {
            bucket.keep_up_with(now);
            let place = self.place(fingerprint);
            if let Some(slot) = place.slot()
                && let Some(decision) = bucket.charge_any(slot, place.owner(), cost, now)
            {
                charged(Spot { owner: place.owner(), at: self.region.number_of(slot) });
                return decision;
            }
        }
        let demand = Demand { quota: &lone.quota, cost, intent: Intent::Take, now };
        self.run_key(fingerprint, &demand, &[]).decision
    }

    /// The same for a key that was charged at a spot before.
    #[inline(never)]
    pub(crate) fn charge_spot(
        &self,
        spot: Spot,
        fingerprint: Fingerprint,
        lone: &Lone,
        cost: u64,
        now: Time,
    ) -> Decision {
        let bucket_and_slot = lone.bucket.as_ref().zip(self.region.slot(spot.at));
        bucket_and_slot
            .and_then(|(bucket, slot)| bucket.charge_any(slot, spot.owner, cost, now))
            .unwrap_or_else(|| self.charge_any(fingerprint, lone, cost, now, |_| ()))
    }

    /// The same, if that goes the short way.
    #[inline(always)]
    pub(crate) fn charge_again(&self, spot: Spot, lone: &Lone, cost: u64, now: Time) -> Asked {
        if let Some(bucket) = &lone.bucket
            && let (Some(slot), Some(moment)) = (self.region.slot(spot.at), bucket.moment(now))
        {
            return bucket.charge(slot, spot.owner, moment, cost);
        }
        Asked::Gone
    }
}
