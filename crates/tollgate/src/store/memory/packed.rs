//! States of eight bytes: which ones fit, and when they expire.
//!
//! A slot has no room for its limit, but must tell when it is as good as never seen. So it names a
//! *class*: what a state means, whatever the number that limits it. Millions of rules share a handful
//! of classes; what belongs to none, or does not fit its fields, is kept wide in the side slab.

use std::sync::OnceLock;
use std::time::Duration;

use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::gcra::{Flow, Meter};
use crate::algorithm::sliding_counter::{Counts, SlidingCounter};
use crate::algorithm::{Algorithm, Grant, Quota, State};
use crate::limit::{Limit, WindowStart};
use crate::store::Part;
use crate::time::{Period, Time};

/// What the eight bytes of a slot mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// When a bucket is full again.
    Instant(Flow),
    /// Window number above, count below.
    Window { period: Period, count_bits: u32 },
    /// Window number above, then the previous and the current count.
    Counts { window_ns: u64, count_bits: u32 },
}

impl Class {
    /// The class of a quota's states; `None` if they are always wide.
    pub(crate) fn of(quota: &Quota) -> Option<Class> {
        match quota {
            Quota::Bucket(meter) => Some(Class::Instant(meter.flow())),
            Quota::Leaky(bucket) => Some(Class::Instant(bucket.meter().flow())),
            Quota::Fixed(FixedWindow { period, start: WindowStart::Aligned, .. }) => {
                Some(Class::window(*period))
            }
            Quota::Counter(counter) => Some(Class::counts(counter.window_ns)),
            Quota::Fixed(_) | Quota::Log(_) | Quota::Steps(_) | Quota::Tiers(_) => None,
        }
    }

    pub(crate) fn window(period: Period) -> Class {
        Class::Window { period, count_bits: 64 - bits_of(period.index_at(Limit::HORIZON)) }
    }

    pub(crate) fn counts(window_ns: u64) -> Class {
        Class::Counts { window_ns, count_bits: (64 - bits_of(Limit::HORIZON.nanos() / window_ns)) / 2 }
    }

    /// The state in eight bytes; `None` if a field would overflow.
    pub(crate) fn pack(&self, state: &State) -> Option<u64> {
        match (self, state) {
            (Class::Instant(_), State::Instant(instant)) => Some(*instant),
            (Class::Window { count_bits, .. }, State::Window(window)) => pack_window(window, *count_bits),
            (Class::Counts { count_bits, .. }, State::Counts(counts)) => pack_counts(counts, *count_bits),
            _ => None,
        }
    }

    pub(crate) fn unpack(&self, word: u64) -> State {
        match self {
            Class::Instant(_) => State::Instant(word),
            Class::Window { count_bits, .. } => State::Window(unpack_window(word, *count_bits)),
            Class::Counts { count_bits, .. } => State::Counts(unpack_counts(word, *count_bits)),
        }
    }

    /// Whether a word can be a state of this class: one that was not written here may be anything.
    pub(crate) fn accepts(&self, word: u64) -> bool {
        !matches!(self, Class::Instant(_)) || word < Meter::BOUND
    }

    /// When the packed state is as good as never seen.
    pub(crate) fn fresh_at(&self, word: u64) -> Time {
        match *self {
            Class::Instant(flow) => flow.time_of(word),
            Class::Window { period, count_bits } => {
                let window = FixedWindow { limit: 0, period, start: WindowStart::Aligned };
                window.fresh_at(&unpack_window(word, count_bits))
            }
            Class::Counts { window_ns, count_bits } => {
                SlidingCounter { limit: 0, window_ns }.fresh_at(&unpack_counts(word, count_bits))
            }
        }
    }

