//! A limit prepared for counting: one type over all algorithms.

use std::time::Duration;

use crate::algorithm::fixed_window::{FixedWindow, FixedWindowState};
use crate::algorithm::gcra::Meter;
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::algorithm::sliding_compact::{SlidingCompact, StepCounts as _};
use crate::algorithm::sliding_counter::{SlidingCounter, SlidingCounterState};
use crate::algorithm::sliding_log::{Log, SlidingLog};
use crate::algorithm::tiered_window::TieredWindow;
use crate::algorithm::{
    Algorithm, Correction, Decision, Grant, Steps, concurrency, sliding_log, token_bucket,
};
use crate::limit::{Limit, Shape};
use crate::time::{Time, nanos_of};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Quota {
    Bucket(Meter),
    Leaky(LeakyBucket),
    Fixed(FixedWindow),
    Log(SlidingLog),
    Steps(SlidingCompact),
    Counter(SlidingCounter),
    Tiers(TieredWindow),
}

/// The state of any algorithm.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum QuotaState {
    /// When a bucket is full, or a queue empty.
    Timestamp(u64),
    Window(FixedWindowState),
    Counts(SlidingCounterState),
    Log(Log),
    Steps(Steps),
    /// The finest level of a tiered window.
    Tiers(Steps),
}

impl QuotaState {
    /// Heap bytes of the state.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            QuotaState::Log(log) => log.heap_bytes(),
            QuotaState::Steps(steps) | QuotaState::Tiers(steps) => steps.heap_bytes(),
            QuotaState::Timestamp(_) | QuotaState::Window(_) | QuotaState::Counts(_) => 0,
        }
    }

    /// Merges steps in pairs, also those of permits: a later refund of such a permit is not found, and the permit
    /// expires.
    pub(crate) fn merge_steps(&mut self) -> bool {
        let (QuotaState::Steps(steps) | QuotaState::Tiers(steps)) = self else { return false };
        steps.halved().map(|halved| *steps = halved).is_some()
    }

    /// Frees unused capacity.
    pub(crate) fn shrink(&mut self) {
        if let QuotaState::Steps(steps) | QuotaState::Tiers(steps) = self {
            steps.shrink();
        }
    }
}

impl Quota {
    pub fn new(limit: &Limit) -> Quota {
        let rate = limit.rate();
        let burst = limit.capacity();
        let count = rate.count();
        let period = rate.period();
        match limit.shape() {
            Shape::Gcra { .. } => Quota::Bucket(Meter::continuous(rate, burst)),
            Shape::Cell { .. } => Quota::Bucket(Meter::cell(rate, burst, Duration::from_nanos(1))),
            Shape::TokenBucket { refill, .. } => Quota::Bucket(token_bucket::meter(rate, burst, refill)),
            Shape::LeakyBucket { release, .. } => Quota::Leaky(LeakyBucket::new(rate, burst, release)),
            Shape::FixedWindow { start } => Quota::Fixed(FixedWindow { limit: count, period, start }),
            Shape::Concurrency => Quota::Steps(concurrency::permits(count, period)),
            Shape::SlidingLog => Quota::Log(sliding_log::window(count, period)),
            Shape::SlidingCompact { resolution } => {
                let step_ns = nanos_of(resolution);
                Quota::Steps(SlidingCompact::new(count, period.nanos() / step_ns, step_ns))
            }
            Shape::SlidingCounter => {
                Quota::Counter(SlidingCounter { limit: count, window_ns: period.nanos() })
            }
            Shape::TieredWindow { levels } => Quota::Tiers(TieredWindow::new(count, period, levels)),
        }
    }

    /// The most that can be used at once.
    pub(crate) fn capacity(&self) -> u64 {
        match self {
            Quota::Bucket(meter) => meter.capacity(),
            Quota::Leaky(bucket) => bucket.meter().capacity(),
            Quota::Fixed(window) => window.limit,
            Quota::Log(window) => window.limit,
            Quota::Steps(window) => window.limit,
            Quota::Counter(counter) => counter.limit,
            Quota::Tiers(window) => window.limit(),
        }
    }

