//! Identities: no spelling of one makes another client of it.

use super::*;

#[test]
fn domains_are_counted_separately() {
    let engine = engine("rules: [{id: r, key: user, limit: 1/m}]");
    let hit = |domain| Hit::by("u").domain(domain);
    assert!(engine.check(&hit("a"), NOW).allowed && engine.check(&hit("b"), NOW).allowed);
    assert!(engine.check(&Hit::by("u"), NOW).allowed);
    assert!(!engine.check(&hit("a"), NOW).allowed && !engine.check(&hit("default"), NOW).allowed);
}

#[test]
fn ipv6_addresses_of_one_network_are_one_client() {
    let engine = engine("rules: [{id: r, key: ip, limit: 1/m, ban: {after: 2}}]");
    assert!(engine.check(&from("2001:db8:1:2::1"), NOW).allowed);
    assert!(!engine.check(&from("2001:db8:1:2:ffff::9"), NOW).allowed);
    assert!(engine.check(&from("2001:db8:1:3::1"), NOW).allowed);
    assert_eq!(engine.key("r", key("ip:2001:db8:1:2::77"), NOW).expect("they go together").limits[0].used, 1);
    engine.check(&from("2001:db8:1:2::3"), NOW);
    assert_eq!(engine.check(&from("2001:db8:1:2::4"), NOW).reason, Reason::Ban, "and banned as one");
    assert_eq!(engine.bans(NOW)[0].0.to_string(), "ip:2001:db8:1:2::/64");
    assert!(engine.check(&from("::ffff:192.0.2.1"), NOW).allowed);
    assert!(!engine.check(&from("192.0.2.1"), NOW).allowed);
}

fn with_settings(yaml: &str, settings: Settings) -> EngineCore {
    let root = document::read(yaml).expect("it is YAML");
    let mut problems = Problems::new();
    let mut parts = PolicyParts { settings, ..PolicyParts::default() };
    let mut map = MapReader::new(&root, "", &mut problems).expect("it is a map");
    parts.read(&mut map);
    map.finish();
    assert!(problems.is_empty(), "{problems}");
    EngineCore::new(PolicySnapshot::new(parts).expect("the rules are valid"))
}

#[test]
fn an_identity_that_a_hit_does_not_carry_comes_from_where_the_settings_say() {
    let attribute = |text| Attribute::parse(text).expect("a valid attribute");
    let identity = [("user", "jwt:sub"), ("email", "json:email"), ("mac", "header:x-mac")];
    let identity = identity.map(|(name, source)| (attribute(name), attribute(source))).to_vec();
    let rules = "rules: [{id: u, key: user, limit: 1/m}, {id: e, key: email, limit: 9/m}, {id: m, key: mac, limit: 9/m}]\n\
                 bans: [{key: 'user:evil'}]";
    let engine = with_settings(rules, Settings { ipv6_prefix: 56, identity, ..Settings::default() });
    let token = |sub| Hit::on("GET", "", "/").field(FieldSource::Jwt, "sub", sub);
    assert!(engine.check(&token("42"), NOW).allowed);
    assert!(!engine.check(&Hit::by("42"), NOW).allowed, "the same user");
    assert!(engine.check(&token("42").user("7"), NOW).allowed, "what the hit says itself goes first");
    assert_eq!(engine.check(&token("evil"), NOW).reason, Reason::Ban);
    let fields = |email, mac| {
        let hit = Hit::on("GET", "", "/").field(FieldSource::Json, "email", email).field(
            FieldSource::Header,
            "x-mac",
            mac,
        );
        left(&engine, hit, NOW)
    };
    assert_eq!(fields("Ann@Example.com", "nonsense"), [9]);
    engine.check(&Hit::on("GET", "", "/").email("ann@example.com").mac("aa:bb:cc:dd:ee:ff"), NOW);
    assert_eq!(fields(" ANN@example.com", "AA-BB-CC-DD-EE-FF"), [8, 8], "in normal form, from wherever");
}

#[test]
fn the_prefix_that_groups_ipv6_can_be_chosen() {
    let engine = with_settings(
        "rules: [{id: r, key: ip, limit: 1/m}]",
        Settings { ipv6_prefix: 128, ..Settings::default() },
    );
    assert!(
        engine.check(&from("2001:db8::1"), NOW).allowed && engine.check(&from("2001:db8::2"), NOW).allowed
    );
    assert!(!engine.check(&from("2001:db8::1"), NOW).allowed);
}

