//! Accepted rules, and how they are parsed.

use super::*;

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
    assert_eq!(rule.match_text(), "POST /login");
    assert_eq!(rule.pattern.host.as_ref().map(ToString::to_string).as_deref(), Some("api.example.com"));
    assert_eq!(rule.key.iter().map(ToString::to_string).collect::<Vec<_>>(), ["email"]);
    assert_eq!(limits(rule), ["5/m", "20/h", "50/m"]);
    assert!(rule.all_limits().all(|each| each.limit.shape() == Shape::SlidingLog));
    assert_eq!((rule.mode, rule.missing_key, rule.cost), (RuleMode::Enforce, MissingKey::Skip, 1));
    assert_eq!(rule.on_store_error, Some(OnStoreError::Closed));
    let ban = rule.ban.as_ref().expect("it bans");
    let minutes = |n: u64| Duration::from_secs(n * 60);
    assert_eq!((ban.after, ban.within, ban.first, ban.max), (3, minutes(10), minutes(60), minutes(1440)));
    assert_eq!(policy.rule("short").and_then(|rule| rule.uid.as_deref()), Some("42"));
    assert_eq!(policy.file_bans().count(), 1);
}

#[test]
fn every_algorithm_and_its_options_are_read() {
    let second = Duration::from_secs(1);
    let hold = |max_wait, after| Release::Hold { max_wait, after };
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
        ("algorithm: leaky-bucket", Shape::LeakyBucket { burst: None, release: Release::HOLD }),
        (
            "algorithm: leaky-bucket, burst: 6, max_wait: 5s",
            Shape::LeakyBucket { burst: Some(6), release: hold(Some(5 * second), 0) },
        ),
        (
            "algorithm: leaky-bucket, burst: 13, hold_after: 8",
            Shape::LeakyBucket { burst: Some(13), release: hold(None, 8) },
        ),
        (
            "algorithm: leaky-bucket, on_exceed: hold",
            Shape::LeakyBucket { burst: None, release: Release::HOLD },
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
    assert_eq!(rule("mode: shadow").mode, RuleMode::Shadow);
    assert_eq!(rule("mode: off").mode, RuleMode::Off);
    assert_eq!(rule("missing_key: deny").missing_key, MissingKey::Deny);
    assert_eq!(rule("missing_key: shared").missing_key, MissingKey::Shared);
    assert_eq!(rule("cost: 7").cost, 7);
    let track = |text: &str| rule(text).track.map(|track| (track.times(), track.keep().as_secs()));
    let default = Some((16, 30 * 86_400));
    assert_eq!(track("track: true"), default);
    assert_eq!((track("track: false"), track("")), (None, None));
    assert_eq!(track("track: {}"), default);
    assert_eq!(track("track: {times: 256}"), Some((256, 30 * 86_400)));
    assert_eq!(track("track: {times: 3, keep: 1h}"), Some((3, 3_600)));
    assert_eq!(track("track: {keep: 365d}"), Some((16, 365 * 86_400)));
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
    let ban = rule("key: ip, ban: {after: 3}").ban.clone().expect("it bans");
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
    assert!(policy.rules()[0].track.is_some());
}
