//! Limits that callers bring along: one counter per key, in memory or in the central store.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_encode};
use thiserror::Error;
use tollgate::internal::algorithm::gcra::Meter;
use tollgate::internal::engine::ThrottleKey;
use tollgate::internal::limit::Shape;
use tollgate::internal::rule::OnStoreError;
use tollgate::internal::store::central::{
    CentralCounter, CentralCounterStore as _, CounterId, LimitResult, StoreError,
};
use tollgate::internal::store::{Charge, LimitOutcome};
use tollgate::internal::time::Period;
use tollgate::internal::{Limit, Rate};
use tollgate::{Admission, Decision, Time};

use crate::gate::Gate;
use crate::gate::counters::reserved_counter;

/// A key of a caller in one of its numbered databases.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct CallerKey<'a> {
    pub database: u8,
    pub name: &'a [u8],
}

/// A limit in the form in which it is applied to counters in memory.
#[derive(Clone, Copy)]
pub struct MemoryLimit {
    limit: Limit,
    meter: Meter,
}

/// The counter of a key, with its limit.
pub enum ThrottleCounter {
    Memory(ThrottleKey, MemoryLimit),
    Central(Box<Charge>),
}

/// Why there is no decision.
#[derive(Debug, Error)]
pub enum ThrottleFailure {
    #[error("ERR {0}")]
    Unsupported(String),
    #[error("UNAVAILABLE {0}")]
    Store(#[from] StoreError),
}

/// Units of the states in memory.
const MEMORY_UNIT: Duration = Duration::from_nanos(1);

impl Gate {
    /// The counter of a key, for a call with this cost. In memory its cache lines are prefetched.
    pub fn throttle_counter(&self, key: CallerKey<'_>, limit: &Limit, cost: u64) -> ThrottleCounter {
        if self.counts_in_memory() {
            return ThrottleCounter::Memory(self.memory_key(key), MemoryLimit::new(*limit));
        }
        let counter = CentralCounter { id: counter_id(key), limit: *limit };
        ThrottleCounter::Central(Box::new(Charge { cost, ..Charge::central(counter) }))
    }

    /// Whether counters are in memory, not in a central store.
    #[inline]
    pub fn counts_in_memory(&self) -> bool {
        self.central.get().is_none()
    }

    /// The counter of a key in memory; its cache lines are prefetched.
    #[inline]
    pub fn memory_key(&self, key: CallerKey<'_>) -> ThrottleKey {
        self.engine.throttle_key(key.database, key.name)
    }

    /// As [`throttle`](Self::throttle), on a counter in memory.
    #[inline]
    pub fn throttle_memory(
        &self,
        key: ThrottleKey,
        limit: &MemoryLimit,
        cost: u64,
        now: Time,
    ) -> LimitOutcome {
        self.engine.throttle(key, limit.meter, cost, now)
    }

    /// Decides a cost, and charges it if it is allowed; a cost of zero charges nothing. If the store fails, the
    /// configured failure mode decides; with `closed` the error is returned.
    pub async fn throttle(
        &self,
        counter: &ThrottleCounter,
        key: CallerKey<'_>,
        cost: u64,
        now: Time,
    ) -> Result<LimitOutcome, ThrottleFailure> {
        let timer = self.decision_times.start(1);
        let outcome = match counter {
            ThrottleCounter::Memory(key, limit) => Ok(self.throttle_memory(*key, limit, cost, now)),
            ThrottleCounter::Central(charge) => self.throttle_central(charge, key, now).await,
        };
        self.decision_times.stop(timer);
        outcome
    }

    async fn throttle_central(
        &self,
        charge: &Charge,
        key: CallerKey<'_>,
        now: Time,
    ) -> Result<LimitOutcome, ThrottleFailure> {
        let cost = charge.cost;
        let limit = charge.counter().limit;
        let Some(central) = self.central.get() else {
            return Ok(self.throttle_in_memory(key, &limit, cost, now));
        };
        central.supports(&limit).map_err(ThrottleFailure::Unsupported)?;
        // Before the call: a reload during it does not change how its failure is handled.
        let store = self.engine.policy().settings().store;
        let charges = std::slice::from_ref(charge);
        let mut outcome = match cost {
            0 => central.timed().peek(charges, now).await,
            _ => central.timed().charge(charges, now).await,
        };
        let error = match outcome.limits.pop() {
            Some(LimitResult::Answered(outcome)) => return Ok(outcome),
            Some(LimitResult::Failed(error)) => error,
            // A single charge is never skipped.
            Some(LimitResult::Skipped) | None => return Ok(unlimited(&limit)),
        };
        match store.on_error {
            OnStoreError::Open => Ok(unlimited(&limit)),
            OnStoreError::Closed => Err(error.into()),
            OnStoreError::Local => {
                Ok(self.throttle_in_memory(key, &limit.node_share(store.nodes), cost, now))
            }
        }
    }

    fn throttle_in_memory(&self, key: CallerKey<'_>, limit: &Limit, cost: u64, now: Time) -> LimitOutcome {
        self.throttle_memory(self.memory_key(key), &MemoryLimit::new(*limit), cost, now)
    }

    /// Removes the counter of a key; returns whether anything of it was used.
    pub async fn reset_throttle(&self, key: CallerKey<'_>, now: Time) -> Result<bool, StoreError> {
        let in_memory = self.engine.reset_throttle(self.engine.throttle_key(key.database, key.name), now);
        let Some(central) = self.central.get() else { return Ok(in_memory) };
        let limit = any_limit();
        central.store.reset(&CentralCounter { id: counter_id(key), limit }, now).await
    }
}

impl MemoryLimit {
    pub fn new(limit: Limit) -> MemoryLimit {
        MemoryLimit { limit, meter: Meter::cell(limit.rate(), limit.capacity(), MEMORY_UNIT) }
    }

    pub fn limit(&self) -> Limit {
        self.limit
    }
}

/// The outcome of a limit that is not enforced.
fn unlimited(limit: &Limit) -> LimitOutcome {
    let admission = Admission::Allow { delay: Duration::ZERO };
    let remaining = limit.capacity();
    LimitOutcome {
        decision: Decision::new(admission, remaining),
        remaining,
        reset_after: Duration::ZERO,
        grant: None,
    }
}

/// All limits of a key have the same counter.
fn any_limit() -> Limit {
    let rate = Rate::new(1, Period::SECOND).expect("one a second is a rate");
    Limit::new(rate, Shape::Cell { burst: 1 }).expect("a burst of one is valid")
}

fn counter_id(key: CallerKey<'_>) -> CounterId {
    let attribute = match key.database {
        0 => "key".to_owned(),
        database => format!("key{database}"),
    };
    let value = percent_encode(key.name, NON_ALPHANUMERIC).to_string();
    reserved_counter("_throttle", attribute, &value)
}
