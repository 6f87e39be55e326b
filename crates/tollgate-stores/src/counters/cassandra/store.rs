//! The store: a request over the partitions of its counters.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::Limit;

use super::address::CassandraAddress;
use super::link::Link;
use super::rows::Rows;
use crate::counters::breaker::ServerHealth;
use crate::counters::cells::{Keeper, Moment, Work};
use crate::counters::demand::{Intent, Ran};
use crate::counters::name::{Naming, tag};
use crate::counters::request::Charged;
use crate::counters::told::{ToldAddress, ToldSetup, ToldStore};
use crate::counters::{CentralCharge, CentralReceiptItem, Counter, StoreError};

mod track;

pub type CassandraSetup = ToldSetup<CassandraAddress>;

/// Counters on Cassandra or ScyllaDB.
pub type CassandraStore = ToldStore<Cluster>;

impl ToldAddress for CassandraAddress {
    const DEADLINE: Duration = Duration::from_millis(500);
}

/// The rows, and what they are called.
pub struct Cluster {
    naming: Naming,
    rows: Arc<Keeper<Rows>>,
}

impl CassandraStore {
    /// Connects in the background. Must be called on a runtime.
    pub fn open(setup: CassandraSetup) -> CassandraStore {
        let CassandraSetup { address, naming, deadline, slack } = setup;
        let rows = Keeper::new(Rows { link: Link::open(address), slack });
        ToldStore::new(Cluster { naming, rows }, deadline)
    }

    /// Forgets a counter; says whether it was there.
    pub async fn reset(&self, counter: &Counter, limit: &Limit) -> Result<bool, StoreError> {
        let name = self.inner.naming.name(counter, limit);
        let rows = &self.inner.rows.cells;
        rows.link.breaker.admit()?;
        rows.delete(partition(&name), &name, Instant::now() + self.deadline).await
    }

    /// Returns once there is a session and the table is there; else why not.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        let link = &self.inner.rows.cells.link;
        let Err(error) = link.statements(Instant::now() + within).await else { return Ok(()) };
        match link.breaker.health().trouble {
            Some(reason) => Err(StoreError::Unreachable { server: link.server.clone(), reason }),
            None => Err(error),
        }
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        vec![self.inner.rows.cells.link.breaker.health()]
    }

    /// The rows, for what is kept beside counters; an error while the cluster does not answer.
    pub(in crate::counters) fn rows(&self) -> Result<&Rows, StoreError> {
        let rows = &self.inner.rows.cells;
        rows.link.breaker.admit().map(|()| rows)
    }

    /// Charges that were given up because others were faster each time.
    pub fn contended(&self) -> u64 {
        self.inner.rows.contended()
    }
}

/// The partition of a counter: that of its owner, or its own. Partitions have names.
fn partition(name: &str) -> &str {
    match tag(name) {
        "" => name,
        tag => tag,
    }
}

impl Cluster {
    /// Does work in a partition, unless nobody is there to do it.
    async fn run_in(&self, place: String, work: Work, moment: Moment) -> Result<Vec<Ran>, StoreError> {
        let breaker = &self.rows.cells.link.breaker;
        breaker.admit()?;
        let ran = self.rows.run(place, work, moment).await;
        if matches!(ran, Err(StoreError::Deadline { .. })) {
            breaker.failed("it does not answer in time");
        }
        ran
    }
}

impl Charged for Cluster {
    fn place(&self, charge: &CentralCharge) -> String {
        partition(&self.naming.name(&charge.counter, &charge.limit)).to_owned()
    }

    async fn run(
        self: &Arc<Self>,
        charges: Vec<CentralCharge>,
        intent: Intent,
        moment: Moment,
    ) -> Vec<Result<Ran, StoreError>> {
        let names: Vec<_> =
            charges.iter().map(|charge| self.naming.name(&charge.counter, &charge.limit)).collect();
        let Some(first) = names.first() else { return Vec::new() };
        let (place, asked) = (partition(first).to_owned(), charges.len());
        match self.run_in(place, Work::Charge { charges, names, intent }, moment).await {
            Ok(ran) => ran.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); asked],
        }
    }

    async fn settle_item(
        self: &Arc<Self>,
        item: &CentralReceiptItem,
        real_cost: u64,
        moment: Moment,
    ) -> Result<(), StoreError> {
        let name = self.naming.name(&item.counter, &item.limit);
        let place = partition(&name).to_owned();
        let work = Work::Settle { item: item.clone(), name, real_cost };
        self.run_in(place, work, moment).await.map(|_| ())
    }
}
