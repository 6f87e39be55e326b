//! A count-min sketch: the number of denials of keys that have no entry of their own.
//!
//! Apart from halving, an estimate is never below the true count. It only decides which keys get an entry; denials are
//! counted there.

use crate::fingerprint::Fingerprint;
use crate::sync::count_steps;

const ROWS: usize = 4;
/// Counters in a row; a power of two.
const WIDTH: usize = 1 << 20;
/// After this many denials all counters are halved, so that old floods are forgotten.
const HALVE_AFTER: usize = WIDTH;
/// Counters that are halved together, when one of them is next used: halving all at once would hold the caller's lock for
/// four million steps.
const LINE: usize = 64;

/// Four megabytes, allocated on first use.
#[derive(Default)]
pub(super) struct CountMinSketch {
    counters: Vec<u8>,
    /// How often each line has been halved.
    halved: Vec<u32>,
    /// How often each line should have been.
    halvings: u32,
    added: usize,
}

impl CountMinSketch {
    /// Counts a denial; returns the estimate for the key.
    pub(super) fn add(&mut self, key: Fingerprint) -> u64 {
        if self.counters.is_empty() {
            self.counters = vec![0; ROWS * WIDTH];
            self.halved = vec![0; ROWS * WIDTH / LINE];
        }
        self.added += 1;
        if self.added >= HALVE_AFTER {
            self.added = 0;
            self.halvings = self.halvings.wrapping_add(1);
        }
        let indexes = (0..ROWS).map(|row| row * WIDTH + counter_index(key, row));
        indexes.clone().for_each(|at| self.halve_line(at / LINE));
        let least = indexes.clone().map(|at| self.counters[at]).min().unwrap_or(0).saturating_add(1);
        // Conservative update: no counter grows beyond what the estimate needs.
        indexes.for_each(|at| self.counters[at] = self.counters[at].max(least));
        u64::from(least)
    }

    /// Halves the counters of a line as often as they should have been.
    fn halve_line(&mut self, line: usize) {
        let due = self.halvings.wrapping_sub(self.halved[line]);
        if due == 0 {
            return;
        }
        count_steps(LINE);
        self.halved[line] = self.halvings;
        for counter in &mut self.counters[line * LINE..][..LINE] {
            *counter = counter.checked_shr(due).unwrap_or(0);
        }
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
    use crate::sync::steps::measure;

    #[test]
    fn a_repeated_key_is_distinguished_from_hundreds_of_thousands_denied_once() {
        let mut sketch = CountMinSketch::default();
        let fingerprint =
            |n: u64| Fingerprint(n.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23) ^ n << 40);
        let wrong = (1..300_000).filter(|n| sketch.add(fingerprint(*n)) > 1).count();
        assert!(wrong < 6_000, "{wrong} keys look as if they had been denied before");
        assert!((2..=4).all(|time| sketch.add(fingerprint(7)) >= time));
    }

    #[test]
    fn old_floods_are_forgotten() {
        let mut sketch = CountMinSketch::default();
        (0..100).for_each(|_| _ = sketch.add(Fingerprint(1)));
        (0..HALVE_AFTER as u64).for_each(|n| _ = sketch.add(Fingerprint(n << 20 | 3)));
        assert!(sketch.add(Fingerprint(1)) < 60);
    }

    /// A regression: every millionth denial halved four million counters under the lock of all offenders.
    #[test]
    fn a_denial_halves_no_more_than_the_lines_of_its_own_counters() {
        let mut sketch = CountMinSketch::default();
        let mut total = 0;
        for n in 0..2 * HALVE_AFTER as u64 {
            let key = Fingerprint(n.wrapping_mul(0x2545_f491_4f6c_dd1d));
            let steps = measure(|| _ = sketch.add(key)).total;
            assert!(steps <= ROWS * LINE, "{steps}");
            total += steps;
        }
        assert!(total > 0, "lines were halved");
    }
}