#[test]
fn no_spelling_of_a_target_escapes_its_limit() {
    let engine = engine("rules: [{id: r, match: POST /login, host: api.example.com, limit: 1/h}]");
    assert!(engine.check(&Hit::on("POST", "api.example.com", "/login"), NOW).allowed);
    for path in [
        "//login",
        "/./login",
        "/%6Cogin",
        "/%6cogin",
        "/login/",
        "/a/../login",
        "/%2flogin",
        "/login?x=1",
        "/login;v=1",
        "/login#x",
        "\\login",
        "http://api.example.com/login",
    ] {
        for host in [
            "api.example.com",
            "API.Example.com",
            "api.example.com:8443",
            "api.example.com.",
            "u@api.example.com",
        ] {
            for method in ["POST", "post"] {
                let verdict = engine.check(&Hit::on(method, host, path), NOW);
                assert!(!verdict.allowed, "{method} {host} {path}");
            }
        }
    }
    assert!(engine.check(&Hit::on("POST", "", "http://api.example.com/Login"), NOW).allowed);
    assert!(!engine.check(&Hit::on("POST", "", "http://api.example.com/login"), NOW).allowed);
}

#[test]
fn no_spelling_of_an_identity_escapes_its_limit() {
    let engine = engine(
        "rules: [{id: e, key: email, limit: 1/h}, {id: m, key: mac, limit: 1/h}, {id: u, key: user, limit: 1/h}]",
    );
    assert!(engine.check(&Hit::by("42").email("ann@example.com").mac("aa:bb:cc:dd:ee:ff"), NOW).allowed);
    let nobody = || Hit::on("GET", "", "/");
    for email in ["ANN@example.com", " ann@EXAMPLE.com ", "ann@example.com."] {
        assert!(!engine.check(&nobody().email(email), NOW).allowed, "{email}");
    }
    for mac in ["AA-BB-CC-DD-EE-FF", "aabb.ccdd.eeff", "AABBCCDDEEFF"] {
        assert!(!engine.check(&nobody().mac(mac), NOW).allowed, "{mac}");
    }
    assert!(!engine.check(&nobody().user(" 42\t"), NOW).allowed);
}

fn keys(rule: &str) -> EngineCore {
    let rule = format!("rules: [{{id: r, key: 'header:x-key', limit: 2/h, {rule}}}]");
    EngineCore::new(PolicySnapshot::from_yaml(&rule).expect("a valid rule"))
}

fn with_keys<'h>(values: &[&'h str]) -> Hit<'h> {
    values.iter().fold(Hit::on("GET", "h", "/"), |hit, value| hit.field(FieldSource::Header, "x-key", *value))
}

fn allowed(engine: &EngineCore, values: &[&str]) -> bool {
    engine.check(&with_keys(values), NOW).allowed
}

#[test]
fn of_several_values_each_is_charged_or_none() {
    let engine = keys("");
    assert!(allowed(&engine, &["a", "b"]) && allowed(&engine, &["b", "a"]), "two of two for both");
    assert!(!allowed(&engine, &["a"]) && !allowed(&engine, &["b"]));
    assert!(!allowed(&engine, &["c", "a"]), "a is at its limit");
    assert!(allowed(&engine, &["c"]) && allowed(&engine, &["c"]), "and c was not charged");
    assert!(!allowed(&engine, &["c"]));
    let verdict = engine.check(&with_keys(&["d", "d", " d "]), NOW);
    assert!(verdict.allowed && verdict.limits().len() == 1, "one value that is repeated is one value");
}

#[test]
fn several_values_are_denied_where_a_rule_says_so_or_denies_missing_ones() {
    for rule in ["ambiguous_key: deny", "missing_key: deny", "missing_key: shared, ambiguous_key: deny"] {
        let engine = keys(rule);
        let verdict = engine.check(&with_keys(&["a", "b"]), NOW);
        assert!(!verdict.allowed && verdict.retry_after.is_none(), "{rule}");
        assert_eq!(verdict.message().as_deref(), Some("Denied: rule r needs one value of header:x-key"));
        assert!(allowed(&engine, &["a"]) && allowed(&engine, &["a"]), "{rule}: nothing was charged");
    }
    for rule in ["missing_key: deny, ambiguous_key: each", "missing_key: shared", "ambiguous_key: each"] {
        assert!(allowed(&keys(rule), &["a", "b"]), "{rule}");
    }
}

