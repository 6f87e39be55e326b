//! Limits of every shape: rates that do not divide evenly, large ones, small ones and zero.

use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::select;
use tollgate::internal::limit::{Levels, Limit, Rate, Refill, Release, Shape, WindowStart};
use tollgate::internal::time::Unit;

use crate::model::Every;

/// What a key is counted by, one limit after the other; they differ in their numbers only.
#[derive(Clone, Debug)]
pub struct Case {
    pub every: Every,
    pub limits: Vec<Limit>,
}

/// Which shapes to draw from.
#[derive(Clone, Copy, Debug)]
pub enum Family {
    Gcra,
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingLog,
    SlidingCompact,
    SlidingCounter,
    TieredWindow,
    Concurrency,
}

impl Family {
    pub const ALL: [Family; 9] = [
        Family::Gcra,
        Family::TokenBucket,
        Family::LeakyBucket,
        Family::FixedWindow,
        Family::SlidingLog,
        Family::SlidingCompact,
        Family::SlidingCounter,
        Family::TieredWindow,
        Family::Concurrency,
    ];

    /// Limits whose waits all end before the horizon of the library.
    pub fn cases(self) -> impl Strategy<Value = Case> {
        self.all_cases().prop_filter("too slow", Case::refills_in_time)
    }

    /// Whatever is valid.
    pub fn all_cases(self) -> impl Strategy<Value = Case> {
        let numbers = prop::collection::vec((counts(), bursts(), self.shapes()), 1..=3);
        (periods(), self.shapes(), numbers).prop_filter_map(
            "no valid limit",
            move |(every, draw, numbers)| {
                let limits: Vec<_> = numbers
                    .into_iter()
                    .filter_map(|(count, burst, own)| {
                        let rate = Rate::new(count.min(every.nanos()), every.period()).ok()?;
                        // How a queue releases may change with its number.
                        let draw = if matches!(self, Family::LeakyBucket) { own } else { draw };
                        Limit::new(rate, draw.shape(every, burst.tokens(count))).ok()
                    })
                    .collect();
                (!limits.is_empty()).then_some(Case { every, limits })
            },
        )
    }

    fn shapes(self) -> BoxedStrategy<Draw> {
        match self {
            Family::Gcra => Just(Draw::Gcra).boxed(),
            Family::TokenBucket => {
                prop_oneof![Just(Draw::Continuous), select(&TICKS).prop_map(Draw::Tick), Just(Draw::Calendar)]
                    .boxed()
            }
            Family::LeakyBucket => {
                let max_waits = prop_oneof![1 => Just(None), 2 => (0..3_000u64).prop_map(Some)];
                let hold = (max_waits, afters()).prop_map(|(max_wait, after)| Draw::Hold(max_wait, after));
                prop_oneof![1 => Just(Draw::AtOnce), 2 => hold].boxed()
            }
            Family::FixedWindow => {
                select(vec![Draw::Fixed(WindowStart::Aligned), Draw::Fixed(WindowStart::FirstHit)]).boxed()
            }
            Family::SlidingLog => Just(Draw::Log).boxed(),
            Family::SlidingCompact => select(&[1, 2, 3, 10, 60, 1000]).prop_map(Draw::Compact).boxed(),
            Family::SlidingCounter => Just(Draw::Counter).boxed(),
            Family::TieredWindow => proptest::sample::subsequence(UNITS, 1..=UNITS.len())
                .prop_map(|units| Draw::Tiers(Levels::new(&units).expect("in order")))
                .boxed(),
            Family::Concurrency => Just(Draw::Permits).boxed(),
        }
    }
}

/// A shape whose durations follow from the period.
#[derive(Clone, Copy, Debug)]
enum Draw {
    Gcra,
    Continuous,
    Tick(Tick),
    Calendar,
    AtOnce,
    /// Waits as long as so many thousandths of a period, or a full queue; and how many may be ahead.
    Hold(Option<u64>, u64),
    Fixed(WindowStart),
    Log,
    /// So many steps.
    Compact(u64),
    Counter,
    Tiers(Levels),
    Permits,
}

#[derive(Clone, Copy, Debug)]
enum Tick {
    PartOfPeriod(u64),
    Periods(u64),
    Nanos(u64),
}

const TICKS: [Tick; 7] = [
    Tick::PartOfPeriod(1),
    Tick::PartOfPeriod(3),
    Tick::PartOfPeriod(7),
    Tick::PartOfPeriod(60),
    Tick::Periods(3),
    Tick::Nanos(333_333_333),
    Tick::Nanos(1_000_000_000),
];

