//! Stores for the tests.

use std::time::{Duration, Instant};

use scylla::client::session_builder::SessionBuilder;
use scylla::response::query_result::QueryRowsResult;
use tollgate::Time;
use tollgate::internal::Limit;
use tollgate::internal::store::{Charge, ChargeReceipt, DeniedHits};
use tollgate_stores::counters::cassandra::{self, CassandraSetup, CassandraStore};
use tollgate_stores::counters::{CentralCounter, CentralOutcome, StoreError};

use crate::central::Store;
use crate::servers::cassandra::{Cassandra, STARTED_WITHIN};

impl Store for CassandraStore {
    fn refusal(limit: &Limit, _denied: DeniedHits) -> Option<String> {
        cassandra::check_limit(limit).err().map(|refused| refused.to_string())
    }

    call_store!(store => store);
}

/// A store as it is by default.
pub fn usual(url: &str) -> CassandraStore {
    CassandraStore::open(setup(url))
}

/// A store whose deadline and lifetimes are not what is tested, with its tables.
pub async fn patient(url: &str) -> CassandraStore {
    initialise(url).await;
    let deadline = Duration::from_secs(20);
    let slack = Duration::from_secs(3600);
    CassandraStore::open(CassandraSetup { deadline, slack, ..setup(url) })
}

/// Makes the tables. The server's users are made a moment after it listens.
pub async fn initialise(url: &str) {
    let start = Instant::now();
    while let Err(error) = cassandra::init(&setup(url).address).await {
        assert!(start.elapsed() < STARTED_WITHIN, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

pub fn setup(url: &str) -> CassandraSetup {
    CassandraSetup::new(url.parse().unwrap_or_else(|error| panic!("{url}: {error}")))
}

/// What the server itself says.
pub async fn query(server: &Cassandra, statement: &str) -> Option<QueryRowsResult> {
    let node = format!("127.0.0.1:{}", server.port);
    let builder = SessionBuilder::new().known_node(node).user("cassandra", "cassandra");
    let session = builder.build().await.expect("the server is there");
    let answer = session.query_unpaged(statement, ()).await;
    answer.unwrap_or_else(|error| panic!("{statement}: {error}")).into_rows_result().ok()
}