#[test]
fn more_than_eight_values_are_denied() {
    let values = ["1", "2", "3", "4", "5", "6", "7", "8", "9"];
    let engine = keys("ambiguous_key: each");
    assert!(!allowed(&engine, &values));
    assert!(allowed(&engine, &values[..8]));
    let two = "rules: [{id: r, key: ['header:x-key', 'header:y'], limit: 2/h}]";
    let engine = EngineCore::new(PolicySnapshot::from_yaml(two).expect("a valid rule"));
    let both = |x: usize, y: usize| {
        let hit = values[..y]
            .iter()
            .fold(with_keys(&values[..x]), |hit, y| hit.field(FieldSource::Header, "y", *y));
        engine.check(&hit, NOW).allowed
    };
    assert!(both(2, 4) && !both(3, 3), "combinations count");
}

#[test]
fn a_decoy_hides_no_ban_and_borrows_no_privilege() {
    let engine = EngineCore::new(
        PolicySnapshot::from_yaml(
            "rules: [{id: r, key: 'header:x-key', limit: 0/h}]
allow: ['header:x-key:friend']
bans: [{key: 'header:x-key:evil'}]",
        )
        .expect("valid"),
    );
    let reason = |values: &[&str]| engine.check(&with_keys(values), NOW).reason;
    assert_eq!(reason(&["friend"]), Reason::AllowList);
    assert_eq!(reason(&["friend", "other"]), Reason::Limit);
    assert_eq!(reason(&["other", "evil"]), Reason::Ban);
    let mut many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    many.push("evil".to_owned());
    assert_eq!(reason(&many.iter().map(String::as_str).collect::<Vec<_>>()), Reason::Ban);
}

#[test]
fn one_request_with_several_values_is_one_violation() {
    let rule = "ban: {key: ['header:x-key'], after: 2, within: 1h, for: 1h}";
    let engine = keys(rule);
    for _ in 0..2 {
        assert!(allowed(&engine, &["a", "b"]));
    }
    assert!(!allowed(&engine, &["a", "b"]));
    let reason = |value| engine.check(&with_keys(&[value]), NOW).reason;
    assert_eq!(reason("a"), Reason::Limit, "one violation so far");
    assert_eq!(reason("a"), Reason::Ban);
    assert_eq!(reason("b"), Reason::Limit);
    assert_eq!(reason("b"), Reason::Ban);
}

#[test]
fn the_limit_of_one_user_holds_beside_a_decoy() {
    let yaml = "rules: [{id: one, uid: '42', url: /x, time: hour, requests: 1}, {id: all, url: /x, time: hour, requests: 9}]";
    let identity = vec![(Attribute::User, Attribute::parse("header:x-key").expect("valid"))];
    let engine = with_settings(yaml, Settings { identity, ..Settings::default() });
    let allowed = |decoy: &str| {
        let hit = Hit::on("GET", "h", "/x").field(FieldSource::Header, "x-key", decoy.to_owned());
        engine.check(&hit.field(FieldSource::Header, "x-key", "42"), NOW).allowed
    };
    assert!(allowed("a") && !allowed("b"));
}

/// With nine values the rules for single users were not found.
#[test]
fn the_limit_of_one_user_holds_beside_many_decoys() {
    let yaml = "rules: [{id: one, uid: '42', url: /x, time: hour, requests: 1}]";
    let identity = vec![(Attribute::User, Attribute::parse("header:x-key").expect("valid"))];
    let engine = with_settings(yaml, Settings { identity, ..Settings::default() });
    let decoys: Vec<String> = (0..20).map(|n| format!("decoy{n}")).collect();
    let mut values: Vec<&str> = decoys.iter().map(String::as_str).collect();
    let reason = |values: &[&str]| {
        let fields = values.iter().map(|value| (*value).to_owned());
        let hit = fields
            .fold(Hit::on("GET", "h", "/x"), |hit, value| hit.field(FieldSource::Header, "x-key", value));
        engine.check(&hit, NOW).reason
    };
    assert_eq!(reason(&values), Reason::NoRule);
    values.push("42");
    assert_eq!(reason(&values), Reason::Limit, "which of them is the user is unknown");
    assert_eq!(reason(&["42"]), Reason::Ok, "and nothing was charged");
}

