//! A count-min sketch: the number of denials of keys that have no entry of their own.
//!
//! Apart from halving, an estimate is never below the true count. It only decides which keys get an entry; denials are
//! counted there.

use crate::fingerprint::Fingerprint;

const ROWS: usize = 4;
/// Counters in a row; a power of two.
const WIDTH: usize = 1 << 20;
/// After this many denials all counters are halved, so that old floods are forgotten.
const HALVE_AFTER: usize = WIDTH;

/// Four megabytes, allocated on first use.
#[derive(Default)]
pub(super) struct CountMinSketch {
    counters: Vec<u8>,
    added: usize,
}

impl CountMinSketch {
    /// Counts a denial; returns the estimate for the key.
    pub(super) fn add(&mut self, key: Fingerprint) -> u64 {
        if self.counters.is_empty() {
            self.counters = vec![0; ROWS * WIDTH];
        }
        self.added += 1;
        if self.added >= HALVE_AFTER {
            self.added = 0;
            self.counters.iter_mut().for_each(|counter| *counter /= 2);
        }
        let indexes = (0..ROWS).map(|row| row * WIDTH + counter_index(key, row));
        let least = indexes.clone().map(|at| self.counters[at]).min().unwrap_or(0).saturating_add(1);
        // Conservative update: no counter grows beyond what the estimate needs.
        indexes.for_each(|at| self.counters[at] = self.counters[at].max(least));
        u64::from(least)
    }
}

/// The fingerprint is keyed: an attacker cannot tell which keys share a counter.
fn counter_index(key: Fingerprint, row: usize) -> usize {
    let mixed = key.0.rotate_left(16 * row as u32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 44) as usize % WIDTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_key_is_distinguished_from_hundreds_of_thousands_denied_once() {
        let mut sketch = CountMinSketch::default();
        let print = |n: u64| Fingerprint(n.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23) ^ n << 40);
        let wrong = (1..300_000).filter(|n| sketch.add(print(*n)) > 1).count();
        assert!(wrong < 6_000, "{wrong} keys look as if they had been denied before");
        assert!((2..=4).all(|time| sketch.add(print(7)) >= time));
    }

    #[test]
    fn old_floods_are_forgotten() {
        let mut sketch = CountMinSketch::default();
        (0..100).for_each(|_| _ = sketch.add(Fingerprint(1)));
        (0..HALVE_AFTER as u64).for_each(|n| _ = sketch.add(Fingerprint(n << 20 | 3)));
        assert!(sketch.add(Fingerprint(1)) < 60);
    }
}
