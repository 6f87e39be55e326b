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

/// The window being counted and the count; an empty count is never seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Window {
    /// The calendar's number of an aligned window; the first instant, in nanoseconds, of another.
    pub name: u64,
    pub count: u64,
}

impl FixedWindow {
    /// The window at `now`, which is `state` if that has not ended.
    fn current(&self, state: &Window, now: Time) -> Window {
        match self.start {
            // A caller whose clock was read a moment too early counts into the window that has begun.
            WindowStart::Aligned => match self.period.index_at(now) {
                name if name <= state.name => *state,
                name => Window { name, count: 0 },
            },
            WindowStart::FirstHit if state.count > 0 && now < self.end(state) => *state,
            WindowStart::FirstHit => Window { name: now.nanos(), count: 0 },
        }
    }

    fn end(&self, window: &Window) -> Time {
        match self.start {
            WindowStart::Aligned => self.period.start_of(window.name + 1),
            WindowStart::FirstHit => Time::from_nanos(window.name.saturating_add(self.period.nanos())),
        }
    }

    fn add(&self, state: &mut Window, now: Time, cost: u64, cap: u64) {
        let window = self.current(state, now);
        let count = window.count.saturating_add(cost).min(cap.max(window.count));
        *state = Window { count, ..window };
    }
}

impl Algorithm for FixedWindow {
    type State = Window;

    fn fresh(&self) -> Window {
        Window::default()
    }

    fn decide(&self, state: &Window, now: Time, cost: u64) -> Decision {
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

    fn charge(&self, state: &mut Window, now: Time, cost: u64) {
        self.add(state, now, cost, u64::MAX);
    }

    fn drain(&self, state: &mut Window, now: Time, cost: u64) {
        self.add(state, now, cost, self.limit);
    }

    fn owe(&self, state: &mut Window, now: Time, cost: u64) {
        self.add(state, now, cost, self.limit.saturating_mul(2));
    }

    fn counted_at(&self, state: &Window, now: Time) -> Time {
        now.max(match self.start {
            WindowStart::Aligned => self.period.start_of(state.name),
            WindowStart::FirstHit => Time::from_nanos(state.name),
        })
    }

    fn refund(&self, state: &mut Window, grant: &Grant, amount: u64, now: Time) {
        let charged_here = match self.start {
            WindowStart::Aligned => self.period.index_at(grant.at) == state.name,
            WindowStart::FirstHit => state.name <= grant.at.nanos() && grant.at < self.end(state),
        };
        if charged_here && now < self.end(state) {
            state.count = state.count.saturating_sub(amount.min(grant.cost));
        }
    }

    fn adopt(&self, _old: &FixedWindow, state: Window, _now: Time) -> Window {
        state
    }

    fn fresh_at(&self, state: &Window) -> Time {
        if state.count == 0 { Time::EPOCH } else { self.end(state) }
    }

    fn used(&self, state: &Window, now: Time) -> u64 {
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
        assert_eq!(state, Window { name: end.nanos(), count: 1 });
    }
}
