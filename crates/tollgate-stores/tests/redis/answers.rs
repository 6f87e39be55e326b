//! Every answer is that of the pure functions, on every kind of server.

use crate::central::Told;
use crate::conformance;
use crate::servers::cluster::RedisCluster;
use crate::servers::redis::{Make, Redis};
use crate::servers::sentinel::SentinelGroup;
use crate::stores::{ToldTime, ready};

async fn check(url: &str, histories: u64) {
    conformance::check(&Told::new(ToldTime(ready(url).await.0), histories)).await;
}

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
