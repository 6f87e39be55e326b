//! The definition of each algorithm as a bound on the charges of one key. Shares no arithmetic with the code that
//! decides; only the calendar is the library's.

use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::limit::{Refill, Shape, WindowStart};

/// A charge of a key: when, how much, and which line of the logs states it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LedgerEntry {
    pub at_ns: u64,
    pub cost: u64,
    pub line: u64,
}

/// A charge after which the limit was exceeded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Excess {
    pub entry: LedgerEntry,
    pub why: String,
}

/// Time is counted in units of at most two nanoseconds, and rounded down to them.
const BUCKET_ROUNDING_NS: u128 = 2;

/// Whether charges can be checked without knowing what was given back.
pub fn is_verifiable(limit: &Limit) -> bool {
    !matches!(limit.shape(), Shape::Concurrency | Shape::Cell { .. })
}

/// The first charge of a key that exceeds its limit; charges are sorted by time.
pub fn first_excess(limit: &Limit, entries: &[LedgerEntry]) -> Option<Excess> {
    let count = u128::from(limit.rate().count());
    let period = u128::from(limit.rate().period().nanos());
    let window_start = |at: u64| at / limit.rate().period().nanos();
    let index = |at: u64| limit.rate().period().index_at(Time::from_nanos(at));
    match limit.shape() {
        Shape::Gcra { .. } | Shape::LeakyBucket { .. } => continuous_bucket(limit, entries),
        Shape::TokenBucket { refill, .. } => match refill {
            Refill::Continuous => continuous_bucket(limit, entries),
            Refill::Tick(tick) => {
                let tick = tick.as_nanos();
                let ticks = |at: u64| u128::from(at) / tick * tick;
                bucket(entries, limit.capacity(), period, 0, |from, to| (ticks(to) - ticks(from)) * count)
            }
            Refill::Calendar => bucket(entries, limit.capacity(), 1, 0, |from, to| {
                u128::from(index(to) - index(from)) * u128::from(limit.capacity())
            }),
        },
        Shape::FixedWindow { start: WindowStart::Aligned } => windows(entries, limit, index),
        Shape::FixedWindow { start: WindowStart::FirstHit } => first_hit_windows(entries, limit),
        Shape::SlidingLog => steps(entries, limit, 1),
        Shape::SlidingCompact { resolution } => steps(entries, limit, nanos(resolution)),
        Shape::TieredWindow { levels } => steps(entries, limit, levels.finest().secs() * 1_000_000_000),
        Shape::SlidingCounter => sliding_counter(entries, limit, window_start),
        Shape::Concurrency | Shape::Cell { .. } => None,
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// In every interval t at most burst + rate × t.
fn continuous_bucket(limit: &Limit, entries: &[LedgerEntry]) -> Option<Excess> {
    let count = u128::from(limit.rate().count());
    let period = u128::from(limit.rate().period().nanos());
    let refilled = |from: u64, to: u64| u128::from(to - from) * count;
    bucket(entries, limit.capacity(), period, BUCKET_ROUNDING_NS * count, refilled)
}

/// `refilled` tells how much comes back between two times, in units of which a token has `token`. The debt is at its
/// greatest over all intervals that end at a charge, so one pass checks all intervals.
fn bucket(
    entries: &[LedgerEntry],
    burst: u64,
    token: u128,
    rounding: u128,
    refilled: impl Fn(u64, u64) -> u128,
) -> Option<Excess> {
    let mut debt = 0_u128;
    let mut last = entries.first()?.at_ns;
    for entry in entries {
        debt = debt.saturating_sub(refilled(last, entry.at_ns)) + u128::from(entry.cost) * token;
        last = entry.at_ns;
        if debt > u128::from(burst) * token + rounding {
            let over = debt.div_ceil(token);
            let why = format!("the bucket holds {burst}, and {over} would have to be in it");
            return Some(Excess { entry: *entry, why });
        }
    }
    None
}

/// At most the limit in each window of the clock or the calendar.
fn windows(entries: &[LedgerEntry], limit: &Limit, index: impl Fn(u64) -> u64) -> Option<Excess> {
    let mut current = None;
    let mut sum = 0_u64;
    for entry in entries {
        if current != Some(index(entry.at_ns)) {
            current = Some(index(entry.at_ns));
            sum = 0;
        }
        sum = sum.saturating_add(entry.cost);
        if sum > limit.rate().count() {
            return Some(Excess { entry: *entry, why: format!("{sum} were admitted in one window") });
        }
    }
    None
}

/// A window begins with the first request after the end of the one before it.
fn first_hit_windows(entries: &[LedgerEntry], limit: &Limit) -> Option<Excess> {
    let period = limit.rate().period().nanos();
    let mut start = None;
    let mut sum = 0_u64;
    for entry in entries {
        if start.is_none_or(|start: u64| entry.at_ns - start >= period) {
            start = Some(entry.at_ns);
            sum = 0;
        }
        sum = sum.saturating_add(entry.cost);
        if sum > limit.rate().count() {
            return Some(Excess { entry: *entry, why: format!("{sum} were admitted in one window") });
        }
    }
    None
}

/// At most the limit in every window from one whole step to another.
fn steps(entries: &[LedgerEntry], limit: &Limit, step: u64) -> Option<Excess> {
    let window = limit.rate().period().nanos() / step;
    let mut sum = 0_u64;
    let mut first = 0;
    for entry in entries {
        sum = sum.saturating_add(entry.cost);
        while entry.at_ns / step - entries[first].at_ns / step >= window {
            sum -= entries[first].cost;
            first += 1;
        }
        if sum > limit.rate().count() {
            let why = format!("{sum} were admitted in the period before it");
            return Some(Excess { entry: *entry, why });
        }
    }
    None
}

/// previous × rest + current × window ≤ limit × window at each admission.
fn sliding_counter(entries: &[LedgerEntry], limit: &Limit, window: impl Fn(u64) -> u64) -> Option<Excess> {
    let period = limit.rate().period().nanos();
    let mut index = window(entries.first()?.at_ns);
    let mut current = 0_u128;
    let mut previous = 0_u128;
    for entry in entries {
        let passed = window(entry.at_ns) - index;
        if passed > 0 {
            previous = if passed == 1 { current } else { 0 };
            current = 0;
            index += passed;
        }
        current += u128::from(entry.cost);
        let rest = u128::from(period - entry.at_ns % period);
        let weighted = previous * rest + current * u128::from(period);
        if weighted > u128::from(limit.rate().count()) * u128::from(period) {
            let why = format!("{current} in this window and {previous} in the one before it weigh too much");
            return Some(Excess { entry: *entry, why });
        }
    }
    None
}

#[cfg(test)]
mod tests;
