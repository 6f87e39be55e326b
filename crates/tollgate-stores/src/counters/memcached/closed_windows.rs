//! Cache of the counts of windows that have ended: they no longer change, so they are read once.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counters in the cache.
const MAX_COUNTERS: usize = 100_000;

/// The last ended window of each counter, with its count.
#[derive(Debug, Default)]
pub struct ClosedWindows {
    counts: Mutex<HashMap<String, (u64, u64)>>,
}

impl ClosedWindows {
    /// The final count of a window, if it is cached.
    pub fn get(&self, name: &str, window: u64) -> Option<u64> {
        self.lock().get(name).filter(|(known, _)| *known == window).map(|(_, count)| *count)
    }

    pub fn insert(&self, name: &str, window: u64, count: u64) {
        let mut counts = self.lock();
        let is_full = counts.len() >= MAX_COUNTERS && !counts.contains_key(name);
        let old = is_full.then(|| std::mem::take(&mut *counts)); // only costs another read
        counts.insert(name.to_owned(), (window, count));
        drop(counts);
        drop(old); // without the lock: it is large
    }

    pub fn forget(&self, name: &str) {
        self.lock().remove(name);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (u64, u64)>> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
