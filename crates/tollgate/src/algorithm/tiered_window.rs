//! Tiered window: fine buckets at the edges of a sliding window, coarse ones in between.
//!
//! The count is exactly the last window in steps of the finest level. The coarser levels are sums of the finer ones,
//! so that a sliding day, precise to the second, is read in 142 buckets. Only a store on a server keeps these sums
//! ([`TieredWindow::cover`]): a state in memory knows the sum of its window, and has the finest level alone.

use smallvec::SmallVec;

use crate::algorithm::sliding_compact::{SlidingCompact, StepCounts};
use crate::algorithm::{Algorithm, Decision, Grant, Steps};
use crate::limit::Levels;
use crate::time::{NANOS_PER_SECOND, Period, Time};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TieredWindow {
    window: SlidingCompact,
    levels: Levels,
}

/// Whole buckets of one level: `from..=to`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BucketRange {
    pub level: usize,
    pub from: u64,
    pub to: u64,
}

/// Two ranges per level, one for the coarsest.
pub type BucketRanges = SmallVec<[BucketRange; 7]>;

impl TieredWindow {
    pub fn new(limit: u64, period: Period, levels: Levels) -> TieredWindow {
        let step = levels.finest().secs();
        let window = SlidingCompact::new(limit, period.secs() / step, step * NANOS_PER_SECOND);
        TieredWindow { window, levels }
    }

    /// The ranges of buckets that make up the window at `now`: as coarse as possible, no step missing or counted
    /// twice.
    pub fn cover(&self, now: Time) -> BucketRanges {
        let mut from = self.window.oldest_at(now);
        let mut end = self.window.step_at(now) + 1;
        let mut runs = BucketRanges::new();
        for level in 0..self.levels.units().len() {
            let ratio = self.levels.units().get(level + 1).map(|coarser| coarser.secs() / self.unit(level));
            // The part that whole coarser buckets cover, as their indexes.
            let inner =
                ratio.map(|ratio| (ratio, from.div_ceil(ratio), end / ratio)).filter(|(_, a, b)| a < b);
            let Some((ratio, inner_from, inner_end)) = inner else {
                push_range(&mut runs, level, from, end);
                return runs;
            };
            push_range(&mut runs, level, from, inner_from * ratio);
            push_range(&mut runs, level, inner_end * ratio, end);
            from = inner_from;
            end = inner_end;
        }
        runs
    }

    /// The number of buckets read for a decision at `now`.
    pub fn buckets_read(&self, now: Time) -> u64 {
        self.cover(now).iter().map(|run| run.to - run.from + 1).sum()
    }

    /// `now`, or the newest step if that is later: a caller with a slightly earlier timestamp sees what other threads
    /// have charged since.
    #[inline]
    fn effective_now(&self, steps: &Steps, now: Time) -> Time {
        steps.newest().map_or(now, |step| now.max(self.window.start_of(step)))
    }

    fn unit(&self, level: usize) -> u64 {
        self.levels.units()[level].secs()
    }

    /// Maximum heap bytes of a state: a step per hit, or all steps.
    pub(super) fn max_bytes(&self) -> u64 {
        Steps::max_bytes(self.window.limit.min(self.window.steps))
    }

    #[inline]
    pub(super) fn limit(&self) -> u64 {
        self.window.limit
    }

    /// See [`Quota::clamp`](crate::algorithm::Quota::clamp).
    #[inline]
    pub(super) fn clamp(&self, steps: &mut Steps, now: Time) -> bool {
        self.window.clamp(steps, now)
    }
}

fn push_range(runs: &mut BucketRanges, level: usize, from: u64, end: u64) {
    if from < end {
        runs.push(BucketRange { level, from, to: end - 1 });
    }
}

impl Algorithm for TieredWindow {
    type State = Steps;

    fn fresh(&self) -> Steps {
        Steps::default()
    }

    #[inline]
    fn decide(&self, state: &Steps, now: Time, cost: u64) -> Decision {
        let from = self.window.oldest_at(self.effective_now(state, now));
        self.window.decide_on(state, from, state.sum_from(from), now, cost)
    }

    #[inline]
    fn charge(&self, state: &mut Steps, now: Time, cost: u64) {
        self.window.charge(state, now, cost);
    }

    fn drain(&self, state: &mut Steps, now: Time, cost: u64) {
        let cap = self.window.limit.max(self.used(state, now));
        self.charge(state, now, cost.min(self.window.limit));
        // Removes expired steps first, so that the cost is subtracted from steps that count.
        state.forget_before(self.window.oldest_at(self.effective_now(state, now)));
        state.take_oldest(state.total().saturating_sub(cap));
    }

    fn add_debt(&self, state: &mut Steps, now: Time, cost: u64) {
        let cap = self.window.limit.saturating_mul(2);
        self.charge(state, now, SlidingCompact::room(self.used(state, now), cap, cost));
    }

    #[inline]
    fn counted_at(&self, state: &Steps, now: Time) -> Time {
        self.effective_now(state, now)
    }

