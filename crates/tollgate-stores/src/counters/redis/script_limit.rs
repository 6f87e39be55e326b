//! A limit as arguments of the script: microseconds, and numbers that are exact in a double.
//!
//! The algorithms in the script are those of `tollgate::internal::algorithm` with a unit of one microsecond. Limits that would
//! not be exact are rejected when rules are loaded.

use std::time::Duration;

use thiserror::Error;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::gcra::{BucketClock, Meter};
use tollgate::internal::algorithm::{Quota, concurrency, sliding_log};
use tollgate::internal::limit::{Levels, Refill, Release, Shape, WindowStart};
use tollgate::internal::time::{Period, Unit};

/// The resolution of the server's clock.
pub const TIME_UNIT: Duration = Duration::from_micros(1);
/// Upper bound on how long a key outlives the time when it can last matter: TTLs are whole milliseconds, plus one.
pub const EXPIRY_SLACK: Duration = Duration::from_millis(2);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ScriptLimit {
    /// Algorithm code. Buckets: `c` refills continuously, `s` in steps, `k` by the calendar, `a` continuously with a
    /// state in microseconds, whatever the rate. Windows: `f` fixed to the
    /// calendar, `h` from the first hit, `w` sliding in steps, `n` two weighted windows.
    pub(super) kind: &'static str,
    /// Buckets: units per token, units per period (or step), the period, units of a burst. Windows: limit, period,
    /// step, number of steps.
    pub(super) numbers: [u64; 4],
    /// The calendar of the period, or the step length of a bucket.
    pub(super) calendar: String,
    /// A leaky bucket that holds requests: its own `max_wait`, if it has one, and the units that may be ahead of a
    /// request that is not held.
    pub(super) hold: Option<(Option<u64>, u64)>,
    /// A leaky bucket: a refund frees a place only at the end of the queue.
    pub(super) queue: bool,
}

/// Why Redis cannot represent a limit exactly.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UnsupportedRedisLimit {
    #[error(
        "{limit} is too fast for a bucket on Redis, whose numbers are exact up to 2^53: use a window, or at most 1500000 a second"
    )]
    RateTooHigh { limit: Limit },
    #[error("redis counts time in microseconds: {duration:?} is not a whole number of them")]
    SubMicrosecond { duration: Duration },
    #[error("{limit} is too large for a window on Redis: at most 2^45")]
    CountTooLarge { limit: Limit },
}

/// The largest integer that is exact in a double, as are its neighbours.
const MAX_EXACT: u128 = 1 << 53;
/// Sums of a sliding window are stored in six bytes.
const MAX_WINDOW_COUNT: u64 = 1 << 45;

impl ScriptLimit {
    pub(super) fn of(limit: &Limit) -> ScriptLimit {
        let period = limit.rate().period();
        let count = limit.rate().count();
        let period_us = period.secs() * 1_000_000;
        let window = |kind, step_us: u64| ScriptLimit {
            kind,
            numbers: [count, period_us, step_us, period_us / step_us.max(1)],
            calendar: String::new(),
            hold: None,
            queue: false,
        };
        match limit.shape() {
            Shape::Gcra { .. } => ScriptLimit::bucket(limit),
            Shape::Cell { .. } => ScriptLimit { kind: "a", ..ScriptLimit::bucket(limit) },
            Shape::TokenBucket { refill: Refill::Tick(tick), .. } => {
                let calendar = micros(tick).to_string();
                ScriptLimit { calendar, ..ScriptLimit::bucket(limit) }
            }
            Shape::TokenBucket { refill: Refill::Calendar, .. } => {
                ScriptLimit { calendar: calendar(period), ..ScriptLimit::bucket(limit) }
            }
            Shape::TokenBucket { refill: Refill::Continuous, .. } => ScriptLimit::bucket(limit),
            Shape::LeakyBucket { release, .. } => {
                let script_limit = ScriptLimit::bucket(limit);
                let hold = match release {
                    Release::Hold { max_wait, after } => {
                        let ahead = after.saturating_mul(script_limit.numbers[0]).min(MAX_EXACT as u64);
                        Some((max_wait.map(micros), ahead))
                    }
                    Release::AtOnce => None,
                };
                ScriptLimit { hold, queue: true, ..script_limit }
            }
            Shape::FixedWindow { start: WindowStart::Aligned } => {
                ScriptLimit { calendar: calendar(period), ..window("f", 1) }
            }
            Shape::FixedWindow { start: WindowStart::FirstHit } => window("h", 1),
            Shape::SlidingCounter => window("n", 1),
            Shape::Concurrency => window("w", concurrency::STEP_NS / 1000),
            Shape::SlidingLog => window("w", sliding_log::STEP_NS / 1000),
            Shape::SlidingCompact { resolution } => window("w", micros(resolution)),
            Shape::TieredWindow { levels } => window("w", finest_us(&levels)),
        }
    }

