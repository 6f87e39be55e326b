//! The decision API, as a caller sees it.

use serde_json::{Value, json};
use tollgate_testkit::{Answer, Server};

const LOGIN: &str = "rules: [{ id: login-email, match: POST /login, key: email, limit: 5/m }]";

fn login(email: &str) -> Value {
    json!({ "method": "POST", "path": "/login", "email": email })
}

fn fields(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

fn check(answer: &Answer, status: u16, reason: &str) -> Value {
    let body = answer.json();
    assert_eq!((answer.status, body["reason"].as_str()), (status, Some(reason)), "{answer}");
    assert_eq!(answer.header("content-type"), Some("application/json"));
    body
}

#[test]
fn every_verdict_has_every_field() {
    let server = Server::start(&format!("{LOGIN}\nallow: ['user:root']\nbans: [{{ key: 'user:evil' }}]"));
    for _ in 0..5 {
        server.check(&login("ann@example.com"));
    }
    let expected = [
        "id",
        "allowed",
        "reason",
        "rule",
        "limit",
        "remaining",
        "retry_after_ms",
        "reset_after_ms",
        "delay_ms",
        "message",
        "ticket",
        "rules",
    ];
    for (hit, reason) in [
        (login("bob@example.com"), "ok"),
        (login("ann@example.com"), "limit"),
        (json!({ "user": "evil" }), "ban"),
        (json!({ "user": "root" }), "allow_list"),
        (json!({}), "no_rule"),
    ] {
        let body = server.check(&hit).json();
        assert_eq!(body["reason"], reason);
        assert_eq!(fields(&body), expected, "{reason}");
        assert!(body["id"].is_string() && body["delay_ms"] == 0 && body["rules"].is_array(), "{body}");
        for rule in body["rules"].as_array().into_iter().flatten() {
            assert_eq!(
                fields(rule),
                ["rule", "limit", "allowed", "remaining", "retry_after_ms", "mode"],
                "{reason}"
            );
        }
        let limited = matches!(reason, "ok" | "limit");
        for name in ["rule", "limit", "remaining", "reset_after_ms"] {
            assert_eq!(body[name].is_null(), !limited, "{reason}: {name}");
        }
        assert_eq!(body["message"].is_null(), body["allowed"] == true, "{reason}");
    }
}

#[test]
fn the_sixth_of_five_is_denied_until_a_token_is_back() {
    let server = Server::start(LOGIN);
    for n in 0..5u64 {
        let answer = server.check(&login("ann@example.com"));
        let body = check(&answer, 200, "ok");
        assert_eq!((&body["rule"], &body["limit"]), (&json!("login-email"), &json!("5/m")));
        assert_eq!(body["remaining"], 4 - n);
        assert_eq!(body["retry_after_ms"], Value::Null);
        assert_eq!(answer.header("ratelimit-policy"), Some(r#""login-email";q=5;w=60"#));
        assert_eq!(answer.header("retry-after"), None);
        if n == 0 {
            assert_eq!(answer.header("ratelimit"), Some(r#""login-email";r=4;t=12"#));
        }
    }
    let answer = server.check(&login(" ANN@Example.com"));
    let body = check(&answer, 429, "limit");
    let wait_ms = body["retry_after_ms"].as_u64().expect("a wait");
    let wait_s = wait_ms.div_ceil(1000);
    assert!((1..=12_000).contains(&wait_ms), "{body}");
    assert!((48_000..=60_000).contains(&body["reset_after_ms"].as_u64().expect("a reset")), "{body}");
    assert_eq!(answer.header("retry-after"), Some(wait_s.to_string().as_str()));
    assert_eq!(answer.header("ratelimit"), Some(format!(r#""login-email";r=0;t={wait_s}"#).as_str()));
    let message = format!("Too many requests: rule login-email allows 5/m, try again in {wait_s}s");
    assert_eq!(body["message"], message);
    let rule = json!({ "rule": "login-email", "limit": "5/m", "allowed": false, "remaining": 0,
                       "retry_after_ms": wait_ms, "mode": "enforce" });
    assert_eq!(body["rules"], json!([rule]));
}

#[test]
fn several_limits_are_listed_separately_in_headers_and_verdict() {
    let server = Server::start("rules: [{ id: login, key: user, limits: [5/m, 20/h] }]");
    let answer = server.check(&json!({ "user": "ann", "cost": 5 }));
    let policies = r#""login:5/m";q=5;w=60, "login:20/h";q=20;w=3600"#;
    assert_eq!(answer.header("ratelimit-policy"), Some(policies));
    assert_eq!(answer.header("ratelimit"), Some(r#""login:5/m";r=0;t=60"#));
    let body = server.check(&json!({ "user": "ann" })).json();
    assert_eq!((&body["allowed"], &body["limit"]), (&json!(false), &json!("5/m")));
    let each: Vec<_> = body["rules"].as_array().expect("a list").iter().collect();
    assert_eq!(each.len(), 2);
    assert_eq!((&each[0]["limit"], &each[0]["allowed"]), (&json!("5/m"), &json!(false)));
    assert_eq!((&each[1]["limit"], &each[1]["allowed"]), (&json!("20/h"), &json!(true)));
    assert_eq!(each[1]["remaining"], 15, "a denied request charges no limit");
}

#[test]
fn a_cost_above_capacity_is_denied_without_a_time_to_retry() {
    let server = Server::start(LOGIN);
    let mut hit = login("ann@example.com");
    hit["cost"] = json!(6);
    let answer = server.check(&hit);
    let body = check(&answer, 429, "limit");
    assert_eq!((&body["retry_after_ms"], &body["remaining"]), (&Value::Null, &json!(5)));
    assert_eq!(answer.header("retry-after"), None);
    assert_eq!(server.used("login-email", "email:ann@example.com"), [0]);
    hit["cost"] = json!(5);
    assert_eq!(check(&server.check(&hit), 200, "ok")["remaining"], 0);
}

#[test]
fn a_ban_is_403_with_its_end_where_it_has_one() {
    let bans = "bans: [{ key: 'ip:203.0.113.0/24', until: 2126-01-01T00:00:00Z, reason: scraping },
                       { key: 'user:evil' }]";
    let server = Server::start(&format!("{LOGIN}\n{bans}"));
    let answer = server.check(&json!({ "ip": "203.0.113.9" }));
    let body = check(&answer, 403, "ban");
    assert_eq!(body["message"], "Banned until 2126-01-01T00:00:00Z: scraping");
    assert!(body["retry_after_ms"].as_u64().is_some_and(|wait| wait > 0));
    assert!(answer.header("retry-after").is_some() && answer.header("ratelimit").is_none());
    let answer = server.check(&json!({ "user": "evil" }));
    let body = check(&answer, 403, "ban");
    assert_eq!((&body["retry_after_ms"], answer.header("retry-after")), (&Value::Null, None));
    assert_eq!(body["message"], "Banned until further notice");
}

#[test]
fn the_allow_list_goes_before_bans_and_rules() {
    let lists = "allow: ['ip:203.0.113.9']\nbans: [{ key: 'ip:203.0.113.0/24' }]";
    let server = Server::start(&format!("rules: [{{ id: none, limit: 0/m }}]\n{lists}"));
    check(&server.check(&json!({ "ip": "203.0.113.9" })), 200, "allow_list");
    check(&server.check(&json!({ "ip": "203.0.113.8" })), 403, "ban");
    check(&server.check(&json!({ "ip": "203.0.112.8" })), 429, "limit");
}

#[test]
fn the_style_of_headers_is_chosen() {
    for (style, names) in [
        ("ietf", vec!["ratelimit-policy", "ratelimit"]),
        ("x-ratelimit", vec!["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]),
        (
            "both",
            vec![
                "ratelimit-policy",
                "ratelimit",
                "x-ratelimit-limit",
                "x-ratelimit-remaining",
                "x-ratelimit-reset",
            ],
        ),
        ("none", vec![]),
    ] {
        let server = Server::start(&format!("headers: {style}\nrules: [{{ id: a, limit: 1/m }}]"));
        let seen = |answer: &Answer| -> Vec<String> {
            let names = answer.headers.iter().map(|(name, _)| name.clone());
            names.filter(|name| name.contains("ratelimit")).collect()
        };
        let allowed = server.check(&json!({}));
        assert_eq!((allowed.status, seen(&allowed)), (200, names.iter().map(|&n| n.to_owned()).collect()));
        if style == "both" {
            let value = |name| allowed.header(name).expect("a header").to_owned();
            assert_eq!(value("x-ratelimit-limit"), "1");
            assert_eq!(value("x-ratelimit-remaining"), "0");
            assert_eq!(value("x-ratelimit-reset"), "60");
        }
        let denied = server.check(&json!({}));
        assert_eq!(denied.status, 429);
        assert!(denied.header("retry-after").is_some(), "{style}");
    }
}

#[test]
fn a_peek_returns_the_decision_and_charges_nothing() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 2/h, track: true }]");
    let peek = json!({ "user": "ann", "peek": true });
    for _ in 0..3 {
        assert_eq!(check(&server.check(&peek), 200, "ok")["remaining"], 2, "what is left now");
    }
    server.check(&json!({ "user": "ann", "cost": 2 }));
    let body = check(&server.check(&peek), 429, "limit");
    assert!(body["retry_after_ms"].is_u64());
    let key = server.admin("GET", "/v1/keys?rule=a&key=user:ann", "").json();
    assert_eq!((&key["tries"], &key["denials"]), (&json!(1), &json!(0)));
}

#[test]
fn a_batch_answers_each_item_in_order_with_its_own_status() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 1/h }]\nbans: [{ key: 'user:evil' }]");
    let batch = json!([{ "user": "ann" }, { "user": "evil" }, { "user": "ann" }, {}, { "user": "bob" }]);
    let answer = server.request("POST", "/v1/check/batch", batch.to_string());
    assert_eq!(answer.status, 200);
    let each = answer.json();
    let statuses: Vec<_> =
        each.as_array().expect("a list").iter().map(|item| item["status"].clone()).collect();
    assert_eq!(statuses, [200, 403, 429, 200, 200]);
    assert_eq!(each[2]["rule"], "a");
    assert_eq!(each[3]["reason"], "no_rule");
    assert_eq!(server.request("POST", "/v1/check/batch", "[]").json(), json!([]));
}

#[test]
fn a_batch_has_at_most_a_thousand_items_and_a_bad_one_charges_nothing() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 9000/d, algorithm: sliding-log }]");
    let send = |items: Vec<Value>| server.request("POST", "/v1/check/batch", json!(items).to_string());
    let full = send(vec![json!({ "user": "ann" }); 1000]);
    assert_eq!((full.status, full.json().as_array().map(Vec::len)), (200, Some(1000)));
    assert_eq!(server.used("a", "user:ann"), [1000]);

    let over = send(vec![json!({ "user": "ann" }); 1001]);
    assert_eq!((over.status, &over.json()["field"]), (400, &json!("body")), "{over}");
    let bad = send(vec![json!({ "user": "ann" }), json!({ "ip": "1.2.3" })]);
    assert_eq!((bad.status, &bad.json()["field"]), (400, &json!("[1].ip")), "{bad}");
    let unknown = send(vec![json!({ "user": "ann" }), json!({ "colour": "red" })]);
    assert_eq!((unknown.status, &unknown.json()["field"]), (400, &json!("[1].colour")), "{unknown}");
    assert_eq!(server.used("a", "user:ann"), [1000]);
}

#[test]
fn request_allowed_is_a_check_of_user_and_address() {
    let server = Server::start("rules: [{ id: both, key: [user, ip], limit: 2/h }]");
    let path = "/v1/request-allowed?userId=a%20b&ipAddress=203.0.113.9";
    assert_eq!(check(&server.request("GET", path, ""), 200, "ok")["remaining"], 1);
    let same = server.check(&json!({ "user": "a b", "ip": "203.0.113.9" }));
    assert_eq!(check(&same, 200, "ok")["remaining"], 0);
    let denied = server.request("GET", path, "");
    check(&denied, 429, "limit");
    assert!(denied.header("retry-after").is_some());
    check(&server.request("GET", "/v1/request-allowed?userId=ann", ""), 200, "no_rule");
    let bad = server.request("GET", "/v1/request-allowed?userId=ann&ipAddress=nowhere", "");
    assert_eq!((bad.status, &bad.json()["field"]), (400, &json!("ip")), "{bad}");
    let unknown = server.request("GET", "/v1/request-allowed?user=ann", "");
    assert_eq!((unknown.status, &unknown.json()["field"]), (400, &json!("user")), "{unknown}");
}

#[test]
fn domains_count_on_their_own() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 1/h }]");
    for domain in ["default", "shop", "blog"] {
        let hit = json!({ "domain": domain, "user": "ann" });
        check(&server.check(&hit), 200, "ok");
        check(&server.check(&hit), 429, "limit");
    }
    check(&server.check(&json!({ "user": "ann" })), 429, "limit");
}

