//! Rules as people write them: what is accepted, what it means, and what is said about the rest.

use std::time::Duration;

use tollgate::limit::{Levels, Refill, Release, WindowStart};
use tollgate::rule::{CountWhen, MissingKey, Mode, OnExceed, OnStoreError, Rule};
use tollgate::time::Unit;
use tollgate::{Engine, Hit, Policy, Shape, Time};

const NOW: Time = Time::from_secs(1_800_000_000);

fn policy(yaml: &str) -> Policy {
    Policy::from_yaml(yaml).unwrap_or_else(|problems| panic!("{yaml}\n{problems}"))
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
    let Err(problems) = Policy::from_yaml(yaml) else { panic!("accepted: {yaml}") };
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
fn met(engine: &Engine, hit: &Hit<'_>) -> Vec<(String, u64)> {
    let verdict = engine.check(hit, NOW);
    verdict.limits.iter().map(|limit| (limit.policy(), limit.remaining)).collect()
}

fn engine(yaml: &str) -> Engine {
    Engine::new(policy(yaml))
}

#[test]
fn the_long_rule_of_the_documentation_is_read() {
    let policy = policy(
        r#"
rules:
  - id: login-email                   # [A-Za-z0-9._-]{1,64}
    match: POST /login
    host: api.example.com
    key: [email]
    missing_key: skip
    limits: [5/m, 20/h]
    algorithm: sliding-log
    cost: 1
    mode: enforce
    track: false
    on_exceed: reject
    on_store_error: closed
    count_denied: false
    count_when: always
    ban: { key: [ip], after: 3, within: 10m, for: 1h, max: 24h }
    overrides:
      - { email: "ceo@example.com", limits: [50/m] }
  - { id: short, uid: "42", url: /search, time: minute, requests: 5 }
allow: [ip:10.0.0.0/8, user:health-check]
bans:  [{ key: "ip:203.0.113.9", until: 2027-01-01T00:00:00Z, reason: scraping }]
"#,
    );
    let rule = policy.rule("login-email").expect("it is there");
    assert_eq!(rule.pattern.to_string(), "POST /login");
    assert_eq!(rule.pattern.host.as_ref().map(ToString::to_string).as_deref(), Some("api.example.com"));
    assert_eq!(rule.key.iter().map(ToString::to_string).collect::<Vec<_>>(), ["email"]);
    assert_eq!(limits(rule), ["5/m", "20/h", "50/m"]);
    assert!(rule.all_limits().all(|each| each.limit.shape() == Shape::SlidingLog));
    assert_eq!((rule.mode, rule.missing_key, rule.cost), (Mode::Enforce, MissingKey::Skip, 1));
    assert_eq!(rule.on_store_error, Some(OnStoreError::Closed));
    let ban = rule.ban.as_ref().expect("it bans");
    let minutes = |n: u64| Duration::from_secs(n * 60);
    assert_eq!((ban.after, ban.within, ban.first, ban.max), (3, minutes(10), minutes(60), minutes(1440)));
    assert_eq!(policy.rule("short").and_then(|rule| rule.uid.as_deref()), Some("42"));
    assert_eq!(policy.file_bans().len(), 1);
}

#[test]
fn every_algorithm_and_its_options_are_read() {
    let second = Duration::from_secs(1);
    let hold = |max_wait| Release::Hold { max_wait };
    for (options, expected) in [
        ("", Shape::Gcra { burst: None }),
        ("algorithm: gcra, burst: 5", Shape::Gcra { burst: Some(5) }),
        ("algorithm: token-bucket", Shape::TokenBucket { burst: None, refill: Refill::Continuous }),
        (
            "algorithm: token-bucket, burst: 7, refill: continuous",
            Shape::TokenBucket { burst: Some(7), refill: Refill::Continuous },
        ),
        (
            "algorithm: token-bucket, refill: tick",
            Shape::TokenBucket { burst: None, refill: Refill::Tick(second) },
        ),
        (
            "algorithm: token-bucket, refill: tick, tick: 10s",
            Shape::TokenBucket { burst: None, refill: Refill::Tick(10 * second) },
        ),
        (
            "algorithm: token-bucket, refill: calendar",
            Shape::TokenBucket { burst: None, refill: Refill::Calendar },
        ),
        ("algorithm: leaky-bucket", Shape::LeakyBucket { burst: None, release: hold(30 * second) }),
        (
            "algorithm: leaky-bucket, burst: 6, max_wait: 5s",
            Shape::LeakyBucket { burst: Some(6), release: hold(5 * second) },
        ),
        (
            "algorithm: leaky-bucket, on_exceed: hold",
            Shape::LeakyBucket { burst: None, release: hold(30 * second) },
        ),
        (
            "algorithm: leaky-bucket, on_exceed: reject",
            Shape::LeakyBucket { burst: None, release: Release::AtOnce },
        ),
        ("algorithm: fixed-window", Shape::FixedWindow { start: WindowStart::Aligned }),
        ("algorithm: fixed-window, window: aligned", Shape::FixedWindow { start: WindowStart::Aligned }),
        ("algorithm: fixed-window, window: first-hit", Shape::FixedWindow { start: WindowStart::FirstHit }),
        ("algorithm: sliding-log", Shape::SlidingLog),
        ("algorithm: sliding-compact", Shape::SlidingCompact { resolution: second }),
        ("algorithm: sliding-compact, resolution: 10s", Shape::SlidingCompact { resolution: 10 * second }),
        ("algorithm: sliding-counter", Shape::SlidingCounter),
        ("algorithm: tiered-window", Shape::TieredWindow { levels: Levels::SMH }),
        (
            "limit: 9/d, algorithm: tiered-window, levels: [m, h]",
            Shape::TieredWindow { levels: Levels::new(&[Unit::Minute, Unit::Hour]).expect("valid") },
        ),
    ] {
        assert_eq!(shape(options), expected, "{options}");
    }
}

#[test]
fn every_other_option_is_read() {
    assert_eq!(rule("mode: shadow").mode, Mode::Shadow);
    assert_eq!(rule("mode: off").mode, Mode::Off);
    assert_eq!(rule("missing_key: deny").missing_key, MissingKey::Deny);
    assert_eq!(rule("missing_key: shared").missing_key, MissingKey::Shared);
    assert_eq!(rule("cost: 7").cost, 7);
    assert!(rule("track: true").track && !rule("track: false").track && !rule("").track);
    assert!(rule("count_denied: true").count_denied && !rule("").count_denied);
    assert_eq!(rule("").on_exceed, OnExceed::Reject);
    assert_eq!(rule("algorithm: leaky-bucket").on_exceed, OnExceed::Hold);
    assert_eq!(rule("on_exceed: queue").on_exceed, OnExceed::Queue);
    assert_eq!(rule("").on_store_error, None);
    assert_eq!(rule("on_store_error: open").on_store_error, Some(OnStoreError::Open));
    assert_eq!(rule("on_store_error: local").on_store_error, Some(OnStoreError::Local));
    assert_eq!(rule("").count_when, CountWhen::Always);
    assert_eq!(rule("count_when: success").count_when, CountWhen::Success);
    assert_eq!(rule("count_when: failure").count_when, CountWhen::Failure);
    assert_eq!(rule("count_when: 'status:401,403'").count_when, CountWhen::Status(vec![401, 403]));
    let ban = rule("key: ip, ban: {after: 3}").ban.expect("it bans");
    let seconds = |n| Duration::from_secs(n);
    assert_eq!((ban.within, ban.first, ban.max), (seconds(600), seconds(3_600), seconds(86_400)));
    assert_eq!(ban.key, rule("key: ip").key, "the rule's key is banned where no other is named");
}

#[test]
fn keys_are_one_or_many_and_sorted_by_name() {
    let key = |options: &str| rule(options).key.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
    assert_eq!(key(""), "");
    assert_eq!(key("key: ip"), "ip");
    assert_eq!(key("key: [user, ip]"), "ip+user");
    let all = "key: [mac, api_key, 'header:X-A', 'cookie:c', 'query:q', 'jwt:sub', 'json:f', 'form:f']";
    assert_eq!(key(all), "api_key+cookie:c+form:f+header:x-a+json:f+jwt:sub+mac+query:q");
    assert_eq!(key("key: [path, method, host, email, 'attr:plan']"), "attr:plan+email+host+method+path");
}

#[test]
fn rates_are_read_as_people_write_them() {
    for (text, expected) in [
        ("limit: 2/s", "2/s"),
        ("limit: 5/min", "5/m"),
        ("limit: 5 requests/minute", "5/m"),
        ("limit: 30/10s", "30/10s"),
        ("limit: 1000/month", "1000/month"),
        ("limit: 4/2s", "4/2s"),
        ("limits: 3/y", "3/y"),
        ("time: minute, requests: 5", "5/m"),
        ("time: week, requests: '7'", "7/w"),
    ] {
        assert_eq!(limits(&rule(text)), [expected], "{text}");
    }
}

#[test]
fn a_json_rule_is_a_rule() {
    let policy = policy(r#"{"rules":[{"id":"r","match":"/a","key":["ip"],"limits":["5/m"],"track":true}]}"#);
    assert!(policy.rules()[0].track);
}

#[test]
fn a_users_own_rule_stands_in_for_the_general_one() {
    let engine = engine(
        "rules:
           - {id: general, url: /search, time: minute, requests: 5}
           - {id: own, uid: 42, url: /search, time: minute, requests: 50}
           - {id: by-ip, match: /search, key: ip, limit: 9/m}",
    );
    let hit = |user| Hit::on("GET", "", "/search").user(user).ip([192, 0, 2, 1].into());
    assert_eq!(met(&engine, &hit("42")), [("own".into(), 49), ("by-ip".into(), 8)]);
    assert_eq!(met(&engine, &hit("7")), [("general".into(), 4), ("by-ip".into(), 7)]);
    assert_eq!(met(&engine, &Hit::on("GET", "", "/other").user("42")), []);
    for _ in 0..40 {
        engine.check(&Hit::on("GET", "", "/search").user("42"), NOW);
    }
    assert!(engine.check(&Hit::on("GET", "", "/search").user("42"), NOW).allowed);
}

/// It replaced the general rule, and so decided by not deciding.
#[test]
fn a_users_own_rule_in_shadow_does_not_lift_the_general_one() {
    let engine = engine(
        "rules:
           - {id: general, url: /search, time: minute, requests: 1}
           - {id: own, uid: 42, url: /search, time: minute, requests: 9, mode: shadow}",
    );
    let hit = || Hit::on("GET", "", "/search").user("42");
    assert_eq!(met(&engine, &hit()), [("general".into(), 0), ("own".into(), 8)]);
    assert!(!engine.check(&hit(), NOW).allowed);
}

#[test]
fn the_override_that_names_most_attributes_wins() {
    let engine = engine(
        "rules:
           - id: r
             key: [user, ip]
             limit: 5/m
             overrides:
               - {user: '42', limits: [50/m, 100/h]}
               - {ip: 192.0.2.1, limit: 20/m}
               - {ip: 192.0.2.1, user: '42', limits: [70/m]}
               - {user: ' 42 ', limits: [60/m]}",
    );
    let met = |user, ip: [u8; 4]| {
        let verdict = engine.check(&Hit::by(user).ip(ip.into()), NOW);
        verdict.limits.iter().map(|limit| limit.limit.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(met("42", [192, 0, 2, 1]), ["70/m"]);
    assert_eq!(met("42", [192, 0, 2, 9]), ["50/m", "100/h"], "of equal ones the first");
    assert_eq!(met("7", [192, 0, 2, 1]), ["20/m"]);
    assert_eq!(met("7", [192, 0, 2, 9]), ["5/m"]);
}

#[test]
fn values_of_overrides_are_compared_in_normal_form() {
    let engine = engine(
        "rules:
           - {id: e, key: email, limit: 5/m, overrides: [{email: ' CEO+x@Example.com', limit: 9/m}]}
           - {id: m, key: mac, limit: 5/m, overrides: [{mac: AA-BB-CC-DD-EE-FF, limit: 9/m}]}
           - {id: h, key: 'header:x', limit: 5/m, overrides: [{'header:X': 100%, limit: 9/m}]}",
    );
    let hit = Hit::by("u").email("ceo+X@example.com").mac("aabb.ccdd.eeff").field(
        tollgate::identity::Source::Header,
        "x",
        "100%",
    );
    assert_eq!(met(&engine, &hit), [("e".into(), 8), ("m".into(), 8), ("h".into(), 8)]);
}

/// The address was compared with the network that its requests are counted under, and never found.
#[test]
fn an_override_for_an_ipv6_address_is_for_its_network() {
    let with = |ip: &str| {
        let yaml =
            format!("rules: [{{id: r, key: ip, limit: 5/m, overrides: [{{ip: '{ip}', limit: 50/m}}]}}]");
        met(&engine(&yaml), &Hit::by("u").ip("2001:db8:1:2::7".parse().expect("valid")))
    };
    for ip in ["2001:db8:1:2::9", "2001:DB8:1:2:0::7", "2001:db8:1:2::/64"] {
        assert_eq!(with(ip), [("r".into(), 49)], "{ip}");
    }
    assert_eq!(with("2001:db8:1:3::7"), [("r".into(), 4)]);
    for range in ["10.0.0.0/8", "2001:db8::/48"] {
        let yaml =
            format!("rules: [{{id: r, key: ip, limit: 5/m, overrides: [{{ip: '{range}', limit: 50/m}}]}}]");
        let message =
            format!("rule r has an override for {range}: write one address, or an IPv6 network of /64");
        check_rejected(&yaml, &[message.as_str()]);
    }
}

/// A range in a combination was accepted, and never matched anybody.
#[test]
fn a_range_of_addresses_stands_alone() {
    check_rejected("allow: ['ip:10.0.0.0/8+user:u']", &["allow[0]: 10.0.0.0/8 is a range"]);
    check_rejected("bans: [{key: 'ip:10.0.0.0/8+user:u'}]", &["bans[0].key: 10.0.0.0/8 is a range"]);
    let engine = engine("bans: [{key: 'ip:2001:db8::7+user:u'}, {key: 'ip:10.1.2.3+user:u'}]");
    let banned = |ip: &str| !engine.check(&Hit::by("u").ip(ip.parse().expect("valid")), NOW).allowed;
    assert_eq!(
        ["2001:db8::9", "2001:db8:1::9", "10.1.2.3", "10.1.2.4"].map(banned),
        [true, false, true, false]
    );
}

#[test]
fn limits_can_depend_on_an_attribute() {
    let yaml = |default: &str| {
        format!(
            "rules: [{{id: r, key: user, limits_by: {{attr: plan, free: [2/m], pro: [9/m, 90/h]{default}}}}}]"
        )
    };
    let (with, without) = (engine(&yaml(", default: 1/m")), engine(&yaml("")));
    let hit = |plan| Hit::by("u").attribute("plan", plan);
    assert_eq!(met(&with, &hit("free")), [("r".into(), 1)]);
    assert_eq!(met(&with, &hit("pro")), [("r:9/m".into(), 8), ("r:90/h".into(), 89)]);
    assert_eq!(met(&with, &hit("gold")), [("r".into(), 0)]);
    assert_eq!(met(&with, &Hit::by("v")), [("r".into(), 0)], "without the attribute");
    assert_eq!(met(&without, &hit("gold")), [], "without a default the rule does not apply");
}

#[test]
fn a_missing_key_skips_denies_or_is_shared() {
    let engine_of =
        |missing| engine(&format!("rules: [{{id: r, key: user, limit: 2/m, missing_key: {missing}}}]"));
    let nobody = || Hit::on("GET", "", "/");
    assert_eq!(met(&engine_of("skip"), &nobody()), []);
    let denies = engine_of("deny");
    let verdict = denies.check(&nobody(), NOW);
    assert_eq!((verdict.allowed, verdict.retry_after), (false, None));
    assert_eq!(verdict.message().as_deref(), Some("Denied: rule r needs user"));
    assert_eq!(met(&denies, &Hit::by("u")), [("r".into(), 1)]);
    let shared = engine_of("shared");
    assert_eq!(met(&shared, &nobody()), [("r".into(), 1)]);
    assert_eq!(met(&shared, &nobody().ip([192, 0, 2, 1].into())), [("r".into(), 0)]);
    assert!(!shared.check(&nobody(), NOW).allowed);
    assert_eq!(met(&shared, &Hit::by("u")), [("r".into(), 1)]);
}

#[test]
fn a_hit_costs_the_rules_cost_for_each_of_its_units() {
    let engine = engine("rules: [{id: r, cost: 3, limit: 10/m}]");
    assert_eq!(met(&engine, &Hit::by("u")), [("r".into(), 7)]);
    assert_eq!(met(&engine, &Hit::by("u").cost(2)), [("r".into(), 1)]);
    assert_eq!(met(&engine, &Hit::by("u").cost(0)), [("r".into(), 1)]);
    let verdict = engine.check(&Hit::by("u").cost(u64::MAX), NOW);
    assert_eq!((verdict.allowed, verdict.retry_after), (false, None));
}

#[test]
fn zero_per_minute_denies_everything() {
    for algorithm in [
        "gcra",
        "token-bucket",
        "leaky-bucket",
        "fixed-window",
        "sliding-log",
        "sliding-compact",
        "sliding-counter",
        "tiered-window",
    ] {
        let engine = engine(&format!("rules: [{{id: r, algorithm: {algorithm}, limit: 0/m}}]"));
        let verdict = engine.check(&Hit::by("u"), NOW);
        assert_eq!((verdict.allowed, verdict.retry_after), (false, None), "{algorithm}");
    }
}

#[test]
fn an_off_rule_does_not_exist_for_requests_and_a_shadow_rule_never_decides() {
    let engine = engine("rules: [{id: off, mode: off, limit: 0/m}, {id: shadow, mode: shadow, limit: 0/m}]");
    let verdict = engine.check(&Hit::by("u"), NOW);
    assert!(verdict.allowed);
    assert_eq!(verdict.limits.len(), 1);
    assert_eq!((verdict.limits[0].rule.id.as_str(), verdict.limits[0].allowed), ("shadow", false));
}

#[test]
fn unknown_keys_are_rejected_with_what_was_meant() {
    check_rejected(
        "rules: [{id: r, limts: [5/m]}]",
        &["no limit: write limit: 5/m", "unknown key 'limts': did you mean 'limits'?"],
    );
    check_rejected(
        "rules:\n  - id: r\n    limit: 5/m\n    algoritm: gcra\n",
        &["4:5: rules[0]: unknown key 'algoritm': did you mean 'algorithm'?"],
    );
    check_option_rejected("colour: red", "unknown key 'colour': use id, ");
    check_option_rejected("key: ip, ban: {after: 3, untl: 5m}", "rules[0].ban: unknown key 'untl'");
    check_rejected("rulez: []", &["1:1: unknown key 'rulez': did you mean 'rules'?"]);
    check_rejected(
        "bans: [{key: 'ip:192.0.2.1', utnil: x}]",
        &["bans[0]: unknown key 'utnil': did you mean 'until'?"],
    );
}

#[test]
fn all_problems_are_told_at_once_with_their_places() {
    check_rejected(
        "rules:
  - id: a b
    limit: 5/fortnight
  - id: good
    limit: 5/m
  - id: good
    limit: 5/m
    mode: maybe
  - {id: other, limit: -5/m}
allow: [nobody]
bans: [{key: 'ip:1.2.3', until: tomorrow}]
",
        &[
            "2:9: rules[0].id: 'a b' is no id: 1 to 64 of A-Z a-z 0-9 . _ -",
            "3:12: rules[0].limit: unknown unit 'fortnight' in '5/fortnight': use s, m, h, d, week, month",
            "6:5: rules[2]: rule id 'good' is used twice, first at line 4",
            "8:11: rules[2].mode: unknown value 'maybe': use enforce, shadow, off",
            "9:24: rules[3].limit: negative number in '-5/m'",
            "10:9: allow[0]: key 'nobody' has no value",
            "11:14: bans[0].key: '1.2.3' is not an IP address",
            "11:33: bans[0].until: expected an instant such as 2027-01-01T00:00:00Z",
        ],
    );
}

#[test]
fn a_repeated_id_names_the_first_line() {
    check_rejected(
        "rules:\n  - {id: a, limit: 5/m}\n  - {id: b, limit: 5/m}\n  - {id: a, limit: 6/m}\n",
        &["4:5: rules[2]: rule id 'a' is used twice, first at line 2"],
    );
}

/// The line was told only where both rules were valid.
#[test]
fn an_id_is_repeated_even_if_the_first_rule_has_another_problem() {
    check_rejected(
        "rules:\n  - {id: a, limit: 5/x}\n  - {id: a, limit: 6/m}\n",
        &[
            "2:20: rules[0].limit: unknown unit 'x'",
            "3:5: rules[1]: rule id 'a' is used twice, first at line 2",
        ],
    );
}

#[test]
fn rates_that_make_no_sense_are_rejected() {
    check_option_rejected(
        "limit: 5/fortnight",
        "unknown unit 'fortnight' in '5/fortnight': use s, m, h, d, week, month",
    );
    check_option_rejected("limit: -5/m", "negative number in '-5/m'");
    check_option_rejected("limit: 5/0s", "empty period in '5/0s'");
    check_option_rejected("limit: 5", "no period in '5'");
    check_option_rejected("limit: 1.5/s", "not a whole number");
    check_option_rejected("limit: 2000000000/s", "too fast");
    check_option_rejected("limits: []", "expected 1 to 8 limits, found 0");
    check_option_rejected("limits: [1/s, 1/m, 1/h, 1/d, 1/w, 1/month, 1/y, 1/2s, 1/3s]", "found 9");
    check_option_rejected(
        "limits: [5/m, 6/m]",
        "limits[1]: two limits per m: the smaller one would always decide",
    );
    check_option_rejected("limits: [[5/m]]", "limits[0]: expected a rate such as 5/m");
    check_option_rejected("limit: {per: m}", "limit: expected a rate such as 5/m");
    check_option_rejected(
        "limit: 5/m, limits: [6/h]",
        "more than one of 'limit', 'limits', 'limits_by' and 'time'",
    );
    check_rejected("rules: [{id: r}]", &["no limit: write limit: 5/m"]);
    check_rejected("rules: [{id: r, time: minute}]", &["'time' needs 'requests'", "no limit"]);
    check_rejected("rules: [{id: r, requests: 5}]", &["'requests' needs 'time'", "no limit"]);
    check_rejected("rules: [{id: r, time: eon, requests: 5}]", &["rules[0].requests: unknown unit 'eon'"]);
    check_rejected("rules: [{id: r, time: m, requests: -5}]", &["rules[0].requests: negative number"]);
}

#[test]
fn options_of_other_algorithms_are_rejected() {
    for window in ["fixed-window", "sliding-log", "sliding-compact", "sliding-counter", "tiered-window"] {
        let message = "burst: 'burst' is for gcra, token-bucket and leaky-bucket only";
        check_option_rejected(&format!("algorithm: {window}, burst: 5"), message);
    }
    check_option_rejected("refill: tick", "'refill' is for token-bucket only");
    check_option_rejected("algorithm: token-bucket, tick: 1s", "'tick' is for refill: tick only");
    check_option_rejected("window: aligned", "'window' is for fixed-window only");
    check_option_rejected("resolution: 1s", "'resolution' is for sliding-compact only");
    check_option_rejected("levels: [s]", "'levels' is for tiered-window only");
    check_option_rejected("max_wait: 1s", "'max_wait' is for a leaky-bucket that holds only");
    check_option_rejected("algorithm: leaky-bucket, on_exceed: reject, max_wait: 1s", "'max_wait' is for");
    check_option_rejected("on_exceed: hold", "on_exceed: hold is for leaky-bucket only");
    check_option_rejected("algorithm: gcra, on_exceed: hold", "on_exceed: hold is for leaky-bucket only");
    check_option_rejected("algorithm: concurrency", "concurrency limits are not part of this version");
    check_option_rejected("algorithm: gcr", "unknown value 'gcr': did you mean 'gcra'?");
}

#[test]
fn options_that_do_not_go_together_are_rejected() {
    check_option_rejected(
        "cost: 6, burst: 5",
        "60/m lets 5 pass at once, less than the cost 6: nothing would ever pass",
    );
    check_option_rejected("cost: 61", "lets 60 pass at once, less than the cost 61");
    check_option_rejected("burst: 0", "burst is 0: nothing would ever pass");
    check_option_rejected("burst: 2000000000", "burst 2000000000 is too large");
    check_option_rejected(
        "algorithm: sliding-compact, resolution: 7s",
        "a window of 1m is not a whole number of steps of 7s",
    );
    check_option_rejected(
        "limit: 5/90s, algorithm: sliding-compact, resolution: 7s",
        "a window of 90s is not a whole number of steps of 7s",
    );
    check_option_rejected(
        "limit: 9/90s, algorithm: tiered-window, levels: [m, h]",
        "not a whole number of steps of 1m",
    );
    check_option_rejected(
        "algorithm: tiered-window, levels: [h, m]",
        "expected some of s, m, h, d, each once, finest first",
    );
    check_option_rejected("algorithm: tiered-window, levels: [s, s]", "each once");
    check_option_rejected("algorithm: tiered-window, levels: [s, w]", "expected some of s, m, h, d");
    check_option_rejected("algorithm: tiered-window, levels: []", "'levels' is empty");
    check_option_rejected("algorithm: token-bucket, refill: tick, tick: 0s", "'0s' is no time at all");
    check_option_rejected("algorithm: leaky-bucket, max_wait: soon", "no number in 'soon'");
    check_option_rejected("uid: 42, key: ip", "a rule for one user is counted by user: add user to its key");
    check_option_rejected("match: /a, url: /a", "'match' and 'url' say the same: keep one");
}

#[test]
fn values_of_the_wrong_type_are_rejected() {
    check_option_rejected("cost: much", "rules[0].cost: expected a whole number, found text 'much'");
    check_option_rejected("cost: 0", "cost 0 is out of range: 1 to 1000000000");
    check_option_rejected("burst: [5]", "rules[0].burst: expected a whole number, found a list");
    check_option_rejected("track: maybe", "rules[0].track: expected true or false, found text 'maybe'");
    check_option_rejected("mode: [shadow]", "rules[0].mode: expected text, found a list");
    check_option_rejected("match: login", "'login' is no path: a path begins with /");
    check_option_rejected("match: [/login]", "expected [METHOD ]PATH");
    check_option_rejected("host: '*'", "'*' is no host");
    check_option_rejected("key: colour", "unknown attribute 'colour'");
    check_option_rejected("key: [ip, ip]", "ip is named twice");
    check_option_rejected("key: {a: b}", "rules[0].key: expected an attribute");
    check_option_rejected("uid: ''", "expected a user id");
    check_option_rejected("count_when: status:99", "expected always, success, failure or status:401,403");
    check_option_rejected("limits_by: [5/m]", "expected a map such as {attr: plan");
    check_option_rejected("limits_by: {free: 5/m}", "'attr' is missing");
    check_option_rejected("limits_by: {attr: plan}", "rules[0].limits_by: no limits: write some for a value");
    check_option_rejected("limits_by: {attr: 'cookie:', free: 5/m}", "'cookie:' lacks a name");
    check_option_rejected("limits_by: {attr: plan, free: 5/x}", "rules[0].limits_by.free: unknown unit 'x'");
    check_option_rejected("overrides: {}", "rules[0].overrides: expected a list, found a map");
    check_option_rejected("key: user, overrides: [x]", "overrides[0]: expected a map such as");
    check_option_rejected(
        "key: user, overrides: [{ip: 192.0.2.1, limit: 5/m}]",
        "ip is not in the rule's key [user]",
    );
    check_option_rejected(
        "key: user, overrides: [{limit: 5/m}]",
        "overrides[0]: names no attribute of the rule's key",
    );
    check_option_rejected("key: user, overrides: [{user: a}]", "overrides[0]: 'limits' is missing");
    check_option_rejected(
        "key: user, overrides: [{user: a, limit: 5/x}]",
        "overrides[0].limit: unknown unit 'x'",
    );
    check_option_rejected("key: ip, ban: yes", "rules[0].ban: expected a map, found text 'yes'");
    check_option_rejected("key: ip, ban: {}", "'after' is missing");
    check_option_rejected(
        "key: ip, ban: {after: 0}",
        "rules[0].ban.after: expected a number of denials from 1 to 1000",
    );
    check_option_rejected(
        "key: ip, ban: {after: often}",
        "rules[0].ban.after: expected a number of denials from 1 to 1000",
    );
    check_option_rejected("key: ip, ban: {after: 3, for: 2d, max: 1d}", "'max' is shorter than 'for'");
    check_option_rejected("ban: {after: 3}", "'key' is missing: whom to ban, such as [ip]");
    check_rejected("rules: {id: r, limit: 5/m}", &["1:8: rules: expected a list of rules"]);
    check_rejected("rules: [r]", &["rules[0]: expected a map, found text 'r'"]);
    check_rejected("rules: [{limit: 5/m}]", &["rules[0]: 'id' is missing"]);
    check_rejected("rules: [{id: [a], limit: 5/m}]", &["is no id"]);
    check_rejected("[]", &["expected a map, found a list"]);
    check_rejected("allow: ip:10.0.0.0/8", &["allow: expected a list"]);
    check_rejected("allow: [[a]]", &["allow[0]: expected a key such as ip:10.0.0.0/8"]);
    check_rejected("bans: {}", &["bans: expected a list, found a map"]);
    check_rejected("bans: [{until: 2027-01-01T00:00:00Z}]", &["bans[0]: 'key' is missing"]);
}

#[test]
fn names_and_lists_have_bounds() {
    let id = "x".repeat(64);
    policy(&format!("rules: [{{id: {id}, limit: 5/m}}]"));
    check_rejected(&format!("rules: [{{id: {id}x, limit: 5/m}}]"), &["is no id"]);
    check_option_rejected(
        "key: ['attr:1','attr:2','attr:3','attr:4','attr:5','attr:6','attr:7','attr:8','attr:9']",
        "more than 8 attributes",
    );
    check_option_rejected(&format!("match: {}", "/a".repeat(65)), "more than 64 segments");
}

#[test]
fn at_most_64_rules_may_be_on_one_pattern() {
    let rules = |count: usize, options: &str| {
        let rules: String =
            (0..count).map(|n| format!("  - {{id: r{n}, limit: 5/m, {options}}}\n")).collect();
        format!("rules:\n{rules}")
    };
    policy(&rules(64, "match: /a"));
    check_rejected(&rules(65, "match: /a"), &["65 rules on '/a': at most 64 may match one request"]);
    check_rejected(&rules(65, ""), &["65 rules on 'every request'"]);
    policy(&rules(65, "match: /a, mode: off"));
    let many: String =
        (0..65).map(|n| format!("  - {{id: u{n}, uid: {n}, url: /a, time: m, requests: 5}}\n")).collect();
    policy(&format!("rules:\n{many}"));
    check_rejected(&rules(65, "match: /a, uid: 42, key: user"), &["65 rules on '/a'"]);
}

#[test]
fn matches_beyond_64_are_ignored_and_counted() {
    let rules = |from: usize, pattern: &str| -> String {
        (from..from + 40).map(|n| format!("  - {{id: r{n}, limit: 5/m, match: {pattern}}}\n")).collect()
    };
    let engine = engine(&format!("rules:\n{}{}", rules(0, "/a"), rules(40, "/**")));
    assert_eq!(engine.check(&Hit::on("GET", "", "/a"), NOW).limits.len(), 64);
    assert_eq!(engine.ignored_matches(), 16);
}

#[test]
fn no_empty_policy_is_an_error() {
    for yaml in ["", "# nothing\n", "rules:", "rules: []", "{}", "allow:\nbans:\n"] {
        assert!(policy(yaml).rules().is_empty(), "{yaml}");
    }
}

#[test]
fn a_bad_limit_makes_no_other_key_of_its_rule_unknown() {
    // `mode`, `track` and `ban` were once read after the limits, and not at all if these were bad.
    let rule = "{id: a, limit: 5/fortnight, mode: shadow, track: true, ban: {key: ip, after: 3}, count_denied: true}";
    let problems = Policy::from_yaml(&format!("rules: [{rule}]")).err().expect("the limit is bad");
    assert_eq!(problems.count(), 1, "{problems}");
}
