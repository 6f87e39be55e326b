//! Stores that are told the time by those who ask: what they have in common.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Time;

use super::name::Naming;
use super::request::{self, PartitionedStore};
use super::transactions::CallTiming;
use super::{CentralCharge, CentralOutcome, CentralReceipt, StoreError};

/// How a store is set up.
#[derive(Clone, Debug)]
pub struct ClientClockSetup<A> {
    pub address: A,
    pub naming: Naming,
    /// For each decision, all its round trips together.
    pub deadline: Duration,
    /// How much longer than they are needed counters are kept.
    pub slack: Duration,
}

/// Where a store is, and how long it may take.
pub trait ClientClockAddress {
    const DEADLINE: Duration;
}

impl<A: ClientClockAddress> ClientClockSetup<A> {
    pub const DEADLINE: Duration = A::DEADLINE;
    pub const SLACK: Duration = Duration::from_secs(1);
    /// No key outlives the moment it can last count by more than this: the slack, a second to which lifetimes are
    /// rounded up, and the server's clock, which ticks once a second and on a busy machine late.
    pub const EXPIRY_SLACK: Duration = Duration::from_secs(4);

    pub fn new(address: A) -> ClientClockSetup<A> {
        ClientClockSetup { address, naming: Naming::default(), deadline: Self::DEADLINE, slack: Self::SLACK }
    }
}

/// Counters on servers, by the clocks of the nodes.
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

    /// Decides all charges of one request and takes all or none.
    pub async fn charge(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        request::charge(&self.inner, charges, CallTiming::new(now, self.deadline)).await
    }

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub async fn peek(&self, charges: &[CentralCharge], now: Time) -> CentralOutcome {
        request::peek(&self.inner, charges, CallTiming::new(now, self.deadline)).await
    }

    /// Gives the charges of a receipt back, as far as time has not.
    pub async fn refund(&self, receipt: CentralReceipt, now: Time) -> Result<(), StoreError> {
        self.settle(receipt, 0, now).await
    }

    /// Corrects the hit's cost after the fact: the difference is given back, or owed.
    pub async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) -> Result<(), StoreError> {
        request::settle(&self.inner, receipt, real_cost, CallTiming::new(now, self.deadline)).await
    }
}