/// A request of 3 KB with 256 values for each of two attributes cost 65,536 lookups, and beyond those a ban was missed.
#[test]
fn a_request_with_too_many_combinations_is_denied_where_one_of_them_may_be_banned() {
    let engine = engine("rules: []\nbans: [{key: 'header:x-key:evil+cookie:sid:7'}]");
    let hit = |keys: usize, sids: usize| {
        let keys = (1..keys).map(|n| n.to_string()).chain(["evil".to_owned()]);
        let hit =
            keys.fold(Hit::on("GET", "h", "/"), |hit, value| hit.field(FieldSource::Header, "x-key", value));
        (0..sids).fold(hit, |hit, n| hit.field(FieldSource::Cookie, "sid", n.to_string()))
    };
    let reason = |keys, sids| engine.check(&hit(keys, sids), NOW).reason;
    assert_eq!((reason(8, 7), reason(8, 8)), (Reason::NoRule, Reason::Ban), "each combination is looked up");
    assert_eq!((reason(9, 7), reason(9, 8)), (Reason::NoRule, Reason::Ban));
    assert_eq!(
        (reason(200, 1), reason(1, 200)),
        (Reason::NoRule, Reason::Ban),
        "as many as there are values"
    );
    assert_eq!((reason(9, 9), reason(256, 256)), (Reason::Ban, Reason::Ban), "too many to look up");
    let verdict = engine.check(&hit(256, 256), NOW);
    assert_eq!(
        verdict.message().as_deref(),
        Some(
            "Banned until further notice: too many values for cookie:sid+header:x-key, by which others are banned"
        )
    );
    engine.ban(key("user:x"), by_hand(NOW + HOUR), NOW);
    assert_eq!(engine.check(&hit(256, 256).user("x"), NOW).retry_after, Some(HOUR), "a known ban is shown");
    let free = EngineCore::new(policy("rules: []\nbans: [{key: 'header:x-key:evil'}]"));
    assert_eq!(free.check(&hit(1, 256), NOW).reason, Reason::Ban);
    let free = EngineCore::new(policy("rules: []\nbans: [{key: 'header:y:evil+cookie:sid:7'}]"));
    assert_eq!(free.check(&hit(256, 256), NOW).reason, Reason::NoRule, "a part of the key is missing");
}

/// With nine values of the ban key no violation was recorded at all.
#[test]
fn nine_values_do_not_evade_a_ban() {
    for (before, after) in [(0, 20), (20, 0), (3, 5)] {
        let yaml = "rules: [{id: r, key: ip, limit: 0/h, ban: {key: ['header:x-key'], after: 3, within: 1h, for: 1h}}]";
        let engine = engine(yaml);
        let hit = |request: usize| {
            let decoy = |n: usize| format!("decoy{request}-{n}");
            let values = (0..before).map(decoy).chain(["42".to_owned()]).chain((100..100 + after).map(decoy));
            values.fold(super::from("192.0.2.1"), |hit, value| hit.field(FieldSource::Header, "x-key", value))
        };
        (0..3).for_each(|request| assert_eq!(engine.check(&hit(request), NOW).reason, Reason::Limit));
        let banned = engine.bans(NOW);
        assert_eq!(banned.iter().map(|(key, _)| key.to_string()).collect::<Vec<_>>(), ["header:x-key:42"]);
        assert_eq!(engine.check(&hit(3), NOW).reason, Reason::Ban, "among new decoys, too");
    }
}

#[test]
fn the_policy_header_names_a_limit_once() {
    let verdict = keys("").check(&with_keys(&["a", "b"]), NOW);
    let headers =
        tollgate::internal::headers::headers(&verdict, tollgate::internal::headers::HeaderStyle::Ietf);
    let policy =
        headers.iter().find(|(name, _)| *name == "ratelimit-policy").map(|(_, value)| value.to_owned());
    assert_eq!(policy.as_deref(), Some("\"r\";q=2;w=3600"));
}

