//! Sliding window in steps: (step, count) pairs at a chosen resolution.
//!
//! The window is the last `steps` steps, including the present one. Memory is bounded by the number of steps, not by
//! the rate of requests.

use std::marker::PhantomData;
use std::time::Duration;

use crate::algorithm::steps::Steps;
use crate::algorithm::{Admission, Algorithm, Decision, Grant};
use crate::time::Time;

/// A limit on the last `steps` steps; `K` is the representation of their counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepWindow<K> {
    pub(crate) limit: u64,
    pub(crate) steps: u64,
    pub(crate) step_ns: u64,
    storage: PhantomData<K>,
}

pub trait StepStorage {
    type Container: StepCounts;
}

pub type SlidingCompact = StepWindow<DequeStorage>;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DequeStorage;

impl StepStorage for DequeStorage {
    type Container = Steps;
}

/// The counts of all non-empty steps.
pub trait StepCounts: Default + FromIterator<(u64, u64)> {
    /// Steps and counts, oldest first.
    fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_;

    fn total(&self) -> u64;

    /// Heap bytes of the counts.
    fn heap_bytes(&self) -> usize;

    fn forget_before(&mut self, from: u64);

    /// Adds to a step, or to the newest one if that is later.
    fn add(&mut self, step: u64, count: u64);

    /// Subtracts up to `count` from a step; returns how much was subtracted.
    fn take(&mut self, step: u64, count: u64) -> u64;

    /// Subtracts `count` from the oldest steps, in time linear in the steps removed.
    fn take_oldest(&mut self, count: u64);

    /// The same counts in half as many steps, each merged into the next one; `None` if there is at most one.
    fn halved(&self) -> Option<Self> {
        let len = self.pairs().count();
        let mut pairs = self.pairs();
        // The newest two always merge: of an odd number the oldest stays unmerged.
        let first = if len % 2 == 1 { pairs.next() } else { None };
        let merged = std::iter::from_fn(move || {
            let (_, earlier) = pairs.next()?;
            let (step, later) = pairs.next()?;
            Some((step, earlier + later))
        });
        (len > 1).then(|| first.into_iter().chain(merged).collect())
    }

    fn newest(&self) -> Option<u64>;

    fn oldest(&self) -> Option<(u64, u64)> {
        self.pairs().next()
    }

    /// The sum of steps `from..`.
    fn sum_from(&self, from: u64) -> u64 {
        let outside: u64 = self.pairs().take_while(|(step, _)| *step < from).map(|(_, count)| count).sum();
        self.total() - outside
    }

    /// The step, not before `from`, whose expiry frees `count` units.
    fn step_freeing(&self, from: u64, count: u64) -> Option<u64> {
        let mut freed = 0;
        self.pairs().filter(|(step, _)| *step >= from).find_map(|(step, units)| {
            freed += units;
            (freed >= count).then_some(step)
        })
    }
}

impl<K> StepWindow<K> {
    pub(crate) const fn new(limit: u64, steps: u64, step_ns: u64) -> StepWindow<K> {
        StepWindow { limit, steps, step_ns, storage: PhantomData }
    }

    #[inline]
    pub(super) fn step_at(&self, now: Time) -> u64 {
        now.nanos() / self.step_ns
    }

    /// The oldest step that counts at `now`.
    #[inline]
    pub(super) fn oldest_at(&self, now: Time) -> u64 {
        self.step_at(now).saturating_sub(self.steps - 1)
    }

    /// When a step leaves the window.
    #[inline]
    pub(super) fn step_expires_at(&self, step: u64) -> Time {
        self.start_of(step.saturating_add(self.steps))
    }

    /// When a step begins.
    #[inline]
    pub(super) fn start_of(&self, step: u64) -> Time {
        Time::from_nanos(step.saturating_mul(self.step_ns))
    }

    /// Decides, given what is used in the window that begins with step `from`.
    #[inline]
    pub(super) fn decide_on(
        &self,
        steps: &impl StepCounts,
        from: u64,
        used: u64,
        now: Time,
        cost: u64,
    ) -> Decision {
        let left = self.limit.saturating_sub(used);
        if cost > self.limit {
            return Decision { admission: Admission::Never, left };
        }
        if cost <= left {
            return Decision { admission: Admission::NOW, left };
        }
        let excess = used + cost - self.limit;
        Decision { admission: Admission::Deny { retry_after: self.wait_for(steps, from, excess, now) }, left }
    }

