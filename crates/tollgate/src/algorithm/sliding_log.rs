//! Sliding window log: the instants of the last window; exact.
//!
//! A log is a sliding window whose step is the unit of time itself. Its memory grows with the limit.

use crate::algorithm::sliding_compact::SlidingCompact;
use crate::time::Period;

/// A window over single nanoseconds.
pub fn window(limit: u64, period: Period) -> SlidingCompact {
    SlidingCompact { limit, steps: period.nanos(), step_ns: 1 }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Admission, Algorithm};
    use crate::time::Time;

    #[test]
    fn the_one_above_the_limit_within_the_window_is_denied() {
        let log = window(3, Period::MINUTE);
        let mut state = log.fresh();
        let start = Time::from_secs(1_800_000_000);
        for n in [0, 10, 10] {
            let now = start + Duration::from_secs(n);
            assert!(log.decide(&state, now, 1).is_allowed());
            log.charge(&mut state, now, 1);
        }
        let retry_after = Duration::from_nanos(30_000_000_001);
        let now = start + Duration::from_nanos(29_999_999_999);
        assert_eq!(log.decide(&state, now, 1).admission, Admission::Deny { retry_after });
        assert!(log.decide(&state, now + retry_after, 1).is_allowed());
        let two_leave_together = Duration::from_nanos(40_000_000_001);
        assert_eq!(log.decide(&state, now, 2).admission, Admission::Deny { retry_after: two_leave_together });
    }
}