#[test]
fn six_to_four_and_nat64_addresses_are_the_client_inside() {
    let engine = engine("rules: [{id: r, key: ip, limit: 1/m}]\nbans: [{key: 'ip:198.51.100.7'}]");
    assert!(engine.check(&from("203.0.113.9"), NOW).allowed);
    for same in ["2002:cb00:7109::1", "2002:cb00:7109:2::7", "64:ff9b::203.0.113.9"] {
        assert!(!engine.check(&from(same), NOW).allowed, "{same}");
        assert_eq!(engine.key("r", key(&format!("ip:{same}")), NOW).expect("one client").limits[0].used, 1);
    }
    assert_eq!(engine.check(&from("2002:c633:6407::1"), NOW).reason, Reason::Ban);
}

#[test]
fn a_head_request_is_counted_by_the_rules_for_get() {
    let engine = engine(
        "rules: [{id: get, match: GET /a, limit: 1/m}, {id: both, match: 'GET /b/{id}', limit: 1/m},
                 {id: more, match: GET /b/c, limit: 5/m}, {id: head, match: HEAD /d, limit: 1/m}]",
    );
    let allowed = |method, path| engine.check(&Hit::on(method, "h", path), NOW).allowed;
    assert!(allowed("HEAD", "/a") && !allowed("GET", "/a") && !allowed("HEAD", "/a"));
    assert!(allowed("HEAD", "/b/c") && !allowed("HEAD", "/b/c"));
    assert!(allowed("POST", "/a") && allowed("POST", "/a"));
    assert!(allowed("HEAD", "/d") && !allowed("HEAD", "/d") && allowed("GET", "/d"));
}

#[test]
fn paths_in_any_case_are_one_where_the_settings_say_so() {
    let rules = "rules: [{id: a, match: POST /Login, limit: 1/m}, {id: b, match: '/Members/{id}/Ä/**', limit: 1/m},
                         {id: c, match: /Members/Me, limit: 1/m}, {id: d, match: /by-path/**, key: path, limit: 1/m}]";
    let folded = with_settings(rules, Settings { path_case: PathCase::Insensitive, ..Settings::default() });
    let exact = with_settings(rules, Settings::default());
    let passed = |engine: &EngineCore, paths: [&str; 2]| {
        paths.map(|path| engine.check(&Hit::on("POST", "h", path), NOW).allowed)
    };
    for paths in [
        ["/Login", "/LOGIN"],
        ["/Members/1/Ä", "/members/2/%C3%A4/x"],
        ["/members/me", "/MEMBERS/ME"],
        ["/by-path/x", "/By-Path/X"],
    ] {
        assert_eq!(passed(&folded, paths), [true, false], "{paths:?}");
        assert_eq!(passed(&exact, paths), [true, true], "{paths:?}");
    }
}

#[test]
fn white_space_beyond_ascii_is_part_of_a_value() {
    let engine = engine("rules: [{id: r, key: user, limit: 1/m}]");
    let allowed = |user: &'static str| engine.check(&Hit::by(user), NOW).allowed;
    assert!(allowed("42") && !allowed(" 42\t"));
    assert!(allowed("\u{a0}42"), "another value for an API that does not trim it");
    assert!(allowed("\u{2003}") && !allowed("\u{2003}"), "present, not missing");
}

#[test]
fn an_email_in_a_body_is_one_in_any_case() {
    let engine = engine(
        "rules: [{id: j, key: 'json:user.email', limit: 1/m}, {id: f, key: 'form:Email', limit: 1/m}]",
    );
    for (source, name) in [(FieldSource::Json, "user.email"), (FieldSource::Form, "Email")] {
        let allowed =
            |email| engine.check(&Hit::on("POST", "h", "/").field(source, name, email), NOW).allowed;
        assert!(allowed("ann@example.com") && !allowed(" Ann@EXAMPLE.com. "), "{name}");
    }
    let used = engine.key("j", key("json:user.email:ANN@example.com"), NOW).expect("one key").limits[0].used;
    assert_eq!(used, 1);
}
