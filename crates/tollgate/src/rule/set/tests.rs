//! Lookups in a set, built at once or by changes.

use super::*;
use crate::document::{self, Problems};
use crate::identity::Attribute;
use crate::rule::matcher::HASH_MASK;
use crate::rule::parse;

/// A rule from its pattern, optionally preceded by a host.
fn rule(id: usize, text: &str, options: &str) -> Rule {
    let (host, pattern) = text.split_once('|').unwrap_or(("", text));
    let mut yaml = format!("{{id: r{id}, limit: 5/m, {options}");
    for (name, value) in [("match", pattern), ("host", host)] {
        yaml += &if value.is_empty() { String::new() } else { format!(", {name}: '{value}'") };
    }
    let yaml = format!("{yaml}}}");
    let mut problems = Problems::new();
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

/// Servers that decode a parameter after they have split the path saw one; the rule saw another path.
#[test]
fn a_parameter_may_be_any_text_that_some_server_reads_as_one() {
    let set = set(&["/search/{q}", "/search", "/{a}/{b}/{c}", "/**", ""]);
    for path in ["/search/a%2Fb", "/search/a%5Cb", "/search/a\\b", "/search/;a", "/search/a;b"] {
        let found = found(&set, &Target::new("GET", "h", path), None);
        assert!(found.contains(&"r0".to_owned()), "{path}: {found:?}");
    }
    for path in
        ["/search/..", "/search/%2e%2E", "/search/.", "/search/..;x", "/x/../search/a%2Fb", "//search//%2F"]
    {
        let found = found(&set, &Target::new("GET", "h", path), None);
        assert!(found.contains(&"r0".to_owned()), "{path}: {found:?}");
    }
    let all = |path| found(&set, &Target::new("GET", "h", path), None);
    assert_eq!(all("/search/a%2Fb"), ["r0", "r2", "r3", "r4"], "each rule once, in their order");
    assert_eq!(all("/search/a/b"), ["r2", "r3", "r4"]);
    assert_eq!(all("/search/%61"), ["r0", "r3", "r4"]);
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
fn a_users_own_rule_replaces_the_general_one() {
    let rules = ["key: user", "uid: '42', key: user", "key: ip"];
    let rules = rules.iter().enumerate().map(|(n, options)| rule(n, "/search", options));
    let set = RuleSet::new(rules.collect()).expect("a valid set");
    let target = Target::new("GET", "", "/search");
    assert_eq!(found(&set, &target, Some("42")), ["r1", "r2"]);
    assert_eq!(found(&set, &target, Some("7")), ["r0", "r2"]);
    assert_eq!(found(&set, &target, None), ["r0", "r2"]);
}

/// The reference result for [`RuleSet::matching`], rule by rule.
fn expected(rules: &[Rule], target: &Target<'_>, user: Option<&str>) -> Vec<String> {
    let meets = |rule: &&Rule| {
        rule.matches(target, PathCase::Sensitive) && rule.uid.as_deref().is_none_or(|uid| user == Some(uid))
    };
    let is_own = |rule: &Rule| rule.uid.is_some() && rule.mode == RuleMode::Enforce;
    let is_general = |rule: &Rule| rule.uid.is_none() && rule.key == [Attribute::User];
    let matching: Vec<&Rule> = rules.iter().filter(meets).collect();
    let replaced =
        |rule: &Rule| is_general(rule) && matching.iter().any(|own| is_own(own) && own.has_pattern_of(rule));
    let mut found: Vec<_> =
        matching.iter().filter(|rule| !replaced(rule)).map(|rule| rule.id.to_string()).collect();
    found.sort();
    found
}

#[test]
fn a_set_finds_what_a_search_through_all_rules_finds_even_if_every_hash_collides() {
    const PATTERNS: [&str; 12] = [
        "",
        "/",
        "/a",
        "GET /a",
        "/a/b",
        "PUT /a/b",
        "/a/{x}",
        "/{x}/b",
        "/a/**",
        "GET /**",
        "/a/b/c",
        "/{x}/{y}/c",
    ];
    const HOSTS: [&str; 4] = ["", "shop.com|", "*.shop.com|", "eu.shop.com|"];
    const OPTIONS: [&str; 5] = [
        "key: ip",
        "key: user",
        "uid: '1', key: user",
        "uid: '2', key: user",
        "uid: '1', key: user, mode: shadow",
    ];
    for mask in [u32::MAX, 0xff, 0xf, 1, 0] {
        HASH_MASK.set(mask);
        let mut state = 7u64;
        let mut draw = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut set = RuleSet::default();
        let mut rules = Vec::<Rule>::new();
        for step in 0..600 {
            let id = draw(40);
            let at = rules.iter().position(|known| known.id.as_str() == format!("r{id}"));
            if let Some(at) = at.filter(|_| draw(2) == 0) {
                let removed = rules.swap_remove(at);
                set.remove(removed.id.as_str()).expect("it can go");
            } else {
                let text = format!("{}{}", HOSTS[draw(4)], PATTERNS[draw(12)]);
                let new = rule(id, &text, OPTIONS[draw(5)]);
                set.put(new.clone(), Time::EPOCH).expect("it fits");
                rules.retain(|known| known.id != new.id);
                rules.push(new);
            }
            if step % 10 > 0 {
                continue;
            }
            for (host, path) in [
                ("", "/a"),
                ("shop.com", "/a/b"),
                ("eu.shop.com", "/a/b/c"),
                ("x.eu.shop.com", "/"),
                ("eu.shop.com", ""),
            ] {
                for (method, user) in [("GET", Some("1")), ("PUT", Some("2")), ("GET", None)] {
                    let target = Target::new(method, host, path);
                    let mut found = found(&set, &target, user);
                    found.sort();
                    assert_eq!(
                        found,
                        expected(&rules, &target, user),
                        "{mask:x} {method} {host} {path} {user:?}"
                    );
                }
            }
        }
        for rule in rules {
            set.remove(rule.id.as_str()).expect("it can go");
        }
        assert!(set.matcher.is_empty(), "nothing is left");
    }
    HASH_MASK.set(u32::MAX);
}

#[test]
fn a_set_that_interns_apart_leaves_nothing_in_the_set_that_it_was_copied_from() {
    let set = set(&["shop.com|/a"]);
    let known = lock(&set.interner).len();
    let mut copy = set.clone();
    copy.intern_apart();
    for n in 1..100 {
        copy.put(rule(n, &format!("h{n}.shop.com|/a/{n}"), "key: ip"), Time::EPOCH).expect("it fits");
    }
    assert_eq!((copy.rules.len(), lock(&set.interner).len()), (100, known));
}

/// The attributes that the rules name, without the counts.
fn recounted(set: &RuleSet) -> std::collections::BTreeSet<Attribute> {
    set.rules().iter().flat_map(|rule| rule.all_attributes().cloned().collect::<Vec<_>>()).collect()
}

#[test]
fn attributes_are_visited_once_however_many_rules_name_them() {
    let keys = [
        "key: ip",
        "key: [ip, 'header:a']",
        "key: 'cookie:a', ban: { key: user, after: 3 }",
        "key: [user, path]",
    ];
    let rules = (0..1000).map(|n| rule(n, &format!("/{n}"), keys[n % keys.len()]));
    let mut set = RuleSet::new(rules.collect()).expect("a valid set");
    let mut draw = 7_usize;
    for step in 0..3000 {
        let visited: Vec<_> = set.attributes().cloned().collect();
        if step % 100 == 0 || set.rules().len() < 20 {
            assert!(visited.len() <= 5, "{visited:?}");
            assert_eq!(visited.iter().cloned().collect::<std::collections::BTreeSet<_>>(), recounted(&set));
            assert_eq!(visited.len(), recounted(&set).len(), "each once");
        }
        draw = draw.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let n = draw >> 33;
        let earlier = set.clone();
        let before = recounted(&earlier);
        match n % 3 {
            0 => {
                set.put(rule(n % 1000, "/x/{id}", keys[n % 7 % keys.len()]), Time::from_secs(1)).unwrap_or(())
            }
            _ => set.remove(&format!("r{}", n % 1000)).expect("it can be removed"),
        }
        assert!(step % 100 != 0 || recounted(&earlier) == before, "a copy does not change");
    }
}
