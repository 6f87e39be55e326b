//! What a set finds, built at once or by changes.

use super::*;
use crate::document::{self, Problems};
use crate::rule::parse;

/// A rule from its pattern, perhaps with a host before it.
fn rule(id: usize, text: &str, options: &str) -> Rule {
    let (host, pattern) = text.split_once('|').unwrap_or(("", text));
    let mut yaml = format!("{{id: r{id}, limit: 5/m, {options}");
    for (name, value) in [("match", pattern), ("host", host)] {
        yaml += &if value.is_empty() { String::new() } else { format!(", {name}: '{value}'") };
    }
    let (yaml, mut problems) = (format!("{yaml}}}"), Problems::new());
    let rule = parse::rule(&document::read(&yaml).expect("YAML"), "", &mut problems);
    rule.unwrap_or_else(|| panic!("{yaml}: {problems}"))
}

fn set(patterns: &[&str]) -> RuleSet {
    let rules = patterns.iter().enumerate().map(|(n, text)| rule(n, text, "mode: enforce"));
    RuleSet::new(rules.collect()).expect("a valid set")
}

fn found(set: &RuleSet, target: &Target<'_>, user: Option<&str>) -> Vec<String> {
    set.matching(target, || user).iter().map(|rule| rule.id.to_string()).collect()
}

#[test]
fn every_matching_rule_is_found() {
    let set = set(&[
        "/users/{id}",
        "GET /users/42",
        "/users/**",
        "",
        "/**",
        "api.example.com|/users/{id}",
        "*.example.com|",
        "POST /users/42",
        "/users/{id}/orders",
    ]);
    let check = |method, host, path, expected: &[u32]| {
        let expected: Vec<_> = expected.iter().map(|n| format!("r{n}")).collect();
        assert_eq!(found(&set, &Target::new(method, host, path), None), expected, "{path}");
    };
    check("GET", "", "/users/42", &[0, 1, 2, 3, 4]);
    check("GET", "api.example.com", "/users/7", &[0, 2, 3, 4, 5, 6]);
    check("DELETE", "a.b.example.com", "/users", &[2, 3, 4, 6]);
    check("GET", "example.com", "/users/42/orders/1", &[2, 3, 4]);
    check("GET", "", "/users/42/orders", &[2, 3, 4, 8]);
    check("GET", "", "/", &[3, 4]);
    check("", "", "", &[3]);
}

#[test]
fn no_spelling_escapes_its_rule() {
    let set = set(&["api.example.com|POST /login"]);
    for path in
        ["//login", "/./login", "/%6Cogin", "/%6cogin", "/login/", "/a/../login", "/%2flogin", "/login?x=1"]
    {
        for host in ["api.example.com", "API.Example.com", "api.example.com:8443", "api.example.com."] {
            let target = Target::new("POST", host, path);
            assert_eq!(found(&set, &target, None), ["r0"], "{host} {path}");
        }
    }
    for path in ["/Login", "/logins", "/login/x", "/"] {
        assert!(found(&set, &Target::new("POST", "api.example.com", path), None).is_empty(), "{path}");
    }
}

#[test]
fn a_users_own_rule_stands_in_for_the_general_one() {
    let rules = ["key: user", "uid: '42', key: user", "key: ip"];
    let rules = rules.iter().enumerate().map(|(n, options)| rule(n, "/search", options));
    let set = RuleSet::new(rules.collect()).expect("a valid set");
    let target = Target::new("GET", "", "/search");
    assert_eq!(found(&set, &target, Some("42")), ["r1", "r2"]);
    assert_eq!(found(&set, &target, Some("7")), ["r0", "r2"]);
    assert_eq!(found(&set, &target, None), ["r0", "r2"]);
}
