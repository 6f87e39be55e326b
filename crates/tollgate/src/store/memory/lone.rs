//! One cost for one key of one limit: the shortest way through the store.
//!
//! What a lone decision does not need is left out: no parts, no receipts, no predecessors. Only a bucket
//! that is there goes this way; every other state, and every first hit, goes the way of all charges. The fewer
//! instructions a decision takes, the further a processor looks ahead for the memory of the next ones: so the
//! usual way is straight, and all else is a call.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::algorithm::gcra::Meter;
use crate::algorithm::{Admission, Algorithm, Decision, Quota};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::memory::packed::{Class, Demand, Intent};
use crate::store::memory::slot::{AGE, COUNT, COUNT_BITS, OWNER_AT, Slot, lent};
use crate::store::memory::table::{Place, mark};
use crate::store::memory::{InForce, MemoryStore, shard_of};
use crate::time::{Period, Time};

/// A quota that is charged by itself, and how a store keeps its states.
pub(crate) struct Lone {
    quota: Quota,
    /// The meter of a bucket, and the kind of its slots.
    bucket: Option<(Meter, u16)>,
    short: Short,
}

/// What the short way needs: a bucket in the units of words.
struct Short {
    meter: Meter,
    /// The age that goes the short way, that of the last who went the long way: where it begins, and in the bits
    /// that are zero there what its tags have beside their owners.
    age: AtomicU64,
    /// How much of an age goes the short way: at its end a burst would reach into the next. Zero if none of it
    /// does.
    room: u64,
    token: u64,
    span: u64,
    /// What is left of the span beside one token.
    slack: u64,
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

impl Short {
    fn new(meter: Meter, kind: u16) -> Option<Short> {
        let raised = |units: u64| units.checked_mul(1 << COUNT_BITS);
        let (token, span) = (raised(meter.token())?, raised(meter.span())?);
        let slack = span.checked_sub(token)?;
        let room = (AGE - meter.span()).saturating_sub(1 << OWNER_AT);
        let short = Short { meter, age: AtomicU64::new(0), room, token, span, slack };
        short.keep_up_with(Time::EPOCH, kind);
        Some(short)
    }

    /// A way that nobody goes.
    fn none() -> Short {
        let meter = Meter::closed(Period::SECOND);
        Short { meter, age: AtomicU64::new(0), room: 0, token: 0, span: 0, slack: 0 }
    }

    /// `None` if the short way does not go there.
    #[inline(always)]
    fn moment(&self, now: Time) -> Option<Moment> {
        let (age, units) = (self.age.load(Ordering::Relaxed), self.meter.flow().near_units_at(now));
        // What an age has in its lower bits is little: it shortens the way by so much at both ends.
        let goes = units.wrapping_sub(age) < self.room;
        goes.then_some(Moment { raised: units << COUNT_BITS, mark: age & ((1 << OWNER_AT) - 1) })
    }

    fn keep_up_with(&self, now: Time, kind: u16) {
        let start = self.meter.units_at(now) / AGE * AGE;
        let age = start | lent(start) | mark(kind);
        // Of an age that reaches beyond the horizon not all moments are told apart.
        if self.age.load(Ordering::Relaxed) != age && start <= Limit::HORIZON.nanos() - AGE {
            self.age.store(age, Ordering::Relaxed);
        }
    }

