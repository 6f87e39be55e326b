//! Decisions, charges, refunds, and the verdicts that report them.

use super::*;

#[test]
fn five_logins_a_minute_and_no_sixth() {
    let engine = engine("rules: [{id: login, match: POST /login, key: email, limit: 5/m}]");
    let login = || Hit::on("POST", "", "/login").email("ann@example.com");
    for left in (0..5).rev() {
        let verdict = engine.check(&login(), NOW);
        assert!(verdict.allowed);
        assert_eq!(reported(&verdict), ("login", left));
    }
    let verdict = engine.check(&login(), NOW);
    assert_eq!((verdict.allowed, verdict.reason), (false, Reason::Limit));
    assert_eq!(verdict.retry_after, Some(Duration::from_secs(12)));
    assert!(engine.check(&login().email("bob@example.com"), NOW).allowed);
    assert!(engine.check(&login(), NOW + Duration::from_secs(12)).allowed);
}

#[test]
fn denied_hits_do_not_drain_the_shared_limit() {
    let engine = engine(
        "rules:
           - {id: everybody, match: /search, limit: 10/h}
           - {id: each, match: /search, key: user, limit: 2/h}",
    );
    let hit = |user| Hit::on("GET", "", "/search").user(user);
    for _ in 0..100 {
        engine.check(&hit("greedy"), NOW);
    }
    let verdict = engine.peek(&hit("modest"), NOW);
    let left: Vec<_> =
        verdict.limits().iter().map(|limit| (limit.rule.id.as_str(), limit.remaining())).collect();
    assert_eq!(left, [("everybody", 8), ("each", 2)]);
}

#[test]
fn a_request_that_no_rule_is_about_passes() {
    let engine = engine("rules: [{id: login, match: /login, limit: 0/m}]");
    assert_eq!(engine.check(&Hit::on("GET", "", "/"), NOW).reason, Reason::NoRule);
    let verdict = engine.check(&Hit::on("GET", "", "/login"), NOW);
    assert_eq!((verdict.allowed, verdict.retry_after), (false, None));
}

/// A rule with a cost of its own was settled as if it had none.
#[test]
fn the_real_cost_is_in_the_units_of_the_hit() {
    let engine = engine(
        "rules:
           - {id: dear, cost: 3, limit: 30/h}
           - {id: cheap, limit: 30/h}",
    );
    let left = || {
        let verdict = engine.peek(&Hit::on("GET", "", "/").cost(0), NOW);
        verdict.limits().iter().map(|limit| limit.remaining()).collect::<Vec<_>>()
    };
    let receipt = engine.check(&Hit::on("GET", "", "/").cost(2), NOW).take_receipt().expect("it was charged");
    assert_eq!(left(), [24, 28]);
    engine.settle(receipt, 5, NOW);
    assert_eq!(left(), [15, 25]);
    let receipt = engine.check(&Hit::on("GET", "", "/").cost(4), NOW).take_receipt().expect("it was charged");
    engine.settle(receipt, 1, NOW);
    assert_eq!(left(), [12, 24]);
}

/// A key that had become fresh in the meantime was not there to owe anything.
#[test]
fn a_cost_that_becomes_known_late_is_owed_by_a_fresh_key_too() {
    let engine = engine("rules: [{id: all, limit: 60/m}]");
    let receipt = engine.check(&Hit::on("GET", "", "/"), NOW).take_receipt().expect("it was charged");
    let later = NOW + Duration::from_secs(60);
    engine.settle(receipt, 31, later);
    assert_eq!(reported(&engine.peek(&Hit::on("GET", "", "/"), later)), ("all", 30));
}

#[test]
fn shadow_rules_never_touch_the_verdict_and_are_counted_on_their_own() {
    let engine = engine(
        "rules:
           - {id: real, key: user, limit: 5/h}
           - {id: tried, key: user, limit: 2/h, mode: shadow}
           - {id: never, limit: 0/h, mode: shadow}",
    );
    assert_eq!(allowed(&engine, &Hit::by("u"), 9, NOW), 5);
    let verdict = engine.check(&Hit::by("u"), NOW);
    let shown: Vec<_> = verdict
        .limits()
        .iter()
        .map(|each| (each.rule.id.as_str(), each.is_allowed(), each.is_enforced()))
        .collect();
    assert_eq!(shown, [("real", false, true), ("tried", false, false), ("never", false, false)]);
    assert_eq!((reported(&verdict), verdict.retry_after), (("real", 0), Some(Duration::from_secs(720))));
    let tally = |id| engine.policy().rule(id).expect("it is there").counts();
    assert_eq!(tally("real"), RuleCounts { allowed: 5, denied: 5, shadow_denied: 0, banned: 0 });
    assert_eq!(tally("tried"), RuleCounts { allowed: 2, denied: 0, shadow_denied: 8, banned: 0 });
    assert_eq!(tally("never"), RuleCounts { allowed: 0, denied: 0, shadow_denied: 10, banned: 0 });
}

