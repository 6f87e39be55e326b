//! Encoding of a counter's state as one value, for stores that replace values as a whole.
//!
//! A version byte, then varints; steps are delta-encoded. The state of a bucket has a meaning only with its rate and
//! burst, so these are stored with it: a reader with another limit converts the state (I6). The algorithm and the
//! window are given by the counter's name.

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::fixed_window::FixedWindowState;
use tollgate::internal::algorithm::sliding_compact::StepCounts;
use tollgate::internal::algorithm::sliding_counter::SlidingCounterState;
use tollgate::internal::algorithm::{Algorithm as _, Quota, QuotaState, concurrency, sliding_log};
use tollgate::internal::limit::{Rate, Shape};

use super::varint::{MAX_VARINT_BYTES, pop_varint, push_varints};

/// Values of another version are rejected: overwriting one would lose counts of a newer release.
const VERSION: u8 = 1;
/// Upper bound of a bucket's `full_at`.
const MAX_FULL_AT: u64 = 1 << 63;

/// Encodes the state under `limit` at `now`. A bucket can owe more than its limit allows after a conversion from a
/// larger limit. It is then written with a burst that allows it, so that `clamp` does not take it for a state from the
/// future.
pub fn encode(limit: &Limit, state: &QuotaState, now: Time) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    match state {
        QuotaState::Timestamp(at) => {
            let count = limit.rate().count();
            let capacity = limit.capacity();
            let burst = Quota::new(limit).used(state, now).div_ceil(2);
            let larger = burst > capacity && count > 0 && with_rate_and_burst(limit, count, burst).is_some();
            push_varints(&mut bytes, [count, if larger { burst } else { capacity }, *at]);
        }
        QuotaState::Window(FixedWindowState { id: name, count }) => push_varints(&mut bytes, [*name, *count]),
        QuotaState::Counts(counts) => {
            push_varints(&mut bytes, [counts.window, counts.current, counts.previous])
        }
        QuotaState::Log(log) => push_steps(&mut bytes, log),
        QuotaState::Steps(steps) | QuotaState::Tiers(steps) => push_steps(&mut bytes, steps),
    }
    bytes
}

/// Decodes the state of a counter of `limit`, and the limit that it was written under; `None` if the bytes are not
/// valid.
pub fn decode(limit: &Limit, bytes: &[u8]) -> Option<(Limit, QuotaState)> {
    let (&version, mut rest) = bytes.split_first()?;
    if version != VERSION {
        return None;
    }
    let mut number = || pop_varint(&mut rest);
    let decoded = match Quota::new(limit).fresh() {
        QuotaState::Timestamp(_) if matches!(limit.shape(), Shape::Cell { .. }) => {
            number()?; // the rate and burst that it was written under do not matter
            number()?;
            (*limit, QuotaState::Timestamp(number().filter(|at| *at <= MAX_FULL_AT)?))
        }
        QuotaState::Timestamp(_) => {
            let under = with_rate_and_burst(limit, number()?, number()?)?;
            (under, QuotaState::Timestamp(number().filter(|at| *at <= MAX_FULL_AT)?))
        }
        QuotaState::Window(_) => (
            *limit,
            QuotaState::Window(FixedWindowState { id: bounded(number()?)?, count: bounded(number()?)? }),
        ),
        QuotaState::Counts(_) => {
            let window = number()?;
            window.checked_add(2)?.checked_mul(limit.rate().period().nanos())?;
            let counts =
                SlidingCounterState { window, current: bounded(number()?)?, previous: bounded(number()?)? };
            (*limit, QuotaState::Counts(counts))
        }
        QuotaState::Log(_) => (*limit, QuotaState::Log(pop_steps(&mut rest)?.into_iter().collect())),
        QuotaState::Steps(_) => (*limit, QuotaState::Steps(pop_steps(&mut rest)?.into_iter().collect())),
        QuotaState::Tiers(_) => (*limit, QuotaState::Tiers(pop_steps(&mut rest)?.into_iter().collect())),
    };
    rest.is_empty().then_some(decoded)
}

/// Whether a state of one limit is valid under the other without conversion.
pub fn interchangeable(one: &Limit, other: &Limit) -> bool {
    let is_cell = |limit: &Limit| matches!(limit.shape(), Shape::Cell { .. });
    is_cell(one) && is_cell(other) || one.rate() == other.rate() && one.capacity() == other.capacity()
}