#[test]
fn whatever_a_request_carries_can_be_its_key() {
    let attributes = [
        "ip",
        "user",
        "email",
        "mac",
        "api_key",
        "host",
        "path",
        "method",
        "header:X-Tenant",
        "cookie:session",
        "query:token",
        "attr:plan",
    ];
    let rules: Vec<_> = attributes
        .iter()
        .enumerate()
        .map(|(n, key)| format!("{{ id: r{n}, key: '{key}', limit: 9/h }}"))
        .collect();
    let server = Server::start(&format!("rules: [{}]", rules.join(", ")));
    let ann = json!({
        "ip": "::ffff:203.0.113.9", "user": 42, "email": " Ann@Example.com", "mac": "AA-BB-CC-DD-EE-FF",
        "api_key": "k1", "host": "API.example.com:443", "path": "//a/./b?token=t%201", "method": "get",
        "headers": { "X-Tenant": "acme", "Cookie": "a=1; session=xyz" }, "attributes": { "plan": "pro" },
    });
    let body = check(&server.check(&ann), 200, "ok");
    assert_eq!(body["rules"].as_array().map(Vec::len), Some(attributes.len()), "{body}");
    for (n, key) in [
        "ip:203.0.113.9",
        "user:42",
        "email:ann@example.com",
        "mac:aa:bb:cc:dd:ee:ff",
        "api_key:k1",
        "host:api.example.com",
        "path:/a/b",
        "method:GET",
        "header:x-tenant:acme",
        "cookie:session:xyz",
        "query:token:t%201",
        "attr:plan:pro",
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(server.used(&format!("r{n}"), key), [1], "{key}");
    }
}

