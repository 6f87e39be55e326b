//! Bounds the memory of all bodies that are buffered while their requests are decided or wait.
//!
//! A client address has a share of it, so that one client does not take the memory of all others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::connection::per_address::network;

/// Of a budget, for one client address. IPv6 addresses of one network are one client.
pub const SHARE_DIVISOR: usize = 8;
/// The shares are spread over tables with a lock each.
const TABLES: usize = 16;

pub struct Budget {
    left: AtomicUsize,
    share: usize,
    /// Bytes that each client address has reserved. An address without any has no entry.
    used: [Mutex<HashMap<IpAddr, usize>>; TABLES],
}

/// Why a reservation cannot grow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OverBudget {
    /// All bodies together.
    Total,
    /// Those of the client.
    Share,
}

impl Budget {
    pub fn new(bytes: usize) -> Arc<Budget> {
        Budget::with_share(bytes, bytes / SHARE_DIVISOR)
    }

    /// With another share of a client address.
    pub fn with_share(bytes: usize, share: usize) -> Arc<Budget> {
        Arc::new(Budget { left: AtomicUsize::new(bytes), share, used: Default::default() })
    }

    fn table(&self, client: IpAddr) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(client);
        self.used[hash as usize % TABLES].lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, client: Option<IpAddr>, bytes: usize) -> Result<(), OverBudget> {
        if let Some(client) = client {
            let mut table = self.table(client);
            let used = table.get(&client).copied().unwrap_or_default() + bytes;
            if used > self.share {
                return Err(OverBudget::Share);
            }
            table.insert(client, used);
        }
        let take = |left: usize| left.checked_sub(bytes);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            self.release_share(client, bytes);
            return Err(OverBudget::Total);
        }
        Ok(())
    }

    fn release(&self, client: Option<IpAddr>, bytes: usize) {
        self.left.fetch_add(bytes, Ordering::Relaxed);
        self.release_share(client, bytes);
    }

    fn release_share(&self, client: Option<IpAddr>, bytes: usize) {
        let Some(client) = client else { return };
        if let Entry::Occupied(mut used) = self.table(client).entry(client) {
            *used.get_mut() -= bytes;
            if *used.get() == 0 {
                used.remove();
            }
        }
    }
}

/// The bytes of a budget that one body has reserved; released on drop.
pub struct BudgetReservation {
    budget: Arc<Budget>,
    client: Option<IpAddr>,
    bytes: usize,
}

impl BudgetReservation {
    /// Within the share of a client, or of all the budget if there is none.
    pub fn of(budget: &Arc<Budget>, client: Option<IpAddr>) -> BudgetReservation {
        BudgetReservation { budget: Arc::clone(budget), client: client.map(network), bytes: 0 }
    }

    /// Grows the reservation to `bytes`.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let more = bytes.saturating_sub(self.bytes);
        if more > 0 {
            self.budget.reserve(self.client, more)?;
            self.bytes += more;
        }
        Ok(())
    }
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.budget.release(self.client, self.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reservation(budget: &Arc<Budget>, client: &str) -> BudgetReservation {
        BudgetReservation::of(budget, Some(client.parse().expect("an address")))
    }

    #[test]
    fn reservations_never_exceed_the_budget_and_come_back() {
        let budget = Budget::new(10);
        let mut first = BudgetReservation::of(&budget, None);
        assert!([4, 6, 2].into_iter().all(|bytes| first.grow_to(bytes).is_ok()));
        let mut second = BudgetReservation::of(&budget, None);
        assert_eq!((second.grow_to(4), second.grow_to(5)), (Ok(()), Err(OverBudget::Total)));
        drop(first);
        assert_eq!((second.grow_to(10), second.grow_to(11)), (Ok(()), Err(OverBudget::Total)));
    }

    #[test]
    fn a_client_has_a_share_which_comes_back() {
        let budget = Budget::new(80);
        let mut first = reservation(&budget, "192.0.2.1");
        let mut second = reservation(&budget, "192.0.2.1");
        assert_eq!((first.grow_to(6), second.grow_to(4)), (Ok(()), Ok(())));
        assert_eq!((first.grow_to(7), second.grow_to(5)), (Err(OverBudget::Share), Err(OverBudget::Share)));
        assert_eq!(reservation(&budget, "192.0.2.2").grow_to(10), Ok(()), "another client has its own");
        drop(first);
        assert_eq!(second.grow_to(10), Ok(()));
        let mut wide = reservation(&budget, "2001:db8::1");
        assert_eq!(wide.grow_to(10), Ok(()));
        assert_eq!(reservation(&budget, "2001:db8::2:1").grow_to(1), Err(OverBudget::Share));
        assert_eq!(reservation(&budget, "2001:db8:0:1::1").grow_to(1), Ok(()));
        drop((second, wide));
        let is_empty = |table: &Mutex<HashMap<IpAddr, usize>>| table.lock().expect("no panic").is_empty();
        assert!(budget.used.iter().all(is_empty) && budget.left.load(Ordering::Relaxed) == 80);
    }

    #[test]
    fn what_the_budget_refuses_counts_for_no_share() {
        let budget = Budget::with_share(10, 8);
        let mut other = BudgetReservation::of(&budget, None);
        other.grow_to(5).expect("there is room");
        let mut client = reservation(&budget, "192.0.2.1");
        assert_eq!(client.grow_to(6), Err(OverBudget::Total));
        drop(other);
        assert_eq!(client.grow_to(8), Ok(()));
    }
}
