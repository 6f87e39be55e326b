//! The store: groups counters by slot, orders the calls, and rolls back.
//!
//! Slots of the owner are called first and in parallel, counters that many users share only after those have replied,
//! so that a denied flood does not drain a shared limit. If another slot denies, earlier charges are rolled back by
//! their receipt: until then they can deny other requests, never admit one (I3).

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, timeout, timeout_at};
use tollgate::store::LimitOutcome;
use tollgate::{Limit, Time};

use super::address::RedisAddress;
use super::call::{ScriptCall, Topology};
use super::cluster::slot_of;
use super::resp::RedisReply;
use super::script::{self, At, Op, ScriptEntry, ScriptResult};
use super::values::RedisValues;
use crate::counters::breaker::ServerHealth;
use crate::counters::name::Naming;
use crate::counters::{
    CentralCharge, CentralOutcome, CentralReceipt, CentralReceiptItem, CounterId, StoreError,
};

mod track;

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

/// Counters on Redis or Valkey. Clones share the connections.
#[derive(Clone)]
pub struct RedisStore(Arc<RedisStoreInner>);

struct RedisStoreInner {
    topology: Topology,
    naming: Naming,
    deadline: Duration,
}

/// The counters of one slot, with their indexes in the request.
struct SlotGroup {
    slot: u16,
    indices: Vec<usize>,
    entries: Vec<ScriptEntry>,
}

/// The stored state before and after one charge; consecutive charges form a chain (checked by tests).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transition {
    pub at: Time,
    pub before: String,
    pub after: String,
}

impl RedisStore {
    /// Connects in the background for the lifetime of the store; a server that is unreachable now may become available
    /// later. Fails only if certificates cannot be read. Must be called inside a tokio runtime.
    pub fn open(setup: RedisSetup) -> Result<RedisStore, String> {
        let RedisSetup { address, naming, deadline } = setup;
        let topology = Topology::open(address)?;
        Ok(RedisStore(Arc::new(RedisStoreInner { topology, naming, deadline })))
    }

    /// Decides all charges of one request and applies all or none.
    pub async fn charge(&self, charges: &[CentralCharge]) -> CentralOutcome {
        self.decide(charges, Op::Charge, At::Server).await
    }

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    pub async fn peek(&self, charges: &[CentralCharge]) -> CentralOutcome {
        self.decide(charges, Op::Peek, At::Server).await
    }

    /// Refunds the charges of a receipt, as far as they have not expired.
    pub async fn refund(&self, receipt: CentralReceipt) -> Result<(), StoreError> {
        self.settle(receipt, 0).await
    }

    /// Corrects the hit's cost after the fact: the difference is refunded, or added as debt.
    pub async fn settle(&self, receipt: CentralReceipt, real_cost: u64) -> Result<(), StoreError> {
        self.settle_items(&receipt.items, real_cost, At::Server).await
    }

    /// Deletes a counter; returns whether it existed.
    pub async fn reset(&self, counter: &CounterId, limit: &Limit) -> Result<bool, StoreError> {
        let name = self.0.naming.name(counter, limit);
        let deadline = Instant::now() + self.0.deadline;
        let reply = self.0.topology.command(slot_of(&name), &["DEL", &name], deadline).await?;
        Ok(reply.number() == Some(1))
    }

