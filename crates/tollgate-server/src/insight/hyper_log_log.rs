//! HyperLogLog: an estimate of how many different keys there were, in 1 KiB (Flajolet et al. 2007).
//!
//! Keys are 64-bit fingerprints, which are uniform already. The standard error is 3.3 %; small numbers, for which half
//! of the registers are still zero, are estimated by linear counting and are nearly exact.

const INDEX_BITS: u32 = 10;
const REGISTERS: usize = 1 << INDEX_BITS;

/// Allocated with the first key: most rules deny nothing.
#[derive(Clone, Default)]
pub struct HyperLogLog(Option<Box<[u8; REGISTERS]>>);

impl HyperLogLog {
    pub const MAX_BYTES: usize = REGISTERS;

    pub fn add(&mut self, fingerprint: u64) {
        let registers = self.0.get_or_insert_with(|| Box::new([0; REGISTERS]));
        let index = (fingerprint >> (u64::BITS - INDEX_BITS)) as usize;
        // The lowest bit is set so that the rank is bounded.
        let rest = (fingerprint << INDEX_BITS) | 1 << (INDEX_BITS - 1);
        let rank = rest.leading_zeros() as u8 + 1;
        registers[index] = registers[index].max(rank);
    }

    /// Makes this the sketch of the union.
    pub fn merge(&mut self, other: &HyperLogLog) {
        let Some(theirs) = &other.0 else { return };
        let registers = self.0.get_or_insert_with(|| Box::new([0; REGISTERS]));
        for (own, theirs) in registers.iter_mut().zip(&**theirs) {
            *own = (*own).max(*theirs);
        }
    }

    pub fn clear(&mut self) {
        self.0 = None;
    }

    pub fn estimate(&self) -> u64 {
        let Some(registers) = &self.0 else { return 0 };
        let count = REGISTERS as f64;
        let sum: f64 = registers.iter().map(|rank| 2f64.powi(-i32::from(*rank))).sum();
        let raw = 0.7213 / (1.0 + 1.079 / count) * count * count / sum;
        let zeros = registers.iter().filter(|rank| **rank == 0).count();
        let estimate =
            if raw <= 2.5 * count && zeros > 0 { count * (count / zeros as f64).ln() } else { raw };
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: u64, tolerance: f64) {
        let mut random = fastrand::Rng::with_seed(keys);
        let mut sketch = HyperLogLog::default();
        for _ in 0..keys {
            let key = random.u64(..);
            (0..3).for_each(|_| sketch.add(key));
        }
        let error = (sketch.estimate() as f64 - keys as f64).abs() / (keys as f64).max(1.0);
        assert!(error <= tolerance, "{} for {keys}", sketch.estimate());
    }

    #[test]
    fn the_estimate_is_near_the_number_of_different_keys() {
        check(0, 0.0);
        check(1, 0.0);
        for keys in [10, 31, 100, 500] {
            check(keys, 0.05);
        }
        for keys in [2_000, 5_000, 50_000, 1_000_000] {
            check(keys, 0.1); // three standard errors
        }
    }

    #[test]
    fn a_union_counts_common_keys_once() {
        let mut random = fastrand::Rng::with_seed(1);
        let keys: Vec<u64> = (0..300).map(|_| random.u64(..)).collect();
        let [mut first, mut second] = [HyperLogLog::default(), HyperLogLog::default()];
        keys[..200].iter().for_each(|key| first.add(*key));
        keys[100..].iter().for_each(|key| second.add(*key));
        first.merge(&second);
        assert!((285..=315).contains(&first.estimate()), "{}", first.estimate());
        first.clear();
        assert_eq!(first.estimate(), 0);
    }
}
