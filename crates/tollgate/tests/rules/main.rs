//! Rules as they are written in files: which are accepted, what they mean, and the errors for the rest.

mod meaning;
mod read;
mod rejected;

use std::time::Duration;

use tollgate::internal::limit::{Levels, Refill, Release, WindowStart};
use tollgate::internal::rule::{CountWhen, MissingKey, OnExceed, OnStoreError, Rule, RuleMode};
use tollgate::internal::time::Unit;
use tollgate::internal::{EngineCore, PolicySnapshot, Shape};
use tollgate::{Hit, Time};

const NOW: Time = Time::from_secs(1_800_000_000);

fn policy(yaml: &str) -> PolicySnapshot {
    PolicySnapshot::from_yaml(yaml).unwrap_or_else(|problems| panic!("{yaml}\n{problems}"))
}

/// The rule `{id: r, limit: 5/m, …}` with other options.
fn rule(options: &str) -> Rule {
    let own = options.starts_with("limit") || options.starts_with("time");
    let limit = if own { "" } else { "limit: 60/m, " };
    let policy = policy(&format!("rules: [{{id: r, {limit}{options}}}]"));
    Rule::clone(&policy.rules()[0])
}

fn shape(options: &str) -> Shape {
    rule(options).all_limits().next().expect("a rule has a limit").limit.shape()
}

fn limits(rule: &Rule) -> Vec<String> {
    rule.all_limits().map(|each| each.limit.to_string()).collect()
}

/// The problems of a policy, which must all be there, in order, and none beside them.
#[track_caller]
fn check_rejected(yaml: &str, expected: &[&str]) {
    let Err(problems) = PolicySnapshot::from_yaml(yaml) else { panic!("accepted: {yaml}") };
    let problems: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), expected.len(), "{yaml}\n{problems:#?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.contains(expected), "{yaml}\n{problem}\nlacks {expected}");
    }
}

/// The one problem of the rule `{id: r, limit: 60/m, …}` with other options.
#[track_caller]
fn check_option_rejected(options: &str, expected: &str) {
    let limit = if options.starts_with("limit") { "" } else { "limit: 60/m, " };
    check_rejected(&format!("rules: [{{id: r, {limit}{options}}}]"), &[expected]);
}

/// The rules that a request meets, with what each has left after it.
fn met(engine: &EngineCore, hit: &Hit<'_>) -> Vec<(String, u64)> {
    let verdict = engine.check(hit, NOW);
    verdict.limits().iter().map(|limit| (limit.policy().to_string(), limit.remaining())).collect()
}

fn engine(yaml: &str) -> EngineCore {
    EngineCore::new(policy(yaml))
}
