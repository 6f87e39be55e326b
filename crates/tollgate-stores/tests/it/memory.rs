//! The memory store keeps the promise of all stores.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::algorithm::Quota;
use tollgate::internal::fingerprint::{Fingerprint, Secret};
use tollgate::internal::store::{Charge, ChargeOutcome, ChargeReceipt, MemoryStore, Predecessor};
use tollgate_stores::counters::{CentralCounter, CounterId, name};
use tollgate_testkit::conformance::{ChargeAnswer, Subject};

/// The memory store with what its callers know: which limits have been in force.
struct Memory {
    store: MemoryStore,
    secret: Secret,
    limits: Mutex<HashMap<(CounterId, String), Vec<Limit>>>,
}

impl Memory {
    fn fingerprint(&self, counter: &CounterId, limit: &Limit) -> Fingerprint {
        let owner = counter.key.owner().map_or_else(String::new, ToString::to_string);
        self.secret.fingerprint([
            &*counter.domain,
            &counter.rule,
            &*counter.key.to_string(),
            &owner,
            limit.counter_label().as_str(),
        ])
    }

    fn charge_of(&self, charge: &Charge) -> Charge {
        let CentralCounter { id, limit } = charge.counter();
        let mut limits = self.limits.lock().expect("no test panics with it");
        let known = limits.entry((id.clone(), name::kind(limit))).or_default();
        known.retain(|other| other != limit);
        let fingerprint = self.fingerprint(id, limit);
        let predecessors = known
            .iter()
            .rev()
            .map(|old| Predecessor { fingerprint: self.fingerprint(id, old), quota: Quota::new(old) })
            .filter(|old| old.fingerprint != fingerprint)
            .collect();
        known.push(*limit);
        Charge { fingerprint, predecessors, ..charge.clone() }
    }
}

impl Subject for Memory {
    type Receipt = ChargeReceipt;

    fn unit(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn takes(&self, _limit: &Limit) -> bool {
        true
    }

    fn histories(&self) -> u64 {
        100
    }

    async fn charge(&self, charges: &[Charge], now: Time) -> ChargeAnswer<ChargeReceipt> {
        let charges: Vec<_> = charges.iter().map(|charge| self.charge_of(charge)).collect();
        let outcome = self.store.charge(&charges, now);
        let receipt = ChargeReceipt::of(&charges, &outcome);
        answer(outcome, receipt)
    }

    async fn peek(&self, charges: &[Charge], now: Time) -> ChargeAnswer<ChargeReceipt> {
        let charges: Vec<_> = charges.iter().map(|charge| self.charge_of(charge)).collect();
        answer(self.store.peek(&charges, now), None)
    }

    async fn settle(&self, receipt: ChargeReceipt, real_cost: u64, now: Time) {
        self.store.settle(receipt, real_cost, now);
    }

    async fn reset(&self, counter: &CounterId, limit: &Limit) {
        let limits = self.limits.lock().expect("no test panics with it");
        for limit in limits.get(&(counter.clone(), name::kind(limit))).into_iter().flatten() {
            self.store.reset(self.fingerprint(counter, limit));
        }
    }
}

fn answer(outcome: ChargeOutcome, receipt: Option<ChargeReceipt>) -> ChargeAnswer<ChargeReceipt> {
    let parts = outcome.limits.into_iter().map(Ok).collect();
    ChargeAnswer { admitted: outcome.admitted, parts, receipt }
}

#[tokio::test]
async fn memory_conforms() {
    let store = MemoryStore::new(1 << 26);
    let memory = Memory { store, secret: Secret::random(), limits: Mutex::default() };
    tollgate_testkit::conformance::check(&memory).await;
}
