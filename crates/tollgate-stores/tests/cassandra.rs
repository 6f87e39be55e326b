//! Counters on a real Cassandra.

mod conformance;
mod servers;

use std::time::Duration;

use conformance::{Answer, Subject};
use servers::cassandra::Cassandra as Server;
use tollgate::{Limit, Time};
use tollgate_stores::counters::cassandra::{self, CassandraSetup, CassandraStore};
use tollgate_stores::counters::{CentralCharge, CentralOutcome, CentralReceipt, Counter};

/// A store whose deadline and lifetimes are not what is tested, on a keyspace of its own.
async fn patient(server: &Server, keyspace: &str) -> CassandraStore {
    let setup = CassandraSetup::new(server.url(keyspace).parse().expect("a valid address"));
    initialised(&setup).await;
    let (deadline, slack) = (Duration::from_secs(20), Duration::from_secs(3600));
    CassandraStore::open(CassandraSetup { deadline, slack, ..setup })
}

/// Its users are made a moment after the server listens.
async fn initialised(setup: &CassandraSetup) {
    let start = std::time::Instant::now();
    while let Err(error) = cassandra::init(&setup.address).await {
        assert!(start.elapsed() < servers::SOON, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

struct Conforming(CassandraStore);

impl Subject for Conforming {
    type Receipt = CentralReceipt;

    fn unit(&self) -> Duration {
        Duration::from_nanos(1)
    }

    fn takes(&self, limit: &Limit) -> bool {
        cassandra::check(limit).is_ok()
    }

    async fn charge(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        answer(self.0.charge(charges, now).await)
    }

    async fn peek(&self, charges: &[CentralCharge], now: Time) -> Answer<CentralReceipt> {
        answer(self.0.peek(charges, now).await)
    }

    async fn settle(&self, receipt: CentralReceipt, real_cost: u64, now: Time) {
        self.0.settle(receipt, real_cost, now).await.expect("it can be settled");
    }

    async fn reset(&self, counter: &Counter, limit: &Limit) {
        self.0.reset(counter, limit).await.expect("it can be reset");
    }
}

fn answer(outcome: CentralOutcome) -> Answer<CentralReceipt> {
    let CentralOutcome { admitted, parts, receipt } = outcome;
    Answer { admitted, parts, receipt }
}

#[tokio::test]
async fn cassandra_conforms() {
    let Some(server) = Server::shared("cassandra: conformance") else { return };
    let store = patient(&server, "conformance").await;
    conformance::check(&Conforming(store)).await;
}
