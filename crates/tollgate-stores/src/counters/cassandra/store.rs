//! The store: a request over the partitions of its counters.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::Limit;

use super::address::CassandraAddress;
use super::link::CassandraLink;
use super::rows::CassandraRows;
use crate::counters::breaker::ServerHealth;
use crate::counters::client_clock::{ClientClockAddress, ClientClockSetup, ClientClockStore};
use crate::counters::decide::{ChargeMode, ChargeResult};
use crate::counters::name::{Naming, hash_tag};
use crate::counters::request::PartitionedStore;
use crate::counters::transactions::{CallTiming, PartitionExecutor, Work};
use crate::counters::{CentralCharge, CentralReceiptItem, CounterId, StoreError};

mod track;

pub type CassandraSetup = ClientClockSetup<CassandraAddress>;

/// Counters on Cassandra or ScyllaDB.
pub type CassandraStore = ClientClockStore<CassandraBackend>;

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
        ClientClockStore::new(CassandraBackend { naming, rows }, deadline)
    }

    /// Deletes a counter; returns whether it existed.
    pub async fn reset(&self, counter: &CounterId, limit: &Limit) -> Result<bool, StoreError> {
        let name = self.inner.naming.name(counter, limit);
        let rows = &self.inner.rows.store;
        rows.link.breaker.admit()?;
        rows.delete(partition_of(&name), &name, Instant::now() + self.deadline).await
    }

    /// Returns once there is a session and the table exists, or why not.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        let link = &self.inner.rows.store.link;
        let Err(error) = link.statements(Instant::now() + within).await else { return Ok(()) };
        match link.breaker.health().trouble {
            Some(reason) => Err(StoreError::Unreachable { server: link.server.clone(), reason }),
            None => Err(error),
        }
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        vec![self.inner.rows.store.link.breaker.health()]
    }

    /// CAS access to rows other than counters; an error while the breaker is open.
    pub(in crate::counters) fn rows(&self) -> Result<&CassandraRows, StoreError> {
        let rows = &self.inner.rows.store;
        rows.link.breaker.admit().map(|()| rows)
    }

    /// Charges that failed because every attempt ended in a CAS conflict.
    pub fn contended(&self) -> u64 {
        self.inner.rows.contended()
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
        partition: String,
        work: Work,
        timing: CallTiming,
    ) -> Result<Vec<ChargeResult>, StoreError> {
        let breaker = &self.rows.store.link.breaker;
        breaker.admit()?;
        let ran = self.rows.run(partition, work, timing).await;
        if matches!(ran, Err(StoreError::Deadline { .. })) {
            breaker.record_failure("it does not answer in time");
        }
        ran
    }
}

impl PartitionedStore for CassandraBackend {
    fn partition_key(&self, charge: &CentralCharge) -> String {
        partition_of(&self.naming.name(&charge.counter, &charge.limit)).to_owned()
    }

    async fn run_charges(
        self: &Arc<Self>,
        charges: Vec<CentralCharge>,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Vec<Result<ChargeResult, StoreError>> {
        let names: Vec<_> =
            charges.iter().map(|charge| self.naming.name(&charge.counter, &charge.limit)).collect();
        let Some(first) = names.first() else { return Vec::new() };
        let partition = partition_of(first).to_owned();
        let count = charges.len();
        match self.run_in_partition(partition, Work::Charge { charges, names, mode }, timing).await {
            Ok(ran) => ran.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); count],
        }
    }

    async fn settle_item(
        self: &Arc<Self>,
        item: &CentralReceiptItem,
        real_cost: u64,
        timing: CallTiming,
    ) -> Result<(), StoreError> {
        let name = self.naming.name(&item.counter, &item.limit);
        let partition = partition_of(&name).to_owned();
        let work = Work::Settle { item: item.clone(), name, real_cost };
        self.run_in_partition(partition, work, timing).await.map(|_| ())
    }
}
