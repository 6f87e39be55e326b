//! Times of decisions, of which only some are measured: measuring takes a few hundred instructions, a fifth of a
//! decision.
//!
//! Each thread times one decision in [`TIMED_PERIOD`] on average. The distance to the next one is random, so every
//! decision is timed with the same probability, whatever the pattern of requests.

use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use crate::metrics::LatencyHistogram;

pub const TIMED_PERIOD: u32 = 64;

#[derive(Default)]
pub struct DecisionTimes {
    pub(super) latencies: LatencyHistogram,
}

/// A measurement that has begun.
pub struct DecisionTimer {
    started: Instant,
    decisions: u32,
    /// How many of the decisions are counted.
    timed: u32,
}

impl DecisionTimes {
    /// Begins to measure, if one of the next decisions of this thread is due. They are made together.
    #[inline]
    pub fn start(&self, decisions: usize) -> Option<DecisionTimer> {
        let decisions = u32::try_from(decisions).unwrap_or(u32::MAX);
        match timed_among(decisions) {
            0 => None,
            timed => Some(DecisionTimer { started: Instant::now(), decisions, timed }),
        }
    }

    /// Counts a measurement; returns the mean time of its decisions.
    #[inline]
    pub fn stop(&self, timer: Option<DecisionTimer>) -> Option<Duration> {
        timer.map(|timer| self.count(&timer))
    }

    #[cold]
    fn count(&self, timer: &DecisionTimer) -> Duration {
        let mean = timer.started.elapsed() / timer.decisions;
        self.latencies.record_times(mean, timer.timed);
        mean
    }
}

/// Intervals between timed decisions are random from 1 to this, which is [`TIMED_PERIOD`] on average.
const MAX_INTERVAL: u32 = 2 * TIMED_PERIOD - 1;

/// How many of the next decisions of this thread are timed.
#[inline]
fn timed_among(decisions: u32) -> u32 {
    thread_local!(static UNTIL_NEXT: Cell<u32> = Cell::new(random_interval() - 1));
    let until_next = UNTIL_NEXT.get();
    if decisions <= until_next {
        UNTIL_NEXT.set(until_next - decisions);
        return 0;
    }
    let (timed, until_next) = draw_past(decisions - until_next);
    UNTIL_NEXT.set(until_next);
    timed
}

/// The first of `decisions` is timed; returns how many are, and how many decisions follow before the next one.
#[cold]
fn draw_past(decisions: u32) -> (u32, u32) {
    let mut timed = 0;
    let mut next = 0;
    while next < decisions {
        timed += 1;
        next = next.saturating_add(random_interval());
    }
    (timed, next - decisions)
}

fn random_interval() -> u32 {
    thread_local!(static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0) | 1));
    // xorshift64 (Marsaglia, 2003): quality beyond a lack of patterns is not needed.
    let mut state = STATE.get();
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    STATE.set(state);
    1 + (state >> 32) as u32 % MAX_INTERVAL
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The share of decisions that are timed among those for which `is_counted` holds, of 1,600,000.
    fn timed_share(batch: u32, is_counted: impl Fn(u32) -> bool) -> f64 {
        let mut decisions = 0;
        let mut timed = 0;
        for n in (0..1_600_000).step_by(batch as usize) {
            let due = timed_among(batch);
            if is_counted(n) {
                decisions += batch;
                timed += due;
            }
        }
        f64::from(timed) / f64::from(decisions)
    }

    #[test]
    fn every_decision_is_timed_with_the_same_probability() {
        let expected = 1.0 / f64::from(TIMED_PERIOD);
        let check =
            |share: f64, case: &str| assert!((share / expected - 1.0).abs() < 0.25, "{case}: {share}");
        check(timed_share(1, |_| true), "single decisions");
        check(timed_share(1, |n| n % TIMED_PERIOD == 3), "a pattern of the same period");
        check(timed_share(8, |n| n % 16 == 8), "small batches");
        check(timed_share(1_000, |_| true), "large batches");
        assert_eq!(timed_among(0), 0);
    }

    #[test]
    fn a_batch_is_counted_by_the_mean_of_its_decisions() {
        let times = DecisionTimes::default();
        let started = Instant::now() - Duration::from_secs(1);
        times.stop(Some(DecisionTimer { started, decisions: 100, timed: 7 }));
        let snapshot = times.latencies.snapshot();
        assert_eq!(snapshot.count, 7);
        assert!(snapshot.sum_seconds >= 0.07, "{}", snapshot.sum_seconds);
    }
}