    /// Charges the one whose slot it is. Words are compared with their counts, which decide nothing: what they
    /// are compared with has the same one, or the highest.
    #[inline(always)]
    fn charge(&self, slot: &Slot, owner: u64, Moment { raised, mark }: Moment, cost: u64) -> Asked {
        let (need, slack) = if cost == 1 {
            (self.token, self.slack)
        } else {
            let need = cost.saturating_mul(self.token);
            let Some(slack) = self.span.checked_sub(need) else { return Asked::Gone };
            (need, slack)
        };
        while let Some(word) = slot.word_of(owner | mark) {
            let start = word.max(raised | word & COUNT);
            if start > (raised + slack) | COUNT {
                return Asked::Denied;
            }
            if slot.set_word(word, start + need) {
                // Who does not ask what is left does not pay for a division that cannot fail.
                let left = (raised + self.span - (start & !COUNT)).checked_div(self.token).unwrap_or(0);
                return Asked::Allowed { left };
            }
        }
        Asked::Gone
    }
}

/// Charges a bucket at any moment, with the answer whatever it is; `None` if the slot is, or becomes, somebody
/// else's.
fn charge_bucket(slot: &Slot, tag: u64, meter: &Meter, cost: u64, now: Time) -> Option<Decision> {
    let (mut seen, now_units) = (slot.glance(), meter.units_at(now));
    while seen.tag() == tag {
        let (decision, stands) = match meter.allowed(seen.state(), now_units, cost) {
            Some((decision, next)) => (decision, slot.set(seen, next)),
            None => (meter.decide(&seen.state(), now, cost), slot.confirm(seen)),
        };
        match stands {
            Ok(()) => return Some(decision),
            Err(now) => seen = now, // somebody was faster
        }
    }
    None
}

/// What came of the short way.
pub(crate) enum Asked {
    /// At once, with so much left.
    Allowed { left: u64 },
    /// [`charge_spot`](MemoryStore::charge_spot) tells the whole answer.
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
        let kind = Class::of(&quota).and_then(|class| self.classes.pinned(class));
        let bucket = match (&quota, kind) {
            (Quota::Bucket(meter), Some(kind)) => Some((*meter, kind)),
            _ => None,
        };
        let short = bucket.as_ref().and_then(|(meter, kind)| Short::new(*meter, *kind));
        Lone { quota, bucket, short: short.unwrap_or_else(Short::none) }
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
        let owner = place.owner();
        if let Some(moment) = lone.short.moment(now)
            && let Some(slot) = place.slot_of(owner | moment.mark)
        {
            let spot = || Spot { owner, at: self.region.number_of(slot) };
            match lone.short.charge(slot, owner, moment, cost) {
                Asked::Allowed { left } => {
                    charged(spot());
                    return Decision { admission: Admission::NOW, left };
                }
                Asked::Denied => {
                    if let Some(decision) = self.charge_spot(spot(), lone, cost, now) {
                        charged(spot());
                        return decision;
                    }
                }
                Asked::Gone => {}
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
        if let Some((meter, kind)) = &lone.bucket {
            lone.short.keep_up_with(now, *kind);
            let place = self.place(fingerprint);
            if let Some(slot) = place.slot()
                && let Some(decision) = charge_bucket(slot, place.owner() | mark(*kind), meter, cost, now)
            {
                charged(Spot { owner: place.owner(), at: self.region.number_of(slot) });
                return decision;
            }
        }
        let demand = Demand { quota: &lone.quota, cost, intent: Intent::Take, now };
        let part = self.run_key(fingerprint, &demand, &[], &InForce::always());
        part.expect("the limit is always in force").decision
    }

    /// The same for a key that was charged at a spot before, whatever the answer is; `None` if it is not there any
    /// more.
    #[inline(never)]
    pub(crate) fn charge_spot(&self, spot: Spot, lone: &Lone, cost: u64, now: Time) -> Option<Decision> {
        let (meter, kind) = lone.bucket.as_ref()?;
        charge_bucket(self.region.slot(spot.at)?, spot.owner | mark(*kind), meter, cost, now)
    }

    /// The same, if that goes the short way.
    #[inline(always)]
    pub(crate) fn charge_again(&self, spot: Spot, lone: &Lone, cost: u64, now: Time) -> Asked {
        match (self.region.slot(spot.at), lone.short.moment(now)) {
            (Some(slot), Some(moment)) => lone.short.charge(slot, spot.owner, moment, cost),
            _ => Asked::Gone,
        }
    }
}