    /// Until `excess` units have left the window that begins with step `from`.
    #[inline(never)]
    fn wait_for(&self, steps: &impl StepCounts, from: u64, excess: u64, now: Time) -> Duration {
        let freed = steps.step_freeing(from, excess);
        freed.map_or(Time::MAX, |step| self.step_expires_at(step)).since(now)
    }

    /// What can be added without exceeding `cap`.
    pub(super) fn room(used: u64, cap: u64, cost: u64) -> u64 {
        cost.min(cap.saturating_sub(used))
    }
}

impl<K: StepStorage> Algorithm for StepWindow<K> {
    type State = K::Container;

    fn fresh(&self) -> K::Container {
        K::Container::default()
    }

    #[inline]
    fn decide(&self, state: &K::Container, now: Time, cost: u64) -> Decision {
        self.decide_on(state, self.oldest_at(now), self.used(state, now), now, cost)
    }

    #[inline]
    fn charge(&self, state: &mut K::Container, now: Time, cost: u64) {
        state.forget_before(self.oldest_at(now));
        state.add(self.step_at(now), cost);
    }

    /// Counts the denied cost and removes as much of the oldest: the latest attempts fill the window. What was used
    /// above the limit (a debt, or under a larger limit) stays used.
    fn drain(&self, state: &mut K::Container, now: Time, cost: u64) {
        let cap = self.limit.max(self.used(state, now));
        self.charge(state, now, cost.min(self.limit));
        state.take_oldest(state.total().saturating_sub(cap));
    }

    fn add_debt(&self, state: &mut K::Container, now: Time, cost: u64) {
        let room = Self::room(self.used(state, now), self.limit.saturating_mul(2), cost);
        self.charge(state, now, room);
    }

    #[inline]
    fn counted_at(&self, state: &K::Container, now: Time) -> Time {
        state.newest().map_or(now, |step| now.max(self.start_of(step)))
    }

    fn refund(&self, state: &mut K::Container, grant: &Grant, amount: u64, now: Time) {
        // If threads raced, the charge went to a slightly later step than its own.
        let step = if grant.mark == 0 { self.step_at(grant.at) } else { grant.mark };
        if step >= self.oldest_at(now) {
            state.take(step, amount.min(grant.cost));
        }
    }

    fn adopt(&self, _old: &StepWindow<K>, state: K::Container, _now: Time) -> K::Container {
        state
    }

    #[inline]
    fn expires_at(&self, state: &K::Container) -> Time {
        state.newest().map_or(Time::EPOCH, |step| self.step_expires_at(step))
    }

    #[inline]
    fn used(&self, state: &K::Container, now: Time) -> u64 {
        state.sum_from(self.oldest_at(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Period;

    #[test]
    fn a_million_a_minute_at_one_second_needs_sixty_pairs() {
        let window = SlidingCompact::new(1_000_000, 60, Period::SECOND.nanos());
        let mut state = window.fresh();
        for tenth in 0..10_000u64 {
            let now = Time::from_nanos(1_800_000_000_000_000_000 + tenth * 100_000_000);
            if window.decide(&state, now, 5_000).is_allowed() {
                window.charge(&mut state, now, 5_000);
            }
            assert!(state.len() <= 60);
        }
    }

    #[test]
    fn a_window_at_the_end_of_time_still_counts() {
        // Steps of a nanosecond: the one after the last does not fit 64 bits.
        let window = SlidingCompact::new(1, Period::SECOND.nanos(), 1);
        let mut state = window.fresh();
        window.charge(&mut state, Time::MAX, 1);
        assert!(!window.decide(&state, Time::MAX, 1).is_allowed());
        assert_eq!(window.expires_at(&state), Time::MAX);
    }

    #[test]
    fn a_counted_denial_does_not_forget_what_was_used_under_a_larger_limit() {
        // A regression: 50 used, the limit lowered to 5 and raised again; a denial in between left 5 of 50 used.
        let small = SlidingCompact::new(5, 60, Period::SECOND.nanos());
        let large = SlidingCompact { limit: 50, ..small };
        let now = Time::from_secs(1_800_000_000);
        let mut state = large.fresh();
        large.charge(&mut state, now, 50);
        assert!(!small.decide(&state, now, 1).is_allowed());
        small.drain(&mut state, now, 1);
        assert_eq!(large.used(&state, now), 50);
    }
}