#[test]
fn the_address_of_the_caller_is_never_used_as_the_checked_address() {
    let server = Server::start("rules: [{ id: a, key: ip, limit: 0/h }]");
    check(&server.check(&json!({ "headers": { "x-forwarded-for": "203.0.113.9" } })), 200, "no_rule");
    check(&server.check(&json!({ "ip": "203.0.113.9" })), 429, "limit");
}

#[test]
fn a_missing_key_is_skipped_denied_or_shared() {
    for (missing, first, second) in [("skip", 200, 200), ("deny", 429, 429), ("shared", 200, 429)] {
        let rule = format!("{{ id: a, key: user, limit: 1/h, missing_key: {missing} }}");
        let server = Server::start(&format!("rules: [{rule}]"));
        let statuses = [(); 2].map(|()| server.check(&json!({})).status);
        assert_eq!(statuses, [first, second], "{missing}");
        assert_eq!(server.check(&json!({ "user": "ann" })).status, 200, "{missing}");
    }
}

#[test]
fn several_values_of_a_header_are_each_charged_or_denied() {
    let server = Server::start(
        "rules: [{ id: each, match: /each, key: 'header:x-api-key', limit: 2/h },
                 { id: deny, match: /deny, key: 'header:x-api-key', limit: 2/h, ambiguous_key: deny }]",
    );
    let send = |path: &str, headers: String| {
        let body = format!(r#"{{ "path": "{path}", "headers": {{ {headers} }} }}"#);
        server.request("POST", "/v1/check", body).status
    };
    let rotated = |n: usize| send("/each", format!(r#""x-api-key": "decoy-{n}", "X-Api-Key": "victim""#));
    assert_eq!([0, 1, 2].map(rotated), [200, 200, 429]);
    let repeated = |n: usize| send("/each", format!(r#""x-api-key": "other-{n}", "x-api-key": "second""#));
    assert_eq!([0, 1, 2].map(repeated), [200, 200, 429]);
    assert_eq!(server.used("each", "header:x-api-key:decoy-2"), [0], "all are charged or none");
    let denied = server.check(&json!({ "path": "/deny", "headers": { "x-api-key": "a", "X-Api-Key": "b" } }));
    assert_eq!(denied.status, 429);
    let message = denied.json()["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(message, "Denied: rule deny needs one value of header:x-api-key");
}

#[test]
fn a_limit_is_not_bypassed_by_spelling() {
    let server = Server::start("rules: [{ id: a, match: POST /login, host: example.com, limit: 100/h }]");
    let paths = ["/login", "//login", "/./login", "/%6Cogin", "/x/../login", "/login?x=1", "/login#top"];
    for path in paths {
        let hit = json!({ "method": "POST", "host": "EXAMPLE.com.:8443", "path": path });
        check(&server.check(&hit), 200, "ok");
    }
    assert_eq!(server.used("a", ""), [paths.len() as u64]);
}

#[test]
fn a_null_field_equals_a_missing_field() {
    let server = Server::start("rules: [{ id: a, limit: 9/y }]");
    let names = ["domain", "method", "path", "host", "ip", "user", "email", "mac", "api_key", "headers"];
    let names = names.into_iter().chain(["attributes", "cost", "peek"]);
    let nulls: serde_json::Map<_, _> = names.map(|name| (name.to_owned(), Value::Null)).collect();
    assert_eq!(check(&server.check(&nulls.into()), 200, "ok")["remaining"], 8);
}

#[test]
fn a_client_denied_by_its_own_limit_does_not_charge_the_shared_one() {
    let server = Server::start("rules: [{ id: shared, limit: 100/h }, { id: own, key: user, limit: 2/h }]");
    for _ in 0..20 {
        server.check(&json!({ "user": "greedy" }));
    }
    assert_eq!(server.used("shared", ""), [2]);
    assert_eq!(server.used("own", "user:greedy"), [2]);
}

#[test]
fn a_shadow_rule_shows_in_the_verdict_only() {
    let server = Server::start(
        "rules: [{ id: real, limit: 5/h }, { id: trial, limit: 0/h, mode: shadow }, { id: gone, limit: 0/h, mode: off }]",
    );
    let answer = server.check(&json!({}));
    let body = check(&answer, 200, "ok");
    assert_eq!(body["rule"], "real");
    assert_eq!(answer.header("ratelimit-policy"), Some(r#""real";q=5;w=3600"#));
    let rules = body["rules"].as_array().expect("a list");
    assert_eq!(rules.len(), 2);
    assert_eq!((&rules[1]["mode"], &rules[1]["allowed"]), (&json!("shadow"), &json!(false)));
    let metrics = server.admin("GET", "/metrics", "").text();
    assert!(metrics.contains(r#"tollgate_rule_hits_total{rule="trial",outcome="shadow_denied"} 1"#));
}

#[test]
fn limits_follow_an_attribute_and_overrides_a_key() {
    let server = Server::start(
        "rules:
  - { id: plan, match: /plan, key: user, limits_by: { attr: plan, free: [1/h], pro: [3/h] } }
  - { id: vip, match: /vip, key: email, limit: 1/h, overrides: [{ email: ceo@example.com, limits: [50/h] }] }
  - { id: all, url: /search, time: hour, requests: 5 }
  - { id: one, uid: \"42\", url: /search, time: hour, requests: 7 }",
    );
    let left = |hit: Value| server.check(&hit).json()["remaining"].clone();
    assert_eq!(left(json!({ "path": "/plan", "user": "a", "attributes": { "plan": "free" } })), 0);
    assert_eq!(left(json!({ "path": "/plan", "user": "b", "attributes": { "plan": "pro" } })), 2);
    assert_eq!(left(json!({ "path": "/vip", "email": "ann@example.com" })), 0);
    assert_eq!(left(json!({ "path": "/vip", "email": "CEO@example.com" })), 49);
    assert_eq!(left(json!({ "path": "/search", "user": "41" })), 4);
    assert_eq!(left(json!({ "path": "/search", "user": "42" })), 6);
}

#[test]
fn repeated_denials_become_a_ban() {
    let server = Server::start(
        "rules: [{ id: a, key: user, limit: 1/h, ban: { key: [ip], after: 3, within: 10m, for: 1h, max: 24h } }]",
    );
    let hit = json!({ "user": "ann", "ip": "203.0.113.9" });
    let statuses = [(); 6].map(|()| server.check(&hit).status);
    assert_eq!(statuses, [200, 429, 429, 429, 403, 403]);
    check(&server.check(&json!({ "user": "bob", "ip": "203.0.113.9" })), 403, "ban");
    check(&server.check(&json!({ "user": "bob", "ip": "203.0.113.8" })), 200, "ok");
    let bans = server.admin("GET", "/v1/bans", "").json();
    assert_eq!(bans["bans"][0]["key"], "ip:203.0.113.9");
    assert_eq!((&bans["bans"][0]["source"], &bans["bans"][0]["strikes"]), (&json!("automatic"), &json!(1)));
}
