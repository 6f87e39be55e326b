//! The engine from outside: a policy as people write it, hits, and verdicts.

use std::net::IpAddr;
use std::time::Duration;

use tollgate::internal::ban::{Ban, BanSource};
use tollgate::internal::document::{self, MapReader, Problems};
use tollgate::internal::engine::{CounterDetail, CounterReport, InspectError, LogKeys};
use tollgate::internal::headers::{HeaderStyle, headers};
use tollgate::internal::identity::{Attribute, FieldSource, Key};
use tollgate::internal::policy::{PolicyParts, Settings};
use tollgate::internal::rule::PathCase;
use tollgate::internal::rule_stats::RuleCounts;
use tollgate::internal::time::calendar::parse_rfc3339;
use tollgate::internal::verdict::EngineVerdict;
use tollgate::internal::{Enforce, EngineCore, EngineSetup, PolicySnapshot};
use tollgate::{Hit, Reason, Time};

mod bans;
mod bursts;
mod central;
mod changes;
mod enforcing;
mod fleet;
mod identities;
mod insight;
mod shared_bans;
mod verdicts;

/// The beginning of a minute, an hour and a day.
const NOW: Time = Time::from_secs(1_799_971_200);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

/// One of each algorithm, none of which holds requests.
const ALGORITHMS: [&str; 11] = [
    "algorithm: gcra",
    "algorithm: token-bucket",
    "algorithm: token-bucket, refill: tick, tick: 5s",
    "algorithm: token-bucket, refill: calendar",
    "algorithm: leaky-bucket, on_exceed: reject",
    "algorithm: fixed-window",
    "algorithm: fixed-window, window: first-hit",
    "algorithm: sliding-log",
    "algorithm: sliding-compact",
    "algorithm: sliding-counter",
    "algorithm: tiered-window",
];

fn policy(yaml: &str) -> PolicySnapshot {
    PolicySnapshot::from_yaml(yaml).unwrap_or_else(|problems| panic!("{yaml}\n{problems}"))
}

fn engine(yaml: &str) -> EngineCore {
    EngineCore::new(policy(yaml))
}

fn key(text: &str) -> Key {
    Key::parse(text).expect("a valid key")
}

fn from(ip: &str) -> Hit<'static> {
    Hit::on("GET", "", "/").ip(ip.parse().expect("a valid address"))
}

fn by_hand(until: Time) -> Ban {
    Ban { until, reason: "scraping".into(), source: BanSource::Manual, strikes: 0 }
}

/// What each limit has left, without taking anything.
fn left(engine: &EngineCore, hit: Hit<'_>, now: Time) -> Vec<u64> {
    engine.peek(&hit.cost(0), now).limits().iter().map(|limit| limit.remaining()).collect()
}

fn allowed(engine: &EngineCore, hit: &Hit<'_>, times: usize, now: Time) -> usize {
    (0..times).filter(|_| engine.check(hit, now).allowed).count()
}

fn reported(verdict: &EngineVerdict) -> (&str, u64) {
    verdict.reported().map_or(("", 0), |limit| (limit.rule.id.as_str(), limit.remaining()))
}
