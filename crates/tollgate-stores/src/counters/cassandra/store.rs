//! The store: counters of one owner in one partition, changed by transactions.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;
use tollgate::internal::store::{Charge, LimitOutcome, ReceiptItem};
use tollgate::internal::track::Delta;
use tollgate::internal::track::central::SharedTrack;

use super::address::CassandraAddress;
use super::link::CassandraLink;
use super::rows::CassandraRows;
use crate::counters::breaker::ServerHealth;
use crate::counters::client_clock::{ClientClockAddress, ClientClockSetup};
use crate::counters::name::{Naming, hash_tag};
use crate::counters::request::{Batch, CallTiming, ChargeMode, ChargeResult, CounterBackend, CounterStore};
use crate::counters::track::{TRACK_TIMEOUT, cas_update};
use crate::counters::transactions::{PartitionExecutor, Work};
use crate::counters::{CentralCounter, CounterId, StoreError};

pub type CassandraSetup = ClientClockSetup<CassandraAddress>;

/// Counters on Cassandra or ScyllaDB.
pub type CassandraStore = CounterStore<CassandraBackend>;

impl ClientClockAddress for CassandraAddress {
    const DEADLINE: Duration = Duration::from_millis(500);
}

/// The rows and their naming.
pub struct CassandraBackend {
    naming: Naming,
    rows: Arc<PartitionExecutor<CassandraRows>>,
}

impl CassandraStore {
    /// Connects in the background. Must be called inside a tokio runtime.
    pub fn open(setup: CassandraSetup) -> CassandraStore {
        let CassandraSetup { address, naming, deadline, slack } = setup;
        let rows = PartitionExecutor::new(CassandraRows { link: CassandraLink::open(address), slack });
        CounterStore::new(CassandraBackend { naming, rows }, deadline)
    }

    /// CAS access to rows other than counters; an error while the breaker is open.
    pub(in crate::counters) fn rows(&self) -> Result<&CassandraRows, StoreError> {
        let rows = &self.backend.rows.store;
        rows.link.breaker.admit().map(|()| rows)
    }
}

/// The partition of a counter: that of its owner, or its own. Partition keys are not empty.
fn partition_of(name: &str) -> &str {
    match hash_tag(name) {
        "" => name,
        tag => tag,
    }
}

impl CassandraBackend {
    /// Runs work in a partition. Fails without queueing while the breaker is open.
    async fn run_in_partition(
        &self,
        partition: &str,
        work: Work,
        timing: CallTiming,
    ) -> Result<Vec<ChargeResult>, StoreError> {
        let breaker = &self.rows.store.link.breaker;
        breaker.admit()?;
        let results = self.rows.run(partition.to_owned(), work, timing).await;
        if matches!(results, Err(StoreError::Deadline { .. })) {
            breaker.record_failure("it does not answer in time");
        }
        results
    }
}

impl CounterBackend for CassandraBackend {
    type Partition = String;

    fn name(&self, counter: &CentralCounter) -> String {
        self.naming.name(&counter.id, &counter.limit)
    }

    fn partition(&self, name: &str) -> String {
        partition_of(name).to_owned()
    }

    async fn charge(
        &self,
        batch: &Batch<'_, String, Charge>,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Vec<Result<ChargeResult, StoreError>> {
        let charges = batch.items.iter().copied().cloned().collect();
        let work = Work::Charge { charges, names: batch.names.clone(), mode };
        match self.run_in_partition(&batch.partition, work, timing).await {
            Ok(results) => results.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); batch.items.len()],
        }
    }

    async fn settle(
        &self,
        batch: &Batch<'_, String, ReceiptItem>,
        real_cost: u64,
        timing: CallTiming,
    ) -> Vec<Result<Option<LimitOutcome>, StoreError>> {
        let settled = batch.iter().map(async |(item, name)| {
            let work = Work::Settle { item: item.clone(), name: name.to_owned(), real_cost };
            self.run_in_partition(&batch.partition, work, timing).await.map(|_| None)
        });
        join_all(settled).await
    }

    async fn reset(&self, counter: &CentralCounter, timing: CallTiming) -> Result<bool, StoreError> {
        let name = self.name(counter);
        let rows = &self.rows.store;
        rows.link.breaker.admit()?;
        rows.delete(partition_of(&name), &name, timing.deadline).await
    }

    /// There is a session, and the table exists.
    async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        let link = &self.rows.store.link;
        let Err(error) = link.statements(Instant::now() + within).await else { return Ok(()) };
        match link.breaker.health().trouble {
            Some(reason) => Err(StoreError::Unreachable { server: link.server.clone(), reason }),
            None => Err(error),
        }
    }

    fn health(&self) -> Vec<ServerHealth> {
        vec![self.rows.store.link.breaker.health()]
    }

    fn contended(&self) -> u64 {
        self.rows.contended()
    }
}

/// Records of tracked keys: one row each, in a partition of its own. Transactions of one partition are serialised, so in
/// the owner's partition a record would delay decisions.
impl CassandraStore {
    /// Adds a delta to the record of its key. Idempotent: a resent delta counts once.
    pub async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        let name = self.backend.naming.track_name(&delta.counter);
        let rows = &self.backend.rows.store;
        rows.link.breaker.admit()?;
        cas_update::add(rows, &name, &name, delta).await
    }

    /// The record of a key; empty if there is none.
    pub async fn read_track(&self, counter: &CounterId, writer: u64) -> Result<SharedTrack, StoreError> {
        let name = self.backend.naming.track_name(counter);
        let rows = &self.backend.rows.store;
        rows.link.breaker.admit()?;
        Ok(cas_update::read(rows, &name, &name).await?.into_shared(writer))
    }

    pub async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        let name = self.backend.naming.track_name(counter);
        let rows = &self.backend.rows.store;
        rows.link.breaker.admit()?;
        rows.delete(&name, &name, Instant::now() + TRACK_TIMEOUT).await.map(drop)
    }
}
