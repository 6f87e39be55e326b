//! Costs that were recently denied: these are read before they are added.
//!
//! A cost that is added and subtracted again can deny other requests for one round trip. A caller whose cost does not
//! fit would do that with every attempt and starve callers whose costs do fit. So it adds once, is denied, and then
//! reads first. An entry decides nothing: it selects between one round trip and two.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counters in the table.
const MAX_COUNTERS: usize = 100_000;

/// For each counter, the lowest cost that is read first.
#[derive(Debug, Default)]
pub struct DeniedCosts {
    least: Mutex<HashMap<String, u64>>,
}

impl DeniedCosts {
    /// Whether a cost is likely to be denied, so that it is read first.
    pub fn is_likely_denied(&self, name: &str, cost: u64) -> bool {
        self.lock().get(name).is_some_and(|least| *least <= cost)
    }

    pub fn record_denied(&self, name: &str, cost: u64) {
        let mut costs = self.lock();
        if let Some(least) = costs.get_mut(name) {
            *least = cost.min(*least);
            return;
        }
        // Each counter is denied once more before it reads first.
        let old = (costs.len() >= MAX_COUNTERS).then(|| std::mem::take(&mut *costs));
        costs.insert(name.to_owned(), cost);
        drop(costs);
        drop(old); // without the lock: it is large
    }

    /// Raises the threshold above `cost`. A higher cost may still not fit, and continues to read first.
    pub fn record_allowed(&self, name: &str, cost: u64) {
        if let Some(least) = self.lock().get_mut(name) {
            *least = cost.saturating_add(1).max(*least);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, u64>> {
        self.least.lock().unwrap_or_else(PoisonError::into_inner)
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

    #[test]
    fn the_table_is_bounded() {
        let costs = DeniedCosts::default();
        (0..=MAX_COUNTERS).for_each(|n| costs.record_denied(&n.to_string(), 1));
        assert!(costs.lock().len() <= MAX_COUNTERS);
    }
}
