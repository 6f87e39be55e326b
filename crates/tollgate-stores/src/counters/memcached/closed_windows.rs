//! Cache of the counts of windows that have ended: they no longer change, so they are read once.

use std::sync::Mutex;

use tollgate::internal::lock;

use crate::recent_map::RecentMap;

/// Counters in each generation of the cache.
const MAX_COUNTERS: usize = 50_000;

/// The last ended window of each counter, with its count.
#[derive(Debug)]
pub struct ClosedWindows {
    counts: Mutex<RecentMap<String, (u64, u64)>>,
}

impl Default for ClosedWindows {
    fn default() -> ClosedWindows {
        ClosedWindows { counts: Mutex::new(RecentMap::new(MAX_COUNTERS)) }
    }
}

impl ClosedWindows {
    /// The final count of a window, if it is cached.
    pub fn get(&self, name: &str, window: u64) -> Option<u64> {
        let mut counts = lock(&self.counts);
        counts.get_mut(name).filter(|(known, _)| *known == window).map(|(_, count)| *count)
    }

    pub fn insert(&self, name: &str, window: u64, count: u64) {
        let mut counts = lock(&self.counts);
        let forgotten = counts.insert(name.to_owned(), (window, count)); // only costs another read
        drop(counts);
        drop(forgotten); // without the lock: it is large
    }

    pub fn forget(&self, name: &str) {
        lock(&self.counts).remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A regression: a full cache was cleared, so that every counter was read once more.
    #[test]
    fn a_full_cache_keeps_the_counters_in_use() {
        let closed = ClosedWindows::default();
        for n in 0..=4 * MAX_COUNTERS {
            closed.insert(&n.to_string(), 7, 1);
            if n.is_multiple_of(MAX_COUNTERS / 2) {
                assert_eq!(closed.get("0", 7), Some(1), "forgotten after {n} others");
            }
        }
        assert_eq!(closed.get("1", 7), None);
        assert_eq!(closed.get("0", 8), None, "another window");
        closed.forget("0");
        assert_eq!(closed.get("0", 7), None);
    }
}
