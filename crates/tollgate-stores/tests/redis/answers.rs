//! Every answer is that of the pure functions, on every kind of server.

use std::time::Duration;

use tollgate::{Limit, Time};
use tollgate_stores::counters::redis::{self, RedisStore};
use tollgate_stores::counters::{CentralCharge, CentralOutcome, CentralReceipt, Counter};

use crate::conformance::{self, Answer, Subject};
use crate::hits::ready;
use crate::servers::cluster::RedisCluster;
use crate::servers::redis::{Make, Redis};
use crate::servers::sentinel::SentinelGroup;

/// A store whose time the suite tells.
struct Told {
    store: RedisStore,
    histories: u64,
}

impl Subject for Told {
    type Receipt = CentralReceipt;

    fn unit(&self) -> Duration {
        redis::UNIT
    }

    fn takes(&self, limit: &Limit) -> bool {
        redis::check(limit).is_ok()
    }

    fn histories(&self) -> u64 {
        self.histories
    }

    async fn charge(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        answer(self.store.told(now).charge(charges).await)
    }

    async fn peek(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        answer(self.store.told(now).peek(charges).await)
    }

    async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) {
        self.store.told(now).settle(receipt, real_cost).await.expect("it is settled");
    }

    async fn reset(&self, counter: &Counter, limit: &Limit) {
        self.store.reset(counter, limit).await.expect("it is reset");
    }
}

fn answer(outcome: CentralOutcome) -> Answer<CentralReceipt> {
    Answer { admitted: outcome.admitted, parts: outcome.parts, receipt: outcome.receipt }
}

#[tokio::test]
async fn redis_conforms() {
    let Some(server) = Redis::start(Make::Redis, "conformance of Redis") else { return };
    conformance::check(&Told { store: ready(&server.url()).await, histories: 40 }).await;
}

#[tokio::test]
async fn valkey_conforms() {
    let Some(server) = Redis::start(Make::Valkey, "conformance of Valkey") else { return };
    conformance::check(&Told { store: ready(&server.url()).await, histories: 12 }).await;
}

#[tokio::test]
async fn a_cluster_conforms() {
    let Some(servers) = RedisCluster::start("conformance of Redis Cluster") else { return };
    conformance::check(&Told { store: ready(&servers.url()).await, histories: 12 }).await;
}

#[tokio::test]
async fn a_sentinel_group_conforms() {
    let Some(servers) = SentinelGroup::start("conformance of Redis Sentinel") else { return };
    conformance::check(&Told { store: ready(&servers.url()).await, histories: 4 }).await;
}
