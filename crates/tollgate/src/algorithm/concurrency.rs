//! Concurrency: a limit on simultaneous permits.
//!
//! A permit is a charge that its receipt refunds. A permit that is never returned expires: the state is a sliding
//! window of the maximum hold time, from which returned permits are removed.

use crate::algorithm::sliding_compact::SlidingCompact;
use crate::time::Period;

/// Timestamps of permits have a resolution of one microsecond.
pub const STEP_NS: u64 = 1_000;

/// `limit` simultaneous permits, each for at most `longest`.
pub fn permits(limit: u64, longest: Period) -> SlidingCompact {
    SlidingCompact::new(limit, longest.nanos() / STEP_NS, STEP_NS)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Algorithm, Grant, Quota};
    use crate::time::Time;

    #[test]
    fn a_permit_is_free_when_it_is_given_back_or_has_expired() {
        let permits = permits(2, Period::MINUTE);
        let mut state = permits.fresh();
        let start = Time::from_secs(1_800_000_000);
        permits.charge(&mut state, start, 1);
        permits.charge(&mut state, start, 1);
        assert!(!permits.decide(&state, start, 1).is_allowed());
        permits.refund(&mut state, &Grant { at: start, cost: 1, mark: 0 }, 1, start + Duration::from_secs(1));
        assert!(permits.decide(&state, start + Duration::from_secs(1), 1).is_allowed());
        permits.charge(&mut state, start + Duration::from_secs(1), 1);
        assert!(!permits.decide(&state, start + Duration::from_secs(59), 1).is_allowed());
        assert!(permits.decide(&state, start + Duration::from_secs(60), 1).is_allowed(), "it has expired");
    }

    #[test]
    fn permits_taken_in_a_race_are_given_back() {
        // A regression: with a clock behind, the second permit was stored under the first one's timestamp, and leaked.
        let quota = Quota::Steps(permits(5, Period::MINUTE));
        let mut state = quota.fresh();
        let now = Time::from_secs(1_800_000_000);
        let grants = [now + Duration::from_nanos(5), now].map(|at| {
            quota.charge(&mut state, at, 1);
            Grant { at, cost: 1, mark: quota.mark(&state) }
        });
        for grant in grants {
            quota.refund(&mut state, &grant, 1, now + Duration::from_secs(1));
        }
        assert_eq!(quota.used(&state, now), 0);
    }
}
