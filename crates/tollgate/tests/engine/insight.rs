//! What operators can inspect: keys, tracks, and keys in logs.

use super::*;

#[test]
fn tracked_keys_show_tries_denials_and_their_latest_times() {
    let engine = engine(
        "rules: [{id: r, key: user, limit: 5/h, track: true}, {id: untracked, key: user, limit: 5/h}]",
    );
    for n in 0..20 {
        engine.check(&Hit::by("u"), NOW + SECOND * n);
    }
    let track = engine.key("r", key("user:u"), NOW).expect("they go together").track.expect("it tracks");
    assert_eq!((track.tries, track.denials, track.last_seen), (20, 15, NOW + SECOND * 19));
    let latest: Vec<_> = (4..20).map(|n| NOW + SECOND * n).collect();
    assert_eq!(Vec::from(track.latest), latest);
    let unseen = engine.key("r", key("user:v"), NOW).expect("they go together").track.expect("it tracks");
    assert_eq!((unseen.tries, unseen.denials), (0, 0));
    assert_eq!(engine.key("untracked", key("user:u"), NOW).expect("they go together").track, None);
}

#[test]
fn a_key_report_says_what_is_used_for_every_algorithm() {
    for algorithm in ALGORITHMS {
        let engine = engine(&format!("rules: [{{id: r, key: user, limit: 6/m, {algorithm}}}]"));
        let report = |now| engine.key("r", key("user:u"), now).expect("they go together").limits.remove(0);
        assert_eq!(
            (report(NOW).used, report(NOW).remaining, report(NOW).reset_at),
            (0, 6, None),
            "{algorithm}"
        );
        engine.check(&Hit::by("u").cost(4), NOW);
        let charged = report(NOW);
        assert_eq!((charged.used, charged.remaining), (4, 2), "{algorithm}");
        assert!(charged.reset_at.is_some_and(|at| at > NOW && at <= NOW + MINUTE * 2), "{algorithm}");
        let later = report(NOW + MINUTE * 2);
        assert_eq!((later.used, later.remaining, later.reset_at), (0, 6, None), "{algorithm}");
    }
}

#[test]
fn a_key_report_says_how_windows_are_read() {
    let engine = engine(
        "rules:
           - {id: tiers, key: user, limit: 9/d, algorithm: tiered-window}
           - {id: counter, key: user, limit: 9/m, algorithm: sliding-counter}
           - {id: log, key: user, limit: 9/m, algorithm: sliding-log}",
    );
    let now = parse_rfc3339("2026-11-15T23:30:33Z").expect("a valid timestamp");
    let before = now - MINUTE;
    engine.check(&Hit::by("u").cost(2), before);
    engine.check(&Hit::by("u").cost(3), now);
    let reading = |rule| engine.key(rule, key("user:u"), now).expect("they go together").limits[0].detail;
    assert_eq!(reading("tiers"), CounterDetail::Buckets { read: 142 });
    assert_eq!(reading("counter"), CounterDetail::Counts { previous: 2, current: 3 });
    assert_eq!(reading("log"), CounterDetail::Plain);
}

#[test]
fn a_reset_key_starts_over_and_others_do_not() {
    for algorithm in ALGORITHMS {
        let rule = |limit| {
            policy(&format!("rules: [{{id: r, key: user, limit: {limit}, track: true, {algorithm}}}]"))
        };
        let engine = EngineCore::new(rule("5/m"));
        for user in ["u", "v"] {
            allowed(&engine, &Hit::by(user), 5, NOW);
        }
        engine.apply(rule("6/m"), NOW); // the counters are still under the limit before
        let forgotten = engine.reset_key("r", key("user:u"), NOW).expect("they go together");
        assert_eq!((forgotten.limits[0].used, forgotten.track.map(|track| track.tries)), (5, Some(5)));
        assert_eq!(left(&engine, Hit::by("u"), NOW), [6], "{algorithm}");
        assert_eq!(left(&engine, Hit::by("v"), NOW), [1], "{algorithm}");
        let report = engine.key("r", key("user:u"), NOW).expect("they go together");
        assert_eq!(report.track.map(|track| track.tries), Some(0));
    }
}

#[test]
fn a_key_with_wrong_attributes_is_rejected_with_the_right_ones() {
    let engine = engine("rules: [{id: r, key: [user, ip], limit: 5/m}, {id: all, limit: 5/m}]");
    let message =
        |rule, text| engine.key(rule, key(text), NOW).expect_err("they do not go together").to_string();
    assert_eq!(message("none", "user:u"), "no rule 'none'");
    assert_eq!(message("r", "user:u"), "rule r is not counted by that key: use ip:…+user:…");
    assert_eq!(
        message("all", "user:u"),
        "rule all is not counted by that key: use an empty key: the rule counts all clients together"
    );
    assert!(engine.key("r", key("user:u+ip:192.0.2.1"), NOW).is_ok());
    assert!(engine.key("all", Key::new(vec![]).expect("empty"), NOW).is_ok());
    let missing = engine.reset_key("none", key("user:u"), NOW).expect_err("there is no such rule");
    assert_eq!(missing, InspectError::NoRule("none".into()));
}

#[test]
fn logs_show_keys_only_if_enabled() {
    let yaml = "rules: [{id: r, key: [email, ip], limit: 1/m}]
bans: [{key: 'user:sensitive'}]
allow: ['user:trusted']";
    let shown = |log_keys| {
        let setup = EngineSetup { log_keys, ..EngineSetup::default() };
        let engine = EngineCore::with_setup(policy(yaml), setup);
        let ip: IpAddr = [192, 0, 2, 77].into();
        let hit = || Hit::on("GET", "", "/").ip(ip).email("sensitive@example.com");
        let hits = [hit(), hit(), Hit::by("sensitive"), Hit::by("trusted")];
        let policy = engine.policy();
        let keys = hits.map(|hit| engine.logged_key(&policy, &hit, &engine.check(&hit, NOW)));
        (keys.each_ref().map(ToString::to_string), format!("{keys:?}"))
    };
    let (plain, _) = shown(LogKeys::Plain);
    let both = "email:sensitive@example.com+ip:192.0.2.77";
    assert_eq!(plain, [both, both, "user:sensitive", "-"]);
    let (redacted, debug) = shown(LogKeys::Redacted);
    assert!(!debug.contains("sensitive") && !debug.contains("192.0.2.77"), "{debug}");
    assert!(redacted[..3].iter().all(|key| key.starts_with('#')), "{redacted:?}");
    assert_eq!(redacted[0], redacted[1], "the same key has the same mark");
    assert_ne!(redacted[0], redacted[2]);
}

#[test]
fn a_key_with_limits_by_plan_shows_and_forgets_whichever_it_met() {
    let engine = engine(
        "rules: [{id: r, key: user, limits_by: {attr: plan, free: [2/m], pro: [9/m], default: [1/m]}}]",
    );
    let free = || Hit::by("u").attribute("plan", "free");
    for _ in 0..3 {
        engine.check(&free(), NOW);
    }
    let used = |engine: &EngineCore| -> Vec<_> {
        let limits = engine.key("r", key("user:u"), NOW).expect("they go together").limits;
        limits.iter().map(|limit| (limit.limit.to_string(), limit.used)).collect()
    };
    assert_eq!(used(&engine), [("2/m".into(), 2), ("9/m".into(), 0), ("1/m".into(), 0)]);
    engine.reset_key("r", key("user:u"), NOW).expect("they go together");
    assert!(engine.check(&free(), NOW).allowed);
}
