//! Seeded draws: numbers, limits of every family, costs.

use std::time::Duration;

use tollgate::internal::limit::{Levels, Limit, Rate, Refill, Release, Shape, WindowStart};
use tollgate::internal::time::{Period, Unit};

/// What a limit counts by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    Gcra,
    TokenBucket,
    TokenBucketTick,
    TokenBucketCalendar,
    LeakyHold,
    LeakyAtOnce,
    FixedAligned,
    FixedFirstHit,
    SlidingLog,
    SlidingCompact,
    SlidingCounter,
    TieredWindow,
    Concurrency,
    Cell,
}

impl Family {
    pub const ALL: [Family; 14] = [
        Family::Gcra,
        Family::TokenBucket,
        Family::TokenBucketTick,
        Family::TokenBucketCalendar,
        Family::LeakyHold,
        Family::LeakyAtOnce,
        Family::FixedAligned,
        Family::FixedFirstHit,
        Family::SlidingLog,
        Family::SlidingCompact,
        Family::SlidingCounter,
        Family::TieredWindow,
        Family::Concurrency,
        Family::Cell,
    ];
}

/// A sequence of numbers that a seed determines (SplitMix64).
pub struct Draw(u64);

const PERIODS: [(u64, Unit); 10] = [
    (1, Unit::Second),
    (10, Unit::Second),
    (1, Unit::Minute),
    (7, Unit::Minute),
    (1, Unit::Hour),
    (1, Unit::Day),
    (1, Unit::Week),
    (1, Unit::Month),
    (3, Unit::Month),
    (1, Unit::Year),
];
const COUNTS: [u64; 12] = [0, 1, 2, 3, 5, 7, 10, 20, 64, 1000, 55_000, 1_000_000];
const MILLI: Duration = Duration::from_millis(1);

impl Draw {
    pub fn seeded(seed: u64) -> Draw {
        Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound.max(1)
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Limits of one family that differ in their numbers only; none if few such limits are taken.
    pub fn limits(&mut self, family: Family, takes: impl Fn(&Limit) -> bool) -> Option<Vec<Limit>> {
        (0..200).find_map(|_| {
            let (count, unit) = self.pick(&PERIODS);
            let period = Period::new(count, unit).expect("a valid period");
            let fixed = self.fixed(family, period)?;
            let limits: Vec<_> =
                (0..6).filter_map(|_| self.limit(period, fixed)).filter(&takes).take(3).collect();
            (!limits.is_empty() && pay_in_time(&limits)).then_some(limits)
        })
    }

    /// What does not change with a limit's number.
    fn fixed(&mut self, family: Family, period: Period) -> Option<Shape> {
        let second = Duration::from_secs(1);
        let seconds = period.secs();
        let bucket = |refill| Shape::TokenBucket { burst: None, refill };
        Some(match family {
            Family::Gcra => Shape::GCRA,
            Family::TokenBucket => bucket(Refill::Continuous),
            Family::TokenBucketTick => {
                bucket(Refill::Tick(self.pick(&[100 * MILLI, second, 3 * second, 60 * second])))
            }
            Family::TokenBucketCalendar => bucket(Refill::Calendar),
            Family::LeakyHold => Shape::LeakyBucket { burst: None, release: Release::HOLD },
            Family::LeakyAtOnce => Shape::LeakyBucket { burst: None, release: Release::AtOnce },
            Family::FixedAligned => Shape::FixedWindow { start: WindowStart::Aligned },
            Family::FixedFirstHit => Shape::FixedWindow { start: WindowStart::FirstHit },
            Family::SlidingLog => Shape::SlidingLog,
            Family::SlidingCompact => {
                let step = self.pick(&[seconds, seconds.div_ceil(10), seconds.div_ceil(60)]);
                let resolution =
                    if step <= 1 { self.pick(&[100 * MILLI, second]) } else { step as u32 * second };
                Shape::SlidingCompact { resolution }
            }
            Family::SlidingCounter => Shape::SlidingCounter,
            Family::TieredWindow => {
                let all = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day];
                let from = self.below(3) as usize;
                let to = from + 1 + self.below(all.len() as u64 - from as u64) as usize;
                // A bucket per second of a whole year is not a realistic window.
                let steps = seconds / all[from].secs();
                let levels = Levels::new(&all[from..to]).ok().filter(|_| (1..=90_000).contains(&steps))?;
                Shape::TieredWindow { levels }
            }
            Family::Concurrency => Shape::Concurrency,
            Family::Cell => Shape::Cell { burst: 1 },
        })
    }

    /// `max_wait` and `hold_after` of a queue may change with its limit.
    fn release(&mut self, kind: Release, period: Period) -> Release {
        if kind == Release::AtOnce {
            return kind;
        }
        let waits = [500 * MILLI, Duration::from_secs(30), Duration::from_secs(period.secs())];
        let max_wait = if self.one_in(3) { None } else { Some(self.pick(&waits)) };
        Release::Hold { max_wait, after: self.pick(&[0, 0, 1, 3, 8, 500]) }
    }

    fn limit(&mut self, period: Period, fixed: Shape) -> Option<Limit> {
        let count = self.pick(&COUNTS);
        let burst = match self.below(4) {
            0 => Some(1),
            1 => Some(count.div_ceil(2).max(1)),
            2 => Some(2 * count.max(1)),
            _ => None,
        };
        let shape = match fixed {
            Shape::Gcra { .. } => Shape::Gcra { burst },
            Shape::TokenBucket { refill, .. } => Shape::TokenBucket { burst, refill },
            Shape::LeakyBucket { release, .. } => {
                Shape::LeakyBucket { burst, release: self.release(release, period) }
            }
            Shape::Cell { .. } => Shape::Cell { burst: burst.unwrap_or(count).max(1) },
            other => other,
        };
        Limit::new(Rate::new(count, period).ok()?, shape).ok()
    }
}

/// Whether a debt of two bursts under one limit is paid within a generation under another: one that is not is
/// cut short by every store in its own way.
fn pay_in_time(limits: &[Limit]) -> bool {
    const GENERATION: u64 = 20 * Unit::Year.secs();
    let burst = limits.iter().map(Limit::capacity).max().unwrap_or(0);
    let slowest = limits.iter().map(|limit| limit.rate().count().max(1)).min().unwrap_or(1);
    let period = limits.iter().map(|limit| limit.rate().period().secs()).max().unwrap_or(0);
    2 * burst * period <= slowest * GENERATION
}
