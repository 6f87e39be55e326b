//! Packed states of eight bytes: which states fit, and when they expire.
//!
//! A slot has no room for its limit, but its expiry must be known from the slot alone. So it names a *class*: the
//! encoding of the state and, rounded to a power of two, the limit. Millions of rules share a handful of classes; a
//! state that has no class, or does not fit its fields, is stored wide in the slab.

use std::time::Duration;

use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::gcra::{BucketClock, Meter};
use crate::algorithm::sliding_counter::SlidingCounter;
use crate::algorithm::{Algorithm, Decision, Grant, MAX_SKEW, Quota, QuotaState, WideAlgorithm};
use crate::limit::{Limit, WindowStart};
pub(crate) use crate::store::ChargeOpKind;
use crate::store::memory::layout::{
    ClassSummary, Layout, low_bits, pack_counts, pack_window, unpack_counts, unpack_window,
};
use crate::store::memory::used_fraction::UsedFraction;
use crate::store::{LimitOutcome, apply};
use crate::time::{Period, Time};

/// The encoding of a slot's eight bytes, and the size of the limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Class {
    pub(crate) encoding: SlotEncoding,
    /// The largest power of two that is not above the limit (of a bucket: above its units). So the used fraction is
    /// known to a factor of two, and is never too low.
    pub(crate) capacity_log2: u8,
}

/// The encoding of a slot's eight bytes, whatever the limit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum SlotEncoding {
    /// The timestamp at which a bucket is full again.
    Timestamp(BucketClock),
    /// Window number in the high bits, count in the low bits.
    Window { period: Period, count_bits: u32 },
    /// Window number in the high bits, then the previous and the current count.
    Counts { window_ns: u64, count_bits: u32 },
}

impl Class {
    /// The class of a quota's states; `None` if they are always wide.
    pub(crate) fn of(quota: &Quota) -> Option<Class> {
        let encoding = SlotEncoding::of(quota)?;
        let capacity = capacity_of(quota);
        let fits = match encoding {
            SlotEncoding::Timestamp(_) => true,
            // A debt can add one more limit. A state that could outgrow its slot is wide from the start.
            SlotEncoding::Window { count_bits, .. } | SlotEncoding::Counts { count_bits, .. } => {
                capacity.saturating_mul(2) < 1 << count_bits
            }
        };
        fits.then_some(Class { encoding, capacity_log2: log2(capacity) })
    }

    /// The fraction of its limit that a key has used.
    pub(super) fn used_fraction(&self, word: u64, now: Time) -> UsedFraction {
        let used = match self.encoding {
            SlotEncoding::Timestamp(clock) => word.saturating_sub(clock.units_at(now)),
            SlotEncoding::Window { count_bits, .. } => low_bits(word, count_bits),
            SlotEncoding::Counts { window_ns, count_bits } => {
                SlidingCounter { limit: 0, window_ns }.used(&unpack_counts(word, count_bits), now)
            }
        };
        UsedFraction::of(used, 1 << self.capacity_log2)
    }

    pub(super) fn summary(&self) -> ClassSummary {
        ClassSummary { layout: self.encoding.layout(), capacity_log2: self.capacity_log2 }
    }

    /// As [`ClassSummary::run`], but the state of a window that has not begun is first clamped to the present one: the
    /// clock was set back since it was written.
    pub(crate) fn run(&self, word: u64, op: &ChargeOp<'_>) -> Option<PackedUpdate> {
        self.summary().run(word, op).or_else(|| self.run_clamped(word, op))
    }

    fn run_clamped(&self, word: u64, op: &ChargeOp<'_>) -> Option<PackedUpdate> {
        let clamped = self.clamped(word, op.now);
        // A bucket is left to the slow path: a debt adopted from a changed limit may be of any size, so a timestamp far
        // in the future is no sign of another clock.
        if clamped == word || matches!(self.encoding, SlotEncoding::Timestamp(_)) {
            return None;
        }
        let run = self.encoding.layout().run(clamped, op)?;
        let must_store = op.kind != ChargeOpKind::Peek;
        Some(PackedUpdate { next: run.next.or(must_store.then_some(clamped)), ..run })
    }

