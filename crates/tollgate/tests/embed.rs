//! The library as a program embeds it, through the public API alone.

use std::time::Duration;

use tollgate::{Clock, Engine, EngineError, FieldSource, Hit, KeyNameError, Policy, Reason, Time};

fn engine(rules: &str) -> Engine {
    let policy = Policy::from_yaml(rules).expect("valid rules");
    let clock = Clock::manual(Time::from_secs(1_800_000_000));
    Engine::builder().memory_bytes(16 << 20).clock(clock).build(policy).expect("an engine")
}

fn allowed(engine: &Engine, user: &str) -> bool {
    engine.check(&Hit::by(user)).is_allowed()
}

#[test]
fn a_verdict_says_which_rule_denied_and_for_how_long() {
    let engine = engine("rules: [{id: all, key: user, limit: 1/m}, {id: seen, limit: 1/h, mode: shadow}]");
    let first = engine.check(&Hit::by("ann"));
    assert_eq!((first.is_allowed(), first.reason(), first.message()), (true, Reason::Ok, None));
    assert_eq!(first.limits().map(|limit| limit.is_enforced()).collect::<Vec<_>>(), [true, false]);
    let denied = engine.check(&Hit::by("ann"));
    assert_eq!((denied.is_allowed(), denied.reason()), (false, Reason::Limit));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)));
    let reported = denied.reported().expect("the limit that denied");
    assert_eq!((reported.rule(), reported.limit().as_str(), reported.remaining()), ("all", "1/m", 0));
    assert!(denied.message().expect("a message").contains("rule all allows 1/m"));
    assert!(denied.into_receipt().is_none(), "nothing was charged");
}

#[test]
fn a_refund_and_a_settlement_give_back_what_was_charged_too_much() {
    let engine = engine("rules: [{id: all, key: user, limit: 10/h}]");
    let hit = Hit::by("ann").cost(10);
    let receipt = engine.check(&hit).into_receipt().expect("it was charged");
    engine.settle(receipt, 4);
    assert!(engine.peek(&Hit::by("ann").cost(6)).is_allowed());
    assert!(!engine.peek(&Hit::by("ann").cost(7)).is_allowed());
    let verdicts = engine.check_batch(&[Hit::by("ann").cost(6), Hit::by("ann"), Hit::by("bob")]);
    assert_eq!(verdicts.iter().map(|verdict| verdict.is_allowed()).collect::<Vec<_>>(), [true, false, true]);
    let charged = verdicts.into_iter().next().and_then(|verdict| verdict.into_receipt());
    engine.refund(charged.expect("it was charged"));
    assert!(engine.check(&Hit::by("ann").cost(6)).is_allowed());
}

#[test]
fn rules_are_replaced_and_keys_keep_what_they_used() {
    let engine = engine("rules: [{id: all, key: user, limit: 2/h}]");
    assert!(allowed(&engine, "ann") && allowed(&engine, "ann") && !allowed(&engine, "ann"));
    engine.apply("rules: [{id: all, key: user, limit: 3/h}]".parse().expect("valid")).expect("it fits");
    assert!(allowed(&engine, "ann") && !allowed(&engine, "ann"));
    let large = "rules: [{id: all, key: user, limit: 10000000/h, algorithm: sliding-log}]";
    let error = engine.apply(large.parse().expect("valid")).expect_err("it does not fit");
    assert!(matches!(&error, EngineError::Memory { rule, .. } if rule == "all"), "{error}");
    assert!(!allowed(&engine, "ann"), "the rules in force stay");
}

#[test]
fn keys_are_banned_lifted_and_reset_by_name() {
    let engine = engine("rules: [{id: all, key: user, limit: 1/h}]");
    engine.ban("user:ann", Duration::from_secs(60), "tests").expect("a key");
    let banned = engine.check(&Hit::by("ann"));
    assert_eq!((banned.reason(), banned.retry_after()), (Reason::Ban, Some(Duration::from_secs(60))));
    assert_eq!(banned.banned_until(), Some(engine.clock().now() + Duration::from_secs(60)));
    assert_eq!(engine.unban("user:ann"), Ok(true));
    assert_eq!(engine.unban("user:ann"), Ok(false));
    assert!(allowed(&engine, "ann") && !allowed(&engine, "ann"));
    engine.reset("all", "user:ann").expect("rule and key fit");
    assert!(allowed(&engine, "ann"));
    assert!(matches!(engine.reset("none", "user:ann"), Err(KeyNameError::Rule(_))));
    assert!(matches!(engine.ban("nonsense", Duration::ZERO, ""), Err(KeyNameError::Key(_))));
}

#[test]
fn a_saved_state_is_continued() {
    let rules = "rules: [{id: all, key: user, limit: 2/h}]";
    let engine = engine(rules);
    assert!(allowed(&engine, "ann") && engine.request_allowed("ann", [10, 0, 0, 1].into()).is_allowed());
    let mut saved = Vec::new();
    engine.save(&mut saved, rules).expect("a vector takes it");
    let restore = |saved: &[u8]| {
        let builder = Engine::builder().memory_bytes(16 << 20).clock(Clock::manual(engine.clock().now()));
        builder.restore("rules: [{id: all, key: user, limit: 3/h}]".parse().expect("valid"), saved)
    };
    let restored = restore(&saved).expect("it is whole");
    assert!(allowed(&restored, "ann") && !allowed(&restored, "ann"), "two of three were used");
    assert!(matches!(restore(b"nonsense"), Err(EngineError::SavedState(_))));
}

