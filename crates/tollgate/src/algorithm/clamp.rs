//! Clamping of states that a limit cannot have produced yet, because a clock was ahead when they were written.
//!
//! Such a state comes from a saved state, from a node with a wrong clock, or from before a clock was set back. Without a
//! bound its key would be denied until the clock catches up. What was used stays used: it counts as used now.

use std::time::Duration;

use crate::algorithm::fixed_window::{FixedWindow, FixedWindowState};
use crate::algorithm::gcra::{BucketClock, Meter};
use crate::algorithm::sliding_compact::{StepCounts, StepStorage, StepWindow};
use crate::algorithm::sliding_counter::{SlidingCounter, SlidingCounterState};
use crate::algorithm::{Quota, QuotaState};
use crate::limit::WindowStart;
use crate::time::Time;

/// Tolerated clock skew. A state that is further ahead is clamped.
pub const MAX_SKEW: Duration = Duration::from_secs(10);

impl Quota {
    /// Clamps a state to what the limit can have produced at `now`; returns whether that has changed it. A state that
    /// was adopted from a larger limit must be clamped by that one first.
    pub fn clamp(&self, state: &mut QuotaState, now: Time) -> bool {
        match (self, state) {
            (Quota::Bucket(meter), QuotaState::Timestamp(full_at)) => meter.clamp(full_at, now),
            (Quota::Leaky(bucket), QuotaState::Timestamp(dry_at)) => bucket.meter().clamp(dry_at, now),
            (_, state) => self.clamp_window(state, now),
        }
    }

    /// As above for window states, which are bounded by the window whatever limit they were under.
    pub(crate) fn clamp_window(&self, state: &mut QuotaState, now: Time) -> bool {
        match (self, state) {
            (Quota::Fixed(window), QuotaState::Window(state)) => window.clamp(state, now),
            (Quota::Counter(counter), QuotaState::Counts(counts)) => counter.clamp(counts, now),
            (Quota::Log(window), QuotaState::Log(log)) => window.clamp(log, now),
            (Quota::Steps(window), QuotaState::Steps(steps)) => window.clamp(steps, now),
            (Quota::Tiers(window), QuotaState::Tiers(tiers)) => window.clamp(tiers, now),
            _ => false,
        }
    }
}

impl Meter {
    /// A bucket of capacity zero keeps the state of the limit before it: no request waits for that.
    fn clamp(&self, full_at: &mut u64, now: Time) -> bool {
        self.capacity_units > 0 && self.clock.clamp(full_at, now, 2 * self.capacity_units)
    }
}

impl BucketClock {
    /// Clamps a state to a debt of `most` units.
    pub(crate) fn clamp(&self, full_at: &mut u64, now: Time, most: u64) -> bool {
        let from_future = *full_at > self.units_at(now + MAX_SKEW).saturating_add(most);
        if from_future {
            *full_at = self.units_at(now).saturating_add(most);
        }
        from_future
    }
}

impl FixedWindow {
    pub(crate) fn clamp(&self, state: &mut FixedWindowState, now: Time) -> bool {
        let name_at = |time: Time| match self.start {
            WindowStart::Aligned => self.period.index_at(time),
            WindowStart::FirstHit => time.nanos(),
        };
        let from_future = state.id > name_at(now + MAX_SKEW);
        if from_future {
            state.id = name_at(now);
        }
        from_future
    }
}

impl SlidingCounter {
    pub(crate) fn clamp(&self, counts: &mut SlidingCounterState, now: Time) -> bool {
        let from_future = counts.window > (now + MAX_SKEW).nanos() / self.window_ns;
        if from_future {
            counts.window = now.nanos() / self.window_ns;
        }
        from_future
    }
}

impl<K: StepStorage> StepWindow<K> {
    #[inline]
    pub(super) fn clamp(&self, state: &mut K::Container, now: Time) -> bool {
        let from_future = state.newest().is_some_and(|newest| self.start_of(newest) > now + MAX_SKEW);
        if from_future {
            self.clamp_steps(state, now);
        }
        from_future
    }

    #[cold]
    fn clamp_steps(&self, state: &mut K::Container, now: Time) {
        let last = self.step_at(now);
        *state = state.pairs().map(|(step, count)| (step.min(last), count)).collect();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Admission, Algorithm};
    use crate::limit::{Levels, Limit, Refill, Release, Shape};

    const NOW: Time = Time::from_secs(1_800_000_000);

    fn limits() -> Vec<Limit> {
        let shapes = [
            Shape::GCRA,
            Shape::TokenBucket { burst: Some(7), refill: Refill::Continuous },
            Shape::TokenBucket { burst: Some(7), refill: Refill::Tick(Duration::from_secs(1)) },
            Shape::LeakyBucket { burst: Some(3), release: Release::HOLD },
            Shape::FixedWindow { start: WindowStart::Aligned },
            Shape::FixedWindow { start: WindowStart::FirstHit },
            Shape::SlidingLog,
            Shape::SlidingCompact { resolution: Duration::from_secs(1) },
            Shape::SlidingCounter,
            Shape::TieredWindow { levels: Levels::SMH },
            Shape::Concurrency,
        ];
        let rates = ["5/m", "60/h"].map(|rate| rate.parse().expect("a rate"));
        let limits = shapes.iter().flat_map(|shape| rates.map(|rate| Limit::new(rate, *shape)));
        limits.map(|limit| limit.expect("a valid limit")).collect()
    }

    proptest! {
        /// A regression: a clock that was a year ahead denied every key for a year.
        #[test]
        fn no_wait_is_longer_than_the_limit_can_make_it(
            ahead in prop_oneof![0..100u64, 0..100_000_000u64, 0..5_000_000_000u64],
            hits in 1..200u64, debt in 0..100u64, later in 0..7_200u64,
        ) {
            for limit in limits() {
                let quota = Quota::new(&limit);
                let mut state = quota.fresh();
                let future = NOW + Duration::from_secs(ahead);
                for n in 0..hits {
                    let at = future + Duration::from_millis(n * 700);
                    if quota.decide(&state, at, 1).is_allowed() {
                        quota.charge(&mut state, at, 1);
                    }
                }
                quota.add_debt(&mut state, future + Duration::from_secs(later), debt);
                let used = quota.used(&state, future + Duration::from_secs(later));
                quota.clamp(&mut state, NOW);
                prop_assert!(!quota.clamp(&mut state, NOW), "it is clamped once");
                let decision = quota.decide(&state, NOW, 1);
                let longest = 2 * Duration::from_nanos(limit.rate().period().nanos()) + MAX_SKEW;
                if let Admission::Deny { retry_after } = decision.admission {
                    prop_assert!(retry_after <= longest, "{:?}: {:?}", limit, retry_after);
                    prop_assert!(quota.decide(&state, NOW + retry_after, 1).is_allowed(), "{:?}", limit);
                }
                prop_assert!(quota.expires_at(&state) <= NOW + 2 * longest, "{:?}", limit);
                if used >= limit.capacity() && ahead > 100_000 {
                    prop_assert!(!decision.is_allowed(), "{:?}: what was used stays used", limit);
                }
            }
        }
    }

    #[test]
    fn what_the_limit_produces_itself_is_left_alone() {
        for limit in limits() {
            let quota = Quota::new(&limit);
            let mut state = quota.fresh();
            quota.charge(&mut state, NOW + MAX_SKEW, 1);
            quota.add_debt(&mut state, NOW + MAX_SKEW, 1_000);
            let before = state.clone();
            assert!(!quota.clamp(&mut state, NOW), "{limit:?}");
            assert_eq!(state, before, "{limit:?}");
        }
    }
}
