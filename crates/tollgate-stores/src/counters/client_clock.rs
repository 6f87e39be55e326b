//! What stores that decide by the node's clock have in common: setup, deadline, charge, peek, settle.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Time;

use super::name::Naming;
use super::request::{self, PartitionedStore};
use super::transactions::CallTiming;
use super::{CentralCharge, CentralOutcome, CentralReceipt, StoreError};

/// Configuration of a store.
#[derive(Clone, Debug)]
pub struct ClientClockSetup<A> {
    pub address: A,
    pub naming: Naming,
    /// Per decision, over all its round trips.
    pub deadline: Duration,
    /// Added to the lifetime of every counter.
    pub slack: Duration,
}

/// The address of a store, and its default deadline.
pub trait ClientClockAddress {
    const DEADLINE: Duration;
}

impl<A: ClientClockAddress> ClientClockSetup<A> {
    pub const DEADLINE: Duration = A::DEADLINE;
    pub const SLACK: Duration = Duration::from_secs(1);
    /// Upper bound on how long a key outlives the time when it can last matter: the slack, one second of rounding, and
    /// the server's clock, which ticks once a second and can be late on a busy machine.
    pub const EXPIRY_SLACK: Duration = Duration::from_secs(4);

    pub fn new(address: A) -> ClientClockSetup<A> {
        ClientClockSetup { address, naming: Naming::default(), deadline: Self::DEADLINE, slack: Self::SLACK }
    }
}

/// A central store that decides by the clocks of the nodes.
pub struct ClientClockStore<S> {
    pub(super) inner: Arc<S>,
    pub(super) deadline: Duration,
}

impl<S> Clone for ClientClockStore<S> {
    fn clone(&self) -> ClientClockStore<S> {
        ClientClockStore { inner: self.inner.clone(), deadline: self.deadline }
    }
}

impl<S: PartitionedStore> ClientClockStore<S> {
    pub(super) fn new(inner: S, deadline: Duration) -> ClientClockStore<S> {
        ClientClockStore { inner: Arc::new(inner), deadline }
    }

    /// Decides all charges of one request and applies all or none.
    pub async fn charge(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        request::charge(&self.inner, charges, CallTiming::new(now, self.deadline)).await
    }

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub async fn peek(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        request::peek(&self.inner, charges, CallTiming::new(now, self.deadline)).await
    }

    /// Refunds the charges of a receipt, as far as they have not expired.
    pub async fn refund(&self, receipt: CentralReceipt, now: Time) -> Result<(), StoreError> {
        self.settle(receipt, 0, now).await
    }

    /// Corrects the hit's cost after the fact: the difference is refunded, or added as debt.
    pub async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        request::settle(&self.inner, receipt, real_cost, CallTiming::new(now, self.deadline)).await
    }
}
