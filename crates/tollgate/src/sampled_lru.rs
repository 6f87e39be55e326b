//! A bounded table with sampled LRU eviction: when it is full, the least recently touched of a few entries is evicted.
//! The exact order of an LRU list would cost two links per entry, and a touch would write three entries instead of one.

use std::collections::HashMap;

use crate::changes::{ChangedKeys, Changes};
use crate::fingerprint::Fingerprint;
use crate::sync::count_steps;
use crate::time::Time;

/// The number of entries compared for an eviction.
const SAMPLE_SIZE: usize = 8;

pub(crate) struct SampledLru<V> {
    index: HashMap<Fingerprint, usize>,
    entries: Vec<LruEntry<V>>,
    capacity: usize,
    /// The start of the next sample.
    cursor: usize,
    changed: Option<ChangedKeys>,
}

struct LruEntry<V> {
    fingerprint: Fingerprint,
    touched: Time,
    value: V,
}

impl<V: Default> SampledLru<V> {
    pub(crate) fn new(capacity: usize) -> Self {
        SampledLru {
            index: HashMap::new(),
            entries: Vec::new(),
            capacity: capacity.max(1),
            cursor: 0,
            changed: None,
        }
    }

    /// If enabled, records which keys change from now on.
    pub(crate) fn record(&mut self, changes: Changes) {
        self.changed = ChangedKeys::recorded(changes, 2 * self.capacity);
    }

    pub(crate) fn changed(&mut self) -> Option<&mut ChangedKeys> {
        self.changed.as_mut()
    }

    fn note(&mut self, fingerprint: Fingerprint) {
        if let Some(changed) = &mut self.changed {
            changed.add(fingerprint);
        }
    }

    /// The value of a key, created if it does not exist.
    pub(crate) fn touch(&mut self, fingerprint: Fingerprint, now: Time) -> &mut V {
        count_steps(1);
        let at = match self.index.get(&fingerprint) {
            Some(at) => *at,
            None => self.insert(fingerprint, now),
        };
        self.note(fingerprint);
        let row = &mut self.entries[at];
        row.touched = row.touched.max(now);
        &mut row.value
    }

    pub(crate) fn get(&self, fingerprint: Fingerprint) -> Option<&V> {
        self.index.get(&fingerprint).map(|at| &self.entries[*at].value)
    }

    pub(crate) fn remove(&mut self, fingerprint: Fingerprint) -> Option<V> {
        let at = self.index.remove(&fingerprint)?;
        let row = self.entries.swap_remove(at);
        self.note(fingerprint);
        if let Some(moved) = self.entries.get(at).map(|moved| moved.fingerprint) {
            self.index.insert(moved, at);
            self.note(moved); // an iteration by rows may have passed its new row
        }
        Some(row.value)
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// A page of rows: at most `most`, from index `from`.
    pub(crate) fn rows(&self, from: usize, most: usize) -> impl Iterator<Item = (Fingerprint, Time, &V)> {
        let rows = self.entries.iter().skip(from).take(most);
        rows.inspect(|_| count_steps(1)).map(|row| (row.fingerprint, row.touched, &row.value))
    }

    pub(crate) fn row(&self, fingerprint: Fingerprint) -> Option<(Time, &V)> {
        self.index.get(&fingerprint).map(|at| (self.entries[*at].touched, &self.entries[*at].value))
    }

    /// Changes the bound. A table above it evicts two entries with each call.
    pub(crate) fn shrink_towards(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
        for _ in 0..self.entries.len().saturating_sub(self.capacity).min(2) {
            self.evict();
        }
    }

    /// Whether a new key would evict another.
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= self.capacity
    }

    /// The key with the lowest rank of a sample, and its rank. The next call samples other entries.
    pub(crate) fn min_of_sample<R: Ord>(&mut self, rank: impl Fn(&V, Time) -> R) -> Option<(Fingerprint, R)> {
        count_steps(SAMPLE_SIZE);
        let rows = self.entries.len();
        let sample = (0..SAMPLE_SIZE.min(rows)).map(|n| &self.entries[(self.cursor + n) % rows]);
        let ranked = sample.map(|row| (row.fingerprint, rank(&row.value, row.touched)));
        let least = ranked.min_by(|(_, one), (_, other)| one.cmp(other));
        self.cursor = (self.cursor + SAMPLE_SIZE) % rows.max(1);
        least
    }

    fn evict(&mut self) {
        count_steps(SAMPLE_SIZE);
        let sample = (0..SAMPLE_SIZE).map(|n| (self.cursor + n) % self.entries.len());
        let oldest = sample.min_by_key(|at| self.entries[*at].touched).expect("a full table has rows");
        self.cursor = (self.cursor + SAMPLE_SIZE) % self.entries.len();
        self.remove(self.entries[oldest].fingerprint);
    }

    fn insert(&mut self, fingerprint: Fingerprint, now: Time) -> usize {
        if self.entries.len() >= self.capacity {
            self.evict();
        }
        self.entries.push(LruEntry { fingerprint, touched: now, value: V::default() });
        self.index.insert(fingerprint, self.entries.len() - 1);
        self.entries.len() - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_table_forgets_the_least_recently_touched() {
        let mut table: SampledLru<u64> = SampledLru::new(8);
        for n in 0..100 {
            *table.touch(Fingerprint(n), Time::from_secs(n)) += 1;
            *table.touch(Fingerprint(0), Time::from_secs(n)) += 1;
            assert!(table.entries.len() <= 8);
        }
        assert_eq!(table.get(Fingerprint(0)), Some(&101));
        assert!(table.get(Fingerprint(99)).is_some());
        assert_eq!(table.remove(Fingerprint(99)), Some(1));
        assert_eq!(table.remove(Fingerprint(99)), None);
        (0..4).for_each(|_| table.shrink_towards(2));
        assert_eq!((table.entries.len(), table.get(Fingerprint(0))), (2, Some(&101)));
    }
}
