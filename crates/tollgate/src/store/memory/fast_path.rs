//! Fast path: one cost, one key, one limit.
//!
//! Builds no outcome, receipt or predecessors. It admits charges of existing buckets. A denial is decided again at the
//! same slot, with its wait (`charge_hinted`); all other states, a time outside the range of words, and the first hit of
//! a key take the slow path (`charge_slow`). The common case is straight-line code and everything else is an out-of-line
//! call: the fewer instructions a decision takes, the more loads of the next decisions the processor can overlap.
//!
//! Instructions of a `Limiter`'s check without and with it (`bench/instructions`): hot-string 364 and 102,
//! million-strings 309 and 147.

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
use crate::store::memory::{MemoryStore, PolicyCheck, shard_of};
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
    /// The part of the range that the fast path handles: near its end a burst would reach into the next range, which
    /// has other spilled bits. Zero disables the fast path.
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
    fn new(meter: Meter, class_no: u16) -> Option<FastBucket> {
        let to_word = |units: u64| units.checked_mul(1 << GENERATION_BITS);
        let token = to_word(meter.token_units())?;
        let capacity = to_word(meter.capacity_units())?;
        let slack = capacity.checked_sub(token)?;
        let usable_range = (WORD_RANGE - meter.capacity_units()).saturating_sub(1 << OWNER_AT);
        let fast_bucket = FastBucket {
            meter,
            word_range: AtomicU64::new(0),
            usable_range,
            token_word: token,
            capacity_word: capacity,
            slack,
        };
        fast_bucket.advance_word_range(Time::EPOCH, class_no);
        Some(fast_bucket)
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
        let word_range = self.word_range.load(Ordering::Relaxed);
        let units = self.meter.clock().units_at_unclamped(now);
        // `word_range` is `start`, with the spilled bits and the class in its `OWNER_AT` low bits (`low`). They are not
        // masked out: the range that is compared begins `low` units late, and these units take the slow path. Its length
        // is `WORD_RANGE - capacity - 2^OWNER_AT`, so whatever `low` is, one comparison implies
        //     start <= units  and  units + capacity < start + WORD_RANGE,
        // and every state that a charge leads to is inside the range.
        let in_range = units.wrapping_sub(word_range) < self.usable_range;
        in_range.then_some(FastNow {
            now_word: units << GENERATION_BITS,
            tag_bits: word_range & ((1 << OWNER_AT) - 1),
        })
    }

    fn advance_word_range(&self, now: Time, class_no: u16) {
        let start = self.meter.units_at(now) / WORD_RANGE * WORD_RANGE;
        let word_range = start | spilled_bits_of(start) | class_bits(class_no);
        // In a range that reaches beyond the horizon, timestamps are clamped and no longer distinct.
        if self.word_range.load(Ordering::Relaxed) != word_range
            && start <= Limit::HORIZON.nanos() - WORD_RANGE
        {
            self.word_range.store(word_range, Ordering::Relaxed);
        }
    }

    /// Charges the key if the slot still has its tag.
    ///
    /// A word is a state, shifted left by [`GENERATION_BITS`], with the generation of the slot in the low bits. The other
    /// operands (`now_word`, `slack`, `need`) have zeros there, so nothing is masked: `full_at` takes the generation of
    /// `word`, and adding `need` keeps it. The bound that `full_at` is compared with has the highest generation, so the
    /// comparison depends on the states alone.
    #[inline(always)]
    fn charge(
        &self,
        slot: &Slot,
        owner: u64,
        FastNow { now_word, tag_bits }: FastNow,
        cost: u64,
    ) -> FastPathResult {
        let (need, slack) = if cost == 1 {
            (self.token_word, self.slack)
        } else {
            let need = cost.saturating_mul(self.token_word);
            let Some(slack) = self.capacity_word.checked_sub(need) else { return FastPathResult::Fallback };
            (need, slack)
        };
        while let Some(word) = slot.word_if_tag(owner | tag_bits) {
            // When the bucket is full again; now, if it was idle.
            let full_at = word.max(now_word | word & GENERATION_MASK);
            if full_at > (now_word + slack) | GENERATION_MASK {
                return FastPathResult::Denied;
            }
            if slot.cas_word(word, full_at + need) {
                // `checked_div` cannot panic, so the compiler drops the division where `left` is unused.
                let left = (now_word + self.capacity_word - (full_at & !GENERATION_MASK))
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
        let (decision, confirmed) = match meter.try_charge_units(loaded.state(), now_units, cost) {
            Some((decision, next)) => (decision, slot.cas_state(loaded, next)),
            None => (meter.decide(&loaded.state(), now, cost), slot.confirm(loaded)),
        };
        match confirmed {
            Ok(()) => return Some(decision),
            Err(current) => loaded = current, // lost the race
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
        let class_no = Class::of(&quota).and_then(|class| self.classes.intern_pinned(class));
        let bucket = match (&quota, class_no) {
            (Quota::Bucket(meter), Some(class_no)) => Some((*meter, class_no)),
            _ => None,
        };
        let fast_bucket = bucket.as_ref().and_then(|(meter, class_no)| FastBucket::new(*meter, *class_no));
        FastPath { quota, bucket, fast_bucket: fast_bucket.unwrap_or_else(FastBucket::disabled) }
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
        if let Some(fast_now) = fast_path.fast_bucket.fast_now(now)
            && let Some(slot) = candidates.slot_with_raw_tag(owner | fast_now.tag_bits)
        {
            let hint = || SlotHint { owner, slot_number: self.region.slot_number(slot) };
            match fast_path.fast_bucket.charge(slot, owner, fast_now, cost) {
                FastPathResult::Allowed { left } => {
                    charged(hint());
                    return Decision { admission: Admission::NOW, left };
                }
                FastPathResult::Denied => {
                    if let Some(decision) = self.charge_hinted(hint(), fast_path, cost, now) {
                        charged(hint());
                        return decision;
                    }
                }
                FastPathResult::Fallback => {}
            }
        }
        self.charge_slow(candidates, fast_path, cost, now, charged)
    }

    /// The slow path: any key, any state, with the full decision.
    #[inline(never)]
    fn charge_slow(
        &self,
        candidates: CandidateLines<'_>,
        fast_path: &FastPath,
        cost: u64,
        now: Time,
        charged: impl FnOnce(SlotHint),
    ) -> Decision {
        if let Some((meter, class_no)) = &fast_path.bucket {
            fast_path.fast_bucket.advance_word_range(now, *class_no);
            if let Some(slot) = candidates.slot()
                && let Some(decision) =
                    charge_bucket(slot, candidates.owner() | class_bits(*class_no), meter, cost, now)
            {
                charged(SlotHint { owner: candidates.owner(), slot_number: self.region.slot_number(slot) });
                return decision;
            }
        }
        let op = ChargeOp { quota: &fast_path.quota, cost, kind: ChargeOpKind::Charge, now };
        let outcome = self.run_candidates(candidates, &op, &[], &PolicyCheck::always());
        outcome.expect("the limit is always in force").decision
    }

    /// Charges a key at the slot where it was charged before and returns the full decision; `None` if it has moved.
    #[inline(never)]
    pub(crate) fn charge_hinted(
        &self,
        hint: SlotHint,
        fast_path: &FastPath,
        cost: u64,
        now: Time,
    ) -> Option<Decision> {
        let (meter, class_no) = fast_path.bucket.as_ref()?;
        charge_bucket(
            self.region.slot(hint.slot_number)?,
            hint.owner | class_bits(*class_no),
            meter,
            cost,
            now,
        )
    }

    /// As above, on the fast path only.
    #[inline(always)]
    pub(crate) fn charge_hinted_fast(
        &self,
        hint: SlotHint,
        fast_path: &FastPath,
        cost: u64,
        now: Time,
    ) -> FastPathResult {
        match (self.region.slot(hint.slot_number), fast_path.fast_bucket.fast_now(now)) {
            (Some(slot), Some(fast_now)) => fast_path.fast_bucket.charge(slot, hint.owner, fast_now, cost),
            _ => FastPathResult::Fallback,
        }
    }
}
