//! The clocks of the central store and of the rules database, compared with this machine's.
//!
//! Redis decides by its own clock. With Cassandra and Memcached the nodes' clocks decide, and their servers are what
//! all nodes can be compared with. Times in the rules database (bans, ramps, announced nodes) are those of the nodes.

use std::time::Duration;

use tokio::time::timeout;
use tollgate::Clock;
use tollgate_stores::counters::central::CentralAddress;
use tollgate_stores::server_time::ClockReading;

use crate::cli::finding::Findings;
use crate::config::{Config, RulesDbConfig, StoreConfig};
use crate::rules_follower::{NodeCapabilities, RulesFollower};

/// For all that is asked of one server.
const DEADLINE: Duration = Duration::from_secs(5);
const MAX_SKEW: Duration = Duration::from_secs(1);
const FIX: &str = "switch on NTP (`timedatectl set-ntp true`) here and on the server";
const MEMCACHED_FIX: &str = "switch on NTP (`timedatectl set-ntp true`) here and on the server; memcached reads the \
                             clock at its start only: restart it, if the clock was set since";

/// Servers that do not answer are reported by other checks.
pub async fn check(config: &Config, clock: &Clock, findings: &mut Findings) {
    if let Some(store) = &config.store {
        check_store(store, clock, findings).await;
    }
    if let Some(database) = config.rules_db.as_ref().filter(|database| database.file().is_none()) {
        check_database(config, database, clock, findings).await;
    }
}

async fn check_store(store: &StoreConfig, clock: &Clock, findings: &mut Findings) {
    let fix = match &store.address {
        CentralAddress::Memcached(_) => MEMCACHED_FIX,
        _ => FIX,
    };
    for (server, read) in store.address.server_times(DEADLINE).await {
        match read {
            Ok(read) => add("clock", &read, clock, fix, findings),
            Err(why) => findings.ok("clock", format!("unknown: {server}: {why}")),
        }
    }
}

async fn check_database(config: &Config, database: &RulesDbConfig, clock: &Clock, findings: &mut Findings) {
    let follower = RulesFollower::new(database, NodeCapabilities::from_config(config));
    let read = timeout(DEADLINE, async { follower.open().await.ok()?.server_time().await });
    match read.await {
        Ok(Some(Ok(read))) => add("rules_db clock", &read, clock, FIX, findings),
        Ok(Some(Err(error))) => findings.ok("rules_db clock", format!("unknown: {error}")),
        Ok(None) | Err(_) => {}
    }
}

/// Right after an answer: what passes until the node's clock is read counts as skew.
fn add(what: &str, read: &ClockReading, clock: &Clock, fix: &str, findings: &mut Findings) {
    let skew = read.skew(clock.now());
    let detail = format!("{} ms apart from that of {}", skew.as_millis(), read.server);
    if skew > MAX_SKEW { findings.warning(what, detail, fix) } else { findings.ok(what, detail) }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tollgate_testkit::servers::cassandra::Cassandra;
    use tollgate_testkit::servers::memcached::Memcached;
    use tollgate_testkit::servers::postgres::Postgres;
    use tollgate_testkit::servers::redis::{Make, Redis};

    use super::*;

    /// What is found with a node's clock that is right, ahead and behind.
    fn check_with(config: &str, what: &str) {
        let config = Config::parse(config, std::path::Path::new("")).expect("it is valid");
        let found = |clock: Clock| {
            let mut findings = Findings::default();
            crate::client::block_on(check(&config, &clock, &mut findings));
            let Value::Array(all) = findings.json()["findings"].take() else { panic!("a list") };
            let [only] = &all[..] else { panic!("one finding of a clock: {all:?}") };
            assert_eq!(only["what"], what, "{only}");
            only.clone()
        };
        let right = found(Clock::new());
        assert_eq!(right["severity"], "ok", "{right}");
        let hour = Duration::from_secs(3_600);
        for wrong in [Clock::new().now() + hour, Clock::new().now() - hour] {
            let found = found(Clock::manual(wrong));
            assert_eq!(found["severity"], "warning", "{found}");
            assert!(found["fix"].as_str().is_some_and(|fix| fix.contains("NTP")), "{found}");
            let detail = found["detail"].as_str().unwrap_or_default();
            let skew: u64 = detail.split_once(" ms").and_then(|(ms, _)| ms.parse().ok()).unwrap_or_default();
            // Minutes for the test to run on a busy machine.
            assert!((3_000_000..4_200_000).contains(&skew), "{detail}");
        }
    }

    #[test]
    fn a_clock_that_is_apart_from_the_one_of_redis_is_a_warning() {
        let Some(redis) = Redis::start(Make::Redis, "clock skew to Redis") else { return };
        check_with(&format!("counters: {}\nrules_db: none\n", redis.url()), "clock");
    }

    #[test]
    fn a_clock_that_is_apart_from_the_one_of_memcached_is_a_warning() {
        let Some(memcached) = Memcached::start("clock skew to memcached") else { return };
        check_with(&format!("counters: {}\nrules_db: none\n", memcached.url()), "clock");
    }

    #[test]
    fn a_clock_that_is_apart_from_the_one_of_cassandra_is_a_warning() {
        let Some(cassandra) = Cassandra::shared("clock skew to Cassandra") else { return };
        check_with(&format!("counters: {}\nrules_db: none\n", cassandra.url("clock_skew")), "clock");
    }

    #[test]
    fn a_clock_that_is_apart_from_the_one_of_postgresql_is_a_warning() {
        let Some(postgres) = Postgres::start("clock skew to PostgreSQL") else { return };
        check_with(&format!("rules_db: '{}'\n", postgres.url()), "rules_db clock");
    }
}