    /// Meets a demand on a packed state; `None` if the new state does not fit, or was not the quota's own.
    #[inline]
    pub(crate) fn run(&self, word: u64, demand: &Demand<'_>) -> Option<Run> {
        match (demand.quota, self) {
            (Quota::Bucket(meter), Class::Instant(_)) => demand.run_packed(meter, word, Some),
            (Quota::Leaky(bucket), Class::Instant(_)) => demand.run_packed(bucket, word, Some),
            (Quota::Fixed(window), Class::Window { count_bits, .. }) => {
                let pack = |window| pack_window(&window, *count_bits);
                demand.run_packed(window, unpack_window(word, *count_bits), pack)
            }
            (Quota::Counter(counter), Class::Counts { count_bits, .. }) => {
                let pack = |counts| pack_counts(&counts, *count_bits);
                demand.run_packed(counter, unpack_counts(word, *count_bits), pack)
            }
            _ => None,
        }
    }
}

/// What is asked of a state.
#[derive(Clone, Copy)]
pub(crate) struct Demand<'q> {
    pub(crate) quota: &'q Quota,
    pub(crate) cost: u64,
    pub(crate) intent: Intent,
    pub(crate) now: Time,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Intent {
    /// Take the cost if it is allowed.
    Take,
    /// Take the cost if it is allowed, and count it if it is denied.
    TakeOrDrain,
    /// Count the cost if it is denied, and take nothing if it is allowed.
    Drain,
    /// Change nothing.
    Look,
}

/// What came of a demand on a packed state.
pub(crate) struct Run {
    pub(crate) part: Part,
    /// The state to be written; `None` if nothing changes.
    pub(crate) next: Option<u64>,
}

impl Demand<'_> {
    #[inline]
    fn run_packed<A: Algorithm>(
        &self,
        algorithm: &A,
        mut state: A::State,
        pack: impl FnOnce(A::State) -> Option<u64>,
    ) -> Option<Run> {
        let (mut part, changed) = self.run(algorithm, &mut state);
        if !changed {
            return Some(Run { part, next: None });
        }
        let next = pack(state)?;
        if let Some(grant) = &mut part.grant {
            grant.mark = next; // of interest where the word is the instant itself
        }
        Some(Run { part, next: Some(next) })
    }

    /// Meets the demand on the usual state, the usual way in fewer steps.
    #[inline]
    pub(crate) fn run_bucket(&self, meter: &Meter, full_at: u64) -> Run {
        let Demand { cost, intent, now, .. } = *self;
        let (decision, next) = meter.decided(full_at, now, cost);
        match (next, intent) {
            (Some(next), Intent::Take | Intent::TakeOrDrain) => {
                let remaining = decision.left.saturating_sub(cost);
                let (reset_after, grant) =
                    (meter.fresh_at(&next).since(now), Grant { at: now, cost, mark: next });
                Run { part: Part { decision, remaining, reset_after, grant: Some(grant) }, next: Some(next) }
            }
            (None, Intent::TakeOrDrain | Intent::Drain) => {
                let mut drained = full_at;
                let (part, _) = self.run(meter, &mut drained);
                Run { part, next: Some(drained) }
            }
            _ => {
                let reset_after = meter.fresh_at(&full_at).since(now);
                Run {
                    part: Part { decision, remaining: decision.left, reset_after, grant: None },
                    next: None,
                }
            }
        }
    }

    /// Meets the demand on a state that is not packed.
    pub(crate) fn run_state(&self, state: &mut State) -> Part {
        let (mut part, _) = self.run(self.quota, state);
        if let Some(grant) = &mut part.grant {
            grant.mark = self.quota.mark(state);
        }
        part
    }

    /// Decides, and changes the state as far as it is intended; says whether it has.
    #[inline]
    fn run<A: Algorithm>(&self, algorithm: &A, state: &mut A::State) -> (Part, bool) {
        let Demand { cost, intent, now, .. } = *self;
        let decision = algorithm.decide(state, now, cost);
        let mut part = Part { decision, remaining: decision.left, reset_after: Duration::ZERO, grant: None };
        let changed = match (decision.is_allowed(), intent) {
            (true, Intent::Take | Intent::TakeOrDrain) => {
                algorithm.charge(state, now, cost);
                part.remaining = decision.left.saturating_sub(cost);
                part.grant = Some(Grant { at: now, cost, mark: 0 });
                true
            }
            (false, Intent::TakeOrDrain | Intent::Drain) => {
                algorithm.drain(state, now, cost);
                part.decision = algorithm.decide(state, now, cost); // the wait has grown
                part.remaining = part.decision.left;
                true
            }
            _ => false,
        };
        part.reset_after = algorithm.fresh_at(state).since(now);
        (part, changed)
    }
}