    /// The word, limited to what a limit of this class can have produced by `now`.
    pub(super) fn clamped(&self, word: u64, now: Time) -> u64 {
        match self.encoding {
            SlotEncoding::Timestamp(clock) => {
                // Old saved states have no capacity, and an empty bucket needs no clamping.
                let known = self.capacity_log2 > 0
                    || matches!(clock, BucketClock::Steps { .. } | BucketClock::Calendar { .. });
                let mut full_at = word;
                if known {
                    clock.clamp(&mut full_at, now, 4u64.saturating_mul(1 << self.capacity_log2));
                }
                full_at
            }
            SlotEncoding::Window { period, count_bits } => {
                let mut window = unpack_window(word, count_bits);
                FixedWindow { limit: 0, period, start: WindowStart::Aligned }.clamp(&mut window, now);
                pack_window(&window, count_bits).unwrap_or(word)
            }
            SlotEncoding::Counts { window_ns, count_bits } => {
                let mut counts = unpack_counts(word, count_bits);
                SlidingCounter { limit: 0, window_ns }.clamp(&mut counts, now);
                pack_counts(&counts, count_bits).unwrap_or(word)
            }
        }
    }
}

impl ClassSummary {
    /// Runs an operation on a packed state. `None` if the slow path has to run it:
    /// - the encoding is not the quota's, or a denial would last longer than a state of the present can make it;
    /// - the new state does not fit the word;
    /// - the limit was changed since the entry was written, and denies: the slow path stores the state under the class of
    ///   the limit in force. Under the old class eviction could take its used fraction for lower than it is.
    #[inline]
    pub(crate) fn run(self, word: u64, op: &ChargeOp<'_>) -> Option<PackedUpdate> {
        let run = self.layout.run(word, op)?;
        if run.outcome.decision.is_allowed() {
            return Some(run);
        }
        let is_current = log2(capacity_of(op.quota)) == self.capacity_log2;
        (is_current && !run.outcome.waits_longer_than(longest_wait(op.quota))).then_some(run)
    }
}

/// The longest wait of a denial by a state of the present. A bucket may have adopted a debt of any size.
fn longest_wait(quota: &Quota) -> Duration {
    let windows = |window_ns: u64| Duration::from_nanos(window_ns.saturating_mul(2)) + MAX_SKEW;
    match quota {
        Quota::Fixed(window) => windows(window.period.nanos()),
        Quota::Counter(counter) => windows(counter.window_ns),
        _ => Duration::MAX,
    }
}

/// The capacity of a state, in the units of its word.
fn capacity_of(quota: &Quota) -> u64 {
    match quota {
        Quota::Bucket(meter) => meter.capacity_units(),
        Quota::Leaky(bucket) => bucket.meter().capacity_units(),
        _ => quota.capacity(),
    }
}

fn log2(capacity: u64) -> u8 {
    capacity.max(1).ilog2() as u8
}

impl SlotEncoding {
    /// The encoding of a quota's packed states.
    pub(crate) fn of(quota: &Quota) -> Option<SlotEncoding> {
        match quota {
            Quota::Bucket(meter) => Some(SlotEncoding::Timestamp(meter.clock())),
            Quota::Leaky(bucket) => Some(SlotEncoding::Timestamp(bucket.meter().clock())),
            Quota::Fixed(FixedWindow { period, start: WindowStart::Aligned, .. }) => {
                Some(SlotEncoding::window(*period))
            }
            Quota::Counter(counter) => Some(SlotEncoding::counts(counter.window_ns)),
            Quota::Fixed(_) | Quota::Log(_) | Quota::Steps(_) | Quota::Tiers(_) => None,
        }
    }