const UNITS: &[Unit] = &[Unit::Second, Unit::Minute, Unit::Hour, Unit::Day];

impl Draw {
    fn shape(self, every: Every, burst: Option<u64>) -> Shape {
        let period_ns = every.nanos();
        let bucket = |refill| Shape::TokenBucket { burst, refill };
        let leaky = |release| Shape::LeakyBucket { burst, release };
        match self {
            Draw::Gcra => Shape::Gcra { burst },
            Draw::Continuous => bucket(Refill::Continuous),
            Draw::Tick(tick) => bucket(Refill::Tick(Duration::from_nanos(match tick {
                Tick::PartOfPeriod(part) => period_ns / part,
                Tick::Periods(periods) => period_ns * periods,
                Tick::Nanos(nanos) => nanos,
            }))),
            Draw::Calendar => bucket(Refill::Calendar),
            Draw::AtOnce => leaky(Release::AtOnce),
            Draw::Hold(part, after) => {
                let max_wait = part.map(|part| Duration::from_nanos(period_ns / 1000 * part));
                leaky(Release::Hold { max_wait, after })
            }
            Draw::Fixed(start) => Shape::FixedWindow { start },
            Draw::Log => Shape::SlidingLog,
            Draw::Compact(steps) => {
                Shape::SlidingCompact { resolution: Duration::from_nanos(period_ns / steps) }
            }
            Draw::Counter => Shape::SlidingCounter,
            Draw::Tiers(levels) => Shape::TieredWindow { levels },
            Draw::Permits => Shape::Concurrency,
        }
    }
}

/// A bucket's burst, as people choose it.
#[derive(Clone, Copy, Debug)]
enum Burst {
    Default,
    Tokens(u64),
    Times(u64),
}

impl Burst {
    fn tokens(self, count: u64) -> Option<u64> {
        match self {
            Burst::Default => None,
            Burst::Tokens(tokens) => Some(tokens),
            Burst::Times(times) => Some(count.saturating_mul(times)),
        }
    }
}

fn bursts() -> impl Strategy<Value = Burst> {
    prop_oneof![
        3 => Just(Burst::Default),
        2 => (1..20u64).prop_map(Burst::Tokens),
        1 => (2..4u64).prop_map(Burst::Times),
        1 => Just(Burst::Tokens(1_000_000_000)),
    ]
}

/// How many may be ahead of a request that is not held.
fn afters() -> impl Strategy<Value = u64> {
    prop_oneof![2 => Just(0), 3 => 1..12u64, 1 => select(&[1_000, 1_000_000_000])]
}

fn periods() -> impl Strategy<Value = Every> {
    let one = [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year]
        .map(|unit| Every { times: 1, unit });
    let several = [
        (2, Unit::Second),
        (10, Unit::Second),
        (5, Unit::Minute),
        (2, Unit::Week),
        (3, Unit::Month),
        (100, Unit::Year),
    ]
    .map(|(times, unit)| Every { times, unit });
    select([one.as_slice(), several.as_slice()].concat())
}

fn counts() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        12 => select(&[1, 2, 3, 4, 5, 7, 11, 13, 100, 1_000]),
        // The last is cut to one a nanosecond, the fastest there is.
        2 => select(&[60_000_000, 999_999_937, u64::MAX]),
    ]
}

impl Case {
    /// Whether a bucket that owes all it can fills again, under the slowest of its limits, before the
    /// horizon of the library and in few enough refills to play them one by one.
    fn refills_in_time(&self) -> bool {
        const MAX_FILL_NS: u128 = 1 << 60;
        const MAX_REFILLS: u128 = 4_000;
        let period_ns = u128::from(self.every.nanos());
        let most_owed = self.limits.iter().map(|limit| 2 * u128::from(limit.capacity())).max().unwrap_or(0);
        self.limits.iter().all(|limit| {
            let fill_ns = most_owed * period_ns / u128::from(limit.rate().count().max(1));
            match limit.shape() {
                Shape::TokenBucket { refill: Refill::Calendar, .. } if limit.capacity() > 0 => {
                    let refills = most_owed / u128::from(limit.capacity());
                    refills <= MAX_REFILLS && refills * period_ns <= MAX_FILL_NS
                }
                Shape::TokenBucket { refill: Refill::Tick(tick), .. } => {
                    fill_ns / tick.as_nanos() <= MAX_REFILLS && fill_ns <= MAX_FILL_NS
                }
                Shape::Gcra { .. } | Shape::TokenBucket { .. } | Shape::LeakyBucket { .. } => {
                    fill_ns <= MAX_FILL_NS
                }
                _ => true,
            }
        })
    }
}
