//! A limit: a rate, and the algorithm that enforces it.
//!
//! A [`Limit`] is validated at construction; the algorithms trust it afterwards. It does not know how anything is
//! counted.

use std::fmt;
use std::time::Duration;

use thiserror::Error;

use crate::time::{Period, Time, Unit, format_duration, nanos_of};

mod rate;

pub use rate::{Rate, RateError};

/// The algorithm of a limit, with its options.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    Gcra {
        burst: Option<u64>,
    },
    TokenBucket {
        burst: Option<u64>,
        refill: Refill,
    },
    LeakyBucket {
        burst: Option<u64>,
        release: Release,
    },
    FixedWindow {
        start: WindowStart,
    },
    SlidingLog,
    SlidingCompact {
        resolution: Duration,
    },
    SlidingCounter,
    TieredWindow {
        levels: Levels,
    },
    /// A number of permits at once, each for at most a period.
    Concurrency,
    /// GCRA whose state does not depend on the rate: a caller may bring another rate with each hit. Not for rules.
    Cell {
        burst: u64,
    },
}

impl Shape {
    /// The default of every rule.
    pub const GCRA: Shape = Shape::Gcra { burst: None };

    pub const fn name(&self) -> &'static str {
        match self {
            Shape::Gcra { .. } => "gcra",
            Shape::TokenBucket { .. } => "token-bucket",
            Shape::LeakyBucket { .. } => "leaky-bucket",
            Shape::FixedWindow { .. } => "fixed-window",
            Shape::SlidingLog => "sliding-log",
            Shape::SlidingCompact { .. } => "sliding-compact",
            Shape::SlidingCounter => "sliding-counter",
            Shape::TieredWindow { .. } => "tiered-window",
            Shape::Concurrency => "concurrency",
            Shape::Cell { .. } => "cell",
        }
    }

    const fn burst(&self) -> Option<u64> {
        match self {
            Shape::Gcra { burst } | Shape::TokenBucket { burst, .. } | Shape::LeakyBucket { burst, .. } => {
                *burst
            }
            Shape::Cell { burst } => Some(*burst),
            _ => None,
        }
    }
}

/// When a token bucket is refilled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Refill {
    Continuous,
    /// Each tick of the clock adds its share.
    Tick(Duration),
    /// The whole bucket, at the start of each calendar period (UTC).
    Calendar,
}

/// How a leaky bucket releases a request that has to wait for its turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Release {
    /// It is held until no more than `after` requests are ahead of it (nginx's `delay`), and denied if that takes
    /// longer than `max_wait`, by default the time in which a full queue drains.
    Hold { max_wait: Option<Duration>, after: u64 },
    /// It is admitted at once if the queue has room for it (nginx's `nodelay`).
    AtOnce,
}

impl Release {
    /// The default of every leaky bucket: every request that finds room in the queue is held until its turn.
    pub const HOLD: Release = Release::Hold { max_wait: None, after: 0 };

    fn share(self, part: impl Fn(u64) -> u64) -> Release {
        match self {
            Release::Hold { max_wait, after } => Release::Hold { max_wait, after: part(after) },
            Release::AtOnce => Release::AtOnce,
        }
    }
}

/// Where a fixed window begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WindowStart {
    /// On the clock and the calendar (UTC).
    Aligned,
    /// With the key's first request.
    FirstHit,
}

/// The bucket sizes of a tiered window, finest first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Levels {
    units: [Unit; Self::MAX],
    len: u8,
}

impl Levels {
    pub(crate) const MAX: usize = 4;
    /// Seconds, minutes and hours.
    pub const SMH: Levels = Levels { units: [Unit::Second, Unit::Minute, Unit::Hour, Unit::Hour], len: 3 };

    /// Takes seconds, minutes, hours and days, finest first, each at most once.
    pub fn new(units: &[Unit]) -> Result<Levels, LimitError> {
        let fits = !units.is_empty()
            && units.iter().all(|unit| *unit <= Unit::Day)
            && units.windows(2).all(|pair| pair[0] < pair[1]);
        if !fits {
            return Err(LimitError::Levels);
        }
        let mut levels = Levels { units: [Unit::Second; Self::MAX], len: units.len() as u8 };
        levels.units[..units.len()].copy_from_slice(units);
        Ok(levels)
    }

    pub fn units(&self) -> &[Unit] {
        &self.units[..usize::from(self.len)]
    }

