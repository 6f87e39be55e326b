//! Latencies in buckets, counted without contention: each thread adds to one of several stripes, and the page sums them.

use std::array;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::internal::stripes::Striped;

/// Upper bounds of the buckets in seconds; the last bucket has none.
const BOUNDS: [f64; 22] = [
    0.000001, 0.0000025, 0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005,
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
];
const BUCKETS: usize = BOUNDS.len() + 1;

/// Counts and sums of latencies. Each value is read by itself: a page may show the count of a latency whose share of the
/// sum is still missing.
#[derive(Default)]
pub struct LatencyHistogram {
    stripes: Striped<LatencyStripe>,
}

#[derive(Default)]
struct LatencyStripe {
    counts: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

/// The sums over all stripes.
#[derive(Debug)]
pub struct HistogramSnapshot {
    pub sum_seconds: f64,
    pub count: u64,
    /// Upper bounds, and the counts of each bucket by itself.
    pub buckets: [(f64, u64); BUCKETS],
}

impl LatencyHistogram {
    pub fn record(&self, latency: Duration) {
        self.record_times(latency, 1);
    }

    /// Records the same latency several times.
    pub fn record_times(&self, latency: Duration, times: u32) {
        let seconds = latency.as_secs_f64();
        let bucket = BOUNDS.partition_point(|bound| *bound < seconds);
        let stripe = self.stripes.current();
        // Relaxed: nothing else is inferred from these values.
        stripe.counts[bucket].fetch_add(times.into(), Ordering::Relaxed);
        let nanos = u64::try_from(latency.as_nanos() * u128::from(times)).unwrap_or(u64::MAX);
        stripe.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(super) fn snapshot(&self) -> HistogramSnapshot {
        let total = |of: &dyn Fn(&LatencyStripe) -> u64| self.stripes.iter().map(of).sum::<u64>();
        let buckets = array::from_fn(|bucket| {
            let bound = BOUNDS.get(bucket).copied().unwrap_or(f64::INFINITY);
            (bound, total(&|stripe| stripe.counts[bucket].load(Ordering::Relaxed)))
        });
        let sum_nanos = total(&|stripe| stripe.sum_nanos.load(Ordering::Relaxed));
        HistogramSnapshot {
            sum_seconds: Duration::from_nanos(sum_nanos).as_secs_f64(),
            count: buckets.iter().map(|(_, count)| count).sum(),
            buckets,
        }
    }
}

impl HistogramSnapshot {
    /// Multiplies all counts, and measures time in another unit.
    pub(super) fn scale(&mut self, counts: u64, unit: f64) {
        self.sum_seconds *= counts as f64 * unit;
        self.count *= counts;
        for (bound, count) in &mut self.buckets {
            *bound *= unit;
            *count *= counts;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More than there are stripes.
    const THREADS: usize = 40;

    #[test]
    fn latencies_of_all_threads_are_counted_in_their_buckets() {
        let latencies = LatencyHistogram::default();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for micros in [1, 2, 500, 501, 20_000_000] {
                        latencies.record(Duration::from_micros(micros));
                    }
                });
            }
        });
        let threads = THREADS as u64;
        let snapshot = latencies.snapshot();
        assert_eq!(snapshot.count, 5 * threads);
        assert_eq!(snapshot.buckets[0], (0.000_001, threads), "a bound belongs to its bucket");
        assert_eq!(snapshot.buckets[1], (0.000_002_5, threads));
        assert_eq!(snapshot.buckets[8], (0.000_5, threads));
        assert_eq!(snapshot.buckets[9], (0.001, threads));
        assert_eq!(snapshot.buckets[BUCKETS - 1], (f64::INFINITY, threads));
        let expected = threads as f64 * 20.001_004;
        assert!((snapshot.sum_seconds - expected).abs() < 1e-6, "{}", snapshot.sum_seconds);
    }
}