    fn refund(&self, state: &mut Steps, grant: &Grant, amount: u64, now: Time) {
        let step = self.window.step_at(grant.at);
        if step >= self.window.oldest_at(now) {
            state.take(step, amount.min(grant.cost));
        }
    }

    fn adopt(&self, _old: &TieredWindow, state: Steps, _now: Time) -> Steps {
        state
    }

    #[inline]
    fn expires_at(&self, state: &Steps) -> Time {
        self.window.expires_at(state)
    }

    #[inline]
    fn used(&self, state: &Steps, now: Time) -> u64 {
        state.sum_from(self.window.oldest_at(self.effective_now(state, now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Unit;
    use crate::time::calendar::parse_rfc3339;

    const DAY: u64 = 86_400;

    fn day() -> TieredWindow {
        TieredWindow::new(100, Period::DAY, Levels::SMH)
    }

    #[test]
    fn at_half_past_eleven_the_day_is_read_in_142_buckets() {
        let now = parse_rfc3339("2026-11-15T23:30:33Z").expect("a valid timestamp");
        let midnight = now.secs() / DAY * DAY;
        let second = |clock: u64| midnight + clock;
        let minute = |clock: u64| midnight / 60 + clock;
        let run = |level, from, to| BucketRange { level, from, to };
        let at = |h: u64, m: u64, s: u64| h * 3600 + m * 60 + s;
        let cover = day().cover(now);
        let expected = [
            run(0, second(at(23, 30, 34)) - DAY, second(at(23, 30, 59)) - DAY), // 26
            run(0, second(at(23, 30, 0)), second(at(23, 30, 33))),              // 34
            run(1, minute(23 * 60 + 31) - 1440, minute(23 * 60 + 59) - 1440),   // 29
            run(1, minute(23 * 60), minute(23 * 60 + 29)),                      // 30
            run(2, midnight / 3600, midnight / 3600 + 22),                      // 23
        ];
        assert_eq!(cover.as_slice(), expected);
        assert_eq!(day().buckets_read(now), 142);
    }

    #[test]
    fn at_every_second_of_a_day_no_second_is_missed_or_counted_twice() {
        let midnight = 20_000 * DAY;
        let window = day();
        for second in midnight..midnight + DAY {
            let mut runs = window.cover(Time::from_secs(second));
            assert!(window.buckets_read(Time::from_secs(second)) <= 142);
            runs.sort_by_key(|run| run.from * window.unit(run.level));
            let mut next = second + 1 - DAY;
            for run in runs {
                assert_eq!(run.from * window.unit(run.level), next, "a gap or an overlap at {second}");
                next = (run.to + 1) * window.unit(run.level);
            }
            assert_eq!(next, second + 1);
        }
    }

    #[test]
    fn a_counted_denial_does_not_forget_what_was_used_under_a_larger_limit() {
        // A regression: 50 used, the limit lowered to 5 and raised again; a denial in between left 5 of 50 used.
        let large = TieredWindow::new(50, Period::DAY, Levels::SMH);
        let small = TieredWindow::new(5, Period::DAY, Levels::SMH);
        let now = Time::from_secs(20_000 * DAY);
        let mut state = large.fresh();
        large.charge(&mut state, now, 50);
        small.drain(&mut state, now, 1);
        assert_eq!(large.used(&state, now), 50);
    }

    #[test]
    fn a_denial_counted_by_a_clock_that_lags_does_not_wait_for_what_is_gone() {
        // A regression: the oldest hits had already left the window of other threads, so that removing them freed
        // nothing.
        let window = day();
        let mut state = window.fresh();
        let before = Time::from_secs(20_000 * DAY);
        window.charge(&mut state, before, 1 << 60);
        let after = Time::from_secs(20_001 * DAY);
        state.add(window.window.step_at(after), 100);
        let lagging = Time::from_nanos(after.nanos() - 1);
        window.drain(&mut state, lagging, 1);
        assert_eq!(window.used(&state, after), 100);
    }

    #[test]
    fn a_clock_read_a_moment_too_early_sees_what_others_have_charged() {
        // Threads race: one charges the whole limit just after a second began, another decides with a timestamp just
        // before it.
        let window = day();
        let mut state = window.fresh();
        let after = Time::from_secs(20_000 * DAY);
        window.charge(&mut state, after, 100);
        let before = Time::from_nanos(after.nanos() - 1);
        assert_eq!(window.used(&state, before), 100);
        assert!(!window.decide(&state, before, 1).is_allowed());
    }

    #[test]
    fn coarser_levels_are_as_precise_as_their_finest() {
        let hours = Levels::new(&[Unit::Hour]).expect("valid");
        let window = TieredWindow::new(5, Period::DAY, hours);
        let mut state = window.fresh();
        window.charge(&mut state, Time::from_secs(20_000 * DAY + 1800), 5);
        let day_later = 20_001 * DAY;
        assert!(!window.decide(&state, Time::from_secs(day_later - 1), 1).is_allowed());
        assert!(window.decide(&state, Time::from_secs(day_later), 1).is_allowed());
        assert_eq!(window.buckets_read(Time::from_secs(day_later)), 24);
    }
}
