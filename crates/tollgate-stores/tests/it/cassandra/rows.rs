//! The rows on the server: readable, with a TTL; and the outcome of a transaction.

use std::time::Duration;

use tollgate::internal::Shape;
use tollgate::internal::limit::Levels;
use tollgate_stores::counters::cassandra::{CassandraSetup, CassandraStore};
use tollgate_testkit::central::expiry::{self, Keeping};
use tollgate_testkit::central::{hit, left, limit, now, own, shared};
use tollgate_testkit::stores::cassandra::{initialise, patient, query, setup};

use crate::cassandra::exclusive;

const DAY: i64 = 86_400;

#[tokio::test]
async fn the_counters_of_one_user_share_a_partition_and_a_transaction() {
    let Some((server, _exclusive)) = exclusive("partitions of Cassandra").await else { return };
    let store = patient(&server.url("partitions")).await;
    let minute = own("login", "user:42", limit("5/m", Shape::GCRA));
    let day = own("login", "user:42", limit("50/d", Shape::SlidingLog));
    let all = shared("api", limit("100/s", Shape::GCRA));
    let outcome = store.charge(&[minute, day, all], now()).await;
    assert!(outcome.admitted && outcome.limits.iter().all(|limit| limit.outcome().is_some()), "{outcome:?}");
    let rows =
        query(&server, "SELECT owner, counter, nonce FROM partitions.tollgate_counters").await.expect("rows");
    let mut rows: Vec<_> = rows.rows::<(String, String, i64)>().expect("ours").flatten().collect();
    rows.sort();
    let names: Vec<_> = rows.iter().map(|(owner, counter, _)| (owner.as_str(), counter.as_str())).collect();
    assert_eq!(
        names,
        [
            ("default:api:", "tg1:{default:api:}:gcra-s"),
            ("user:42", "tg1:default:login:{user:42}:gcra-m"),
            ("user:42", "tg1:default:login:{user:42}:sliding-log-d"),
        ]
    );
    assert_eq!(rows[1].2, rows[2].2, "one transaction has written both");
    assert_ne!(rows[0].2, rows[1].2);
}

#[tokio::test]
async fn rows_live_as_long_as_they_count() {
    let Some((server, _exclusive)) = exclusive("lifetimes on Cassandra").await else { return };
    let url = server.url("lifetimes");
    initialise(&url).await;
    let deadline = Duration::from_secs(20);
    let store = CassandraStore::open(CassandraSetup { deadline, ..setup(&url) });
    let tiers = Shape::TieredWindow { levels: Levels::SMH };
    for (shape, rate, shortest, longest) in [
        (Shape::GCRA, "1/h", 3595, 3602),
        (Shape::SlidingCounter, "5/h", 3595, 7202),
        (tiers, "5/d", DAY - 5, DAY + 2),
        (Shape::SlidingLog, "5/y", 365 * DAY - 5, 365 * DAY + 2),
    ] {
        hit(&store, &own("long", "user:1", limit(rate, shape))).await.expect("it is charged");
        let kind = format!("{}-", shape.name());
        let rows = query(&server, "SELECT counter, TTL(state) FROM lifetimes.tollgate_counters")
            .await
            .expect("rows");
        let rows = rows.rows::<(String, i32)>().expect("ours").flatten();
        let lifetime =
            rows.filter(|(counter, _)| counter.contains(&kind)).map(|(_, ttl)| i64::from(ttl)).next();
        let lifetime = lifetime.unwrap_or_else(|| panic!("no row of {kind}"));
        assert!((shortest..=longest).contains(&lifetime), "{kind} lives for {lifetime} s");
    }
}

#[tokio::test]
async fn no_row_outlives_what_it_counts() {
    let Some((server, _exclusive)) = exclusive("expiry of every algorithm on Cassandra").await else {
        return;
    };
    let url = server.url("lasting");
    initialise(&url).await;
    let deadline = Duration::from_secs(20);
    let store = CassandraStore::open(CassandraSetup { deadline, ..setup(&url) });
    let keeping = Keeping { slack: CassandraSetup::EXPIRY_SLACK, numbers: |_| false };
    expiry::check(&store, keeping, async || {
        let rows = query(
            &server,
            "SELECT counter, TTL(state), TTL(version), TTL(nonce) FROM lasting.tollgate_counters",
        );
        let rows = rows.await.expect("rows");
        let rows = rows.rows::<(String, Option<i32>, Option<i32>, Option<i32>)>().expect("ours").flatten();
        rows.map(|(counter, state, version, nonce)| {
            assert!(state == version && state == nonce, "{counter} has parts that live longer");
            (counter, state.and_then(|ttl| u64::try_from(ttl).ok()).map(Duration::from_secs))
        })
        .collect()
    })
    .await;
}

#[tokio::test]
async fn an_expired_row_starts_fresh() {
    let Some((server, _exclusive)) = exclusive("expiry on Cassandra").await else { return };
    let url = server.url("expiry");
    initialise(&url).await;
    let deadline = Duration::from_secs(20);
    let store = CassandraStore::open(CassandraSetup { deadline, slack: Duration::ZERO, ..setup(&url) });
    let charge = own("short", "user:1", limit("2/s", Shape::SlidingLog));
    // A short life after a longer one: what is left of the row must not stand in the way.
    let long = tollgate::internal::store::Charge { cost: 2, ..charge.clone() };
    for charge in [&long, &charge, &charge] {
        let start = std::time::Instant::now();
        while hit(&store, charge).await.expect("it answers").grant.is_none() {
            assert!(start.elapsed() < tollgate_testkit::SOON);
        }
        let empty = async || {
            let rows = query(&server, "SELECT state FROM expiry.tollgate_counters").await.expect("rows");
            rows.rows_num() == 0
        };
        while !empty().await {
            assert!(start.elapsed() < tollgate_testkit::SOON, "it expires");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    assert_eq!(left(&store, &charge).await, 2);
}
