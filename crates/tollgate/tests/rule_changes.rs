//! Incremental changes of rules end in the same state as a full load: the same matches, the same verdicts.

use proptest::prelude::*;
use tollgate::internal::document::{self, Problems};
use tollgate::internal::policy::{PolicyChange, PolicyParts};
use tollgate::internal::rule::{Rule, RuleId, RuleSetError, parse};
use tollgate::internal::{EngineCore, PolicySnapshot};
use tollgate::{Hit, Time};

const NOW: Time = Time::from_secs(1_800_000_000);

const PATTERNS: [&str; 12] = [
    "limit: 5/m",
    "match: /a, limit: 5/m",
    "match: GET /a, limit: 9/m",
    "match: POST /a, limit: 3/m, algorithm: fixed-window",
    "match: /a/b, limit: 5/m",
    "match: '/a/{x}', limit: 7/m",
    "match: '/a/{x}/c', limit: 7/h",
    "match: /a/b/c, limits: [5/m, 50/h]",
    "match: '/a/**', limit: 20/m",
    "match: '/**', limit: 30/m",
    "host: h.example.com, match: /a/b, limit: 4/m",
    "host: '*.example.com', limit: 6/m",
];
const KEYS: [&str; 5] =
    ["key: user", "key: ip", "key: user, uid: '1'", "key: [ip, user], uid: '2'", "key: []"];
const MODES: [&str; 4] = ["mode: enforce", "mode: enforce, cost: 2", "mode: shadow", "mode: off"];

fn rule(yaml: &str) -> Rule {
    let mut problems = Problems::new();
    let rule = parse::rule(&document::read(yaml).expect("YAML"), "", &mut problems);
    rule.unwrap_or_else(|| panic!("{yaml}: {problems}"))
}

fn some_rule() -> impl Strategy<Value = Rule> {
    let words = |words: &'static [&'static str]| prop::sample::select(words);
    (0u32..9, words(&PATTERNS), words(&KEYS), words(&MODES))
        .prop_map(|(id, pattern, key, mode)| rule(&format!("{{id: r{id}, {pattern}, {key}, {mode}}}")))
}

fn some_change() -> impl Strategy<Value = PolicyChange> {
    prop_oneof![
        3 => some_rule().prop_map(PolicyChange::Put),
        1 => (0u32..9).prop_map(|id| PolicyChange::Remove(RuleId::new(&format!("r{id}")).expect("an id"))),
    ]
}

fn id_of(change: &PolicyChange) -> &RuleId {
    match change {
        PolicyChange::Put(rule) => &rule.id,
        PolicyChange::Remove(id) => id,
        PolicyChange::Allow(_) | PolicyChange::Disallow(_) => unreachable!("only rules are changed here"),
    }
}

/// All rules as a file would list them: those it began with, then the others by id.
#[derive(Default)]
struct Listed {
    first: Vec<Rule>,
    then: Vec<Rule>,
}

impl Listed {
    fn change(&mut self, change: &PolicyChange) {
        match change {
            PolicyChange::Put(rule) => {
                let known = self.first.iter_mut().chain(&mut self.then).find(|known| known.id == rule.id);
                match known {
                    Some(known) => *known = rule.clone(),
                    None => self.then.push(rule.clone()),
                }
                self.then.sort_by(|a, b| a.id.cmp(&b.id));
            }
            PolicyChange::Remove(id) => {
                self.first.retain(|rule| rule.id != *id);
                self.then.retain(|rule| rule.id != *id);
            }
            PolicyChange::Allow(_) | PolicyChange::Disallow(_) => unreachable!("only rules are changed here"),
        }
    }

    fn policy(&self) -> PolicySnapshot {
        let rules = self.first.iter().chain(&self.then).cloned().collect();
        PolicySnapshot::new(PolicyParts { rules, ..PolicyParts::default() }).expect("valid rules")
    }
}

/// The verdicts of an engine for some hits, limit by limit.
fn said(engine: &EngineCore) -> Vec<String> {
    let mut said = Vec::new();
    for path in ["/", "/a", "/a/b", "/a/z", "/a/b/c", "/a/b/d", "/x/y"] {
        for (method, host, user) in
            [("GET", "", "1"), ("POST", "h.example.com", "2"), ("GET", "x.example.com", "3")]
        {
            let ip = "192.0.2.1".parse().expect("an address");
            let verdict = engine.check(&Hit::on(method, host, path).user(user).ip(ip), NOW);
            let limits = verdict.limits().iter().map(|limit| {
                format!("{} {} {} {}", limit.rule.id, limit.limit, limit.is_allowed(), limit.remaining())
            });
            said.push(format!("{method} {host}{path} {}: {:?}", verdict.allowed, limits.collect::<Vec<_>>()));
        }
    }
    said
}

proptest! {
    #[test]
    fn changes_end_where_the_whole_list_would(
        first in prop::collection::vec(some_rule(), 0..6),
        batches in prop::collection::vec(prop::collection::vec(some_change(), 0..4), 1..12),
    ) {
        let mut listed = Listed::default();
        for rule in first {
            if listed.first.iter().all(|known| known.id != rule.id) {
                listed.first.push(rule);
            }
        }
        let changed = EngineCore::new(listed.policy());
        let rebuilt = EngineCore::new(listed.policy());
        for mut batch in batches {
            batch.sort_by(|a, b| id_of(a).cmp(id_of(b)));
            batch.dedup_by(|a, b| id_of(a) == id_of(b));
            batch.iter().for_each(|change| listed.change(change));
            changed.change(batch.clone(), NOW).expect("valid changes");
            changed.change(batch, NOW).expect("the same once more");
            rebuilt.apply(listed.policy(), NOW);
            prop_assert_eq!(said(&changed), said(&rebuilt));
            let policy = changed.policy();
            prop_assert_eq!(policy.rules().len(), listed.first.len() + listed.then.len());
            for rule in listed.first.iter().chain(&listed.then) {
                let found = policy.rule(rule.id.as_str());
                prop_assert_eq!(found.map(|found| Rule::clone(found)), Some(rule.clone()));
            }
        }
    }
}

