//! Fixed window: one counter per key and window.
//!
//! The state names its window, so a count never leaks into the next one. Windows are aligned to the
//! calendar, or begin with the key's first request and end exactly one period later.

use crate::algorithm::{Admission, Algorithm, Decision, Grant};
use crate::limit::WindowStart;
use crate::time::{Period, Time};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: Period,
    pub(crate) start: WindowStart,
}

/// The present window and its count; a count of zero equals a new key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FixedWindowState {
    /// For an aligned window its calendar number; otherwise its first timestamp, in nanoseconds.
    pub id: u64,
    pub count: u64,
}

impl FixedWindow {
    /// The window at `now`, which is `state` if that has not ended.
    fn current(&self, state: &FixedWindowState, now: Time) -> FixedWindowState {
        match self.start {
            // A caller with a slightly earlier timestamp counts into the window that has already begun.
            WindowStart::Aligned => match self.period.index_at(now) {
                name if name <= state.id => *state,
                name => FixedWindowState { id: name, count: 0 },
            },
            WindowStart::FirstHit if state.count > 0 && now < self.end(state) => *state,
            WindowStart::FirstHit => FixedWindowState { id: now.nanos(), count: 0 },
        }
    }

    fn end(&self, window: &FixedWindowState) -> Time {
        match self.start {
            WindowStart::Aligned => self.period.start_of(window.id + 1),
            WindowStart::FirstHit => Time::from_nanos(window.id.saturating_add(self.period.nanos())),
        }
    }

    fn add(&self, state: &mut FixedWindowState, now: Time, cost: u64, cap: u64) {
        let window = self.current(state, now);
        let count = window.count.saturating_add(cost).min(cap.max(window.count));
        *state = FixedWindowState { count, ..window };
    }
}

impl Algorithm for FixedWindow {
    type State = FixedWindowState;

    fn fresh(&self) -> FixedWindowState {
        FixedWindowState::default()
    }

    fn decide(&self, state: &FixedWindowState, now: Time, cost: u64) -> Decision {
        let window = self.current(state, now);
        let left = self.limit.saturating_sub(window.count);
        let admission = if cost > self.limit {
            Admission::Never
        } else if cost <= left {
            Admission::NOW
        } else {
            Admission::Deny { retry_after: self.end(&window).since(now) }
        };
        Decision { admission, left }
    }

    fn charge(&self, state: &mut FixedWindowState, now: Time, cost: u64) {
        self.add(state, now, cost, u64::MAX);
    }

    fn drain(&self, state: &mut FixedWindowState, now: Time, cost: u64) {
        self.add(state, now, cost, self.limit);
    }

    fn add_debt(&self, state: &mut FixedWindowState, now: Time, cost: u64) {
        self.add(state, now, cost, self.limit.saturating_mul(2));
    }

    fn counted_at(&self, state: &FixedWindowState, now: Time) -> Time {
        now.max(match self.start {
            WindowStart::Aligned => self.period.start_of(state.id),
            WindowStart::FirstHit => Time::from_nanos(state.id),
        })
    }

    fn refund(&self, state: &mut FixedWindowState, grant: &Grant, amount: u64, now: Time) {
        let charged_here = match self.start {
            WindowStart::Aligned => self.period.index_at(grant.at) == state.id,
            WindowStart::FirstHit => state.id <= grant.at.nanos() && grant.at < self.end(state),
        };
        if charged_here && now < self.end(state) {
            state.count = state.count.saturating_sub(amount.min(grant.cost));
        }
    }

    fn adopt(&self, _old: &FixedWindow, state: FixedWindowState, _now: Time) -> FixedWindowState {
        state
    }

    fn expires_at(&self, state: &FixedWindowState) -> Time {
        if state.count == 0 { Time::EPOCH } else { self.end(state) }
    }

    fn used(&self, state: &FixedWindowState, now: Time) -> u64 {
        self.current(state, now).count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_hit_window_ends_exactly_one_period_after_it_began() {
        let window = FixedWindow { limit: 2, period: Period::MINUTE, start: WindowStart::FirstHit };
        let start = Time::from_nanos(1_800_000_000_123_456_789);
        let mut state = window.fresh();
        window.charge(&mut state, start, 2);
        let end = Time::from_nanos(start.nanos() + Period::MINUTE.nanos());
        let before = Time::from_nanos(end.nanos() - 1);
        assert!(!window.decide(&state, before, 1).is_allowed());
        assert!(window.decide(&state, end, 1).is_allowed());
        window.charge(&mut state, end, 1);
        assert_eq!(state, FixedWindowState { id: end.nanos(), count: 1 });
    }
}
