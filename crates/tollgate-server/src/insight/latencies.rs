//! Times of decisions within one second: counts in buckets that grow by an eighth of a power of two.

use std::time::Duration;

const STEPS_PER_POWER: u32 = 8;
const STEP_BITS: u32 = STEPS_PER_POWER.trailing_zeros();
/// Times below 2^6 ns share a bucket, and so do those above 2^34 ns (17 s).
const MIN_POWER: u32 = 6;
const MAX_POWER: u32 = 34;
const BUCKETS: usize = ((MAX_POWER - MIN_POWER) * STEPS_PER_POWER) as usize;

#[derive(Clone)]
pub struct Latencies([u32; BUCKETS]);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies([0; BUCKETS])
    }
}

impl Latencies {
    pub fn record(&mut self, latency: Duration) {
        let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let count = &mut self.0[bucket(nanos)];
        *count = count.saturating_add(1);
    }

    pub fn merge(&mut self, other: &Latencies) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own = own.saturating_add(*other);
        }
    }

    /// The latency that this share of decisions does not exceed, in microseconds; `None` without decisions.
    pub fn quantile_us(&self, share: f64) -> Option<f32> {
        let total: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let rank = ((total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        let found = self.0.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        })?;
        Some((upper_bound(found) as f64 / 1_000.0) as f32)
    }
}

fn bucket(nanos: u64) -> usize {
    let nanos = nanos.clamp(1 << MIN_POWER, (1 << MAX_POWER) - 1);
    let power = nanos.ilog2();
    let step = (nanos >> (power - STEP_BITS)) as u32 & (STEPS_PER_POWER - 1);
    ((power - MIN_POWER) * STEPS_PER_POWER + step) as usize
}

fn upper_bound(bucket: usize) -> u64 {
    let power = bucket as u32 / STEPS_PER_POWER + MIN_POWER;
    let step = u64::from(bucket as u32 % STEPS_PER_POWER) + 1;
    (u64::from(STEPS_PER_POWER) + step) << (power - STEP_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_at_most_an_eighth_too_high() {
        let mut latencies = Latencies::default();
        assert_eq!(latencies.quantile_us(0.5), None);
        for micros in 1..=1_000 {
            latencies.record(Duration::from_micros(micros));
        }
        for (share, exact) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = latencies.quantile_us(share).expect("there are latencies");
            assert!((exact..=exact * 1.125).contains(&found), "{found} for {exact}");
        }
        latencies.record(Duration::ZERO);
        latencies.record(Duration::MAX);
    }
}
