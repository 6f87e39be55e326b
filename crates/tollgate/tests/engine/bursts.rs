//! One burst is one strike, however many requests it has, and however many rules deny them.

use std::sync::Barrier;
use std::thread;

use tollgate::internal::algorithm::{Admission, Decision};
use tollgate::internal::engine::DecisionMode;
use tollgate::internal::store::central::{
    CentralCounter, CentralCounterStore, CentralOutcome, LimitResult, StoreError,
};
use tollgate::internal::store::{Charge, LimitOutcome};

use super::central::ready;
use super::*;

const PARALLEL: usize = 30;

/// Denies everything once so many requests are in flight.
struct Denies(Barrier);

impl Denies {
    fn answer(&self, charges: &[Charge]) -> CentralOutcome {
        self.0.wait();
        let decision = Decision::new(Admission::Deny { retry_after: SECOND }, 0);
        let part = LimitOutcome { decision, remaining: 0, reset_after: SECOND, grant: None };
        CentralOutcome { admitted: false, limits: vec![LimitResult::Answered(part); charges.len()] }
    }
}

impl CentralCounterStore for Denies {
    async fn charge(&self, charges: &[Charge], _: Time) -> CentralOutcome {
        self.answer(charges)
    }

    async fn peek(&self, charges: &[Charge], _: Time) -> CentralOutcome {
        self.answer(charges)
    }

    async fn reset(&self, _: &CentralCounter, _: Time) -> Result<bool, StoreError> {
        Ok(false)
    }
}

/// The ban after requests that were all in flight when the first of them was denied.
fn ban_of_a_burst(rules: &str) -> Ban {
    let engine = engine(rules);
    let store = Denies(Barrier::new(PARALLEL));
    thread::scope(|scope| {
        for _ in 0..PARALLEL {
            scope.spawn(|| {
                let hit = Hit::by("ann");
                let policy = engine.policy();
                let decided = engine.decide_central(&policy, &hit, NOW, DecisionMode::Check, &store);
                assert_eq!(ready(decided).verdict.reason, Reason::Limit);
            });
        }
    });
    engine.find_ban(key("user:ann"), NOW).expect("it is banned")
}

/// Thirty parallel requests once made the first ban 8.5 hours instead of a minute.
#[test]
fn thirty_parallel_requests_are_one_strike() {
    for after in [1, 3, 30] {
        let rules =
            format!("rules: [{{id: a, key: user, limit: 1/h, ban: {{after: {after}, for: 1m, max: 24h}}}}]");
        let ban = ban_of_a_burst(&rules);
        assert_eq!((ban.strikes, ban.until), (1, NOW + MINUTE), "after {after}");
    }
}

#[test]
fn two_rules_that_deny_one_request_give_one_strike() {
    let rules = "rules:
      - {id: a, key: user, limit: 1/h, ban: {after: 1, for: 1m, max: 24h}}
      - {id: b, key: user, limit: 1/h, ban: {after: 1, for: 1m, max: 24h}}";
    let engine = engine(rules);
    assert_eq!(allowed(&engine, &Hit::by("ann"), 2, NOW), 1);
    let ban = engine.find_ban(key("user:ann"), NOW).expect("it is banned");
    assert_eq!((ban.strikes, ban.until), (1, NOW + MINUTE));
    assert_eq!(ban_of_a_burst(rules).strikes, 1);
}

#[test]
fn a_request_is_one_violation_of_a_rule_whatever_the_number_of_its_limits() {
    let engine =
        engine("rules: [{id: a, key: user, limits: [1/h, 1/d, 1/w], ban: {after: 2, for: 1m, max: 24h}}]");
    assert_eq!(allowed(&engine, &Hit::by("ann"), 2, NOW), 1);
    assert_eq!(engine.find_ban(key("user:ann"), NOW), None);
    assert_eq!(allowed(&engine, &Hit::by("ann"), 1, NOW), 0);
    assert!(engine.find_ban(key("user:ann"), NOW).is_some());
}

/// A ban clears its key's denials: those by another rule do not start the next one.
#[test]
fn after_a_ban_every_rule_counts_from_zero() {
    let engine = engine(
        "rules:
      - {id: a, key: user, limit: 1/h, ban: {after: 2, for: 1s, max: 24h}}
      - {id: b, key: user, limit: 1/h, ban: {after: 3, for: 1s, max: 24h}}",
    );
    assert_eq!(allowed(&engine, &Hit::by("ann"), 3, NOW), 1);
    assert_eq!(engine.find_ban(key("user:ann"), NOW).map(|ban| ban.strikes), Some(1));
    let later = NOW + SECOND;
    assert_eq!(allowed(&engine, &Hit::by("ann"), 1, later), 0);
    assert_eq!(engine.find_ban(key("user:ann"), later), None, "one denial by each rule since");
    assert_eq!(allowed(&engine, &Hit::by("ann"), 1, later), 0);
    assert_eq!(engine.find_ban(key("user:ann"), later).map(|ban| ban.strikes), Some(2));
}