    /// As they are written: `s`, `m`, `h`, `d`.
    pub fn names(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.units().iter().map(|unit| unit.symbol())
    }

    pub fn finest(&self) -> Unit {
        self.units[0]
    }
}

/// A rate with its shape: valid, and small enough to copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Limit {
    rate: Rate,
    shape: Shape,
}

impl Limit {
    pub fn new(rate: Rate, shape: Shape) -> Result<Limit, LimitError> {
        let limit = Limit { rate, shape };
        limit.validate()?;
        Ok(limit)
    }

    /// The usual limit: GCRA, with the rate's number as its burst.
    pub fn per(rate: Rate) -> Limit {
        Limit { rate, shape: Shape::GCRA }
    }

    /// The share of one of `nodes` nodes, rounded so that all shares together are not below the limit.
    pub fn node_share(&self, nodes: u64) -> Limit {
        use Shape::*;
        let part = |number: u64| number.div_ceil(nodes.max(1));
        let rate = self.rate.with_count(part(self.rate.count()));
        let shape = match self.shape {
            Gcra { burst } => Gcra { burst: burst.map(part) },
            TokenBucket { burst, refill } => TokenBucket { burst: burst.map(part), refill },
            LeakyBucket { burst, release } => {
                LeakyBucket { burst: burst.map(part), release: release.share(part) }
            }
            Cell { burst } => Cell { burst: part(burst) },
            other => other,
        };
        let share = Limit { rate, shape };
        if share.validate().is_ok() { share } else { *self }
    }

    pub const fn rate(&self) -> Rate {
        self.rate
    }

    pub const fn shape(&self) -> Shape {
        self.shape
    }

    /// The largest cost that can be admitted at once; a larger one never is.
    pub fn capacity(&self) -> u64 {
        match self.rate.count() {
            0 => 0,
            count => self.shape.burst().unwrap_or(count),
        }
    }

    /// Whether `other` counts the same thing with another number, so that the state of its keys can be carried over.
    pub fn counts_like(&self, other: &Limit) -> bool {
        use Shape::*;
        if let (Cell { .. }, Cell { .. }) = (self.shape, other.shape) {
            return true;
        }
        let same_shape = match (self.shape, other.shape) {
            (Gcra { .. }, Gcra { .. }) | (LeakyBucket { .. }, LeakyBucket { .. }) => true,
            (TokenBucket { refill: a, .. }, TokenBucket { refill: b, .. }) => a == b,
            (a, b) => a == b,
        };
        same_shape && self.rate.period() == other.rate.period()
    }

    /// Distinguishes its counters from those of a rule's other limits. Windows count hits whatever the number that
    /// limits them; a bucket's state is meaningful only with its rate and burst.
    pub fn counter_label(&self) -> String {
        let name = self.shape.name();
        let rate = self.rate;
        let period = self.rate.period();
        let burst = self.capacity();
        match self.shape {
            Shape::Gcra { .. } | Shape::LeakyBucket { .. } => format!("{name} {rate} {burst}"),
            Shape::TokenBucket { refill: Refill::Continuous, .. } => format!("{name} {rate} {burst}"),
            Shape::TokenBucket { refill: Refill::Calendar, .. } => format!("{name} calendar {rate} {burst}"),
            Shape::TokenBucket { refill: Refill::Tick(tick), .. } => {
                format!("{name} {} {rate} {burst}", format_duration(tick))
            }
            Shape::FixedWindow { start: WindowStart::Aligned } => format!("{name} {period}"),
            Shape::FixedWindow { start: WindowStart::FirstHit } => format!("{name} first-hit {period}"),
            Shape::SlidingLog | Shape::SlidingCounter | Shape::Concurrency => format!("{name} {period}"),
            Shape::Cell { .. } => name.to_owned(),
            Shape::SlidingCompact { resolution } => {
                format!("{name} {} {period}", format_duration(resolution))
            }
            Shape::TieredWindow { levels } => {
                let levels: Vec<_> = levels.names().collect();
                format!("{name} {} {period}", levels.join(","))
            }
        }
    }

    /// A state that was not touched for this long is equivalent to a fresh one.
    pub fn max_state_lifetime(&self) -> Duration {
        let period = Duration::from_secs(self.rate.period().secs());
        match self.shape {
            Shape::Gcra { .. }
            | Shape::TokenBucket { .. }
            | Shape::LeakyBucket { .. }
            | Shape::Cell { .. } => {
                let periods = self.capacity().div_ceil(self.rate.count().max(1)) + 1;
                period.saturating_mul(u32::try_from(periods).unwrap_or(u32::MAX))
            }
            // A calendar month is longer than its 30 days, and a counter looks one window back.
            _ => period * 2,
        }
    }

