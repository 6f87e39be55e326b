//! Token bucket: up to `burst` tokens, a request takes its cost.
//!
//! The refills differ only in how time passes: continuously, in ticks of the clock, or from one calendar boundary to
//! the next. Between two ticks the bucket's time does not advance, so no token appears.

use crate::algorithm::gcra::{BucketClock, Meter};
use crate::limit::{Rate, Refill};
use crate::time::nanos_of;

/// The meter of a token bucket.
pub fn meter(rate: Rate, burst: u64, refill: Refill) -> Meter {
    if rate.count() == 0 {
        return Meter::closed(rate.period());
    }
    match refill {
        Refill::Continuous => Meter::continuous(rate, burst),
        Refill::Tick(tick) => {
            let (share, token) = rate.tokens_per_tick(tick);
            let narrow =
                |units: u128| u64::try_from(units).expect("a valid limit keeps its units below 2^62");
            let share = narrow(share);
            let token = narrow(token);
            Meter {
                token_units: token,
                capacity_units: burst * token,
                clock: BucketClock::Steps { tick_ns: nanos_of(tick), units_per_tick: share },
            }
        }
        Refill::Calendar => Meter {
            token_units: 1,
            capacity_units: burst,
            clock: BucketClock::Calendar { period: rate.period(), refill: burst },
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Admission, Algorithm};
    use crate::time::Time;
    use crate::time::calendar::parse_rfc3339;

    fn at(clock: &str) -> Time {
        parse_rfc3339(&format!("2026-11-15T{clock}Z")).expect("a valid timestamp")
    }

    fn take(meter: &Meter, state: &mut u64, now: Time) -> Option<u64> {
        let decision = meter.decide(state, now, 1);
        decision.is_allowed().then(|| {
            meter.charge(state, now, 1);
            decision.left - 1
        })
    }

    #[test]
    fn five_a_minute_is_refilled_at_the_minute() {
        let meter = meter("5/m".parse().expect("valid"), 5, Refill::Calendar);
        let mut state = 0;
        assert_eq!(take(&meter, &mut state, at("11:01:05")), Some(4));
        assert_eq!(take(&meter, &mut state, at("11:01:10")), Some(3));
        assert_eq!(take(&meter, &mut state, at("11:02:05")), Some(4));
        for _ in 0..4 {
            take(&meter, &mut state, at("11:02:06"));
        }
        let denied = meter.decide(&state, at("11:02:59.5"), 1).admission;
        assert_eq!(denied, Admission::Deny { retry_after: Duration::from_millis(500) });
    }

    #[test]
    fn a_tick_adds_its_share_to_the_bucket_and_not_before() {
        let meter = meter("30/m".parse().expect("valid"), 10, Refill::Tick(Duration::from_secs(10)));
        let mut state = 0;
        for left in (0..10).rev() {
            assert_eq!(take(&meter, &mut state, at("11:00:01")), Some(left));
        }
        assert_eq!(take(&meter, &mut state, at("11:00:09.999999999")), None);
        assert_eq!(take(&meter, &mut state, at("11:00:10")), Some(4));
        assert_eq!(take(&meter, &mut state, at("11:00:30")), Some(9), "capped at the burst");
    }

    #[test]
    fn a_tick_smaller_than_a_token_adds_a_fraction() {
        let meter = meter("5/m".parse().expect("valid"), 1, Refill::Tick(Duration::from_secs(1)));
        let mut state = 0;
        assert_eq!(take(&meter, &mut state, at("11:00:00")), Some(0));
        let denied = meter.decide(&state, at("11:00:00.25"), 1).admission;
        assert_eq!(denied, Admission::Deny { retry_after: Duration::from_millis(11_750) });
    }
}
