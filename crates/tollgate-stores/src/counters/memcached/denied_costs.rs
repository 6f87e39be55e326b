//! Costs that were recently denied: these are read before they are added.
//!
//! A cost that is added and subtracted again can deny other requests for one round trip. A caller whose cost does not
//! fit would do that with every attempt and starve callers whose costs do fit. So it adds once, is denied, and then
//! reads first. An entry decides nothing: it selects between one round trip and two.

use std::sync::{Mutex, MutexGuard};

use tollgate::internal::lock;

use crate::recent_map::RecentMap;

/// Counters in each generation of the table.
const MAX_COUNTERS: usize = 50_000;

/// For each counter, the lowest cost that is read first.
#[derive(Debug)]
pub struct DeniedCosts {
    least: Mutex<RecentMap<String, u64>>,
}

impl Default for DeniedCosts {
    fn default() -> DeniedCosts {
        DeniedCosts { least: Mutex::new(RecentMap::new(MAX_COUNTERS)) }
    }
}

impl DeniedCosts {
    /// Whether a cost is likely to be denied, so that it is read first.
    pub fn is_likely_denied(&self, name: &str, cost: u64) -> bool {
        self.lock().get_mut(name).is_some_and(|least| *least <= cost)
    }

    pub fn record_denied(&self, name: &str, cost: u64) {
        let mut costs = self.lock();
        if let Some(least) = costs.get_mut(name) {
            *least = cost.min(*least);
            return;
        }
        // Each forgotten counter is denied once more before it reads first.
        let forgotten = costs.insert(name.to_owned(), cost);
        drop(costs);
        drop(forgotten); // without the lock: it is large
    }

    /// Raises the threshold above `cost`. A higher cost may still not fit, and continues to read first.
    pub fn record_allowed(&self, name: &str, cost: u64) {
        if let Some(least) = self.lock().get_mut(name) {
            *least = cost.saturating_add(1).max(*least);
        }
    }

    fn lock(&self) -> MutexGuard<'_, RecentMap<String, u64>> {
        lock(&self.least)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_that_fits_is_added_at_once_while_larger_ones_are_read_first() {
        let costs = DeniedCosts::default();
        assert!(!costs.is_likely_denied("a", 500));
        costs.record_denied("a", 500);
        costs.record_denied("a", 1);
        costs.record_allowed("a", 1);
        assert!(!costs.is_likely_denied("a", 1));
        assert!(costs.is_likely_denied("a", 500));
        assert!(!costs.is_likely_denied("b", 500));
        costs.record_allowed("a", 500);
        assert!(!costs.is_likely_denied("a", 500));
    }

    /// A regression: a full table was cleared, after which every counter was added to and denied once more.
    #[test]
    fn a_full_table_keeps_the_counters_in_use() {
        let costs = DeniedCosts::default();
        for n in 0..=4 * MAX_COUNTERS {
            costs.record_denied(&n.to_string(), 1);
            if n.is_multiple_of(MAX_COUNTERS / 2) {
                assert!(costs.is_likely_denied("0", 1), "forgotten after {n} others");
            }
        }
        assert!(!costs.is_likely_denied("1", 1));
    }
}
