//! Sliding window counter: the current window, and the previous one weighted by its remaining part.
//!
//! The comparison is exact: `previous × rest + (current + cost) × W <= limit × W`. Only reported values are rounded.
//! It assumes that the previous window's hits were spread evenly.

use std::time::Duration;

use crate::algorithm::{Admission, Algorithm, Decision, Grant};
use crate::time::Time;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlidingCounter {
    pub(crate) limit: u64,
    pub(crate) window_ns: u64,
}

/// The counts of window number `window` and of the one before; two counts of zero equal a new key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlidingCounterState {
    pub window: u64,
    pub current: u64,
    pub previous: u64,
}

impl SlidingCounter {
    /// The counts at `now`.
    pub fn roll(&self, counts: &SlidingCounterState, now: Time) -> SlidingCounterState {
        let window = now.nanos() / self.window_ns;
        match window.saturating_sub(counts.window) {
            0 => *counts,
            1 => SlidingCounterState { window, current: 0, previous: counts.current },
            _ => SlidingCounterState { window, current: 0, previous: 0 },
        }
    }

    /// The weight of the previous window, times the window's length.
    fn weight(&self, counts: &SlidingCounterState, now: Time) -> u128 {
        let elapsed = now.nanos().saturating_sub(counts.window * self.window_ns);
        u128::from(counts.previous) * u128::from(self.window_ns - elapsed)
    }

    fn left(&self, counts: &SlidingCounterState, now: Time) -> u64 {
        let whole = u128::from(self.limit) * u128::from(self.window_ns);
        let left = whole.saturating_sub(self.weight(counts, now)) / u128::from(self.window_ns);
        u64::try_from(left).unwrap_or(u64::MAX).saturating_sub(counts.current)
    }

    /// The first timestamp, in the window that begins at `start`, at which `room` is left beside `previous`.
    fn fits_at(&self, start: u64, previous: u64, room: u64) -> u64 {
        // previous × (W − elapsed) <= room × W
        let rest = u128::from(room) * u128::from(self.window_ns) / u128::from(previous.max(1));
        start.saturating_add(self.window_ns.saturating_sub(u64::try_from(rest).unwrap_or(u64::MAX)))
    }

    fn add(&self, counts: &mut SlidingCounterState, now: Time, cost: u64, cap: u64) {
        let rolled = self.roll(counts, now);
        let current = rolled.current.saturating_add(cost).min(cap.max(rolled.current));
        *counts = SlidingCounterState { current, ..rolled };
    }
}

impl Algorithm for SlidingCounter {
    type State = SlidingCounterState;

    fn fresh(&self) -> SlidingCounterState {
        SlidingCounterState::default()
    }

    fn decide(&self, state: &SlidingCounterState, now: Time, cost: u64) -> Decision {
        let counts = self.roll(state, now);
        let left = self.left(&counts, now);
        if cost > self.limit {
            return Decision { admission: Admission::Never, left };
        }
        if cost <= left {
            return Decision { admission: Admission::NOW, left };
        }
        let start = counts.window * self.window_ns;
        let fits_at = match self.limit.checked_sub(counts.current + cost) {
            Some(room) => self.fits_at(start, counts.previous, room),
            None => self.fits_at(start.saturating_add(self.window_ns), counts.current, self.limit - cost),
        };
        let retry_after = Duration::from_nanos(fits_at.saturating_sub(now.nanos()));
        Decision { admission: Admission::Deny { retry_after }, left }
    }

    fn charge(&self, state: &mut SlidingCounterState, now: Time, cost: u64) {
        self.add(state, now, cost, u64::MAX);
    }

    fn drain(&self, state: &mut SlidingCounterState, now: Time, cost: u64) {
        self.add(state, now, cost, self.limit);
    }

    fn add_debt(&self, state: &mut SlidingCounterState, now: Time, cost: u64) {
        let room = self.limit.saturating_mul(2).saturating_sub(self.used(state, now));
        self.add(state, now, cost.min(room), u64::MAX);
    }

    fn counted_at(&self, state: &SlidingCounterState, now: Time) -> Time {
        now.max(Time::from_nanos(state.window.saturating_mul(self.window_ns)))
    }

    fn refund(&self, state: &mut SlidingCounterState, grant: &Grant, amount: u64, now: Time) {
        let amount = amount.min(grant.cost);
        let mut counts = self.roll(state, now);
        match counts.window.checked_sub(grant.at.nanos() / self.window_ns) {
            Some(0) => counts.current = counts.current.saturating_sub(amount),
            Some(1) => counts.previous = counts.previous.saturating_sub(amount),
            _ => return,
        }
        *state = counts;
    }

    fn adopt(&self, _old: &SlidingCounter, state: SlidingCounterState, _now: Time) -> SlidingCounterState {
        state
    }

    fn expires_at(&self, state: &SlidingCounterState) -> Time {
        let windows = match (state.current, state.previous) {
            (0, 0) => return Time::EPOCH,
            (0, _) => 1,
            _ => 2,
        };
        Time::from_nanos((state.window + windows).saturating_mul(self.window_ns))
    }

    /// Rounded up: never reported smaller than it is.
    fn used(&self, state: &SlidingCounterState, now: Time) -> u64 {
        let counts = self.roll(state, now);
        let weight = self.weight(&counts, now).div_ceil(u128::from(self.window_ns));
        counts.current.saturating_add(u64::try_from(weight).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Period;

    #[test]
    fn sixty_thousand_seven_hundred_is_more_than_fifty_five_thousand() {
        let counter = SlidingCounter { limit: 55_000, window_ns: Period::MINUTE.nanos() };
        let minute = 30_000_000;
        let now = Time::from_secs(minute * 60 + 25);
        let counts = SlidingCounterState { window: minute, current: 31_534, previous: 50_000 };
        let weighted = 50_000.0 / 60.0 * 35.0 + 31_534.0;
        assert!((weighted - 60_700.67_f64).abs() < 0.01);
        assert_eq!(counter.used(&counts, now), 60_701);
        let decision = counter.decide(&counts, now, 1);
        assert_eq!(decision.left, 0);
        // 50000 × rest <= (55000 − 31535) × 60 s: 28.158 s must be left of the minute, that is second 31.842
        assert_eq!(decision.admission, Admission::Deny { retry_after: Duration::from_millis(6_842) });
    }

    #[test]
    fn a_window_at_the_end_of_time_still_counts() {
        // The window after the last one does not fit 64 bits.
        let counter = SlidingCounter { limit: 1, window_ns: Period::MINUTE.nanos() };
        let mut counts = counter.fresh();
        counter.charge(&mut counts, Time::MAX, 1);
        assert!(!counter.decide(&counts, Time::MAX, 1).is_allowed());
        assert_eq!(counter.expires_at(&counts), Time::MAX);
    }

    #[test]
    fn debts_of_two_windows_are_one_capacity_together() {
        // A regression: each window accepted a debt of its own, so that three capacities were owed at its start.
        let counter = SlidingCounter { limit: 5, window_ns: Period::MINUTE.nanos() };
        let mut counts = counter.fresh();
        counter.add_debt(&mut counts, Time::from_secs(1_800_000_000), 100);
        let next = Time::from_secs(1_800_000_060);
        counter.add_debt(&mut counts, next, 100);
        assert_eq!(counter.used(&counts, next), 10);
    }
}
