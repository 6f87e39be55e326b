//! Who is one client, and that no spelling makes another one of it.

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

fn with_settings(yaml: &str, settings: Settings) -> Engine {
    let root = document::read(yaml).expect("it is YAML");
    let mut problems = Problems::new();
    let mut parts = PolicyParts { settings, ..PolicyParts::default() };
    let mut map = MapReader::new(&root, "", &mut problems).expect("it is a map");
    parts.read(&mut map);
    map.finish();
    assert!(problems.is_empty(), "{problems}");
    Engine::new(Policy::new(parts).expect("the rules are valid"))
}

#[test]
fn an_identity_that_a_hit_does_not_carry_comes_from_where_the_settings_say() {
    let attribute = |text| Attribute::parse(text).expect("a valid attribute");
    let identity = [("user", "jwt:sub"), ("email", "json:email"), ("mac", "header:x-mac")];
    let identity = identity.map(|(name, source)| (attribute(name), attribute(source))).to_vec();
    let rules = "rules: [{id: u, key: user, limit: 1/m}, {id: e, key: email, limit: 9/m}, {id: m, key: mac, limit: 9/m}]\n\
                 bans: [{key: 'user:evil'}]";
    let engine = with_settings(rules, Settings { ipv6_prefix: 56, identity, ..Settings::default() });
    let token = |sub| Hit::on("GET", "", "/").field(Source::Jwt, "sub", sub);
    assert!(engine.check(&token("42"), NOW).allowed);
    assert!(!engine.check(&Hit::by("42"), NOW).allowed, "the same user");
    assert!(engine.check(&token("42").user("7"), NOW).allowed, "what the hit says itself goes first");
    assert_eq!(engine.check(&token("evil"), NOW).reason, Reason::Ban);
    let fields = |email, mac| {
        let hit =
            Hit::on("GET", "", "/").field(Source::Json, "email", email).field(Source::Header, "x-mac", mac);
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
