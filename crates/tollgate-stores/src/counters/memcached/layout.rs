//! How a limit is stored on memcached, and which limits cannot be.

use thiserror::Error;
use tollgate::internal::limit::{Limit, Shape, WindowStart};
use tollgate::internal::store::DeniedHits;
use tollgate::internal::time::Period;

use super::windows::WindowKind;
use crate::counters::state;

/// Below the server's default limit of 1 MiB, with room for its item header.
const MAX_STATE_BYTES: u64 = 1_000_000;
/// Buckets that one decision may read.
const MAX_BUCKETS_READ: u64 = 1024;
/// Sums of many such counts fit 64 bits.
const MAX_COUNT: u64 = 1 << 53;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CounterLayout {
    Window(WindowKind),
    Tiers,
    Value,
}

impl CounterLayout {
    pub(super) fn of(limit: &Limit) -> CounterLayout {
        match limit.shape() {
            Shape::FixedWindow { start: WindowStart::Aligned } => CounterLayout::Window(WindowKind::Fixed),
            Shape::SlidingCounter => CounterLayout::Window(WindowKind::Sliding),
            Shape::TieredWindow { .. } => CounterLayout::Tiers,
            _ => CounterLayout::Value,
        }
    }
}

/// Why memcached cannot represent a limit exactly.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum UnsupportedMemcachedLimit {
    #[error("{limit} is too large for memcached: at most 2^53 in a window")]
    CountTooLarge { limit: Limit },
    #[error(
        "a tiered window on memcached cannot count denied hits, because its oldest seconds would have to be found and removed: use count_denied: false, or another algorithm"
    )]
    CountDenied,
    #[error(
        "a tiered window of {period} with these levels reads {buckets} buckets for each decision, and at most 1024 are read at once: add a coarser level"
    )]
    TooManyBuckets { period: Period, buckets: u64 },
    #[error(
        "a {algorithm} of {limit} needs up to {bytes} bytes a key, and a value on memcached has 1000000: use \
         sliding-counter, or a coarser resolution"
    )]
    StateTooLarge { algorithm: &'static str, limit: Limit, bytes: u64 },
}

/// Whether memcached can represent a limit exactly; if not, why.
pub fn check_limit(limit: &Limit, denied: DeniedHits) -> Result<(), UnsupportedMemcachedLimit> {
    let method = CounterLayout::of(limit);
    if method != CounterLayout::Value && limit.rate().count() > MAX_COUNT {
        return Err(UnsupportedMemcachedLimit::CountTooLarge { limit: *limit });
    }
    let period = limit.rate().period();
    let buckets = buckets_read(limit);
    let algorithm = limit.shape().name();
    let bytes = state::max_bytes(limit);
    match method {
        CounterLayout::Tiers if denied == DeniedHits::Counted => Err(UnsupportedMemcachedLimit::CountDenied),
        CounterLayout::Tiers if buckets > MAX_BUCKETS_READ => {
            Err(UnsupportedMemcachedLimit::TooManyBuckets { period, buckets })
        }
        CounterLayout::Value if bytes > MAX_STATE_BYTES => {
            Err(UnsupportedMemcachedLimit::StateTooLarge { algorithm, limit: *limit, bytes })
        }
        _ => Ok(()),
    }
}

/// The maximum number of buckets that one decision reads.
fn buckets_read(limit: &Limit) -> u64 {
    let Shape::TieredWindow { levels } = limit.shape() else { return 0 };
    let units = levels.units();
    let window = limit.rate().period().secs();
    let edges = units.windows(2).map(|pair| 2 * (pair[1].secs() / pair[0].secs()));
    let coarsest = units.last().map_or(1, |unit| unit.secs());
    (edges.sum::<u64>() + window / coarsest).min(window / levels.finest().secs())
}

#[cfg(test)]
mod tests {
    use tollgate::internal::limit::Levels;
    use tollgate::internal::time::Unit;

    use super::*;

    fn error_of(rate: &str, shape: Shape, denied: DeniedHits) -> Option<String> {
        let limit = Limit::new(rate.parse().expect("a rate"), shape).expect("a valid limit");
        check_limit(&limit, denied).err().map(|refused| refused.to_string())
    }

    #[test]
    fn what_cannot_be_kept_is_refused_with_the_reason() {
        let seconds = Levels::new(&[Unit::Second]).expect("valid");
        let tiers = |levels| Shape::TieredWindow { levels };
        for (rate, shape, denied, says) in [
            ("1_000_000/h", Shape::SlidingLog, DeniedHits::Free, "bytes a key"),
            ("100/d", tiers(seconds), DeniedHits::Free, "reads 86400 buckets"),
            ("100/d", tiers(Levels::SMH), DeniedHits::Counted, "count_denied: false"),
            ("10_000_000_000_000_000/y", Shape::SlidingCounter, DeniedHits::Free, "2^53"),
        ] {
            let error = error_of(rate, shape, denied).unwrap_or_else(|| panic!("{rate} {shape:?} is taken"));
            assert!(error.contains(says), "{error}");
        }
        for (rate, shape, denied) in [
            ("50_000/h", Shape::SlidingLog, DeniedHits::Counted),
            ("1_000_000/d", tiers(Levels::SMH), DeniedHits::Free),
            ("60_000_000/m", Shape::SlidingCounter, DeniedHits::Counted),
            ("5/m", Shape::GCRA, DeniedHits::Counted),
        ] {
            assert_eq!(error_of(rate, shape, denied), None);
        }
    }
}
