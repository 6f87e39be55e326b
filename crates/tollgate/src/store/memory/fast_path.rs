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
use crate::store::memory::packed::{ChargeOp, ChargeOpKind, Class};
use crate::store::memory::slot::{
    GENERATION_BITS, GENERATION_MASK, OWNER_AT, Slot, WORD_RANGE, spilled_bits_of,
};
use crate::store::memory::table::{CandidateLines, class_bits};
use crate::store::memory::{InForce, MemoryStore, shard_of};
use crate::time::{Period, Time};

/// A quota that is charged by itself, and how a store keeps its states.
pub(crate) struct FastPath {
    quota: Quota,
    /// The meter of a bucket, and the kind of its slots.
    bucket: Option<(Meter, u16)>,
    fast_bucket: FastBucket,
}

/// What the short way needs: a bucket in the units of words.
struct FastBucket {
    meter: Meter,
    /// The age that goes the short way, that of the last who went the long way: where it begins, and in the bits
    /// that are zero there what its tags have beside their owners.
    word_range: AtomicU64,
    /// How much of an age goes the short way: at its end a burst would reach into the next. Zero if none of it
    /// does.
    usable_range: u64,
    token_word: u64,
    capacity_word: u64,
    /// What is left of the span beside one token.
    slack: u64,
}

/// A moment of an age.
#[derive(Clone, Copy)]
struct FastNow {
    /// In the units of words.
    now_word: u64,
    /// What the tags of the bucket's slots have beside their owners.
    tag_bits: u64,
}

/// Where a key was charged last. It may have moved since, or made room for another.
#[derive(Clone, Copy)]
pub(crate) struct SlotHint {
    owner: u64,
    slot_number: usize,
}

impl FastPath {
    pub(crate) fn quota(&self) -> &Quota {
        &self.quota
    }
}

impl FastBucket {
    fn new(meter: Meter, kind: u16) -> Option<FastBucket> {
        let raised = |units: u64| units.checked_mul(1 << GENERATION_BITS);
        let token = raised(meter.token_units())?;
        let span = raised(meter.capacity_units())?;
        let slack = span.checked_sub(token)?;
        let room = (WORD_RANGE - meter.capacity_units()).saturating_sub(1 << OWNER_AT);
        let short = FastBucket {
            meter,
            word_range: AtomicU64::new(0),
            usable_range: room,
            token_word: token,
            capacity_word: span,
            slack,
        };
        short.advance_word_range(Time::EPOCH, kind);
        Some(short)
    }

    /// A way that nobody goes.
    fn disabled() -> FastBucket {
        let meter = Meter::closed(Period::SECOND);
        FastBucket {
            meter,
            word_range: AtomicU64::new(0),
            usable_range: 0,
            token_word: 0,
            capacity_word: 0,
            slack: 0,
        }
    }

    /// `None` if the short way does not go there.
    #[inline(always)]
    fn fast_now(&self, now: Time) -> Option<FastNow> {
        let age = self.word_range.load(Ordering::Relaxed);
        let units = self.meter.clock().units_at_unclamped(now);
        // What an age has in its lower bits is little: it shortens the way by so much at both ends.
        let goes = units.wrapping_sub(age) < self.usable_range;
        goes.then_some(FastNow { now_word: units << GENERATION_BITS, tag_bits: age & ((1 << OWNER_AT) - 1) })
    }

    fn advance_word_range(&self, now: Time, kind: u16) {
        let start = self.meter.units_at(now) / WORD_RANGE * WORD_RANGE;
        let age = start | spilled_bits_of(start) | class_bits(kind);
        // Of an age that reaches beyond the horizon not all moments are told apart.
        if self.word_range.load(Ordering::Relaxed) != age && start <= Limit::HORIZON.nanos() - WORD_RANGE {
            self.word_range.store(age, Ordering::Relaxed);
        }
    }

    /// Charges the one whose slot it is. Words are compared with their counts, which decide nothing: what they
    /// are compared with has the same one, or the highest.
    #[inline(always)]
    fn charge(
        &self,
        slot: &Slot,
        owner: u64,
        FastNow { now_word: raised, tag_bits: mark }: FastNow,
        cost: u64,
    ) -> FastPathResult {
        let (need, slack) = if cost == 1 {
            (self.token_word, self.slack)
        } else {
            let need = cost.saturating_mul(self.token_word);
            let Some(slack) = self.capacity_word.checked_sub(need) else { return FastPathResult::Fallback };
            (need, slack)
        };
        while let Some(word) = slot.word_if_tag(owner | mark) {
            let start = word.max(raised | word & GENERATION_MASK);
            if start > (raised + slack) | GENERATION_MASK {
                return FastPathResult::Denied;
            }
            if slot.cas_word(word, start + need) {
                // Who does not ask what is left does not pay for a division that cannot fail.
                let left = (raised + self.capacity_word - (start & !GENERATION_MASK))
                    .checked_div(self.token_word)
                    .unwrap_or(0);
                return FastPathResult::Allowed { left };
            }
        }
        FastPathResult::Fallback
    }
}