    pub(crate) fn window(period: Period) -> SlotEncoding {
        SlotEncoding::Window { period, count_bits: 64 - bit_width(period.index_at(Limit::HORIZON)) }
    }

    pub(crate) fn counts(window_ns: u64) -> SlotEncoding {
        SlotEncoding::Counts {
            window_ns,
            count_bits: (64 - bit_width(Limit::HORIZON.nanos() / window_ns)) / 2,
        }
    }

    pub(crate) fn layout(&self) -> Layout {
        match *self {
            SlotEncoding::Timestamp(_) => Layout::Timestamp,
            SlotEncoding::Window { count_bits, .. } => Layout::Window { count_bits },
            SlotEncoding::Counts { count_bits, .. } => Layout::Counts { count_bits },
        }
    }

    /// Whether a word is a valid state of this encoding. A word from a file may be anything.
    pub(crate) fn accepts(&self, word: u64) -> bool {
        !matches!(self, SlotEncoding::Timestamp(_)) || word < Meter::MAX_STATE
    }

    /// When the packed state is equivalent to a fresh one.
    pub(crate) fn expires_at(&self, word: u64) -> Time {
        match *self {
            SlotEncoding::Timestamp(clock) => clock.time_of(word),
            SlotEncoding::Window { period, count_bits } => {
                let window = FixedWindow { limit: 0, period, start: WindowStart::Aligned };
                window.expires_at(&unpack_window(word, count_bits))
            }
            SlotEncoding::Counts { window_ns, count_bits } => {
                SlidingCounter { limit: 0, window_ns }.expires_at(&unpack_counts(word, count_bits))
            }
        }
    }
}

impl Layout {
    #[inline]
    fn run(self, word: u64, op: &ChargeOp<'_>) -> Option<PackedUpdate> {
        match (op.quota, self) {
            (Quota::Bucket(meter), Layout::Timestamp) => op.run_packed(meter, word, Some),
            (Quota::Leaky(bucket), Layout::Timestamp) => op.run_packed(bucket, word, Some),
            (Quota::Fixed(window), Layout::Window { count_bits }) => {
                let pack = |window| pack_window(&window, count_bits);
                op.run_packed(window, unpack_window(word, count_bits), pack)
            }
            (Quota::Counter(counter), Layout::Counts { count_bits }) => {
                let pack = |counts| pack_counts(&counts, count_bits);
                op.run_packed(counter, unpack_counts(word, count_bits), pack)
            }
            _ => None,
        }
    }
}

/// An operation on a state.
#[derive(Clone, Copy)]
pub(crate) struct ChargeOp<'q> {
    pub(crate) quota: &'q Quota,
    pub(crate) cost: u64,
    pub(crate) kind: ChargeOpKind,
    pub(crate) now: Time,
}

impl ChargeOp<'_> {
    /// Whether the operation may have changed the state that it was run on.
    pub(super) fn has_changed(&self, outcome: &LimitOutcome) -> bool {
        outcome.grant.is_some() || matches!(self.kind, ChargeOpKind::ChargeOrDrain | ChargeOpKind::Drain)
    }
}

/// Result of an operation on a packed state.
pub(crate) struct PackedUpdate {
    pub(crate) outcome: LimitOutcome,
    /// The state to write; `None` if nothing changes.
    pub(crate) next: Option<u64>,
}

impl PackedUpdate {
    #[inline]
    pub(crate) fn into_parts(self) -> (LimitOutcome, Option<u64>) {
        (self.outcome, self.next)
    }
}

