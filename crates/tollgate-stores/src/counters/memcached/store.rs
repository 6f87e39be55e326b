//! The store: selects the layout of each limit.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tollgate::internal::store::{Charge, LimitOutcome, ReceiptItem};
use tollgate::internal::track::Delta;
use tollgate::internal::track::central::SharedTrack;

use super::address::MemcachedAddress;
use super::layout::CounterLayout;
use super::pool::MemcachedPool;
use super::tiers::TierSums;
use super::values::MemcachedValues;
use super::windows::Windows;
use super::wire::{MemcachedCommand, MemcachedReply};
use crate::counters::breaker::ServerHealth;
use crate::counters::client_clock::{ClientClockAddress, ClientClockSetup};
use crate::counters::request::{Batch, CallTiming, ChargeMode, ChargeResult, CounterBackend, CounterStore};
use crate::counters::track::{TRACK_TIMEOUT, cas_update};
use crate::counters::transactions::{PartitionExecutor, Work};
use crate::counters::{CentralCounter, CounterId, StoreError};

/// Deleting a tiered window can take many round trips.
const RESET_DEADLINE: Duration = Duration::from_secs(10);

pub type MemcachedSetup = ClientClockSetup<MemcachedAddress>;

/// Counters on memcached.
pub type MemcachedStore = CounterStore<MemcachedBackend>;

impl ClientClockAddress for MemcachedAddress {
    const DEADLINE: Duration = Duration::from_millis(50);
}

impl MemcachedStore {
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
        CounterStore::new(backend, deadline)
    }

    /// CAS access to values other than counters.
    pub(in crate::counters) fn values(&self) -> &MemcachedValues {
        &self.backend.values.store
    }
}

/// The servers, and the implementation of each layout.
pub struct MemcachedBackend {
    pool: Arc<MemcachedPool>,
    windows: Windows,
    tiers: TierSums,
    values: Arc<PartitionExecutor<MemcachedValues>>,
}

impl CounterBackend for MemcachedBackend {
    /// Every counter is a partition of its own.
    type Partition = String;

    fn name(&self, counter: &CentralCounter) -> String {
        self.pool.name(counter)
    }

    fn partition(&self, name: &str) -> String {
        name.to_owned()
    }

    async fn charge(
        &self,
        batch: &Batch<'_, String, Charge>,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Vec<Result<ChargeResult, StoreError>> {
        let mut results = Vec::with_capacity(batch.items.len());
        for (charge, name) in batch.iter() {
            results.push(self.charge_one(charge, name, mode, timing).await);
        }
        results
    }

    async fn settle(
        &self,
        batch: &Batch<'_, String, ReceiptItem>,
        real_cost: u64,
        timing: CallTiming,
    ) -> Vec<Result<Option<LimitOutcome>, StoreError>> {
        let settled = batch.iter().map(|(item, name)| self.settle_one(item, name, real_cost, timing));
        join_all(settled).await.into_iter().map(|settled| settled.map(|()| None)).collect()
    }

    async fn reset(&self, counter: &CentralCounter, timing: CallTiming) -> Result<bool, StoreError> {
        let timing = CallTiming::new(timing.now, RESET_DEADLINE);
        let name = self.pool.name(counter);
        match CounterLayout::of(&counter.limit) {
            CounterLayout::Window(kind) => self.windows.reset(kind, &name, &counter.limit, timing).await,
            CounterLayout::Tiers => self.tiers.reset(&name, &counter.limit, timing).await,
            CounterLayout::Value => {
                let server = self.pool.server(&name);
                let reply =
                    server.execute_one(MemcachedCommand::Delete { key: name }, timing.deadline).await?;
                Ok(reply == MemcachedReply::Done)
            }
        }
    }

    async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        self.pool.ready(Instant::now() + within).await
    }

    fn health(&self) -> Vec<ServerHealth> {
        self.pool.health()
    }

    fn contended(&self) -> u64 {
        self.values.contended()
    }
}

impl MemcachedBackend {
    async fn charge_one(
        &self,
        charge: &Charge,
        name: &str,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Result<ChargeResult, StoreError> {
        match CounterLayout::of(&charge.counter().limit) {
            CounterLayout::Window(kind) => self.windows.charge(kind, charge, name, mode, timing).await,
            CounterLayout::Tiers => self.tiers.charge(charge, name, mode, timing).await,
            CounterLayout::Value => {
                let work = Work::Charge { charges: vec![charge.clone()], names: vec![name.to_owned()], mode };
                let results = self.run_value(name, work, timing).await?;
                results.into_iter().next().ok_or_else(|| self.pool.server(name).unexpected_reply())
            }
        }
    }

    async fn settle_one(
        &self,
        item: &ReceiptItem,
        name: &str,
        real_cost: u64,
        timing: CallTiming,
    ) -> Result<(), StoreError> {
        match CounterLayout::of(&item.counter().limit) {
            CounterLayout::Window(kind) => self.windows.settle(kind, item, name, real_cost, timing).await,
            CounterLayout::Tiers => self.tiers.settle(item, name, real_cost, timing).await,
            CounterLayout::Value => {
                let work = Work::Settle { item: item.clone(), name: name.to_owned(), real_cost };
                self.run_value(name, work, timing).await.map(drop)
            }
        }
    }

    /// Runs work on a value. Fails without queueing while the server's breaker is open.
    async fn run_value(
        &self,
        name: &str,
        work: Work,
        timing: CallTiming,
    ) -> Result<Vec<ChargeResult>, StoreError> {
        self.pool.server(name).admit()?;
        self.values.run(name.to_owned(), work, timing).await
    }
}

/// Records of tracked keys: one value each, replaced by compare-and-swap.
impl MemcachedStore {
    /// Adds a delta to the record of its key. Idempotent: a resent delta counts once.
    pub async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        let name = self.backend.pool.track_name(&delta.counter);
        cas_update::add(&self.backend.values.store, &name, &name, delta).await
    }

    /// The record of a key; empty if there is none.
    pub async fn read_track(&self, counter: &CounterId, writer: u64) -> Result<SharedTrack, StoreError> {
        let name = self.backend.pool.track_name(counter);
        Ok(cas_update::read(&self.backend.values.store, &name, &name).await?.into_shared(writer))
    }

    pub async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        let name = self.backend.pool.track_name(counter);
        let server = self.backend.pool.server(&name);
        server
            .execute_one(MemcachedCommand::Delete { key: name }, Instant::now() + TRACK_TIMEOUT)
            .await
            .map(drop)
    }
}