/// Upper bound of the encoded size of a state of `limit`.
pub fn max_bytes(limit: &Limit) -> u64 {
    let period_ns = limit.rate().period().nanos();
    let count = limit.rate().count();
    let step_ns = match limit.shape() {
        Shape::Concurrency => concurrency::STEP_NS,
        Shape::SlidingLog => sliding_log::STEP_NS,
        Shape::SlidingCompact { resolution } => u64::try_from(resolution.as_nanos()).unwrap_or(u64::MAX),
        Shape::TieredWindow { levels } => Time::from_secs(levels.finest().secs()).nanos(),
        _ => return 1 + 3 * MAX_VARINT_BYTES,
    };
    // With debt, a window counts up to twice its limit. The length of a varint grows with its logarithm, so equal
    // pairs take the most bytes.
    let steps = period_ns / step_ns;
    let hits = count.saturating_mul(2);
    let pairs = hits.min(steps).max(1) as f64;
    let number_bytes = |sum: u64| 1.0 + (sum.max(1) as f64 / pairs).log(128.0).max(0.0);
    1 + 2 * MAX_VARINT_BYTES + (pairs * (number_bytes(steps) + number_bytes(hits))).ceil() as u64
}

/// A number small enough that adding costs cannot overflow.
fn bounded(number: u64) -> Option<u64> {
    (number < 1 << 62).then_some(number)
}

/// `limit` with another rate and burst; `None` if such a limit is not valid.
fn with_rate_and_burst(limit: &Limit, count: u64, burst: u64) -> Option<Limit> {
    let burst = (count > 0).then_some(burst);
    let shape = match limit.shape() {
        Shape::Gcra { .. } => Shape::Gcra { burst },
        Shape::TokenBucket { refill, .. } => Shape::TokenBucket { burst, refill },
        Shape::LeakyBucket { release, .. } => Shape::LeakyBucket { burst, release },
        Shape::Cell { .. } => Shape::Cell { burst: burst.unwrap_or(0) },
        other => other,
    };
    Limit::new(Rate::new(count, limit.rate().period()).ok()?, shape).ok()
}

fn push_steps(bytes: &mut Vec<u8>, steps: &impl StepCounts) {
    let mut last = 0;
    for (step, count) in steps.pairs() {
        push_varints(bytes, [step - last, count]);
        last = step;
    }
}