#[test]
fn a_changed_rule_keeps_what_its_keys_have_used_and_its_record() {
    let engine =
        EngineCore::new(PolicySnapshot::from_yaml("rules: [{id: r, key: user, limit: 5/m}]").expect("valid"));
    let hit = Hit::by("ann");
    (0..7).for_each(|_| _ = engine.check(&hit, NOW));
    let edited = rule("{id: r, key: user, limit: 50/m}");
    let generations = engine.change([PolicyChange::Put(edited)], NOW);
    assert_eq!(generations, Ok((1, 2)));
    assert_eq!(engine.peek(&hit, NOW).limits()[0].remaining(), 45, "five of fifty used");
    let tally = engine.policy().rule("r").expect("it is there").counts();
    assert_eq!((tally.allowed, tally.denied), (5, 2));
}

#[test]
fn a_rule_beside_the_changed_one_keeps_its_record() {
    let yaml = "rules: [{id: a, match: /a, limit: 5/m}, {id: b, match: /b, limit: 5/m}]";
    let engine = EngineCore::new(PolicySnapshot::from_yaml(yaml).expect("valid"));
    let before = engine.policy();
    engine.change([PolicyChange::Put(rule("{id: a, match: /b, limit: 6/m}"))], NOW).expect("valid");
    // A request that began under the old policy counts for the rule all the same.
    let record = before.rule("b").expect("it is there").stats();
    engine.check(&Hit::on("GET", "", "/b"), NOW);
    assert_eq!(record.counts().allowed, 1);
}

#[test]
fn of_changes_that_are_not_all_possible_none_is_made() {
    let engine = EngineCore::new(PolicySnapshot::from_yaml("rules: [{id: r, limit: 5/m}]").expect("valid"));
    let many = (0..64).map(|n| PolicyChange::Put(rule(&format!("{{id: r{n}, limit: 5/m}}"))));
    let changes = [PolicyChange::Remove(RuleId::new("none").expect("an id"))].into_iter().chain(many);
    let refused = engine.change(changes, NOW);
    assert!(matches!(refused, Err(RuleSetError::TooManyMatches { count: 65, .. })), "{refused:?}");
    assert_eq!((engine.policy().rules().len(), engine.policy().generation()), (1, 1));
    let range = rule("{id: s, key: ip, limit: 5/m, overrides: [{ip: '2001:db8::/32', limit: 9/m}]}");
    assert!(matches!(engine.change([PolicyChange::Put(range)], NOW), Err(RuleSetError::Range { .. })));
}

#[test]
fn a_change_that_does_not_fit_leaves_a_draft_as_it_was() {
    let many: Vec<_> = (0..64).map(|n| rule(&format!("{{id: r{n}, match: /full, limit: 5/m}}"))).collect();
    let parts = PolicyParts { rules: many, ..PolicyParts::default() };
    let mut draft = PolicySnapshot::new(parts).expect("64 may match").draft();
    let elsewhere = rule("{id: s, match: /other, limit: 5/m}");
    draft.apply(PolicyChange::Put(elsewhere.clone()), NOW).expect("it fits");
    for late in ["{id: t, match: /full, limit: 5/m}", "{id: s, match: /full, limit: 5/m}"] {
        let refused = draft.apply(PolicyChange::Put(rule(late)), NOW);
        assert!(matches!(refused, Err(RuleSetError::TooManyMatches { .. })), "{refused:?}");
    }
    let engine = EngineCore::new(draft.finish());
    assert!(engine.policy().rule("t").is_none());
    assert_eq!(engine.policy().rule("s").map(|held| Rule::clone(held)), Some(elsewhere));
    assert_eq!(engine.peek(&Hit::on("GET", "", "/full"), NOW).limits().len(), 64);
    assert_eq!(engine.peek(&Hit::on("GET", "", "/other"), NOW).limits().len(), 1);
}

#[test]
fn a_new_list_keeps_the_rules_that_were_added_and_may_not_have_their_ids() {
    let list = |yaml: &str| PolicySnapshot::from_yaml(yaml).expect("valid");
    let engine = EngineCore::new(list("rules: [{id: a, key: user, limit: 5/m}]"));
    let added = rule("{id: x, match: /x, key: user, limit: 5/m}");
    engine.change([PolicyChange::Put(added)], NOW).expect("valid");
    engine.check(&Hit::on("GET", "", "/x").user("ann"), NOW);
    engine.apply_list(list("rules: [{id: b, limit: 9/m}]"), NOW).expect("no id is in both");
    let policy = engine.policy();
    assert!(policy.rule("a").is_none() && !policy.rule("b").expect("listed").is_added());
    assert_eq!(policy.rule("x").expect("it stays").counts().allowed, 1);
    let clash = engine.apply_list(list("rules: [{id: x, limit: 9/m}]"), NOW);
    assert!(matches!(clash, Err(RuleSetError::Duplicate(id)) if id.as_str() == "x"));
    assert!(engine.policy().has_same_list(&list("rules: [{id: b, limit: 9/m}]")));
    assert!(!engine.policy().has_same_list(&list("rules: [{id: b, limit: 8/m}]")));
}
