//! The engine from outside: a policy as people write it, hits, and verdicts.

use std::time::Duration;

use tollgate::verdict::Verdict;
use tollgate::{Engine, Hit, Policy, Reason, Time};

const NOW: Time = Time::from_secs(1_800_000_000);

fn engine(yaml: &str) -> Engine {
    Engine::new(Policy::from_yaml(yaml).expect("the policy is valid"))
}

fn reported(verdict: &Verdict) -> (&str, u64) {
    verdict.reported().map_or(("", 0), |limit| (limit.rule.id.as_str(), limit.remaining))
}

#[test]
fn five_logins_a_minute_and_no_sixth() {
    let engine = engine("rules: [{id: login, match: POST /login, key: email, limit: 5/m}]");
    let login = || Hit::on("POST", "", "/login").email("ann@example.com");
    for left in (0..5).rev() {
        let verdict = engine.check(&login(), NOW);
        assert!(verdict.allowed);
        assert_eq!(reported(&verdict), ("login", left));
    }
    let verdict = engine.check(&login(), NOW);
    assert_eq!((verdict.allowed, verdict.reason), (false, Reason::Limit));
    assert_eq!(verdict.retry_after, Some(Duration::from_secs(12)));
    assert!(engine.check(&login().email("bob@example.com"), NOW).allowed);
    assert!(engine.check(&login(), NOW + Duration::from_secs(12)).allowed);
}

#[test]
fn denied_hits_do_not_drain_the_shared_limit() {
    let engine = engine(
        "rules:
           - {id: everybody, match: /search, limit: 10/h}
           - {id: each, match: /search, key: user, limit: 2/h}",
    );
    let hit = |user| Hit::on("GET", "", "/search").user(user);
    for _ in 0..100 {
        engine.check(&hit("greedy"), NOW);
    }
    let verdict = engine.peek(&hit("modest"), NOW);
    let left: Vec<_> = verdict.limits.iter().map(|limit| (limit.rule.id.as_str(), limit.remaining)).collect();
    assert_eq!(left, [("everybody", 8), ("each", 2)]);
}

#[test]
fn a_request_that_no_rule_is_about_passes() {
    let engine = engine("rules: [{id: login, match: /login, limit: 0/m}]");
    assert_eq!(engine.check(&Hit::on("GET", "", "/"), NOW).reason, Reason::NoRule);
    let verdict = engine.check(&Hit::on("GET", "", "/login"), NOW);
    assert_eq!((verdict.allowed, verdict.retry_after), (false, None));
}

/// A rule with a cost of its own was settled as if it had none.
#[test]
fn the_real_cost_is_in_the_units_of_the_hit() {
    let engine = engine(
        "rules:
           - {id: dear, cost: 3, limit: 30/h}
           - {id: cheap, limit: 30/h}",
    );
    let left = || {
        let verdict = engine.peek(&Hit::on("GET", "", "/").cost(0), NOW);
        verdict.limits.iter().map(|limit| limit.remaining).collect::<Vec<_>>()
    };
    let receipt = engine.check(&Hit::on("GET", "", "/").cost(2), NOW).receipt.expect("it was charged");
    assert_eq!(left(), [24, 28]);
    engine.settle(receipt, 5, NOW);
    assert_eq!(left(), [15, 25]);
    let receipt = engine.check(&Hit::on("GET", "", "/").cost(4), NOW).receipt.expect("it was charged");
    engine.settle(receipt, 1, NOW);
    assert_eq!(left(), [12, 24]);
}

/// A key that had become fresh in the meantime was not there to owe anything.
#[test]
fn a_cost_that_becomes_known_late_is_owed_by_a_fresh_key_too() {
    let engine = engine("rules: [{id: all, limit: 60/m}]");
    let receipt = engine.check(&Hit::on("GET", "", "/"), NOW).receipt.expect("it was charged");
    let later = NOW + Duration::from_secs(60);
    engine.settle(receipt, 31, later);
    assert_eq!(reported(&engine.peek(&Hit::on("GET", "", "/"), later)), ("all", 30));
}