    fn bucket(limit: &Limit) -> ScriptLimit {
        let meter = meter(limit);
        let period_us = limit.rate().period().secs() * 1_000_000;
        let (kind, units) = match meter.clock() {
            BucketClock::Nanos => ("c", limit.rate().period().nanos()),
            BucketClock::Ticks { ticks, .. } => ("c", ticks),
            BucketClock::Steps { units_per_tick: share, .. } => ("s", share),
            BucketClock::Calendar { refill, .. } => ("k", refill),
        };
        ScriptLimit {
            kind,
            numbers: [meter.token_units(), units, period_us, meter.capacity_units()],
            calendar: String::new(),
            hold: None,
            queue: false,
        }
    }
}

/// Whether Redis can represent a limit exactly; if not, why.
pub fn check_limit(limit: &Limit) -> Result<(), UnsupportedRedisLimit> {
    let whole_micros = |duration: Duration| match duration.subsec_nanos() % 1000 {
        0 => Ok(()),
        _ => Err(UnsupportedRedisLimit::SubMicrosecond { duration }),
    };
    match limit.shape() {
        Shape::Gcra { .. } | Shape::Cell { .. } => check_bucket(limit),
        Shape::TokenBucket { refill, .. } => {
            if let Refill::Tick(tick) = refill {
                whole_micros(tick)?;
            }
            check_bucket(limit)
        }
        Shape::LeakyBucket { release, .. } => {
            if let Release::Hold { max_wait: Some(max_wait), .. } = release {
                whole_micros(max_wait)?;
            }
            check_bucket(limit)
        }
        Shape::SlidingCompact { resolution } => whole_micros(resolution).and_then(|()| check_window(limit)),
        _ => check_window(limit),
    }
}

fn check_window(limit: &Limit) -> Result<(), UnsupportedRedisLimit> {
    if limit.rate().count() <= MAX_WINDOW_COUNT {
        Ok(())
    } else {
        Err(UnsupportedRedisLimit::CountTooLarge { limit: *limit })
    }
}

/// Checks that timestamps in the bucket's units are exact up to the horizon, two bursts ahead.
fn check_bucket(limit: &Limit) -> Result<(), UnsupportedRedisLimit> {
    let meter = meter(limit);
    let last = meter.clock().units_at(Limit::HORIZON);
    let exact = u128::from(last) + 3 * u128::from(meter.capacity_units()) < MAX_EXACT;
    if exact { Ok(()) } else { Err(UnsupportedRedisLimit::RateTooHigh { limit: *limit }) }
}

fn meter(limit: &Limit) -> Meter {
    match Quota::in_unit(limit, TIME_UNIT) {
        Quota::Bucket(meter) => meter,
        Quota::Leaky(bucket) => *bucket.meter(),
        _ => Meter::continuous_in(limit.rate(), limit.capacity(), TIME_UNIT),
    }
}

fn finest_us(levels: &Levels) -> u64 {
    levels.finest().secs() * 1_000_000
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A period as the script's calendar parses it.
fn calendar(period: Period) -> String {
    match period.unit() {
        Unit::Week => format!("W{}", period.count()),
        Unit::Month => format!("M{}", period.count()),
        Unit::Year => format!("Y{}", period.count()),
        _ => format!("S{}", period.secs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rate: &str, shape: Shape) -> Limit {
        Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit")
    }

    #[test]
    fn usual_limits_are_kept_and_what_would_not_be_exact_is_refused() {
        let tick = |tick| Shape::TokenBucket { burst: None, refill: Refill::Tick(tick) };
        for (rate, shape) in [
            ("60_000_000/m", Shape::GCRA),
            ("1/y", Shape::GCRA),
            ("7/month", Shape::GCRA),
            ("0/m", Shape::GCRA),
            ("1000/s", tick(Duration::from_millis(10))),
            ("1_000_000_000/s", Shape::SlidingCounter),
        ] {
            assert_eq!(check_limit(&limit(rate, shape)), Ok(()), "{rate} {shape:?}");
        }
        let message = |rate, shape| check_limit(&limit(rate, shape)).expect_err(rate).to_string();
        assert!(message("1_000_000_000/s", Shape::GCRA).contains("too fast for a bucket"));
        let compact = Shape::SlidingCompact { resolution: Duration::from_nanos(500) };
        assert!(message("5/m", compact).contains("500ns is not a whole number"));
        assert!(message("80_000_000_000_000/d", Shape::SlidingLog).contains("too large for a window"));
    }
}
