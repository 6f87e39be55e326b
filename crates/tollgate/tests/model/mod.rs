//! Reference models: each algorithm again, slow and written from its definition.
//!
//! A model knows the limit and what happened; it shares no arithmetic with the library. `left` is the
//! definition. When something passes is not computed but searched for: the first timestamp at which it
//! fits, which bisection finds because what is left never shrinks while nothing is charged.

use std::time::Duration;

use tollgate::internal::algorithm::{Admission, Decision};
use tollgate::internal::limit::{Limit, Shape};

mod bucket;
mod calendar;
mod counter;
mod fixed;
mod leaky;
mod steps;

pub use bucket::Bucket;
pub use calendar::{Calendar, Every};
pub use counter::Counter;
pub use fixed::Fixed;
pub use leaky::Leaky;
pub use steps::Steps;

pub trait Model {
    fn capacity(&self) -> u64;

    /// What could pass at `now`.
    fn left(&self, now: u64) -> u64;

    /// What counts against the limit at `now`, rounded up.
    fn used(&self, now: u64) -> u64;

    /// Whether a hit that enters at `now` has its turn soon enough.
    fn in_time(&self, _now: u64) -> bool {
        true
    }

    /// How long a hit that enters at `now` is held.
    fn delay(&self, _now: u64) -> Duration {
        Duration::ZERO
    }

    /// Takes `cost`, as hit number `id`.
    fn charge(&mut self, id: usize, now: u64, cost: u64);

    /// Counts a denied hit.
    fn drain(&mut self, now: u64, cost: u64);

    fn owe(&mut self, now: u64, cost: u64);

    /// Gives back `amount` of hit number `id`.
    fn refund(&mut self, id: usize, amount: u64, now: u64);

    fn adopt(&mut self, limit: &Limit, now: u64);

    fn answer(&self, now: u64, cost: u64) -> Decision {
        let passes = |at| cost <= self.left(at) && self.in_time(at);
        let admission = if cost > self.capacity() {
            Admission::Never
        } else if passes(now) {
            Admission::Allow { delay: self.delay(now) }
        } else {
            Admission::Deny { retry_after: Duration::from_nanos(first(now, passes) - now) }
        };
        Decision::new(admission, self.left(now))
    }
}

/// The model of a limit whose period is `every`.
pub fn of(limit: &Limit, every: Every) -> Box<dyn Model> {
    match limit.shape() {
        Shape::Gcra { .. } | Shape::TokenBucket { .. } => Box::new(Bucket::new(limit, every)),
        Shape::LeakyBucket { .. } => Box::new(Leaky::new(limit, every)),
        Shape::FixedWindow { start } => Box::new(Fixed::new(limit, every, start)),
        Shape::SlidingLog
        | Shape::SlidingCompact { .. }
        | Shape::TieredWindow { .. }
        | Shape::Concurrency => Box::new(Steps::new(limit, every)),
        Shape::SlidingCounter => Box::new(Counter::new(limit, every)),
        Shape::Cell { .. } => unreachable!("no rule has this shape"),
    }
}

/// The first timestamp from `now` on at which `passes` holds; from then on it always does.
fn first(now: u64, passes: impl Fn(u64) -> bool) -> u64 {
    if passes(now) {
        return now;
    }
    let mut fails = now;
    let mut reach = 1u64;
    while !passes(now.saturating_add(reach)) {
        assert!(reach < u64::MAX, "what fits the capacity passes some day");
        fails = now.saturating_add(reach);
        reach = reach.saturating_mul(2);
    }
    let mut holds = now.saturating_add(reach);
    while holds - fails > 1 {
        let middle = fails + (holds - fails) / 2;
        if passes(middle) { holds = middle } else { fails = middle }
    }
    holds
}
