//! SpaceSaving: the most frequent keys of a stream in bounded memory, with bounds (Metwally, Agrawal, El Abbadi 2005).
//!
//! A key that is not monitored begins with the largest count that it may have had, which is also its error. So the true
//! count of a monitored key is within [count − error, count].
//!
//! The original replaces the key with the least count for each new one. Here keys are added until `MAX_MONITORED` are
//! monitored, and then all but the `CAPACITY` largest are dropped at once, which costs a new key a few nanoseconds
//! (Anderson et al. 2017). The bound is the same: what a key may have without being monitored is at most the total
//! divided by `CAPACITY`, also after two sketches were merged (Agarwal et al. 2012).

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Keys that are kept when a sketch is pruned.
pub const CAPACITY: usize = 2_048;
/// Keys that a sketch monitors at most.
pub const MAX_MONITORED: usize = CAPACITY + CAPACITY / 2;

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
    counters: Vec<Counter<T>>,
    max_unmonitored: u64,
}

struct Counter<T> {
    fingerprint: u64,
    count: u64,
    error: u64,
    item: T,
}

impl<T> Default for SpaceSaving<T> {
    fn default() -> Self {
        SpaceSaving { slots: FingerprintMap::default(), counters: Vec::new(), max_unmonitored: 0 }
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
            let counter = &mut self.counters[usize::from(*slot)];
            counter.count += weight;
            return Some(&mut counter.item);
        }
        if self.counters.len() == MAX_MONITORED {
            self.prune();
        }
        let error = self.max_unmonitored;
        self.push(Counter { fingerprint, count: error + weight, error, item: item() });
        None
    }

    fn push(&mut self, counter: Counter<T>) {
        self.slots.insert(counter.fingerprint, self.counters.len() as u16);
        self.counters.push(counter);
    }

    /// Drops all keys but the `CAPACITY` with the largest counts, and gives back the memory of the others.
    pub fn compact(&mut self) {
        self.prune();
        self.counters.shrink_to_fit();
        self.slots.shrink_to_fit();
    }

    fn prune(&mut self) {
        if self.counters.len() <= CAPACITY {
            return;
        }
        let (_, largest_dropped, _) =
            self.counters.select_nth_unstable_by_key(CAPACITY, |counter| Reverse(counter.count));
        self.max_unmonitored = largest_dropped.count;
        self.counters.truncate(CAPACITY);
        self.slots.clear();
        let slots = self.counters.iter().enumerate().map(|(n, counter)| (counter.fingerprint, n as u16));
        self.slots.extend(slots);
    }

    /// Adds the counts of another sketch. `complete` gets the items of a key that both monitor.
    pub fn absorb(&mut self, other: &SpaceSaving<T>, complete: impl Fn(&mut T, &T))
    where
        T: Clone,
    {
        let own_error = self.max_unmonitored;
        let other_error = other.max_unmonitored;
        for counter in &mut self.counters {
            counter.count += other_error;
            counter.error += other_error;
        }
        for one in &other.counters {
            if let Some(slot) = self.slots.get(&one.fingerprint) {
                let counter = &mut self.counters[usize::from(*slot)];
                counter.count = counter.count - other_error + one.count;
                counter.error = counter.error - other_error + one.error;
                complete(&mut counter.item, &one.item);
            } else {
                self.push(Counter {
                    fingerprint: one.fingerprint,
                    count: own_error + one.count,
                    error: own_error + one.error,
                    item: one.item.clone(),
                });
            }
        }
        self.max_unmonitored = own_error + other_error;
        self.compact();
    }

    /// The largest count that a key may have without being monitored.
    pub fn max_unmonitored(&self) -> u64 {
        self.max_unmonitored
    }

    pub fn iter(&self) -> impl Iterator<Item = Counted<'_, T>> {
        self.counters.iter().map(|counter| Counted {
            fingerprint: counter.fingerprint,
            count: counter.count,
            error: counter.error,
            item: &counter.item,
        })
    }

    pub fn clear(&mut self) {
        *self = SpaceSaving::default();
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
    #[test]
    fn bounds_hold_for_merged_sketches() {
        let mut random = fastrand::Rng::with_seed(2);
        let mut truth = HashMap::new();
        let mut sum = SpaceSaving::default();
        const STREAM: u64 = 30_000;
        for _ in 0..4 {
            let mut part = SpaceSaving::default();
            for _ in 0..STREAM {
                let key = mixed(if random.u8(..3) == 0 { random.u64(..100) } else { random.u64(..500_000) });
                *truth.entry(key).or_insert(0u64) += 1;
                part.add(key, 1, || ());
            }
            part.compact();
            sum.absorb(&part, |(), ()| {});
        }
        assert!(sum.counters.len() == CAPACITY && sum.max_unmonitored() <= 4 * STREAM / CAPACITY as u64);
        for one in sum.iter() {
            let count = truth[&one.fingerprint];
            assert!((one.count - one.error..=one.count).contains(&count), "{count}");
        }
        let is_monitored = |key| sum.slots.contains_key(key);
        let unmonitored = truth.iter().filter(|(key, _)| !is_monitored(key)).map(|(_, count)| *count);
        assert!(unmonitored.max().is_some_and(|most| most <= sum.max_unmonitored()));
    }
}
