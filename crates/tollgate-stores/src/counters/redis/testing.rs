//! What tests and benchmarks need of the driver: charges by the node's clock, the states around a charge, and the words of
//! a call.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate::Time;
use tollgate::internal::store::{Charge, LimitOutcome};

use super::call::ScriptCall;
use super::resp::RedisReply;
use super::script::{self, At, Op, ScriptEntry};
use super::shared_call::SharedCall;
use super::store::{RedisBackend, RedisClock, RedisStore};
use crate::counters::StoreError;
use crate::counters::name::Naming;
use crate::counters::request::{CounterBackend as _, CounterStore};

/// The stored state before and after one charge; consecutive charges form a chain (checked by tests).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Transition {
    pub at: Time,
    pub before: String,
    pub after: String,
}

impl RedisStore {
    /// The same store, deciding by the node's time instead of the server's.
    pub fn by_node_clock(&self) -> RedisStore {
        let topology = Arc::clone(&self.backend.topology);
        let naming = self.backend.naming.clone();
        CounterStore::new(RedisBackend { topology, naming, clock: RedisClock::Node }, self.deadline)
    }

    /// Charges one counter and returns the states around the decision.
    pub async fn charge_with_states(
        &self,
        charge: &Charge,
    ) -> Result<(LimitOutcome, Transition), StoreError> {
        let backend = &self.backend;
        let name = backend.name(charge.counter());
        let entries = [ScriptEntry::charge(&name, charge)];
        let call = ScriptCall {
            slot: backend.partition(&name),
            op: Op::ChargeWithStates,
            at: At::Server,
            entries: &entries,
            deadline: Instant::now() + self.deadline,
        };
        let (mut done, server) = backend.topology.call_script(&call).await?;
        let part =
            done.parts.swap_remove(0).map_err(|reason| script::invalid_value(&server, &name, &reason))?;
        let [before, after] = <[String; 2]>::try_from(done.states).unwrap_or_default();
        Ok((part, Transition { at: Time::from_nanos(done.now_us * 1000), before, after }))
    }
}

/// The words of a plain call for one slot, as sent to the server.
pub fn args_of_call(charges: &[Charge]) -> Vec<String> {
    let name = |charge: &Charge| Naming::Plain.name(&charge.counter().id, &charge.counter().limit);
    let names: Vec<_> = charges.iter().map(name).collect();
    let entries: Vec<_> =
        names.iter().zip(charges).map(|(name, charge)| ScriptEntry::charge(name, charge)).collect();
    let call =
        ScriptCall { slot: 0, op: Op::Charge, at: At::Server, entries: &entries, deadline: Instant::now() };
    let mut out = Vec::new();
    SharedCall::new(&call, None).write(&mut out);
    let words = RedisReply::parse(&out).ok().flatten().map(|(words, _)| words);
    let words = words.as_ref().and_then(RedisReply::elements).unwrap_or_default();
    words.iter().map(|word| word.text().unwrap_or_default().to_owned()).collect()
}
