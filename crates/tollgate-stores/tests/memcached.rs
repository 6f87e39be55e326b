//! Counters on real memcached servers.

mod conformance;
mod servers;

use std::cell::Cell;
use std::time::Duration;

use conformance::{Answer, Subject};
use servers::memcached::Memcached as Server;
use tollgate::store::DeniedHits;
use tollgate::{Limit, Time};
use tollgate_stores::counters::memcached::{self, MemcachedSetup, MemcachedStore};
use tollgate_stores::counters::{CentralCharge, CentralOutcome, CentralReceipt, Counter};

/// A store whose deadline and lifetimes are not what is tested.
fn patient(url: &str) -> MemcachedStore {
    let setup = MemcachedSetup::new(url.parse().expect("a valid address"));
    let (deadline, slack) = (Duration::from_secs(20), Duration::from_secs(3600));
    MemcachedStore::open(MemcachedSetup { deadline, slack, ..setup })
}

/// The store, and the latest instant it was told: a reset happens then.
struct Conforming(MemcachedStore, Cell<Time>);

impl Subject for Conforming {
    type Receipt = CentralReceipt;

    fn unit(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn takes(&self, limit: &Limit) -> bool {
        memcached::check(limit, DeniedHits::Free).is_ok()
    }

    fn counts_denied(&self, limit: &Limit) -> bool {
        memcached::check(limit, DeniedHits::Counted).is_ok()
    }

    async fn charge(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        self.1.set(now);
        answer(self.0.charge(charges, now).await)
    }

    async fn peek(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        answer(self.0.peek(charges, now).await)
    }

    async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) {
        self.1.set(now);
        self.0.settle(receipt, real_cost, now).await.expect("it can be settled");
    }

    async fn reset(&self, counter: &Counter, limit: &Limit) {
        self.0.reset(counter, limit, self.1.get()).await.expect("it can be reset");
    }
}

fn answer(outcome: CentralOutcome) -> Answer<CentralReceipt> {
    let CentralOutcome { admitted, parts, receipt } = outcome;
    Answer { admitted, parts, receipt }
}

#[tokio::test]
async fn two_memcacheds_conform() {
    let what = "memcached: conformance";
    let (Some(one), Some(two)) = (Server::start(what), Server::start(what)) else { return };
    let url = format!("memcached://127.0.0.1:{},127.0.0.1:{}", one.port, two.port);
    conformance::check(&Conforming(patient(&url), Cell::default())).await;
    assert!(!one.keys().is_empty() && !two.keys().is_empty(), "both keep a share");
}
