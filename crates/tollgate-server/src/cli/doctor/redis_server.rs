//! Settings of a Redis server that limits depend on: eviction, and its clock. That it can be used is checked before.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_stores::counters::central::CentralAddress;
use tollgate_stores::counters::redis::{RedisClient, RedisReply};

use crate::cli::finding::Findings;
use crate::config::Config;

const DEADLINE: Duration = Duration::from_secs(2);
/// Counters use the server's clock; bans and tracked keys carry times of the nodes.
const MAX_SKEW: Duration = Duration::from_secs(1);
/// A key with the prefix of the counters.
const PROBE_KEY: &str = "tg1:doctor";

pub async fn check(config: &Config, findings: &mut Findings) {
    let Some(store) = &config.store else { return };
    let CentralAddress::Redis(address) = &store.address else {
        return findings.ok("clock", "this store has no clock that a node could read: keep NTP on all nodes");
    };
    let Ok(client) = RedisClient::open(address.clone(), DEADLINE) else { return };
    eviction(&client, findings).await;
    skew(&client, findings).await;
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

async fn skew(client: &RedisClient, findings: &mut Findings) {
    let since_epoch = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let before = since_epoch();
    let Ok(RedisReply::Array(words)) = client.command(PROBE_KEY, &["TIME"]).await else { return };
    let after = since_epoch();
    let number = |n: usize| match words.get(n) {
        Some(RedisReply::Bulk(bytes)) => String::from_utf8_lossy(bytes).parse::<u64>().ok(),
        _ => None,
    };
    let (Some(seconds), Some(micros)) = (number(0), number(1)) else { return };
    let server = Duration::from_secs(seconds) + Duration::from_micros(micros);
    // The server's clock was read between the two readings here.
    let skew = before.saturating_sub(server).max(server.saturating_sub(after));
    let shown = format!("{} ms apart from the server's", skew.as_millis());
    if skew > MAX_SKEW {
        findings.warning("clock", shown, "switch on NTP (`timedatectl set-ntp true`) here and on the server");
    } else {
        findings.ok("clock", shown);
    }
}
