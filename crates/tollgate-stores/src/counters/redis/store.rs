//! The store: charges by a script in the server, one call for the counters of one slot.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::internal::store::{Charge, LimitOutcome, ReceiptItem};

use super::address::RedisAddress;
use super::call::{ScriptCall, Topology};
use super::cluster::slot_of;
use super::script::{self, At, Op, ScriptEntry};
use super::values::RedisValues;
use crate::counters::breaker::ServerHealth;
use crate::counters::name::Naming;
use crate::counters::request::{Batch, CallTiming, ChargeMode, ChargeResult, CounterBackend, CounterStore};
use crate::counters::{CentralCounter, StoreError};

/// Address, naming and deadline of a store.
#[derive(Clone, Debug)]
pub struct RedisSetup {
    pub address: RedisAddress,
    pub naming: Naming,
    /// Per decision, over all its calls.
    pub deadline: Duration,
}

impl RedisSetup {
    pub const DEADLINE: Duration = Duration::from_millis(50);

    pub fn new(address: RedisAddress) -> RedisSetup {
        RedisSetup { address, naming: Naming::default(), deadline: Self::DEADLINE }
    }
}

/// For one attempt to reach a server that is not connected yet.
const PING_TIMEOUT: Duration = Duration::from_secs(1);

/// Counters on Redis or Valkey.
pub type RedisStore = CounterStore<RedisBackend>;

/// The servers, and the naming of counters.
pub struct RedisBackend {
    pub(super) topology: Arc<Topology>,
    pub(super) naming: Naming,
    pub(super) clock: RedisClock,
}

/// The clock that decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RedisClock {
    Server,
    #[cfg_attr(not(feature = "testing"), expect(dead_code))]
    Node,
}

impl RedisStore {
    /// Connects in the background for the lifetime of the store; a server that is unreachable now may become available
    /// later. Fails only if certificates cannot be read. Must be called inside a tokio runtime.
    pub fn open(setup: RedisSetup) -> Result<RedisStore, String> {
        let RedisSetup { address, naming, deadline } = setup;
        let topology = Arc::new(Topology::open(address)?);
        Ok(CounterStore::new(RedisBackend { topology, naming, clock: RedisClock::Server }, deadline))
    }

    /// CAS access to values other than counters.
    pub(in crate::counters) fn values(&self) -> RedisValues<'_> {
        RedisValues { topology: &self.backend.topology }
    }
}

impl RedisBackend {
    /// One call for the counters of one slot. A failed call decides nothing: `on_store_error` of their rules applies.
    async fn call(
        &self,
        slot: u16,
        op: Op,
        entries: &[ScriptEntry<'_>],
        timing: CallTiming,
    ) -> Vec<Result<LimitOutcome, StoreError>> {
        let at = match self.clock {
            RedisClock::Server => At::Server,
            RedisClock::Node => At::Fixed(timing.now),
        };
        let call = ScriptCall { slot, op, at, entries, deadline: timing.deadline };
        match self.topology.call_script(&call).await {
            Ok((done, server)) => {
                let refused = |(entry, part): (&ScriptEntry<'_>, Result<LimitOutcome, String>)| {
                    part.map_err(|reason| script::invalid_value(&server, entry.name, &reason))
                };
                entries.iter().zip(done.parts).map(refused).collect()
            }
            Err(error) => vec![Err(error); entries.len()],
        }
    }
}

impl CounterBackend for RedisBackend {
    /// A hash slot; on a single server all counters are one partition.
    type Partition = u16;

    fn name(&self, counter: &CentralCounter) -> String {
        self.naming.name(&counter.id, &counter.limit)
    }

    fn partition(&self, name: &str) -> u16 {
        match *self.topology {
            Topology::Single(_) => 0,
            Topology::Cluster(_) => slot_of(name),
        }
    }

    async fn charge(
        &self,
        batch: &Batch<'_, u16, Charge>,
        mode: ChargeMode,
        timing: CallTiming,
    ) -> Vec<Result<ChargeResult, StoreError>> {
        let op = match mode {
            ChargeMode::Charge => Op::Charge,
            ChargeMode::CountDenied => Op::CountDenied,
            ChargeMode::Peek => Op::Peek,
        };
        let entries: Vec<_> = batch.iter().map(|(charge, name)| ScriptEntry::charge(name, charge)).collect();
        let decided = self.call(batch.partition, op, &entries, timing).await;
        let result = |outcome: Result<_, _>| outcome.map(|outcome| ChargeResult { outcome, before: None });
        decided.into_iter().map(result).collect()
    }

    async fn settle(
        &self,
        batch: &Batch<'_, u16, ReceiptItem>,
        real_cost: u64,
        timing: CallTiming,
    ) -> Vec<Result<Option<LimitOutcome>, StoreError>> {
        let entries: Vec<_> =
            batch.iter().map(|(item, name)| ScriptEntry::settle(name, item, real_cost)).collect();
        let settled = self.call(batch.partition, Op::Settle, &entries, timing).await;
        settled.into_iter().map(|settled| settled.map(Some)).collect()
    }

    async fn reset(&self, counter: &CentralCounter, timing: CallTiming) -> Result<bool, StoreError> {
        let name = self.name(counter);
        let reply = self.topology.command(slot_of(&name), &["DEL", &name], timing.deadline).await?;
        Ok(reply.number() == Some(1))
    }

    async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        let deadline = Instant::now() + within;
        loop {
            match self.topology.command(0, &["PING"], Instant::now() + PING_TIMEOUT).await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    fn health(&self) -> Vec<ServerHealth> {
        match &*self.topology {
            Topology::Single(link) => vec![link.health()],
            Topology::Cluster(cluster) => cluster.health(),
        }
    }
}
