//! Fast path: one cost, one key, one limit.
//!
//! Builds no outcome, receipt or predecessors. Only an existing bucket takes it; all other states, and the first hit
//! of a key, take the slow path. The common case is straight-line code and everything else is an out-of-line call: the
//! fewer instructions a decision takes, the more loads of the next decisions the processor can overlap.

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

/// A quota with the parameters that its fast path needs in one store.
pub(crate) struct FastPath {
    quota: Quota,
    /// The meter of a bucket, and the class number of its slots.
    bucket: Option<(Meter, u16)>,
    fast_bucket: FastBucket,
}

/// A bucket in the units of words.
struct FastBucket {
    meter: Meter,
    /// The range of states that the fast path handles, updated by the slow path: its first state and, in the low bits
    /// that are zero there, the spilled bits and class that tags have in this range.
    word_range: AtomicU64,
    /// How much of the range the fast path handles: at its end a burst would reach into the next range. Zero disables
    /// it.
    usable_range: u64,
    token_word: u64,
    capacity_word: u64,
    /// The capacity less one token, in units of words.
    slack: u64,
}

/// A timestamp within the range that the fast path handles.
#[derive(Clone, Copy)]
struct FastNow {
    /// In the units of words.
    now_word: u64,
    /// The spilled bits and class of the tags in this range.
    tag_bits: u64,
}

/// The slot where a key was charged last. The key may have moved or been evicted since.
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
        let capacity = raised(meter.capacity_units())?;
        let slack = capacity.checked_sub(token)?;
        let room = (WORD_RANGE - meter.capacity_units()).saturating_sub(1 << OWNER_AT);
        let short = FastBucket {
            meter,
            word_range: AtomicU64::new(0),
            usable_range: room,
            token_word: token,
            capacity_word: capacity,
            slack,
        };
        short.advance_word_range(Time::EPOCH, kind);
        Some(short)
    }

    /// A fast path that is disabled: no time is in its range.
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

    /// `None` if the fast path does not handle this time.
    #[inline(always)]
    fn fast_now(&self, now: Time) -> Option<FastNow> {
        let age = self.word_range.load(Ordering::Relaxed);
        let units = self.meter.clock().units_at_unclamped(now);
        // The low bits of `word_range` are not masked out: they are small, and shift both ends of the range by that
        // little.
        let goes = units.wrapping_sub(age) < self.usable_range;
        goes.then_some(FastNow { now_word: units << GENERATION_BITS, tag_bits: age & ((1 << OWNER_AT) - 1) })
    }

    fn advance_word_range(&self, now: Time, kind: u16) {
        let start = self.meter.units_at(now) / WORD_RANGE * WORD_RANGE;
        let age = start | spilled_bits_of(start) | class_bits(kind);
        // In a range that reaches beyond the horizon, timestamps are clamped and no longer distinct.
        if self.word_range.load(Ordering::Relaxed) != age && start <= Limit::HORIZON.nanos() - WORD_RANGE {
            self.word_range.store(age, Ordering::Relaxed);
        }
    }

    /// Charges the key if the slot is still its own. Words are compared with their generations, which cannot change
    /// the result: both sides have the same generation, or the bound has the highest.
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
                // `checked_div` cannot panic, so the compiler drops the division where `left` is unused.
                let left = (raised + self.capacity_word - (start & !GENERATION_MASK))
                    .checked_div(self.token_word)
                    .unwrap_or(0);
                return FastPathResult::Allowed { left };
            }
        }
        FastPathResult::Fallback
    }
}

/// Charges a bucket at any time and returns the full decision; `None` if the slot belongs to another key.
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
            Err(now) => loaded = now, // lost the race
        }
    }
    None
}

/// Result of the fast path.
pub(crate) enum FastPathResult {
    /// Without a wait; `left` tokens remain.
    Allowed { left: u64 },
    /// [`charge_hinted`](MemoryStore::charge_hinted) returns the full decision.
    Denied,
    /// The slot belongs to another key, or the time is outside the range of the fast path.
    Fallback,
}

impl SlotHint {
    pub(crate) const NONE: SlotHint = SlotHint { owner: 0, slot_number: usize::MAX };
}

impl MemoryStore {
    /// The fast path of a quota in this store.
    pub(crate) fn fast_path(&self, quota: Quota) -> FastPath {
        let kind = Class::of(&quota).and_then(|class| self.classes.intern_pinned(class));
        let bucket = match (&quota, kind) {
            (Quota::Bucket(meter), Some(kind)) => Some((*meter, kind)),
            _ => None,
        };
        let short = bucket.as_ref().and_then(|(meter, kind)| FastBucket::new(*meter, *kind));
        FastPath { quota, bucket, fast_bucket: short.unwrap_or_else(FastBucket::disabled) }
    }

    /// The two cache lines that may hold a key, prefetched. Call it some time before charging.
    #[inline(always)]
    pub(crate) fn candidates(&self, fingerprint: Fingerprint) -> CandidateLines<'_> {
        let n = shard_of(fingerprint);
        self.tables[n].candidates(self.region.shard_lines(n), fingerprint)
    }

    /// Decides one cost for one key and charges it if allowed. `charged` receives the slot.
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

    /// The slow path: any key, any state, with the full decision.
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

    /// Charges a key at the slot where it was charged before and returns the full decision; `None` if it has moved.
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

    /// As above, on the fast path only.
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