#[test]
fn all_problems_of_the_rules_are_reported_at_once() {
    let text = "rules:\n  - {id: a, limit: 5}\n  - {id: b, limit: 5/x, colour: red}\n";
    let error = Policy::from_yaml(text).err().expect("two bad rules");
    assert_eq!(error.problems().count(), 3, "{error}");
    assert!(error.problems().all(|line| line.starts_with('2') || line.starts_with('3')), "{error}");
}

#[test]
fn the_file_of_the_server_is_read_with_the_settings_that_decide() {
    let file = "
listen: {http: 127.0.0.1:8080, admin: 127.0.0.1:8081}
upstreams: [http://127.0.0.1:3000]
memory: 16MiB
memory_full: closed
counters: memory
ipv6_prefix: 48
identity: {user: header:x-account}
case_insensitive_paths: true
rules:
  - {id: by-user, match: /Reports, key: user, limit: 1/h}
  - {id: by-address, match: /pages, key: ip, limit: 1/h}
";
    let engine = Engine::from_yaml(file).expect("a file of the server");
    let report = || Hit::on("GET", "example.com", "/reports").field(FieldSource::Header, "x-account", "ann");
    assert!(engine.check(&report()).is_allowed());
    assert!(!engine.check(&report()).is_allowed(), "the user is in a header, the path in another case");
    let page = |ip: &str| Hit::on("GET", "example.com", "/pages").ip(ip.parse().expect("an address"));
    assert!(engine.check(&page("2001:db8:1:2::1")).is_allowed());
    assert!(!engine.check(&page("2001:db8:1:3::1")).is_allowed(), "one network of 48 bits");
    let large = "memory: 1MiB\nrules: [{id: all, key: user, limit: 1000000/h, algorithm: sliding-log}]";
    let error = Engine::from_yaml(large).err().expect("it does not fit the memory of the file");
    assert!(matches!(error, EngineError::Memory { given, .. } if given == 1 << 20), "{error}");
    Engine::builder()
        .memory_bytes(1 << 30)
        .build(large.parse().expect("valid"))
        .expect("the builder's memory");
}

#[test]
fn settings_that_an_embedded_engine_cannot_follow_are_rejected() {
    for (file, key) in [
        ("counters: redis://127.0.0.1", "counters: an engine in a program counts in memory"),
        ("counters: redis://127.0.0.1", "`store` of a tollgate-tower layer"),
        ("rules_db: sqlite:rules.db", "rules_db"),
        ("envoy_config: limits", "envoy_config: an engine in a program has no listener of Envoy's"),
        ("compat: envoy", "compat: an engine in a program has no listener of Envoy's"),
        ("memory: lots", "memory"),
        ("trusted_proxies: [10.0.0.0/33]", "trusted_proxies[0]"),
        ("ipv6_prefixes: 64", "did you mean 'ipv6_prefix'?"),
    ] {
        let error = Policy::from_yaml(file).err().expect("rejected");
        assert!(error.to_string().contains(key), "{error}");
    }
    assert!(
        Policy::from_yaml("{compat: tollgate, counters: memory, rules_db: none}").is_ok(),
        "what it does anyway"
    );
}

/// They were the text of a value, where the server reads its environment.
#[test]
fn variables_of_the_file_are_those_that_the_caller_passes() {
    let file = "rules: [{id: all, key: user, limit: '${CALLS}/h'}]";
    let error = Policy::from_yaml(file).err().expect("rejected");
    assert!(error.to_string().contains("the variable CALLS is not known"), "{error}");
    let unset = Policy::with_variables(file, |_| None).err().expect("rejected");
    assert!(unset.to_string().contains("the variable CALLS is not set"), "{unset}");
    let policy = Policy::with_variables(file, |name| (name == "CALLS").then(|| "2".to_owned()));
    let engine = Engine::builder().memory_bytes(16 << 20).build(policy.expect("valid")).expect("an engine");
    assert!(allowed(&engine, "ann") && allowed(&engine, "ann") && !allowed(&engine, "ann"));
}

#[test]
fn a_state_is_continued_although_its_rules_came_with_variables() {
    let rules = "{tokens_file: '${TOKENS}', rules: [{id: all, key: user, limit: 2/h}]}";
    let policy = || Policy::with_variables(rules, |_| Some("tokens".to_owned())).expect("valid");
    let now = Time::from_secs(1_800_000_000);
    let builder = || Engine::builder().memory_bytes(16 << 20).clock(Clock::manual(now));
    let engine = builder().build(policy()).expect("an engine");
    assert!(allowed(&engine, "ann"));
    let mut saved = Vec::new();
    engine.save(&mut saved, rules).expect("a vector takes it");
    let changed = "rules: [{id: all, key: user, limit: 3/h}]".parse().expect("valid");
    let restored = builder().restore(changed, &saved).expect("it is whole");
    assert!(allowed(&restored, "ann") && allowed(&restored, "ann") && !allowed(&restored, "ann"));
}
