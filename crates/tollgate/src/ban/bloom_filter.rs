//! A Bloom filter in front of the ban list: excludes nearly every key that is not banned.
//!
//! It is read without a lock, one word per key. Keys stay in it until the filter is rebuilt, so it has false
//! positives, never false negatives.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::fingerprint::Fingerprint;

pub(super) struct BloomFilter {
    words: Box<[AtomicU64]>,
    /// Fingerprints that may be added before the rate of false positives is too high.
    capacity: usize,
}

/// Keys per 64-bit word: sixteen bits per key, of which each key sets four.
const KEYS_PER_WORD: usize = 4;
const MIN_KEYS: usize = 256;

impl BloomFilter {
    /// A filter for twice the present number of keys.
    pub(super) fn new(len: usize) -> BloomFilter {
        let keys = (2 * len).max(MIN_KEYS);
        let words = (0..keys.div_ceil(KEYS_PER_WORD)).map(|_| AtomicU64::new(0)).collect();
        BloomFilter { words, capacity: keys }
    }

    /// The number of keys that may be added.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn add(&self, fingerprint: Fingerprint) {
        self.word(fingerprint).fetch_or(bits(fingerprint), Ordering::Release);
    }

    #[inline]
    pub(super) fn may_contain(&self, fingerprint: Fingerprint) -> bool {
        self.word(fingerprint).load(Ordering::Acquire) & bits(fingerprint) == bits(fingerprint)
    }

    fn word(&self, fingerprint: Fingerprint) -> &AtomicU64 {
        &self.words[(((fingerprint.0 >> 32) * self.words.len() as u64) >> 32) as usize]
    }
}

fn bits(Fingerprint(fingerprint): Fingerprint) -> u64 {
    [0, 6, 12, 18].into_iter().fold(0, |bits, shift| bits | 1 << (fingerprint >> shift & 63))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_keys_are_found_and_false_positives_are_few() {
        let fingerprint = |n: u64| Fingerprint(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n << 7);
        let filter = BloomFilter::new(10_000);
        (0..20_000).for_each(|n| filter.add(fingerprint(n)));
        assert!((0..20_000).all(|n| filter.may_contain(fingerprint(n))));
        let perhaps = (20_000..120_000).filter(|n| filter.may_contain(fingerprint(*n))).count();
        assert!(perhaps < 5_000, "{perhaps} of 100000");
    }
}
