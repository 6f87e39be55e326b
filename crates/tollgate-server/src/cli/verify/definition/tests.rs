//! The definitions accept what the engine admits, and reject one charge more.

use tollgate::Hit;
use tollgate::internal::{EngineCore, PolicySnapshot};

use super::*;

const SHAPES: [&str; 14] = [
    "limit: 5/m",
    "limit: 3/s, burst: 7",
    "limit: 5/m, algorithm: token-bucket, burst: 9",
    "limit: 30/m, algorithm: token-bucket, refill: tick, tick: 10s",
    "limit: 5/m, algorithm: token-bucket, refill: calendar",
    "limit: 6/m, algorithm: leaky-bucket, on_exceed: reject",
    "limit: 5/m, algorithm: fixed-window",
    "limit: 4/2w, algorithm: fixed-window",
    "limit: 5/m, algorithm: fixed-window, window: first-hit",
    "limit: 5/m, algorithm: sliding-log",
    "limit: 5/m, algorithm: sliding-compact, resolution: 10s",
    "limit: 5/m, algorithm: sliding-counter",
    "limit: 7/h, algorithm: tiered-window",
    "limit: 1000000/s",
];

/// The charges of a seeded history, and the limit they were made under.
fn history(shape: &str, seed: u64) -> (Limit, Vec<LedgerEntry>) {
    let rules = format!("rules: [{{ id: a, {shape} }}]");
    let engine = EngineCore::new(PolicySnapshot::from_yaml(&rules).expect(shape));
    let mut random = fastrand::Rng::with_seed(seed);
    let mut now = Time::from_secs(1_800_000_000);
    let mut entries = Vec::new();
    let mut limit = None;
    for line in 0..3_000 {
        let period = limit.map_or(60_000_000_000, |limit: Limit| limit.rate().period().nanos());
        now = now + Duration::from_nanos(random.u64(0..period / 8));
        let verdict = engine.check(&Hit::on("GET", "h", "/").cost(random.u64(1..3)), now);
        for (charged, item) in verdict.charged().filter(|_| verdict.allowed) {
            limit = Some(*charged.limit);
            entries.push(LedgerEntry { at_ns: item.grant.at.nanos(), cost: item.grant.cost, line });
        }
    }
    (limit.expect("something was admitted"), entries)
}

#[test]
fn what_the_engine_admits_is_within_every_definition() {
    for shape in SHAPES {
        for seed in 0..5 {
            let (limit, mut entries) = history(shape, seed);
            entries.sort_unstable();
            assert_eq!(first_excess(&limit, &entries), None, "{shape}, seed {seed}");
        }
    }
}

#[test]
fn more_than_the_limit_at_once_exceeds_every_definition() {
    for shape in SHAPES {
        let (limit, entries) = history(shape, 0);
        let last = *entries.last().expect("charges");
        let at_once = |cost| vec![LedgerEntry { cost, ..last }];
        let most = limit.capacity();
        assert_eq!(first_excess(&limit, &at_once(most)), None, "{shape}");
        assert!(first_excess(&limit, &at_once(most + 1)).is_some(), "{shape}");
        let mut twice = entries;
        twice.push(LedgerEntry { cost: most, ..last });
        assert_eq!(first_excess(&limit, &twice).map(|excess| excess.entry.line), Some(last.line), "{shape}");
    }
}

#[test]
fn a_bucket_is_checked_over_every_interval() {
    let limit = Limit::per("60/m".parse().expect("a rate"));
    let entry = |seconds: u64, cost| LedgerEntry { at_ns: seconds * 1_000_000_000, cost, line: seconds };
    assert_eq!(first_excess(&limit, &[entry(0, 60), entry(10, 10), entry(20, 10)]), None);
    let excess = first_excess(&limit, &[entry(0, 60), entry(10, 10), entry(20, 11)]).expect("one too many");
    assert_eq!(excess.entry.line, 20);
}