    /// The store at a fixed time: for tests.
    pub fn at_fixed_time(&self, now: Time) -> FixedTimeStore<'_> {
        FixedTimeStore { store: self, at: At::Fixed(now) }
    }

    /// Returns once a server replies, or the error at the end of `within`.
    pub async fn ready(&self, within: Duration) -> Result<(), StoreError> {
        let deadline = Instant::now() + within;
        loop {
            let reply = self.0.topology.command(0, &["PING"], Instant::now() + self.0.deadline).await;
            match reply {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= deadline => return Err(error),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// CAS access to values other than counters.
    pub(in crate::counters) fn values(&self) -> RedisValues<'_> {
        RedisValues { topology: &self.0.topology }
    }

    /// The state of every server.
    pub fn health(&self) -> Vec<ServerHealth> {
        match &self.0.topology {
            Topology::Single(link) => vec![link.health()],
            Topology::Cluster(cluster) => cluster.health(),
        }
    }

    /// Charges one counter and returns the states around the decision: for tests that no charge is lost.
    pub async fn charge_with_states(
        &self,
        charge: &CentralCharge,
    ) -> Result<(LimitOutcome, Transition), StoreError> {
        let group = self.groups(std::slice::from_ref(charge)).swap_remove(0);
        let deadline = Instant::now() + self.0.deadline;
        let call = group.call(Op::ChargeWithStates, At::Server, deadline);
        let (mut done, server) = self.0.topology.call_script(&call).await?;
        let part = done
            .parts
            .swap_remove(0)
            .map_err(|reason| script::refused(&server, &group.entries[0].name, &reason))?;
        let [before, after] = <[String; 2]>::try_from(done.states).unwrap_or_default();
        Ok((part, Transition { at: Time::from_nanos(done.now_us * 1000), before, after }))
    }

    async fn decide(&self, charges: &[CentralCharge], op: Op, at: At) -> CentralOutcome {
        let deadline = Instant::now() + self.0.deadline;
        let groups = self.groups(charges);
        let owned = |group: &SlotGroup| {
            group.indices.iter().all(|index| charges[*index].counter.key.owner().is_some())
        };
        // On a single server all counters are one group.
        let (first, second): (Vec<_>, Vec<_>) = groups.into_iter().partition(owned);
        let mut request = RedisRequest::of(self, charges.len(), deadline);
        request.call_in_order(&first, &second, op, at).await;
        if request.denied {
            request.roll_back(charges, &first, &second, at).await;
        }
        let admitted = !request.denied;
        let missing =
            || Err(StoreError::Unreachable { server: String::new(), reason: "not asked".to_owned() });
        let parts = request.parts.into_iter().map(|part| part.unwrap_or_else(missing)).collect();
        CentralOutcome::of(charges, admitted, parts)
    }

    /// Groups a request by the slots of its counters; on a single server there is one group.
    fn groups(&self, charges: &[CentralCharge]) -> Vec<SlotGroup> {
        let mut groups: Vec<SlotGroup> = Vec::with_capacity(1);
        for (index, charge) in charges.iter().enumerate() {
            let name = self.0.naming.name(&charge.counter, &charge.limit);
            self.add(&mut groups, index, ScriptEntry::charge(name, charge));
        }
        groups
    }

    fn add(&self, groups: &mut Vec<SlotGroup>, index: usize, entry: ScriptEntry) {
        let slot = match self.0.topology {
            Topology::Single(_) => 0,
            Topology::Cluster(_) => slot_of(&entry.name),
        };
        match groups.iter_mut().find(|group| group.slot == slot) {
            Some(group) => {
                group.indices.push(index);
                group.entries.push(entry);
            }
            None => groups.push(SlotGroup { slot, indices: vec![index], entries: vec![entry] }),
        }
    }

    async fn settle_items(
        &self,
        items: &[CentralReceiptItem],
        real_cost: u64,
        at: At,
    ) -> Result<(), StoreError> {
        let mut groups = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let name = self.0.naming.name(&item.counter, &item.limit);
            self.add(&mut groups, index, ScriptEntry::settle(name, item, real_cost));
        }
        let deadline = Instant::now() + self.0.deadline;
        let calls: Vec<_> = groups.iter().map(|group| group.call(Op::Settle, at, deadline)).collect();
        let answers = join_all(calls.iter().map(|call| self.0.topology.call_script(call))).await;
        for (group, answer) in groups.iter().zip(answers) {
            let (done, server) = answer?;
            for (entry, part) in group.entries.iter().zip(done.parts) {
                part.map_err(|reason| script::refused(&server, &entry.name, &reason))?;
            }
        }
        Ok(())
    }
}

/// The words of a plain call for one slot, as sent to the server: for benchmarks.
pub fn args_of_call(charges: &[CentralCharge]) -> Vec<String> {
    let name = |charge: &CentralCharge| Naming::Plain.name(&charge.counter, &charge.limit);
    let entries: Vec<_> = charges.iter().map(|charge| ScriptEntry::charge(name(charge), charge)).collect();
    let mut out = Vec::new();
    script::write_call(&mut out, Op::Charge, At::Server, None, &entries);
    let words = RedisReply::parse(&out).ok().flatten().map(|(words, _)| words);
    let words = words.as_ref().and_then(RedisReply::elements).unwrap_or_default();
    words.iter().map(|word| word.text().unwrap_or_default().to_owned()).collect()
}

impl SlotGroup {
    fn call(&self, op: Op, at: At, deadline: Instant) -> ScriptCall<'_> {
        ScriptCall { slot: self.slot, op, at, entries: &self.entries, deadline }
    }
}

/// A request in progress: the results so far, and whether one of them denies.
struct RedisRequest<'s> {
    store: &'s RedisStore,
    deadline: Instant,
    parts: Vec<Option<Result<LimitOutcome, StoreError>>>,
    denied: bool,
}