/// Charges a bucket at any moment, with the answer whatever it is; `None` if the slot is, or becomes, somebody
/// else's.
fn charge_bucket(slot: &Slot, tag: u64, meter: &Meter, cost: u64, now: Time) -> Option<Decision> {
    let mut loaded = slot.load_unconfirmed();
    let now_units = meter.units_at(now);
    while loaded.tag() == tag {
        let (decision, stands) = match meter.try_charge_units(loaded.state(), now_units, cost) {
            Some((decision, next)) => (decision, slot.cas_state(loaded, next)),
            None => (meter.decide(&loaded.state(), now, cost), slot.confirm(loaded)),
        };
        match stands {
            Ok(()) => return Some(decision),
            Err(now) => loaded = now, // somebody was faster
        }
    }
    None
}

/// What came of the short way.
pub(crate) enum FastPathResult {
    /// At once, with so much left.
    Allowed { left: u64 },
    /// [`charge_hinted`](MemoryStore::charge_hinted) tells the whole answer.
    Denied,
    /// It is, or became, another's slot; or the short way does not go there.
    Fallback,
}

impl SlotHint {
    pub(crate) const NONE: SlotHint = SlotHint { owner: 0, slot_number: usize::MAX };
}

impl MemoryStore {
    /// What charging a quota by itself takes in this store.
    pub(crate) fn fast_path(&self, quota: Quota) -> FastPath {
        let kind = Class::of(&quota).and_then(|class| self.classes.intern_pinned(class));
        let bucket = match (&quota, kind) {
            (Quota::Bucket(meter), Some(kind)) => Some((*meter, kind)),
            _ => None,
        };
        let short = bucket.as_ref().and_then(|(meter, kind)| FastBucket::new(*meter, *kind));
        FastPath { quota, bucket, fast_bucket: short.unwrap_or_else(FastBucket::disabled) }
    }

    /// Where a key is kept. It is worth knowing some time before it is charged: its memory may be far.
    #[inline(always)]
    pub(crate) fn candidates(&self, fingerprint: Fingerprint) -> CandidateLines<'_> {
        let n = shard_of(fingerprint);
        self.tables[n].candidates(self.region.shard_lines(n), fingerprint)
    }

    /// Decides one cost for one key, and takes it if it is allowed. `charged` is told where.
    #[inline(always)]
    pub(crate) fn charge_fast(
        &self,
        candidates: CandidateLines<'_>,
        fast_path: &FastPath,
        cost: u64,
        now: Time,
        charged: impl FnOnce(SlotHint),
    ) -> Decision {
        let owner = candidates.owner();
        if let Some(moment) = fast_path.fast_bucket.fast_now(now)
            && let Some(slot) = candidates.slot_with_raw_tag(owner | moment.tag_bits)
        {
            let spot = || SlotHint { owner, slot_number: self.region.slot_number(slot) };
            match fast_path.fast_bucket.charge(slot, owner, moment, cost) {
                FastPathResult::Allowed { left } => {
                    charged(spot());
                    return Decision { admission: Admission::NOW, left };
                }
                FastPathResult::Denied => {
                    if let Some(decision) = self.charge_hinted(spot(), fast_path, cost, now) {
                        charged(spot());
                        return decision;
                    }
                }
                FastPathResult::Fallback => {}
            }
        }
        self.charge_slow(candidates.fingerprint(), fast_path, cost, now, charged)
    }

    /// The same for everybody, and whatever the answer is.
    #[inline(never)]
    fn charge_slow(
        &self,
        fingerprint: Fingerprint,
        fast_path: &FastPath,
        cost: u64,
        now: Time,
        charged: impl FnOnce(SlotHint),
    ) -> Decision {
        if let Some((meter, kind)) = &fast_path.bucket {
            fast_path.fast_bucket.advance_word_range(now, *kind);
            let candidates = self.candidates(fingerprint);
            if let Some(slot) = candidates.slot()
                && let Some(decision) =
                    charge_bucket(slot, candidates.owner() | class_bits(*kind), meter, cost, now)
            {
                charged(SlotHint { owner: candidates.owner(), slot_number: self.region.slot_number(slot) });
                return decision;
            }
        }
        let op = ChargeOp { quota: &fast_path.quota, cost, kind: ChargeOpKind::Charge, now };
        let part = self.run_key(fingerprint, &op, &[], &InForce::always());
        part.expect("the limit is always in force").decision
    }

    /// The same for a key that was charged at a spot before, whatever the answer is; `None` if it is not there any
    /// more.
    #[inline(never)]
    pub(crate) fn charge_hinted(
        &self,
        spot: SlotHint,
        fast_path: &FastPath,
        cost: u64,
        now: Time,
    ) -> Option<Decision> {
        let (meter, kind) = fast_path.bucket.as_ref()?;
        charge_bucket(self.region.slot(spot.slot_number)?, spot.owner | class_bits(*kind), meter, cost, now)
    }

    /// The same, if that goes the short way.
    #[inline(always)]
    pub(crate) fn charge_hinted_fast(
        &self,
        spot: SlotHint,
        fast_path: &FastPath,
        cost: u64,
        now: Time,
    ) -> FastPathResult {
        match (self.region.slot(spot.slot_number), fast_path.fast_bucket.fast_now(now)) {
            (Some(slot), Some(moment)) => fast_path.fast_bucket.charge(slot, spot.owner, moment, cost),
            _ => FastPathResult::Fallback,
        }
    }
}
