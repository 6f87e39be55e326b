//! SpaceSaving: the most frequent keys of a stream in bounded memory, with bounds (Metwally, Agrawal, El Abbadi 2005).
//!
//! A key that is not monitored replaces the one with the least count, and takes over its count as its error. So the true
//! count of a monitored key is within [count − error, count], and a key that is not monitored has at most the least
//! count; with `CAPACITY` counters that is at most the total divided by `CAPACITY`.
//!
//! The least count is found by a cursor over all counts: while there are keys with the least count known last, it moves
//! on to the next of them. Few counts are the least at first, but every replacement adds one to the next level, so full
//! rounds become rare.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Counters of a sketch.
pub const CAPACITY: usize = 2_048;

/// Fingerprints are uniform: they need no further hash.
#[derive(Default)]
pub struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, fingerprint: u64) {
        self.0 = fingerprint;
    }
}

pub type FingerprintMap<T> = HashMap<u64, T, BuildHasherDefault<FingerprintHasher>>;

/// The counters, each with an item that describes its key.
pub struct SpaceSaving<T> {
    slots: FingerprintMap<u16>,
    counts: Vec<u64>,
    counters: Vec<Counter<T>>,
    cursor: usize,
    /// At most the least count.
    least: u64,
}

struct Counter<T> {
    fingerprint: u64,
    error: u64,
    item: T,
}

impl<T> Default for SpaceSaving<T> {
    fn default() -> Self {
        SpaceSaving {
            slots: FingerprintMap::default(),
            counts: Vec::new(),
            counters: Vec::new(),
            cursor: 0,
            least: 0,
        }
    }
}

/// A monitored key. Its true count is within [count − error, count].
pub struct Counted<'s, T> {
    pub fingerprint: u64,
    pub count: u64,
    pub error: u64,
    pub item: &'s T,
}

impl<T> SpaceSaving<T> {
    /// Counts a key. `item` describes it if it is new; otherwise its item is returned to be completed.
    pub fn add(&mut self, fingerprint: u64, weight: u64, item: impl FnOnce() -> T) -> Option<&mut T> {
        if let Some(slot) = self.slots.get(&fingerprint) {
            let slot = usize::from(*slot);
            self.counts[slot] += weight;
            return Some(&mut self.counters[slot].item);
        }
        if self.counts.len() < CAPACITY {
            self.slots.insert(fingerprint, self.counts.len() as u16);
            self.counts.push(weight);
            self.counters.push(Counter { fingerprint, error: 0, item: item() });
            return None;
        }
        let slot = self.least_slot();
        let error = self.counts[slot];
        let replaced =
            std::mem::replace(&mut self.counters[slot], Counter { fingerprint, error, item: item() });
        self.counts[slot] = error + weight;
        self.slots.remove(&replaced.fingerprint);
        self.slots.insert(fingerprint, slot as u16);
        None
    }

    /// The slot of a least count.
    fn least_slot(&mut self) -> usize {
        let at_least = |count: &u64| *count == self.least;
        let found = match self.counts[self.cursor..].iter().position(at_least) {
            Some(ahead) => self.cursor + ahead,
            None => {
                self.least = self.counts.iter().copied().min().unwrap_or(0);
                let least = self.least;
                self.counts.iter().position(|count| *count == least).unwrap_or(0)
            }
        };
        self.cursor = (found + 1) % self.counts.len();
        found
    }

    /// The largest count that a key may have without being monitored.
    pub fn max_unmonitored(&self) -> u64 {
        if self.counts.len() < CAPACITY { 0 } else { self.counts.iter().copied().min().unwrap_or(0) }
    }

    pub fn iter(&self) -> impl Iterator<Item = Counted<'_, T>> {
        self.counters.iter().zip(&self.counts).map(|(counter, count)| Counted {
            fingerprint: counter.fingerprint,
            count: *count,
            error: counter.error,
            item: &counter.item,
        })
    }

    /// Forgets everything and keeps the memory.
    pub fn clear(&mut self) {
        self.slots.clear();
        self.counts.clear();
        self.counters.clear();
        self.cursor = 0;
        self.least = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(key: u64) -> u64 {
        let mut x = key.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^ (x >> 31)
    }

    #[test]
    fn a_flood_of_new_keys_keeps_the_frequent_ones() {
        let mut sketch = SpaceSaving::default();
        for n in 0..200_000u64 {
            sketch.add(mixed(n), 1, || n);
            if n % 100 == 0 {
                sketch.add(mixed(u64::MAX - n / 100 % 3), 1, || u64::MAX - n / 100 % 3);
            }
        }
        for key in [u64::MAX, u64::MAX - 1, u64::MAX - 2] {
            let one = sketch.iter().find(|one| *one.item == key).expect("it is monitored");
            assert!((one.count - one.error..=one.count).contains(&667) || one.count >= 666, "{}", one.count);
        }
    }

    #[test]
    fn weights_count_and_an_item_can_be_completed() {
        let mut sketch = SpaceSaving::default();
        assert!(sketch.add(1, 5, || None).is_none());
        *sketch.add(1, 2, || None).expect("it is monitored") = Some("ip:192.0.2.1");
        let one = sketch.iter().next().expect("a key");
        assert_eq!((one.fingerprint, one.count, one.error, *one.item), (1, 7, 0, Some("ip:192.0.2.1")));
        assert_eq!(sketch.max_unmonitored(), 0);
        sketch.clear();
        assert_eq!(sketch.iter().count(), 0);
    }
}