impl ChargeOp<'_> {
    #[inline]
    fn run_packed<A: Algorithm>(
        &self,
        algorithm: &A,
        mut state: A::State,
        pack: impl FnOnce(A::State) -> Option<u64>,
    ) -> Option<PackedUpdate> {
        let (mut outcome, changed) = self.run(algorithm, &mut state);
        if !changed {
            return Some(PackedUpdate { outcome, next: None });
        }
        let next = pack(state)?;
        if let Some(grant) = &mut outcome.grant {
            grant.mark = next; // used where the word is the timestamp itself
        }
        Some(PackedUpdate { outcome, next: Some(next) })
    }

    /// Runs the operation on the most common state.
    #[inline]
    pub(crate) fn run_bucket(&self, meter: &Meter, full_at: u64) -> PackedUpdate {
        let ChargeOp { cost, kind, now, .. } = *self;
        let (decision, next) = meter.try_charge(full_at, now, cost);
        match (next, kind) {
            (Some(next), ChargeOpKind::Charge | ChargeOpKind::ChargeOrDrain) => {
                PackedUpdate { outcome: self.charged_bucket(meter, decision, next), next: Some(next) }
            }
            (None, ChargeOpKind::ChargeOrDrain | ChargeOpKind::Drain) => {
                let mut drained = full_at;
                let (outcome, _) = self.run(meter, &mut drained);
                PackedUpdate { outcome, next: Some(drained) }
            }
            _ => {
                let reset_after = meter.expires_at(&full_at).since(now);
                PackedUpdate {
                    outcome: LimitOutcome { decision, remaining: decision.left, reset_after, grant: None },
                    next: None,
                }
            }
        }
    }

    /// The outcome of a charged bucket.
    #[inline(always)]
    pub(crate) fn charged_bucket(&self, meter: &Meter, decision: Decision, next: u64) -> LimitOutcome {
        let ChargeOp { cost, now, .. } = *self;
        LimitOutcome {
            decision,
            remaining: decision.left.saturating_sub(cost),
            reset_after: meter.expires_at(&next).since(now),
            grant: Some(Grant { at: now, cost, mark: next }),
        }
    }

    /// Runs the operation on a state that is not packed.
    pub(crate) fn run_state(&self, state: &mut QuotaState) -> LimitOutcome {
        self.run_wide(self.quota, state)
    }

    /// As above, for an algorithm that is known by type.
    #[inline(always)]
    pub(super) fn run_wide<A: WideAlgorithm>(&self, algorithm: &A, state: &mut A::State) -> LimitOutcome {
        algorithm.clamp(state, self.now);
        let (mut outcome, _) = self.run(algorithm, state);
        if let Some(grant) = &mut outcome.grant {
            grant.mark = algorithm.mark(state);
        }
        outcome
    }

    #[inline]
    fn run<A: Algorithm>(&self, algorithm: &A, state: &mut A::State) -> (LimitOutcome, bool) {
        apply(algorithm, state, self.now, self.cost, self.kind)
    }
}

fn bit_width(largest: u64) -> u32 {
    64 - largest.leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_could_outgrow_its_slot_is_wide_from_the_beginning() {
        let counter = |limit| Quota::Counter(SlidingCounter { limit, window_ns: Period::MINUTE.nanos() });
        assert!(Class::of(&counter(60_000)).is_some());
        assert_eq!(Class::of(&counter(300_000)), None);
    }

    #[test]
    fn a_packed_fraction_is_known_to_a_factor_of_two_and_never_too_low() {
        let now = Time::from_secs(1_800_000_000);
        for limit in [1, 3, 5, 8, 100, 1023] {
            let quota = Quota::Counter(SlidingCounter { limit, window_ns: Period::HOUR.nanos() });
            let class = Class::of(&quota).expect("it is packed");
            for used in 1..=limit {
                let mut state = quota.fresh();
                quota.charge(&mut state, now, used);
                let fraction =
                    class.used_fraction(class.encoding.layout().pack(&state).expect("it fits"), now);
                assert!(
                    fraction >= UsedFraction::of(used, limit)
                        && fraction <= UsedFraction::of(2 * used, limit),
                    "{used} of {limit}"
                );
            }
        }
    }
}
