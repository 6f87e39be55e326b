//! The panic switch, and rules that are enforced for a share of their keys.

use proptest::prelude::*;
use tollgate::internal::rule::RuleMode;

use super::*;

/// A rule that bans, one that delays, one that denies without a key; and a banned key.
const STRICT: &str = "
rules:
  - {id: login, match: /login, key: user, limit: 2/h, ban: {key: ip, after: 3, for: 1h}}
  - {id: turns, match: /turns, key: user, limit: 1/m, algorithm: leaky-bucket, burst: 3}
  - {id: keyed, match: /keyed, key: api_key, missing_key: deny, limit: 5/m}
allow: ['user:friend']
bans: [{key: 'user:evil'}]";

fn on(path: &'static str, user: &'static str) -> Hit<'static> {
    Hit::on("GET", "", path).user(user).ip([192, 0, 2, 1].into())
}

fn switched(yaml: &str, enforce: Enforce) -> EngineCore {
    let engine = engine(yaml);
    engine.set_enforce(enforce);
    engine
}

/// Whether it passes at once, and without headers.
fn passes(verdict: &EngineVerdict) -> bool {
    verdict.allowed && verdict.delay.is_zero() && headers(verdict, HeaderStyle::Ietf).iter().next().is_none()
}

#[test]
fn in_shadow_no_request_is_denied_delayed_or_banned_and_all_are_counted() {
    let engine = switched(STRICT, Enforce::Shadow);
    assert_eq!(engine.enforce(), Enforce::Shadow);
    for hit in [on("/login", "a"), on("/turns", "a"), on("/keyed", "a"), on("/login", "evil")] {
        for _ in 0..10 {
            assert!(passes(&engine.peek(&hit, NOW)));
            let verdict = engine.check(&hit, NOW);
            assert!(passes(&verdict));
            assert_eq!((verdict.reason, verdict.retry_after), (Reason::NoRule, None));
            assert!(verdict.limits().iter().all(|limit| limit.mode == RuleMode::Shadow));
            assert_eq!(verdict.limits().len(), 1);
        }
    }
    assert_eq!(engine.check(&on("/login", "friend"), NOW).reason, Reason::AllowList);
    let tally = |rule| engine.policy().rule(rule).expect("it is there").counts();
    assert_eq!(tally("login"), RuleCounts { allowed: 4, denied: 0, shadow_denied: 16, banned: 0 });
    assert_eq!(tally("keyed"), RuleCounts { allowed: 0, denied: 0, shadow_denied: 10, banned: 0 });
    assert_eq!(engine.shadow_bans(), 10);
    assert_eq!(engine.bans(NOW).len(), 1, "nobody but the one of the file");
    engine.set_enforce(Enforce::On);
    assert_eq!(engine.check(&on("/login", "a"), NOW).reason, Reason::Limit, "what was used is known");
    assert_eq!(engine.check(&on("/login", "evil"), NOW).reason, Reason::Ban);
}

#[test]
fn off_nothing_is_matched_or_charged() {
    let engine = switched(STRICT, Enforce::Off);
    let hits = [on("/login", "a"), on("/keyed", "a"), on("/login", "evil"), on("/login", "friend")];
    let batch = engine.check_batch(&hits, NOW);
    for verdict in hits.iter().map(|hit| engine.check(hit, NOW)).chain(batch) {
        assert!(passes(&verdict));
        assert_eq!((verdict.reason, verdict.limits().len()), (Reason::NoRule, 0));
    }
    assert!(passes(&engine.peek(&on("/login", "evil"), NOW)));
    engine.apply(policy(STRICT), NOW);
    assert_eq!(engine.enforce(), Enforce::Off, "whatever policy is in force");
    engine.set_enforce(Enforce::On);
    assert_eq!(left(&engine, on("/login", "a"), NOW), [2]);
    assert_eq!(engine.decisions().find(|(reason, _)| *reason == Reason::NoRule), Some((Reason::NoRule, 8)));
}

#[test]
fn a_batch_is_decided_as_its_hits_alone() {
    for (enforce, passed) in [(Enforce::On, 2), (Enforce::Shadow, 20), (Enforce::Off, 20)] {
        let verdicts = switched(STRICT, enforce).check_batch(&vec![on("/login", "a"); 20], NOW);
        assert_eq!(verdicts.iter().filter(|verdict| verdict.allowed).count(), passed, "{enforce:?}");
    }
}

const HALF: &str = "rules: [{id: half, key: user, limit: 2/h, enforce_percent: 50, ban: {after: 3}}]";

#[test]
fn a_key_outside_the_share_is_decided_as_in_shadow() {
    let shadow = engine(&HALF.replace("enforce_percent: 50", "mode: shadow"));
    let enforced = engine(&HALF.replace("enforce_percent: 50, ", ""));
    let half = engine(HALF);
    let other_node = engine(HALF);
    let mut inside = 0;
    for user in (0..200).map(|n| n.to_string()) {
        let hit = Hit::by(&user);
        let said = |engine: &EngineCore| -> Vec<_> {
            let say = |verdict: EngineVerdict| {
                let limits =
                    verdict.limits().iter().map(|limit| (limit.mode, limit.is_allowed(), limit.remaining()));
                (verdict.reason, verdict.retry_after, limits.collect::<Vec<_>>())
            };
            (0..6).map(|_| say(engine.check(&hit, NOW))).collect()
        };
        let is_inside = half.peek(&hit, NOW).limits()[0].mode == RuleMode::Enforce;
        assert_eq!(said(&half), said(if is_inside { &enforced } else { &shadow }), "{user}");
        said(&other_node);
        inside += usize::from(is_inside);
    }
    assert!((60..140).contains(&inside), "{inside} of 200");
    assert_eq!(half.bans(NOW).len(), inside);
    assert_eq!(half.bans(NOW), other_node.bans(NOW), "the same keys on every node");
}

#[test]
fn a_changed_share_keeps_what_keys_have_used() {
    for algorithm in ALGORITHMS {
        let of = |percent| {
            format!("rules: [{{id: r, key: user, limit: 5/h, enforce_percent: {percent}, {algorithm}}}]")
        };
        let engine = engine(&of(0));
        assert_eq!(allowed(&engine, &Hit::by("ann"), 9, NOW), 9);
        engine.apply(policy(&of(100)), NOW);
        assert_eq!(allowed(&engine, &Hit::by("ann"), 9, NOW), 0, "{algorithm}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn raising_the_share_only_adds_keys(steps in prop::collection::vec(0u64..=100, 1..5), user in "[a-z0-9]{1,9}") {
        let mut steps = steps;
        let mut was = false;
        steps.sort_unstable();
        for percent in steps {
            let engine = engine(&HALF.replace("50", &percent.to_string()));
            let is = engine.peek(&Hit::by(&user), NOW).limits()[0].mode == RuleMode::Enforce;
            prop_assert!(is || !was);
            was = is;
        }
    }
}