#[test]
fn a_shadow_rule_is_charged_iff_the_request_passes_and_it_would_allow() {
    let engine = engine(
        "rules:
           - {id: real, key: user, limit: 2/h}
           - {id: tried, limit: 3/h, mode: shadow}",
    );
    assert_eq!(allowed(&engine, &Hit::by("a"), 9, NOW), 2);
    assert_eq!(left(&engine, Hit::by("b"), NOW), [2, 1], "denied requests cost the shadow rule nothing");
    assert!(engine.check(&Hit::by("b"), NOW).allowed);
    assert!(engine.check(&Hit::by("b"), NOW).allowed, "the shadow rule is empty");
    assert_eq!(left(&engine, Hit::by("b"), NOW), [0, 0]);
}

#[test]
fn denied_hits_are_counted_where_the_rule_says_so() {
    for algorithm in ALGORITHMS {
        let yaml = |counted| format!("rules: [{{id: r, limit: 2/m, count_denied: {counted}, {algorithm}}}]");
        let waits = |engine: EngineCore| {
            engine.check(&Hit::by("u").cost(2), NOW);
            for n in 0..10 {
                assert!(!engine.check(&Hit::by("u"), NOW + SECOND * n).allowed, "{algorithm}");
            }
            let verdict = engine.check(&Hit::by("u"), NOW + SECOND * 10);
            verdict.retry_after.unwrap_or_else(|| panic!("{algorithm}: a wait"))
        };
        let free = waits(engine(&yaml(false)));
        let counted = waits(engine(&yaml(true)));
        // Whole windows and refills come when they come, however much was tried.
        if ["fixed", "calendar", "counter"].iter().any(|word| algorithm.contains(word)) {
            assert_eq!(free, counted, "{algorithm}");
        } else {
            assert!(free < counted, "{algorithm}: {free:?} {counted:?}");
        }
    }
}

#[test]
fn a_denied_hit_is_charged_to_the_denying_rule_only() {
    let engine = engine(
        "rules:
           - {id: strict, limit: 5/h, algorithm: fixed-window, count_denied: true}
           - {id: other, limit: 50/h, algorithm: fixed-window, count_denied: true}",
    );
    assert!(!engine.check(&Hit::by("u").cost(6), NOW).allowed);
    assert_eq!(left(&engine, Hit::by("u"), NOW), [0, 50]);
}

#[test]
fn sixty_thousand_seven_hundred_received_requests_are_too_many_for_fifty_five_thousand() {
    let yaml = "rules: [{id: r, limit: 55000/m, algorithm: sliding-counter, count_denied: true, key: user}]";
    let engine = engine(yaml);
    let hit = Hit::by("u");
    for n in 0..50_000 {
        assert!(engine.check(&hit, NOW + Duration::from_micros(n * 1_000)).allowed);
    }
    let now = NOW + MINUTE + SECOND * 25;
    for n in 0..31_534 {
        let allowed = engine.check(&hit, now).allowed;
        assert_eq!(allowed, n < 25_833, "request {n}: 50000/60×35 = 29166.67 are left of the minute before");
    }
    let report = engine.key("r", key("user:u"), now).expect("they go together");
    let CounterReport { used, remaining, detail: reading, .. } = report.limits[0];
    assert_eq!((used, remaining), (60_701, 0));
    assert_eq!(reading, CounterDetail::Counts { previous: 50_000, current: 31_534 });
    let verdict = engine.peek(&hit, now);
    assert_eq!((verdict.allowed, verdict.reason), (false, Reason::Limit));
}

#[test]
fn of_several_denials_the_longest_wait_is_reported_and_of_equal_ones_the_first() {
    let of = |yaml: &str, cost| {
        let engine = engine(yaml);
        engine.check(&Hit::by("u"), NOW);
        let verdict = engine.check(&Hit::by("u").cost(cost), NOW);
        let policy = verdict.reported().map(|limit| limit.policy().to_string());
        (policy.unwrap_or_default(), verdict.retry_after.map(|wait| wait.as_secs()))
    };
    let waits = "rules: [{id: a, limit: 1/m}, {id: b, limit: 1/h}, {id: c, limit: 9/d}]";
    assert_eq!(of(waits, 1), ("b".into(), Some(3_600)));
    assert_eq!(of("rules: [{id: a, limits: [1/m, 1/h]}]", 1), ("a:1/h".into(), Some(3_600)));
    assert_eq!(of("rules: [{id: a, limit: 1/h}, {id: b, limit: 1/h}]", 1), ("a".into(), Some(3_600)));
    let never = "rules: [{id: a, limit: 2/d}, {id: b, limit: 1/m}]";
    assert_eq!(of(never, 2), ("b".into(), None), "never is the longest wait");
}