impl<'s> RedisRequest<'s> {
    fn of(store: &'s RedisStore, charges: usize, deadline: Instant) -> RedisRequest<'s> {
        RedisRequest { store, deadline, parts: (0..charges).map(|_| None).collect(), denied: false }
    }

    /// Calls `second` once `first` has replied. If `first` takes more than half of the time left, `second` is called
    /// anyway, and rolled back if a late reply denies.
    async fn call_in_order(&mut self, first: &[SlotGroup], second: &[SlotGroup], op: Op, at: At) {
        let store = self.store;
        let deadline = self.deadline;
        let half = deadline.duration_since(Instant::now()) / 2;
        let mut answers = pin!(call_slots(store, first, op, at, deadline));
        let in_time = match second {
            [] => Ok(answers.as_mut().await),
            _ => timeout(half, answers.as_mut()).await,
        };
        match in_time {
            Ok(answers) => {
                self.record_all(first, answers);
                let op = if op == Op::Charge && self.denied { Op::CountDenied } else { op };
                self.record_all(second, call_slots(store, second, op, at, deadline).await);
            }
            Err(_) => {
                let (late, answers) = join(answers, call_slots(store, second, op, at, deadline)).await;
                self.record_all(first, late);
                self.record_all(second, answers);
            }
        }
    }

    fn record_all(&mut self, groups: &[SlotGroup], answers: Vec<Result<(ScriptResult, String), StoreError>>) {
        groups.iter().zip(answers).for_each(|(group, answer)| self.record(group, answer));
    }

    fn record(&mut self, group: &SlotGroup, answer: Result<(ScriptResult, String), StoreError>) {
        match answer {
            Ok((done, server)) => {
                self.denied |= !done.admitted;
                for ((index, entry), part) in group.indices.iter().zip(&group.entries).zip(done.parts) {
                    let part = part.map_err(|reason| script::refused(&server, &entry.name, &reason));
                    self.parts[*index] = Some(part);
                }
            }
            Err(error) => {
                group.indices.iter().for_each(|index| self.parts[*index] = Some(Err(error.clone())));
            }
        }
    }

    /// Rolls back what slots have charged before another one denied. Continues in the background after the deadline.
    async fn roll_back(
        &mut self,
        charges: &[CentralCharge],
        first: &[SlotGroup],
        second: &[SlotGroup],
        at: At,
    ) {
        let mut tasks = Vec::new();
        for group in first.iter().chain(second) {
            let mut taken = SlotGroup { slot: group.slot, indices: Vec::new(), entries: Vec::new() };
            for (index, entry) in group.indices.iter().zip(&group.entries) {
                let Some(Ok(part)) = &mut self.parts[*index] else { continue };
                let Some(grant) = part.grant.take() else { continue };
                part.remaining += grant.cost;
                let CentralCharge { counter, limit, unit_cost, .. } = &charges[*index];
                let counter = counter.clone();
                let limit = *limit;
                let unit_cost = *unit_cost;
                let item = CentralReceiptItem { counter, limit, unit_cost, grant };
                taken.indices.push(*index);
                taken.entries.push(ScriptEntry::settle(entry.name.clone(), &item, 0));
            }
            if taken.entries.is_empty() {
                continue;
            }
            let inner = Arc::clone(&self.store.0);
            tasks.push(tokio::spawn(async move {
                let deadline = Instant::now() + inner.deadline;
                let answer = inner.topology.call_script(&taken.call(Op::Settle, at, deadline)).await;
                (taken.indices, answer)
            }));
        }
        for task in tasks {
            let Ok(Ok((indices, Ok((done, _))))) = timeout_at(self.deadline, task).await else { continue };
            for (index, settled) in indices.into_iter().zip(done.parts) {
                if let (Some(Ok(part)), Ok(settled)) = (&mut self.parts[index], settled) {
                    (part.remaining, part.reset_after) = (settled.remaining, settled.reset_after);
                }
            }
        }
    }
}

/// Calls slots in parallel. Failed calls decide nothing: `on_store_error` of their rules applies.
async fn call_slots(
    store: &RedisStore,
    groups: &[SlotGroup],
    op: Op,
    at: At,
    deadline: Instant,
) -> Vec<Result<(ScriptResult, String), StoreError>> {
    let topology = &store.0.topology;
    if let [group] = groups {
        return vec![topology.call_script(&group.call(op, at, deadline)).await];
    }
    let calls: Vec<_> = groups.iter().map(|group| group.call(op, at, deadline)).collect();
    join_all(calls.iter().map(|call| topology.call_script(call))).await
}

/// The store with a fixed time for every operation: for tests.
pub struct FixedTimeStore<'s> {
    store: &'s RedisStore,
    at: At,
}

impl FixedTimeStore<'_> {
    pub async fn charge(&self, charges: &[CentralCharge]) -> CentralOutcome {
        self.store.decide(charges, Op::Charge, self.at).await
    }

    pub async fn peek(&self, charges: &[CentralCharge]) -> CentralOutcome {
        self.store.decide(charges, Op::Peek, self.at).await
    }

    pub async fn settle(&self, receipt: CentralReceipt, real_cost: u64) -> Result<(), StoreError> {
        self.store.settle_items(&receipt.items, real_cost, self.at).await
    }
}
