//! The store: how each limit is kept, and a request over all of its counters.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::{Limit, Time};

use super::address::MemcachedAddress;
use super::fleet::Fleet;
use super::method::Method;
use super::tiers::TierSums;
use super::values::Values;
use super::windows::Windows;
use super::wire::{Command, Reply};
use crate::counters::breaker::ServerHealth;
use crate::counters::cells::{Keeper, Moment, Work};
use crate::counters::demand::{Intent, Ran};
use crate::counters::request::Charged;
use crate::counters::told::{ToldAddress, ToldSetup, ToldStore};
use crate::counters::{CentralCharge, CentralReceiptItem, Counter, StoreError};

mod track;

pub type MemcachedSetup = ToldSetup<MemcachedAddress>;

/// Counters on memcached.
pub type MemcachedStore = ToldStore<Servers>;

impl ToldAddress for MemcachedAddress {
    const DEADLINE: Duration = Duration::from_millis(50);
}

impl MemcachedStore {
    /// Forgetting a tiered window may take many round trips.
    const RESET_DEADLINE: Duration = Duration::from_secs(10);

    /// Connects in the background. Must be called on a runtime.
    pub fn open(setup: MemcachedSetup) -> MemcachedStore {
        let MemcachedSetup { address, naming, deadline, slack } = setup;
        let fleet = Arc::new(Fleet::connect(&address, naming, slack.max(MemcachedSetup::SLACK)));
        let servers = Servers {
            values: Keeper::new(Values { fleet: fleet.clone() }),
            windows: Windows { fleet: fleet.clone(), closed: Default::default(), denied: Default::default() },
            tiers: TierSums { fleet: fleet.clone(), denied: Default::default() },
            fleet,
        };
        ToldStore::new(servers, deadline)
    }

    /// Forgets a counter; says whether it was there.
    pub async fn reset(&self, counter: &Counter, limit: &Limit, now: Time) -> Result<bool, StoreError> {
        self.inner.reset(counter, limit, Moment::new(now, Self::RESET_DEADLINE)).await
    }

    /// Returns once all servers answer; else why one does not.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        self.inner.fleet.ready(Instant::now() + within).await
    }

    pub fn health(&self) -> Vec<ServerHealth> {
        self.inner.fleet.health()
    }

    /// The values, for what is kept beside counters.
    pub(in crate::counters) fn values(&self) -> &Values {
        &self.inner.values.cells
    }

    /// Charges that were given up because others were faster each time.
    pub fn contended(&self) -> u64 {
        self.inner.values.contended()
    }
}

/// The servers, and each way to keep a limit on them.
pub struct Servers {
    fleet: Arc<Fleet>,
    windows: Windows,
    tiers: TierSums,
    values: Arc<Keeper<Values>>,
}

impl Servers {
    async fn reset(&self, counter: &Counter, limit: &Limit, moment: Moment) -> Result<bool, StoreError> {
        match Method::of(limit) {
            Method::Window(kind) => self.windows.reset(kind, counter, limit, moment).await,
            Method::Tiers => self.tiers.reset(counter, limit, moment).await,
            Method::Value => {
                let name = self.fleet.name(counter, limit);
                let server = self.fleet.server(&name);
                let reply = server.ask_one(Command::Delete { key: name }, moment.deadline).await?;
                Ok(reply == Reply::Done)
            }
        }
    }
}

impl Charged for Servers {
    /// Every counter is a place of its own.
    fn place(&self, charge: &CentralCharge) -> String {
        self.fleet.name(&charge.counter, &charge.limit)
    }

    async fn run(
        self: &Arc<Self>,
        charges: Vec<CentralCharge>,
        intent: Intent,
        moment: Moment,
    ) -> Vec<Result<Ran, StoreError>> {
        let mut results = Vec::with_capacity(charges.len());
        for charge in charges {
            results.push(self.run_one(charge, intent, moment).await);
        }
        results
    }

    async fn settle_item(
        self: &Arc<Self>,
        item: &CentralReceiptItem,
        real_cost: u64,
        moment: Moment,
    ) -> Result<(), StoreError> {
        match Method::of(&item.limit) {
            Method::Window(kind) => self.windows.settle(kind, item, real_cost, moment).await,
            Method::Tiers => self.tiers.settle(item, real_cost, moment).await,
            Method::Value => {
                let name = self.fleet.name(&item.counter, &item.limit);
                let work = Work::Settle { item: item.clone(), name: name.clone(), real_cost };
                self.run_value(name, work, moment).await.map(|_| ())
            }
        }
    }
}

impl Servers {
    /// Does work on a value, unless nobody is there to do it: then it does not even wait for its turn.
    async fn run_value(&self, name: String, work: Work, moment: Moment) -> Result<Vec<Ran>, StoreError> {
        self.fleet.server(&name).admit()?;
        self.values.run(name, work, moment).await
    }

    async fn run_one(
        &self,
        charge: CentralCharge,
        intent: Intent,
        moment: Moment,
    ) -> Result<Ran, StoreError> {
        match Method::of(&charge.limit) {
            Method::Window(kind) => self.windows.run(kind, &charge, intent, moment).await,
            Method::Tiers => self.tiers.run(&charge, intent, moment).await,
            Method::Value => {
                let name = self.fleet.name(&charge.counter, &charge.limit);
                let work = Work::Charge { charges: vec![charge], names: vec![name.clone()], intent };
                let ran = self.run_value(name.clone(), work, moment).await?;
                ran.into_iter().next().ok_or_else(|| self.fleet.server(&name).out_of_step())
            }
        }
    }
}
