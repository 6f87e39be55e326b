//! Settings of a Redis server that limits depend on. That it can be used is checked before.

use std::time::Duration;

use tollgate_stores::counters::central::CentralAddress;
use tollgate_stores::counters::redis::{RedisClient, RedisReply};

use crate::cli::finding::Findings;
use crate::config::Config;

const DEADLINE: Duration = Duration::from_secs(2);
/// A key with the prefix of the counters.
const PROBE_KEY: &str = "tg1:doctor";

pub async fn check(config: &Config, findings: &mut Findings) {
    let Some(store) = &config.store else { return };
    let CentralAddress::Redis(address) = &store.address else { return };
    let Ok(client) = RedisClient::open(address.clone(), DEADLINE) else { return };
    eviction(&client, findings).await;
}

async fn eviction(client: &RedisClient, findings: &mut Findings) {
    let reply = client.command(PROBE_KEY, &["CONFIG", "GET", "maxmemory-policy"]).await;
    let policy = match reply {
        Ok(RedisReply::Array(words)) => words.into_iter().nth(1),
        Ok(RedisReply::Error(_)) => {
            return findings.ok("redis eviction", "unknown: this user may not read the server's settings");
        }
        _ => return,
    };
    let policy = match policy {
        Some(RedisReply::Bulk(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => return,
    };
    match policy.as_str() {
        "noeviction" => findings.ok("redis eviction", "noeviction: no counter is lost"),
        "volatile-ttl" => {
            findings.ok("redis eviction", "volatile-ttl: counters that end soonest are evicted first")
        }
        other => findings.warning(
            "redis eviction",
            format!("{other}: when memory is full, counters of clients at their limit may be evicted"),
            "CONFIG SET maxmemory-policy noeviction, or volatile-ttl",
        ),
    }
}
