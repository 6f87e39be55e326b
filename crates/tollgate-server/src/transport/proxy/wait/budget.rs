//! Bounds the memory of all bodies that are buffered while their requests are decided or wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub struct Budget(AtomicUsize);

impl Budget {
    pub fn new(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget(AtomicUsize::new(bytes)))
    }
}

/// The bytes of a budget that one body has reserved; released on drop.
pub struct BudgetReservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl BudgetReservation {
    pub fn of(budget: &Arc<Budget>) -> BudgetReservation {
        BudgetReservation { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Grows the reservation to `bytes`; `false` if the budget has too little left.
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let take = |left: usize| left.checked_sub(more);
        let fits = self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
        if fits {
            self.bytes += more;
        }
        fits
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_never_exceed_the_budget_and_come_back() {
        let budget = Budget::new(10);
        let mut first = BudgetReservation::of(&budget);
        assert!(first.grow_to(4) && first.grow_to(6) && first.grow_to(2));
        let mut second = BudgetReservation::of(&budget);
        assert!(second.grow_to(4) && !second.grow_to(5));
        drop(first);
        assert!(second.grow_to(10) && !second.grow_to(11));
    }
}
