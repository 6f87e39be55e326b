//! The store: selects the layout of each limit, and runs a request over all of its counters.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Limit, Time};

use super::address::MemcachedAddress;
use super::layout::CounterLayout;
use super::pool::MemcachedPool;
use super::tiers::TierSums;
use super::values::MemcachedValues;
use super::windows::Windows;
use super::wire::{MemcachedCommand, MemcachedReply};
use crate::counters::breaker::ServerHealth;
use crate::counters::client_clock::{ClientClockAddress, ClientClockSetup, ClientClockStore};
use crate::counters::decide::{ChargeMode, ChargeResult};
use crate::counters::request::PartitionedStore;
use crate::counters::transactions::{CallTiming, PartitionExecutor, Work};
use crate::counters::{CentralCharge, CentralReceiptItem, CounterId, StoreError};

mod track;

pub type MemcachedSetup = ClientClockSetup<MemcachedAddress>;

/// Counters on memcached.
pub type MemcachedStore = ClientClockStore<MemcachedBackend>;

impl ClientClockAddress for MemcachedAddress {
    const DEADLINE: Duration = Duration::from_millis(50);
}

impl MemcachedStore {
    /// Deleting a tiered window can take many round trips.
    const RESET_DEADLINE: Duration = Duration::from_secs(10);

    /// Connects in the background. Must be called inside a tokio runtime.
    pub fn open(setup: MemcachedSetup) -> MemcachedStore {
        let MemcachedSetup { address, naming, deadline, slack } = setup;
        let pool = Arc::new(MemcachedPool::connect(&address, naming, slack.max(MemcachedSetup::SLACK)));
        let backend = MemcachedBackend {
            values: PartitionExecutor::new(MemcachedValues { pool: pool.clone() }),
            windows: Windows { pool: pool.clone(), closed: Default::default(), denied: Default::default() },
            tiers: TierSums { pool: pool.clone(), denied: Default::default() },
            pool,
        };
        ClientClockStore::new(backend, deadline)
    }

    /// Deletes a counter; returns whether it existed.
    pub async fn reset(&self, counter: &CounterId, limit: &Limit, now: Time) -> Result<bool, StoreError> {
        self.inner.reset(counter, limit, CallTiming::new(now, Self::RESET_DEADLINE)).await
    }

    /// Returns once all servers reply, or why one does not.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        self.inner.pool.ready(Instant::now() + within).await
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        self.inner.pool.health()
    }

    /// CAS access to values other than counters.
    pub(in crate::counters) fn values(&self) -> &MemcachedValues {
        &self.inner.values.store
    }

    /// Charges that failed because every attempt ended in a CAS conflict.
    pub fn contended(&self) -> u64 {
        self.inner.values.contended()
    }
}

/// The servers, and the implementation of each layout.
pub struct MemcachedBackend {
    pool: Arc<MemcachedPool>,
    windows: Windows,
    tiers: TierSums,
    values: Arc<PartitionExecutor<MemcachedValues>>,
}

impl MemcachedBackend {
    async fn reset(
        &self,
        counter: &CounterId,
        limit: &Limit,
        timing: CallTiming,
    ) -> Result<bool, StoreError> {
        match CounterLayout::of(limit) {
            CounterLayout::Window(kind) => self.windows.reset(kind, counter, limit, timing).await,
            CounterLayout::Tiers => self.tiers.reset(counter, limit, timing).await,
            CounterLayout::Value => {
                let name = self.pool.name(counter, limit);
                let server = self.pool.server(&name);
                let reply =
                    server.execute_one(MemcachedCommand::Delete { key: name }, timing.deadline).await?;
                Ok(reply == MemcachedReply::Done)
            }
        }
    }
}

impl PartitionedStore for MemcachedBackend {
    /// Every counter is a partition of its own.
    fn partition_key(&self, charge: &CentralCharge) -> String {
        self.pool.name(&charge.counter, &charge.limit)
    }

    async fn run_charges(
        self: &Arc<Self>,
        charges: Vec<CentralCharge>,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Vec<Result<ChargeResult, StoreError>> {
        let mut results = Vec::with_capacity(charges.len());
        for charge in charges {
            results.push(self.run_one(charge, mode, timing).await);
        }
        results
    }

    async fn settle_item(
        self: &Arc<Self>,
        item: &CentralReceiptItem,
        real_cost: u64,
        timing: CallTiming,
    ) -> Result<(), StoreError> {
        match CounterLayout::of(&item.limit) {
            CounterLayout::Window(kind) => self.windows.settle(kind, item, real_cost, timing).await,
            CounterLayout::Tiers => self.tiers.settle(item, real_cost, timing).await,
            CounterLayout::Value => {
                let name = self.pool.name(&item.counter, &item.limit);
                let work = Work::Settle { item: item.clone(), name: name.clone(), real_cost };
                self.run_value(name, work, timing).await.map(|_| ())
            }
        }
    }
}

impl MemcachedBackend {
    /// Runs work on a value. Fails without queueing while the server's breaker is open.
    async fn run_value(
        &self,
        name: String,
        work: Work,
        timing: CallTiming,
    ) -> Result<Vec<ChargeResult>, StoreError> {
        self.pool.server(&name).admit()?;
        self.values.run(name, work, timing).await
    }

    async fn run_one(
        &self,
        charge: CentralCharge,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Result<ChargeResult, StoreError> {
        match CounterLayout::of(&charge.limit) {
            CounterLayout::Window(kind) => self.windows.run(kind, &charge, mode, timing).await,
            CounterLayout::Tiers => self.tiers.run(&charge, mode, timing).await,
            CounterLayout::Value => {
                let name = self.pool.name(&charge.counter, &charge.limit);
                let work = Work::Charge { charges: vec![charge], names: vec![name.clone()], mode };
                let ran = self.run_value(name.clone(), work, timing).await?;
                ran.into_iter().next().ok_or_else(|| self.pool.server(&name).unexpected_reply())
            }
        }
    }
}