fn bits_of(largest: u64) -> u32 {
    64 - largest.leading_zeros()
}

fn pack_window(window: &Window, count_bits: u32) -> Option<u64> {
    fields(window.name, 64 - count_bits, window.count, count_bits)
}

fn unpack_window(word: u64, count_bits: u32) -> Window {
    Window { name: word >> count_bits, count: low(word, count_bits) }
}

fn pack_counts(counts: &Counts, count_bits: u32) -> Option<u64> {
    let pair = fields(counts.previous, count_bits, counts.current, count_bits)?;
    fields(counts.window, 64 - 2 * count_bits, pair, 2 * count_bits)
}

fn unpack_counts(word: u64, count_bits: u32) -> Counts {
    Counts {
        window: word >> (2 * count_bits),
        previous: low(word >> count_bits, count_bits),
        current: low(word, count_bits),
    }
}

fn low(word: u64, bits: u32) -> u64 {
    word & ((1 << bits) - 1)
}

/// Two fields in one word, if both fit.
fn fields(high: u64, high_bits: u32, low: u64, low_bits: u32) -> Option<u64> {
    let fits = |value: u64, bits: u32| bits >= 64 || value >> bits == 0;
    (fits(high, high_bits) && fits(low, low_bits)).then(|| high << low_bits | low)
}

/// The classes in use, numbered in order of appearance. Never more than a byte can name.
pub(crate) struct Classes([OnceLock<Class>; Classes::MAX]);

impl Default for Classes {
    fn default() -> Self {
        Classes([const { OnceLock::new() }; Classes::MAX])
    }
}

impl Classes {
    pub(crate) const MAX: usize = 253;

    /// The class's number, given on first sight; `None` once all are taken.
    pub(crate) fn number(&self, class: Class) -> Option<u8> {
        (0..Self::MAX).find(|n| *self.0[*n].get_or_init(|| class) == class).map(|n| n as u8)
    }

    #[inline]
    pub(crate) fn get(&self, number: u8) -> Option<&Class> {
        self.0.get(usize::from(number))?.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_comes_back_and_what_does_not_is_rejected() {
        let minute = Class::counts(Period::MINUTE.nanos());
        let Class::Counts { count_bits, .. } = minute else { panic!("it is one of counts") };
        let now = 30_000_000;
        let counts = |current, previous| State::Counts(Counts { window: now, current, previous });
        let largest = (1 << count_bits) - 1;
        assert!(largest >= 100_000, "a usual limit fits");
        for state in [counts(0, 1), counts(largest, 0), counts(largest, largest)] {
            assert_eq!(minute.pack(&state).map(|word| minute.unpack(word)), Some(state));
        }
        assert_eq!(minute.pack(&counts(60_000_000, 0)), None);
        assert_eq!(minute.pack(&counts(0, largest + 1)), None);
        let window = Class::window(Period::MINUTE);
        let state = State::Window(Window { name: now, count: 60_000_000 });
        assert_eq!(window.pack(&state).map(|word| window.unpack(word)), Some(state));
    }

    #[test]
    fn classes_are_numbered_once_and_run_out() {
        let classes = Classes::default();
        let class = |n| Class::counts(n * 1_000_000_000);
        for n in 1..=Classes::MAX as u64 {
            assert_eq!(classes.number(class(n)), Some((n - 1) as u8));
            assert_eq!(classes.number(class(1)), Some(0));
        }
        assert_eq!(classes.number(class(999)), None);
        assert_eq!(classes.get(1), Some(&class(2)));
        assert_eq!(Classes::default().get(0), None);
    }
}