    /// Maximum heap bytes of a state, at its limit and with the worst spacing of hits.
    pub(crate) fn max_heap_bytes(&self) -> usize {
        let bytes = match self {
            Quota::Log(window) => sliding_log::max_bytes(window),
            Quota::Steps(window) => Steps::max_bytes(window.limit.min(window.steps)),
            Quota::Tiers(window) => window.max_bytes(),
            Quota::Bucket(_) | Quota::Leaky(_) | Quota::Fixed(_) | Quota::Counter(_) => 0,
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// An upper bound of what is used at `now`, cheap to compute.
    pub(crate) fn used_upper_bound(&self, state: &QuotaState, now: Time) -> u64 {
        match state {
            QuotaState::Log(log) => log.total(),
            QuotaState::Steps(steps) | QuotaState::Tiers(steps) => steps.total(),
            QuotaState::Timestamp(_) | QuotaState::Window(_) | QuotaState::Counts(_) => self.used(state, now),
        }
    }

    /// Merges steps in pairs, each into the later one: half the memory, the same count, and nothing leaves the window
    /// earlier. `false` if that is impossible: there is one step only, or permits are refunded one by one.
    pub(crate) fn coarsen(&self, state: &mut QuotaState) -> bool {
        match (self, state) {
            (Quota::Log(_), QuotaState::Log(log)) => log.halved().map(|halved| *log = halved).is_some(),
            (Quota::Steps(window), QuotaState::Steps(_)) if window.step_ns == concurrency::STEP_NS => false,
            (Quota::Steps(_) | Quota::Tiers(_), state) => state.merge_steps(),
            _ => false,
        }
    }

    /// The grant of a charge at `now`, given the state after it.
    pub fn grant(&self, state: &QuotaState, now: Time, cost: u64) -> Grant {
        Grant { at: self.counted_at(state, now), cost, mark: self.mark(state) }
    }

    /// Makes a charge one of `real_cost`.
    pub fn correct(&self, state: &mut QuotaState, grant: &Grant, real_cost: u64, now: Time) {
        match grant.correction(real_cost) {
            Correction::None => {}
            Correction::Debt(more) => self.add_debt(state, now, more),
            Correction::Refund(less) => self.refund(state, grant, less, now),
        }
    }

    /// The state as a single number, where it is one; otherwise the step that was charged.
    pub fn mark(&self, state: &QuotaState) -> u64 {
        match state {
            QuotaState::Timestamp(instant) => *instant,
            QuotaState::Log(log) => log.newest().unwrap_or(0),
            QuotaState::Steps(steps) => steps.newest().unwrap_or(0),
            _ => 0,
        }
    }
}

/// Calls `$call` with the algorithm and its own kind of state. A state of another kind is only possible if two keys
/// have the same fingerprint; it is treated as fresh.
macro_rules! with_own_state {
    ($quota:expr, $state:expr, |$algorithm:ident, $own:ident| $call:expr, else $other:expr) => {
        match ($quota, $state) {
            (Quota::Bucket($algorithm), QuotaState::Timestamp($own)) => $call,
            (Quota::Leaky($algorithm), QuotaState::Timestamp($own)) => $call,
            (Quota::Fixed($algorithm), QuotaState::Window($own)) => $call,
            (Quota::Log($algorithm), QuotaState::Log($own)) => $call,
            (Quota::Steps($algorithm), QuotaState::Steps($own)) => $call,
            (Quota::Counter($algorithm), QuotaState::Counts($own)) => $call,
            (Quota::Tiers($algorithm), QuotaState::Tiers($own)) => $call,
            _ => $other,
        }
    };
}

impl Algorithm for Quota {
    type State = QuotaState;

    fn fresh(&self) -> QuotaState {
        match self {
            Quota::Bucket(_) | Quota::Leaky(_) => QuotaState::Timestamp(0),
            Quota::Fixed(window) => QuotaState::Window(window.fresh()),
            Quota::Log(window) => QuotaState::Log(window.fresh()),
            Quota::Steps(window) => QuotaState::Steps(window.fresh()),
            Quota::Counter(counter) => QuotaState::Counts(counter.fresh()),
            Quota::Tiers(window) => QuotaState::Tiers(window.fresh()),
        }
    }

    fn decide(&self, state: &QuotaState, now: Time, cost: u64) -> Decision {
        with_own_state!(self, state, |algorithm, own| algorithm.decide(own, now, cost),
            else self.decide(&self.fresh(), now, cost))
    }

    fn charge(&self, state: &mut QuotaState, now: Time, cost: u64) {
        with_own_state!(self, &mut *state, |algorithm, own| algorithm.charge(own, now, cost), else {
            *state = self.fresh();
            self.charge(state, now, cost);
        });
    }

    fn drain(&self, state: &mut QuotaState, now: Time, cost: u64) {
        with_own_state!(self, state, |algorithm, own| algorithm.drain(own, now, cost), else ());
    }

    fn add_debt(&self, state: &mut QuotaState, now: Time, cost: u64) {
        with_own_state!(self, state, |algorithm, own| algorithm.add_debt(own, now, cost), else ());
    }

    fn counted_at(&self, state: &QuotaState, now: Time) -> Time {
        with_own_state!(self, state, |algorithm, own| algorithm.counted_at(own, now), else now)
    }

    fn refund(&self, state: &mut QuotaState, grant: &Grant, amount: u64, now: Time) {
        with_own_state!(self, state, |algorithm, own| algorithm.refund(own, grant, amount, now), else ());
    }

    fn adopt(&self, old: &Quota, state: QuotaState, now: Time) -> QuotaState {
        match (self, old, state) {
            (Quota::Bucket(new), Quota::Bucket(old), QuotaState::Timestamp(full_at)) => {
                QuotaState::Timestamp(new.adopt(old, full_at, now))
            }
            (Quota::Leaky(new), Quota::Leaky(old), QuotaState::Timestamp(dry_at)) => {
                QuotaState::Timestamp(new.adopt(old, dry_at, now))
            }
            // Windows count hits, whatever the limit on them.
            (_, _, state) => state,
        }
    }

    fn expires_at(&self, state: &QuotaState) -> Time {
        with_own_state!(self, state, |algorithm, own| algorithm.expires_at(own), else Time::EPOCH)
    }

    fn used(&self, state: &QuotaState, now: Time) -> u64 {
        with_own_state!(self, state, |algorithm, own| algorithm.used(own, now), else 0)
    }
}
