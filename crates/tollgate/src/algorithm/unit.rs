//! Limits counted in a coarser unit of time than the nanosecond, for stores whose clocks have no finer resolution.
//!
//! Timestamps passed to such a quota are whole numbers of the unit, and its waits are rounded up to it. Windows count
//! the same in every unit; a continuous bucket does not, because its token is a whole number of ticks.

use std::time::Duration;

use crate::algorithm::Quota;
use crate::algorithm::gcra::{BucketClock, Meter};
use crate::algorithm::leaky_bucket::LeakyBucket;
use crate::limit::{Limit, Rate, Refill, Shape};
use crate::time::nanos_of;

impl Quota {
    /// As [`new`](Quota::new), for a store that counts time in `unit`s.
    pub fn in_unit(limit: &Limit, unit: Duration) -> Quota {
        let rate = limit.rate();
        let burst = limit.capacity();
        let continuous = || Meter::continuous_in(rate, burst, unit);
        match limit.shape() {
            Shape::Gcra { .. } => Quota::Bucket(continuous()),
            Shape::Cell { .. } => Quota::Bucket(Meter::cell(rate, burst, unit)),
            Shape::LeakyBucket { release, .. } => {
                Quota::Leaky(LeakyBucket::with_meter(continuous(), release))
            }
            Shape::TokenBucket { refill: Refill::Tick(_) | Refill::Calendar, .. } if rate.count() > 0 => {
                Quota::new(limit)
            }
            Shape::TokenBucket { .. } => Quota::Bucket(continuous()),
            _ => Quota::new(limit),
        }
    }
}

impl Meter {
    /// `burst` tokens that refill continuously at `rate`, in the exact ticks nearest to `unit`.
    pub fn continuous_in(rate: Rate, burst: u64, unit: Duration) -> Meter {
        let period_ns = rate.period().nanos();
        let period = period_ns / nanos_of(unit).max(1);
        let token = (period / rate.count().max(1)).max(1);
        let ticks = token * rate.count().max(1);
        let flow =
            if ticks == period_ns { BucketClock::Nanos } else { BucketClock::Ticks { ticks, period_ns } };
        let capacity = if rate.count() == 0 { 0 } else { burst * token };
        Meter { token_units: token, capacity_units: capacity, clock: flow }
    }

    /// `burst` tokens, one added every `rate.period() / rate.count()`, rounded down to a whole number of `unit`s. A state
    /// is a timestamp in `unit`s, whatever the rate.
    pub fn cell(rate: Rate, burst: u64, unit: Duration) -> Meter {
        let period_ns = rate.period().nanos();
        let ticks = period_ns / nanos_of(unit).max(1);
        let clock =
            if ticks == period_ns { BucketClock::Nanos } else { BucketClock::Ticks { ticks, period_ns } };
        let token = ticks.checked_div(rate.count()).unwrap_or(ticks).max(1);
        let capacity = if rate.count() == 0 { 0 } else { burst.saturating_mul(token) };
        Meter { token_units: token, capacity_units: capacity, clock }
    }

    /// The units of one token.
    pub const fn token_units(&self) -> u64 {
        self.token_units
    }

    /// The units of a full bucket.
    pub const fn capacity_units(&self) -> u64 {
        self.capacity_units
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Admission, Algorithm};
    use crate::time::Time;

    fn quotas(rate: &str, shape: Shape) -> [Quota; 2] {
        let limit = Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit");
        [Quota::new(&limit), Quota::in_unit(&limit, Duration::from_nanos(1))]
    }

    #[test]
    fn in_nanoseconds_it_is_the_quota_itself() {
        let bucket = |refill| Shape::TokenBucket { burst: None, refill };
        let second = Duration::from_secs(1);
        for shape in
            [Shape::GCRA, bucket(Refill::Continuous), bucket(Refill::Tick(second)), Shape::SlidingLog]
        {
            for rate in ["3/s", "4/s", "0/m", "7/h"] {
                let [new, in_unit] = quotas(rate, shape);
                assert_eq!(new, in_unit, "{rate} {shape:?}");
            }
        }
    }

    #[test]
    fn three_a_second_in_microseconds_is_three_in_every_second() {
        let meter = Meter::continuous_in("3/s".parse().expect("a rate"), 1, Duration::from_micros(1));
        let start = Time::from_secs(1_800_000_000);
        let mut now = Time::from_secs(1_800_000_000);
        let mut full_at = 0;
        for n in 0..30_000u64 {
            let decision = meter.decide(&full_at, now, 1);
            if let Admission::Deny { retry_after } = decision.admission {
                let micros = u64::try_from(retry_after.as_nanos().div_ceil(1000)).expect("a short wait");
                let early = now + Duration::from_micros(micros - 1);
                assert!(!meter.decide(&full_at, early, 1).is_allowed());
                now = now + Duration::from_micros(micros);
            }
            meter.charge(&mut full_at, now, 1);
            assert_eq!(now.since(start).as_secs(), n / 3);
        }
    }
}
