//! A million rules.

use tollgate::Hit;
use tollgate::internal::document::{self, Problems};
use tollgate::internal::policy::{PolicyChange, PolicyParts};
use tollgate::internal::rule::{Rule, RuleId, parse};
use tollgate::internal::{EngineCore, PolicySnapshot};
use tollgate_testkit::mixed_rules::{Mix, Parts};

use super::*;

/// A rule costs no more than this, with everything that finds it.
const MAX_BYTES_A_RULE: usize = 250;

fn rule(yaml: &str) -> Rule {
    let mut problems = Problems::new();
    let rule = parse::rule(&document::read(yaml).expect("YAML"), "", &mut problems);
    rule.unwrap_or_else(|| panic!("{yaml}: {problems}"))
}

fn short(n: usize) -> String {
    format!("{{id: r{n:06}, uid: '{n:06}', url: /search, time: minute, requests: 5}}")
}

fn long(n: usize) -> String {
    format!("{{id: r{n:06}, match: GET /api/v1/items/{n:06}, key: user, limit: 5/m}}")
}

/// With what denied clients are told: common to all of them, so stored once.
fn with_deny(n: usize) -> String {
    format!(
        "{{id: r{n:06}, match: GET /api/v1/items/{n:06}, key: user, limit: 5/m, deny: {{message: wait a minute, \
         body: '{}', content_type: text/plain, retry_after_max: 1h}}}}",
        "b".repeat(1_000)
    )
}

/// The text of the n-th rule.
type Form = Box<dyn Fn(usize) -> String>;

fn all_forms(count: usize) -> [(&'static str, Form); 4] {
    let mix = Mix::of(count);
    [
        ("short", Box::new(short)),
        ("long", Box::new(long)),
        ("with deny", Box::new(with_deny)),
        ("mixed", Box::new(move |n| mix.text(n))),
    ]
}

/// A policy of so many rules, and the bytes that it takes.
fn policy(count: usize, form: impl Fn(usize) -> String) -> (PolicySnapshot, usize) {
    let before = IN_USE.get();
    let mut policy = PolicySnapshot::new(PolicyParts::default()).expect("valid");
    let numbers: Vec<usize> = (0..count).collect();
    for page in numbers.chunks(1_000) {
        let changes = page.iter().map(|n| PolicyChange::Put(rule(&form(*n))));
        policy = policy.changed(changes, NOW).expect("valid rules");
    }
    drop(numbers);
    (policy, (IN_USE.get() - before) as usize)
}

#[test]
fn a_rule_costs_a_quarter_of_a_kilobyte_at_the_most() {
    let count = 1_000_000 / 16; // the index has as many leaves as with a million, nearly empty
    for (name, form) in all_forms(count) {
        let (policy, bytes) = policy(count, form);
        let each = bytes / count;
        assert_eq!(policy.rules().len(), count);
        eprintln!("{name}: {each} bytes a rule");
        assert!(each <= MAX_BYTES_A_RULE, "{name}: {each} bytes for each of {count} rules");
    }
}

#[test]
fn a_change_costs_what_it_changes_whatever_the_number_of_rules() {
    for form in [short, long] {
        let few_and_many = [1_000, 100_000].map(|count| {
            let engine = EngineCore::new(policy(count, form).0);
            let edited = form(count / 2).replace(": 5", ": 50");
            [
                allocated(&engine, PolicyChange::Put(rule(&edited))),
                allocated(&engine, PolicyChange::Put(rule(&form(count)))),
                allocated(&engine, PolicyChange::Remove(RuleId::new("r000007").expect("an id"))),
            ]
        });
        let [few, many] = few_and_many;
        for (few, many) in few.into_iter().zip(many) {
            assert!(many <= MAX_BYTES_A_CHANGE, "{many} bytes");
            assert!(many <= 4 * few, "{few} bytes among a thousand, {many} among a hundred thousand");
        }
    }
}

#[test]
fn among_many_rules_the_right_one_is_found() {
    let count = 20_000;
    let users = EngineCore::new(policy(count, short).0);
    let paths = EngineCore::new(policy(count, long).0);
    for n in (0..count).step_by(997) {
        let user = format!("{n:06}");
        let path = format!("/api/v1/items/{n:06}");
        let verdict = users.check(&Hit::on("GET", "", "/search").user(&user), NOW);
        assert_eq!(
            verdict.limits().iter().map(|limit| limit.rule.id.as_str()).collect::<Vec<_>>(),
            [format!("r{n:06}")]
        );
        let verdict = paths.check(&Hit::on("GET", "", &path).user("ann"), NOW);
        assert_eq!(verdict.limits().len(), 1, "{path}");
        assert!(paths.check(&Hit::on("POST", "", &path).user("ann"), NOW).limits().is_empty());
    }
    assert!(users.check(&Hit::on("GET", "", "/search").user("nobody"), NOW).limits().is_empty());
}

#[test]
fn among_rules_that_all_differ_the_right_one_is_found() {
    let mix = Mix::of(50_000);
    let policy = policy(mix.rules, |n| mix.text(n)).0;
    for n in (0..mix.rules).step_by(97) {
        let Parts { id, uid, method, host, request_path, .. } = mix.parts(n);
        let hit = Hit::on(method, &host, &request_path).user(&uid);
        assert!(policy.matching(&hit).any(|rule| rule.id.as_str() == id), "{id}");
        let other = Hit::on("OPTIONS", &host, &request_path).user(&uid);
        assert!(!policy.matching(&other).any(|rule| rule.id.as_str() == id), "{id}");
    }
}

#[test]
fn rules_that_are_edited_and_removed_for_long_leave_nothing_behind() {
    let mix = Mix::of(10_000);
    let (mut policy, bytes) = policy(mix.rules, |n| mix.text(n));
    let before = IN_USE.get();
    // Each round gives every rule another path, host, user and limit.
    for round in 1..=10 {
        for n in 0..mix.rules / 20 {
            let id = mix.parts(n).id;
            let text = mix.text(n + round * mix.rules);
            let other = mix.parts(n + round * mix.rules).id;
            let edited = rule(&text.replace(&other, &id));
            policy = policy
                .changed(
                    [PolicyChange::Put(edited)],
                    NOW + std::time::Duration::from_secs(round as u64 * 1_000_000),
                )
                .expect("valid");
        }
    }
    let grown = (IN_USE.get() - before).max(0) as usize;
    assert!(grown <= bytes / 5, "{grown} bytes more than {bytes}");
    for n in 0..mix.rules {
        let id = RuleId::new(&mix.parts(n).id).expect("an id");
        policy = policy.changed([PolicyChange::Remove(id)], NOW).expect("valid");
    }
    let left = (IN_USE.get() - before + bytes as isize).max(0) as usize;
    assert!(policy.rules().is_empty() && left <= bytes / 5, "{left} bytes are left of {bytes}");
}

/// `cargo test --release -p tollgate --test millions -- --ignored --nocapture`
#[test]
#[ignore = "takes half a minute: prints what a million rules cost"]
fn a_million_rules_fit_250_megabytes() {
    for (name, form) in all_forms(1_000_000) {
        let (policy, bytes) = policy(1_000_000, form);
        eprintln!("{name}: {} bytes a rule", bytes / policy.rules().len());
        assert!(bytes <= 250_000_000, "{name}: {bytes} bytes");
    }
}