    fn validate(&self) -> Result<(), LimitError> {
        match self.shape {
            Shape::TokenBucket { refill: Refill::Tick(tick), .. } => {
                self.validate_tick(tick)?;
                self.validate_bucket()
            }
            Shape::LeakyBucket { release: Release::Hold { after, .. }, .. } if after > Self::MAX_BURST => {
                Err(LimitError::HoldAfter { after })
            }
            Shape::Gcra { .. }
            | Shape::TokenBucket { .. }
            | Shape::LeakyBucket { .. }
            | Shape::Cell { .. } => self.validate_bucket(),
            Shape::SlidingCompact { resolution } => self.validate_step(resolution),
            Shape::TieredWindow { levels } => self.validate_step(Duration::from_secs(levels.finest().secs())),
            Shape::FixedWindow { .. } | Shape::SlidingLog | Shape::SlidingCounter | Shape::Concurrency => {
                Ok(())
            }
        }
    }

    fn validate_bucket(&self) -> Result<(), LimitError> {
        let count = self.rate.count();
        let burst = self.capacity();
        if count > 0 && burst == 0 {
            return Err(LimitError::ZeroBurst);
        }
        let refill_ns = u128::from(burst) * u128::from(self.rate.period().nanos());
        if burst > Self::MAX_BURST || refill_ns > u128::from(count.max(1)) * u128::from(Self::MAX_REFILL_NS) {
            return Err(LimitError::Burst { burst, rate: self.rate });
        }
        Ok(())
    }

    fn validate_tick(&self, tick: Duration) -> Result<(), LimitError> {
        if tick.is_zero() {
            return Err(LimitError::ZeroTick);
        }
        if tick.as_secs() > Period::MAX_SECONDS {
            return Err(LimitError::TickTooLong);
        }
        let (share, token) = self.rate.tokens_per_tick(tick);
        let ticks = u128::from(Self::HORIZON.nanos() / nanos_of(tick));
        let largest = (ticks * share).max(u128::from(self.capacity()) * token);
        if largest > u128::from(Self::MAX_UNITS) {
            return Err(LimitError::Tick { tick, rate: self.rate });
        }
        Ok(())
    }

    fn validate_step(&self, step: Duration) -> Result<(), LimitError> {
        let window = Duration::from_secs(self.rate.period().secs());
        match nanos_of(step) {
            0 => Err(LimitError::ZeroResolution),
            step_ns if nanos_of(window).is_multiple_of(step_ns) => Ok(()),
            _ => Err(LimitError::Resolution { step, window }),
        }
    }

    /// An empty bucket is full again within this time: 36 years.
    const MAX_REFILL_NS: u64 = 1 << 60;
    /// Timestamps and durations of a bucket, in its own units, stay below this, so that sums fit 64 bits.
    pub(crate) const MAX_UNITS: u64 = 1 << 62;
    pub(crate) const MAX_BURST: u64 = 1_000_000_000;
    /// States are exact up to here (2106); later times are clamped to it.
    pub const HORIZON: Time = Time::from_secs(u32::MAX as u64);
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate.fmt(f)
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum LimitError {
    #[error("burst is 0: nothing would ever pass; write the rate 0/m to deny everything")]
    ZeroBurst,
    #[error(
        "burst {burst} is too large for {rate}: at most 1000000000, and an empty bucket must fill within 36 years"
    )]
    Burst { burst: u64, rate: Rate },
    #[error("hold_after {after} is too large: at most 1000000000")]
    HoldAfter { after: u64 },
    #[error("tick is 0: write a duration such as 1s")]
    ZeroTick,
    #[error("tick is longer than a hundred years")]
    TickTooLong,
    #[error("tick {} is too fine for {rate}: write a longer one, or refill: continuous", format_duration(*tick))]
    Tick { tick: Duration, rate: Rate },
    #[error("resolution is 0: write a duration such as 1s")]
    ZeroResolution,
    #[error("a window of {} is not a whole number of steps of {}", format_duration(*window), format_duration(*step))]
    Resolution { step: Duration, window: Duration },
    #[error("levels must be some of s, m, h, d, each once, finest first")]
    Levels,
}