#[test]
fn of_several_admissions_the_least_remaining_is_reported_and_of_equal_ones_the_first() {
    let of = |yaml: &str| {
        let verdict = engine(yaml).check(&Hit::by("u"), NOW);
        (verdict.reported().map(|limit| limit.policy().to_string()).unwrap_or_default(), verdict.retry_after)
    };
    assert_eq!(
        of("rules: [{id: a, limit: 9/m}, {id: b, limit: 3/m}, {id: c, limit: 5/m}]"),
        ("b".into(), None)
    );
    assert_eq!(of("rules: [{id: a, limit: 3/m}, {id: b, limit: 3/h}]"), ("a".into(), None));
    assert_eq!(of("rules: [{id: a, limit: 3/m}, {id: b, limit: 1/h, mode: shadow}]"), ("a".into(), None));
}

#[test]
fn a_cost_above_the_capacity_never_passes_and_takes_nothing() {
    for algorithm in ALGORITHMS {
        let engine = engine(&format!("rules: [{{id: r, limit: 5/m, {algorithm}}}]"));
        let verdict = engine.check(&Hit::by("u").cost(6), NOW);
        assert_eq!((verdict.allowed, verdict.retry_after), (false, None), "{algorithm}");
        let message = verdict.message().expect("a denial has one");
        assert_eq!(message, "Too many requests: rule r allows 5/m, and this request can never pass");
        assert!(headers(&verdict, HeaderStyle::Ietf).iter().all(|(name, _)| name != "retry-after"));
        assert_eq!(left(&engine, Hit::by("u"), NOW), [5], "{algorithm}");
    }
}

#[test]
fn a_peek_returns_the_decision_and_the_remaining_amount() {
    for algorithm in ALGORITHMS {
        let engine = engine(&format!("rules: [{{id: r, limit: 2/m, track: true, key: user, {algorithm}}}]"));
        for expected in [2, 1] {
            let mut peeked = engine.peek(&Hit::by("u"), NOW);
            assert_eq!((peeked.allowed, reported(&peeked)), (true, ("r", expected)), "{algorithm}");
            assert!(peeked.take_receipt().is_none());
            assert_eq!(reported(&engine.check(&Hit::by("u"), NOW)), ("r", expected - 1), "{algorithm}");
        }
        let peeked = engine.peek(&Hit::by("u"), NOW);
        let denied = engine.check(&Hit::by("u"), NOW);
        assert_eq!((peeked.allowed, peeked.retry_after), (denied.allowed, denied.retry_after), "{algorithm}");
        let track = engine.key("r", key("user:u"), NOW).expect("they go together").track.expect("it tracks");
        assert_eq!((track.tries, track.denials), (3, 1), "{algorithm}: peeks are not tries");
        assert_eq!(engine.decisions().map(|(_, count)| count).sum::<u64>(), 3);
    }
}

#[test]
fn a_receipt_gives_everything_back_that_time_has_not() {
    for algorithm in ALGORITHMS {
        let engine = engine(&format!(
            "rules: [{{id: a, limit: 6/m, {algorithm}}}, {{id: b, limit: 60/h, {algorithm}}}]"
        ));
        let receipt = engine.check(&Hit::by("u").cost(5), NOW).take_receipt().expect("it was charged");
        assert_eq!(receipt.at(), NOW);
        engine.refund(receipt, NOW);
        assert_eq!(left(&engine, Hit::by("u"), NOW), [6, 60], "{algorithm}");
        let receipt = engine.check(&Hit::by("u").cost(5), NOW).take_receipt().expect("it was charged");
        engine.refund(receipt, NOW + HOUR * 3);
        assert_eq!(left(&engine, Hit::by("u"), NOW + HOUR * 3), [6, 60], "{algorithm}: not more than all");
        let receipt =
            engine.check(&Hit::by("u").cost(4), NOW + HOUR * 4).take_receipt().expect("it was charged");
        engine.settle(receipt, 1, NOW + HOUR * 4);
        assert_eq!(left(&engine, Hit::by("u"), NOW + HOUR * 4), [5, 59], "{algorithm}");
    }
}

