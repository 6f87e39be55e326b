//! What rules mean to requests.

use tollgate_testkit::ALGORITHMS;

use super::*;

#[test]
fn a_users_own_rule_replaces_the_general_one() {
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
        verdict.limits().iter().map(|limit| limit.limit.to_string()).collect::<Vec<_>>()
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
        tollgate::internal::identity::FieldSource::Header,
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

/// A range in a combination was accepted, and never matched a request.
#[test]
fn a_range_of_addresses_cannot_be_combined() {
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
    let with = engine(&yaml(", default: 1/m"));
    let without = engine(&yaml(""));
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
    for algorithm in ALGORITHMS {
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
    assert_eq!(verdict.limits().len(), 1);
    assert_eq!((verdict.limits()[0].rule.id.as_str(), verdict.limits()[0].is_allowed()), ("shadow", false));
}
