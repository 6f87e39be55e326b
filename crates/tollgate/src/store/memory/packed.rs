//! States of eight bytes: which ones fit, and when they expire.
//!
//! A slot has no room for its limit, but must tell when it is as good as never seen. So it names a
//! *class*: what a state means, whatever the number that limits it. Millions of rules share a handful
//! of classes; what belongs to none, or does not fit its fields, is kept wide in the side slab.

use std::sync::OnceLock;

use crate::algorithm::fixed_window::{FixedWindow, Window};
use crate::algorithm::gcra::Flow;
use crate::algorithm::sliding_counter::{Counts, SlidingCounter};
use crate::algorithm::{Algorithm, Quota, State};
use crate::limit::{Limit, WindowStart};
use crate::time::{Period, Time};

/// What the eight bytes of a slot mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// When a bucket is full again.
    Instant(Flow),
    /// Window number above, count below.
    Window(Period),
    /// Window number above, then the previous and the current count.
    Counts { window_ns: u64 },
}

impl Class {
    /// The class of a quota's states; `None` if they are always wide.
    pub(crate) fn of(quota: &Quota) -> Option<Class> {
        match quota {
            Quota::Bucket(meter) => Some(Class::Instant(meter.flow())),
            Quota::Leaky(bucket) => Some(Class::Instant(bucket.meter().flow())),
            Quota::Fixed(FixedWindow { period, start: WindowStart::Aligned, .. }) => {
                Some(Class::Window(*period))
            }
            Quota::Counter(counter) => Some(Class::Counts { window_ns: counter.window_ns }),
            Quota::Fixed(_) | Quota::Steps(_) | Quota::Tiers(_) => None,
        }
    }

    /// The state in eight bytes; `None` if a field would overflow.
    pub(crate) fn pack(&self, state: &State) -> Option<u64> {
        match (self, state) {
            (Class::Instant(_), State::Instant(instant)) => Some(*instant),
            (Class::Window(_), State::Window(window)) => {
                fields(window.name, self.name_bits(), window.count, self.count_bits())
            }
            (Class::Counts { .. }, State::Counts(counts)) => {
                let bits = self.count_bits();
                let pair = fields(counts.previous, bits, counts.current, bits)?;
                fields(counts.window, self.name_bits(), pair, 2 * bits)
            }
            _ => None,
        }
    }

    pub(crate) fn unpack(&self, word: u64) -> State {
        let low = |word: u64, bits: u32| word & ((1 << bits) - 1);
        let bits = self.count_bits();
        match self {
            Class::Instant(_) => State::Instant(word),
            Class::Window(_) => State::Window(Window { name: word >> bits, count: low(word, bits) }),
            Class::Counts { .. } => State::Counts(Counts {
                window: word >> (2 * bits),
                previous: low(word >> bits, bits),
                current: low(word, bits),
            }),
        }
    }

    /// When the packed state is as good as never seen.
    pub(crate) fn fresh_at(&self, word: u64) -> Time {
        match (self, self.unpack(word)) {
            (Class::Instant(flow), State::Instant(instant)) => flow.time_of(instant),
            (Class::Window(period), State::Window(window)) => {
                FixedWindow { limit: 0, period: *period, start: WindowStart::Aligned }.fresh_at(&window)
            }
            (Class::Counts { window_ns }, State::Counts(counts)) => {
                SlidingCounter { limit: 0, window_ns: *window_ns }.fresh_at(&counts)
            }
            _ => Time::EPOCH,
        }
    }

    /// Bits that hold any window number up to the horizon.
    fn name_bits(&self) -> u32 {
        let last = match self {
            Class::Instant(_) => return 64,
            Class::Window(period) => period.index_at(Limit::HORIZON),
            Class::Counts { window_ns } => Limit::HORIZON.nanos() / window_ns,
        };
        64 - last.leading_zeros()
    }

    fn count_bits(&self) -> u32 {
        match self {
            Class::Instant(_) => 0,
            Class::Window(_) => 64 - self.name_bits(),
            Class::Counts { .. } => (64 - self.name_bits()) / 2,
        }
    }
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

    pub(crate) fn get(&self, number: u8) -> Option<Class> {
        self.0.get(usize::from(number))?.get().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_comes_back_and_what_does_not_is_rejected() {
        let minute = Class::Counts { window_ns: Period::MINUTE.nanos() };
        let now = 30_000_000;
        let counts = |current, previous| State::Counts(Counts { window: now, current, previous });
        let largest = (1 << minute.count_bits()) - 1;
        assert!(largest >= 100_000, "a usual limit fits");
        for state in [counts(0, 1), counts(largest, 0), counts(largest, largest)] {
            assert_eq!(minute.pack(&state).map(|word| minute.unpack(word)), Some(state));
        }
        assert_eq!(minute.pack(&counts(60_000_000, 0)), None);
        assert_eq!(minute.pack(&counts(0, largest + 1)), None);
        let window = Class::Window(Period::MINUTE);
        let state = State::Window(Window { name: now, count: 60_000_000 });
        assert_eq!(window.pack(&state).map(|word| window.unpack(word)), Some(state));
    }

    #[test]
    fn classes_are_numbered_once_and_run_out() {
        let classes = Classes::default();
        let class = |n| Class::Counts { window_ns: n };
        for n in 1..=Classes::MAX as u64 {
            assert_eq!(classes.number(class(n)), Some((n - 1) as u8));
            assert_eq!(classes.number(class(1)), Some(0));
        }
        assert_eq!(classes.number(class(999)), None);
        assert_eq!(classes.get(1), Some(class(2)));
        assert_eq!(Classes::default().get(0), None);
    }
}