#[test]
fn what_was_denied_or_let_pass_without_rules_has_no_receipt() {
    let engine = engine("rules: [{id: r, match: /a, limit: 0/m}]\nallow: ['user:friend']");
    assert!(engine.check(&Hit::on("GET", "", "/a"), NOW).take_receipt().is_none());
    assert!(engine.check(&Hit::on("GET", "", "/b"), NOW).take_receipt().is_none());
    assert!(engine.check(&Hit::by("friend"), NOW).take_receipt().is_none());
}

#[test]
fn headers_have_policy_remaining_and_wait() {
    let engine = engine("rules: [{id: login, limits: [5/m, 20/h]}, {id: tried, limit: 1/m, mode: shadow}]");
    let shown = |verdict: &EngineVerdict, style| {
        headers(verdict, style).iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>()
    };
    let allowed = engine.check(&Hit::by("u").cost(2), NOW);
    let policy = r#"ratelimit-policy: "login:5/m";q=5;w=60, "login:20/h";q=20;w=3600"#;
    assert_eq!(shown(&allowed, HeaderStyle::Ietf), [policy, r#"ratelimit: "login:5/m";r=3;t=24"#]);
    engine.check(&Hit::by("u").cost(3), NOW);
    let denied = engine.check(&Hit::by("u"), NOW + Duration::from_millis(500));
    assert_eq!(
        denied.message().as_deref(),
        Some("Too many requests: rule login allows 5/m, try again in 12s")
    );
    let ietf = [policy, r#"ratelimit: "login:5/m";r=0;t=12"#, "retry-after: 12"];
    assert_eq!(shown(&denied, HeaderStyle::Ietf), ietf);
    let x = ["x-ratelimit-limit: 5", "x-ratelimit-remaining: 0", "x-ratelimit-reset: 12"];
    assert_eq!(shown(&denied, HeaderStyle::XRateLimit), [x[0], x[1], x[2], "retry-after: 12"]);
    assert_eq!(shown(&denied, HeaderStyle::Both), [ietf[0], ietf[1], x[0], x[1], x[2], "retry-after: 12"]);
    assert_eq!(shown(&denied, HeaderStyle::None), ["retry-after: 12"]);
    assert_eq!(shown(&allowed, HeaderStyle::None), [""; 0]);
}

#[test]
fn a_denied_request_passes_exactly_after_its_wait() {
    for (n, first) in ALGORITHMS.iter().enumerate() {
        for second in &ALGORITHMS[n..] {
            let engine = engine(&format!(
                "rules: [{{id: a, limit: 7/m, {first}}}, {{id: b, limit: 11/90s, {}}}]",
                second.replace("tick: 5s", "tick: 7s")
            ));
            let mut now = NOW + Duration::from_nanos(n as u64 * 1_234_567_891);
            for step in 0..40 {
                let hit = Hit::by("u").cost(1 + step % 5);
                let verdict = engine.check(&hit, now);
                now = now + Duration::from_nanos(1_987_654_321 * (step % 3));
                if verdict.allowed {
                    continue;
                }
                let wait = engine.peek(&hit, now).retry_after.unwrap_or_default();
                let passes = |wait| engine.peek(&hit, now + wait).allowed;
                assert!(passes(wait), "{first}, {second}: step {step} after {wait:?}");
                if let Some(too_short) = wait.checked_sub(Duration::from_nanos(1)) {
                    assert!(!passes(too_short), "{first}, {second}: step {step} before {wait:?}");
                }
            }
        }
    }
}

#[test]
fn no_clock_makes_the_engine_panic() {
    for algorithm in ALGORITHMS {
        for period in ["s", "m", "month", "100y"] {
            let yaml =
                format!("rules: [{{id: r, key: user, limit: 2/{period}, count_denied: true, {algorithm}}}]");
            let Ok(policy) = PolicySnapshot::from_yaml(&yaml) else { continue };
            let engine = EngineCore::new(policy);
            for nanos in [0, 1, u64::MAX / 2, u64::MAX - 1, u64::MAX, 1_800_000_000_000_000_000, 0] {
                let now = Time::from_nanos(nanos);
                for cost in [1, 1, 1, 3, u64::MAX] {
                    let mut verdict = engine.check(&Hit::by("u").cost(cost), now);
                    verdict
                        .take_receipt()
                        .into_iter()
                        .for_each(|receipt| engine.settle(receipt, u64::MAX, now));
                }
                engine.key("r", key("user:u"), now).expect("they go together");
            }
        }
    }
}
