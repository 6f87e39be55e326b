//! Every answer is that of the pure functions, on every kind of server.

async fn check(url: &str, histories: u64) {
    conformance::check(&CentralSubject::new(GivenTime(ready(url).await.0), histories)).await;
}

use tollgate_testkit::central::{CentralSubject, refunds};
use tollgate_testkit::conformance;
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::servers::sentinel::SentinelGroup;
use tollgate_testkit::stores::redis::{GivenTime, ready};

#[tokio::test]
async fn redis_conforms() {
    let Some(server) = Redis::start(Make::Redis, "conformance of Redis") else { return };
    check(&server.url(), 40).await;
}

#[tokio::test]
async fn valkey_conforms() {
    let Some(server) = Redis::start(Make::Valkey, "conformance of Valkey") else { return };
    check(&server.url(), 12).await;
}

#[tokio::test]
async fn a_cluster_conforms() {
    let Some(servers) = RedisCluster::start("conformance of Redis Cluster") else { return };
    check(&servers.url(), 12).await;
}

#[tokio::test]
async fn a_sentinel_group_conforms() {
    let Some(servers) = SentinelGroup::start("conformance of Redis Sentinel") else { return };
    check(&servers.url(), 4).await;
}

/// Charges went to the step that was there, and refunds looked for the one of their own time.
#[tokio::test]
async fn refunds_are_not_lost_when_the_clock_goes_back() {
    let Some(server) = Redis::start(Make::Redis, "refunds on Redis") else { return };
    refunds::check(&GivenTime(ready(&server.url()).await.0)).await;
}