fn pop_steps(rest: &mut &[u8]) -> Option<Vec<(u64, u64)>> {
    let mut pairs = Vec::new();
    let mut last = 0u64;
    let mut sum = 0u64;
    while !rest.is_empty() {
        let distance = pop_varint(rest)?;
        let count = pop_varint(rest)?;
        last = last.checked_add(distance)?;
        sum = bounded(sum.checked_add(count)?)?;
        pairs.push((last, count));
    }
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Time = Time::from_secs(1_800_000_000);

    fn limit(rate: &str, shape: Shape) -> Limit {
        Limit::new(rate.parse().expect("a valid rate"), shape).expect("a valid limit")
    }

    fn shapes() -> Vec<Shape> {
        use tollgate::internal::limit::{Levels, Refill, Release, WindowStart};
        vec![
            Shape::GCRA,
            Shape::TokenBucket { burst: Some(7), refill: Refill::Tick(Duration::from_secs(1)) },
            Shape::LeakyBucket { burst: Some(3), release: Release::AtOnce },
            Shape::FixedWindow { start: WindowStart::FirstHit },
            Shape::SlidingLog,
            Shape::SlidingCompact { resolution: Duration::from_secs(1) },
            Shape::SlidingCounter,
            Shape::TieredWindow { levels: Levels::SMH },
        ]
    }

    #[test]
    fn what_was_written_is_read_again() {
        for shape in shapes() {
            let limit = limit("60/h", shape);
            let quota = Quota::new(&limit);
            let mut state = quota.fresh();
            for n in 0..100 {
                let now = NOW + Duration::from_millis(n * 61_234);
                if quota.decide(&state, now, 1).is_allowed() {
                    quota.charge(&mut state, now, 1);
                }
                let (under, read) = decode(&limit, &encode(&limit, &state, now)).expect("our own bytes");
                assert!(interchangeable(&under, &limit));
                assert_eq!(quota.decide(&read, now, 2), quota.decide(&state, now, 2), "{shape:?}");
                assert_eq!(quota.expires_at(&read), quota.expires_at(&state), "{shape:?}");
                assert_eq!(quota.used(&read, now), quota.used(&state, now), "{shape:?}");
                state = read;
            }
        }
    }

    #[test]
    fn a_bucket_says_what_it_was_written_under() {
        let five = limit("5/m", Shape::GCRA);
        let fifty = limit("50/m", Shape::Gcra { burst: Some(9) });
        let quota = Quota::new(&five);
        let mut state = quota.fresh();
        quota.charge(&mut state, NOW, 5);
        let (under, read) = decode(&fifty, &encode(&five, &state, NOW)).expect("our own bytes");
        assert!(interchangeable(&under, &five) && !interchangeable(&under, &fifty));
        let adopted = Quota::new(&fifty).adopt(&Quota::new(&under), read, NOW);
        assert_eq!(Quota::new(&fifty).used(&adopted, NOW), 5);
        let closed = limit("0/m", Shape::GCRA);
        let (under, _) = decode(&five, &encode(&closed, &quota.fresh(), NOW)).expect("our own bytes");
        assert!(interchangeable(&under, &closed));
    }

    #[test]
    fn a_state_is_never_larger_than_its_bound() {
        let shapes = [
            Shape::SlidingLog,
            Shape::SlidingCompact { resolution: Duration::from_millis(250) },
            Shape::TieredWindow { levels: tollgate::internal::limit::Levels::SMH },
        ];
        for (shape, rate) in
            shapes.iter().flat_map(|shape| ["3/m", "1000/h", "50000/m"].map(|rate| (*shape, rate)))
        {
            let limit = limit(rate, shape);
            let quota = Quota::new(&limit);
            let count = limit.rate().count();
            let mut state = quota.fresh();
            for n in 0..2 * count {
                // Uneven on purpose.
                let at = NOW.nanos() + limit.rate().period().nanos() / (2 * count) * n + n * n % 977;
                quota.charge(&mut state, Time::from_nanos(at), 1);
            }
            let bytes = encode(&limit, &state, NOW).len() as u64;
            assert!(bytes <= max_bytes(&limit), "{shape:?} {rate}: {bytes} of {}", max_bytes(&limit));
            assert!(bytes * 2 > max_bytes(&limit) || bytes < 100, "{shape:?} {rate}: {bytes}");
        }
    }

    #[test]
    fn foreign_bytes_are_not_a_state() {
        let log = limit("60/h", Shape::SlidingLog);
        for bytes in [&b""[..], b"\0", b"\x02\x01\x01", b"\x01\xff", b"\x01\x05", &[0xff; 40], b"12345"] {
            assert_eq!(decode(&log, bytes), None, "{bytes:?}");
        }
        let bucket = limit("5/m", Shape::GCRA);
        assert_eq!(decode(&bucket, b"\x01\x05\x05\x00\x00"), None, "a byte too many");
        assert_eq!(decode(&bucket, b"\x01\x05\x00\x00"), None, "no bucket of five has no burst");
    }

    /// Arbitrary bytes are rejected or decode to a harmless state.
    #[test]
    fn invalid_bytes_do_not_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        for (shape, _) in shapes().into_iter().flat_map(|shape| (0..5_000).map(move |n| (shape, n))) {
            let limit = limit("60/h", shape);
            let mut bytes = vec![VERSION];
            let long = random.bool();
            bytes.extend(
                (0..random.usize(..14)).map(|_| if long { random.u8(0x80..) } else { random.u8(..) }),
            );
            bytes.push(random.u8(..0x80));
            let Some((under, state)) = decode(&limit, &bytes) else { continue };
            let quota = Quota::new(&limit);
            let cost = random.u64(..100);
            let grant = tollgate::internal::algorithm::Grant { at: NOW, cost, mark: quota.mark(&state) };
            let mut state = quota.adopt(&Quota::new(&under), state, NOW);
            if quota.decide(&state, NOW, cost).is_allowed() {
                quota.charge(&mut state, NOW, cost);
            }
            quota.drain(&mut state, NOW, cost);
            quota.add_debt(&mut state, NOW, cost);
            quota.refund(&mut state, &grant, cost, NOW);
            let (_, read) =
                decode(&limit, &encode(&limit, &state, NOW)).expect("a decoded state can be encoded");
            assert_eq!(quota.used(&read, NOW), quota.used(&state, NOW), "{shape:?} {bytes:?}");
            quota.expires_at(&read);
        }
    }
}
