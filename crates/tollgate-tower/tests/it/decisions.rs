//! Limits, bans, lists and modes, over HTTP.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tollgate_tower::{HeaderStyle, LayerError, Policy, RateLimitLayer};

use crate::app::{App, rules, still};

#[test]
fn a_denial_is_a_response_with_headers_and_problem_details() {
    let app = App::new(still(RateLimitLayer::builder().limit("2/m")).build().expect("a limit"));
    let first = app.get("/", &[]);
    assert_eq!((first.status, first.text().as_str()), (200, "hello"));
    assert_eq!(first.header("ratelimit-policy"), Some("\"default\";q=2;w=60"));
    assert_eq!(first.header("ratelimit"), Some("\"default\";r=1;t=30"));
    assert_eq!(app.get("/", &[]).status, 200);
    let denied = app.get("/", &[]);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("retry-after"), Some("30"));
    assert_eq!(denied.header("ratelimit"), Some("\"default\";r=0;t=30"));
    let problem = denied.json();
    assert_eq!(problem["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(problem["title"], "Too Many Requests");
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["detail"], "Too many requests: rule default allows 2/m, try again in 30s");
    assert_eq!(problem["violated-policies"][0], "default");
    assert_eq!(app.get_from("127.0.0.2", "/").status, 200, "another client");
    app.limiter.clock().advance(Duration::from_secs(30));
    assert_eq!(app.statuses(2, "/", &[]), [200, 429]);
}

#[test]
fn headers_can_be_left_out_but_for_retry_after() {
    let builder = RateLimitLayer::builder().limit("1/m").headers(HeaderStyle::None);
    let app = App::new(still(builder).build().expect("a limit"));
    assert_eq!(app.get("/", &[]).header("ratelimit"), None);
    let denied = app.get("/", &[]);
    assert_eq!((denied.header("ratelimit"), denied.header("retry-after")), (None, Some("60")));
}

#[test]
fn a_denial_can_be_changed() {
    let builder = RateLimitLayer::builder().limit("1/m").map_denial(|response| {
        let mut response = response.map(|_| "slow down".into());
        response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/plain"));
        response
    });
    let app = App::new(still(builder).build().expect("a limit"));
    app.get("/", &[]);
    let denied = app.get("/", &[]);
    assert_eq!((denied.status, denied.text().as_str()), (429, "slow down"));
    assert_eq!(denied.header("content-length"), Some("9"));
}

#[test]
fn banned_clients_are_forbidden_and_allowed_ones_are_not_limited() {
    let layer =
        rules("{rules: [{id: all, key: ip, limit: 1/m, ban: {after: 2, for: 1h}}], allow: ['ip:127.0.0.9']}");
    let app = App::new(layer);
    assert_eq!(app.statuses(4, "/", &[]), [200, 429, 429, 403]);
    let banned = app.get("/", &[]);
    assert_eq!(
        (banned.json()["type"].as_str(), banned.header("retry-after")),
        (Some("about:blank"), Some("3600"))
    );
    assert_eq!(app.limiter.unban("ip:127.0.0.1"), Ok(true));
    assert_eq!(app.get("/", &[]).status, 429);
    for _ in 0..3 {
        assert_eq!(app.get_from("127.0.0.9", "/").status, 200);
    }
}

#[test]
fn a_ban_by_a_header_that_no_rule_names_is_in_force_at_once() {
    let app = App::new(rules("rules: [{id: all, key: ip, limit: 100/m}]"));
    let tenant = [("x-tenant", "acme")];
    assert_eq!(app.get("/", &tenant).status, 200);
    app.limiter.ban("header:x-tenant:acme", Duration::from_secs(60), "unpaid").expect("a key");
    assert_eq!(app.get("/", &tenant).status, 403);
    assert_eq!(app.get("/", &[("x-tenant", "other")]).status, 200);
    assert!(app.limiter.ban("colour:red", Duration::from_secs(60), "").is_err());
}

#[test]
fn shadow_rules_deny_nothing_and_are_not_shown() {
    let app = App::new(rules("rules: [{id: new, key: ip, limit: 1/m, mode: shadow}]"));
    assert_eq!(app.statuses(3, "/", &[]), [200, 200, 200]);
    assert_eq!(app.get("/", &[]).header("ratelimit"), None);
}

#[test]
fn rules_are_replaced_while_requests_are_served() {
    let app = App::new(rules("rules: [{id: all, key: ip, limit: 2/m}]"));
    assert_eq!(app.statuses(3, "/", &[]), [200, 200, 429]);
    let policy = |text: &str| Policy::from_yaml(text).expect("valid rules");
    app.limiter.apply(policy("rules: [{id: all, key: ip, limit: 4/m}]")).expect("they are supported");
    assert_eq!(app.statuses(3, "/", &[]), [200, 200, 429], "what was used still counts");
    let error = app.limiter.apply(policy("rules: [{id: all, key: 'json:email', limit: 9/m}]"));
    assert!(matches!(error, Err(LayerError::Unsupported { .. })));
    assert_eq!(app.get("/", &[]).status, 429, "the rules in force stay");
}

/// A rule that is added later may need a header that no rule needed before.
#[test]
fn new_rules_see_the_headers_that_they_name() {
    let app = App::new(rules("rules: [{id: all, key: ip, limit: 100/m}]"));
    let policy = Policy::from_yaml("rules: [{id: tenants, key: 'header:x-tenant', limit: 1/m}]");
    app.limiter.apply(policy.expect("valid rules")).expect("they are supported");
    assert_eq!(app.statuses(2, "/", &[("x-tenant", "a")]), [200, 429]);
    assert_eq!(app.get("/", &[("x-tenant", "b")]).status, 200);
}

#[test]
fn rules_match_the_path_that_the_client_sent() {
    let layer = rules("rules: [{id: inner, match: GET /api/users, key: ip, limit: 1/m}]");
    let limiter = layer.clone();
    let inner = Router::new().route("/users", get(|| async { "users" })).layer(limiter);
    let app = App::serving(Router::new().nest("/api", inner), rules("rules: []"));
    assert_eq!(app.statuses(2, "/api/users", &[]), [200, 429]);
    assert_eq!(
        app.statuses(2, "/api//users?x=1", &[]),
        [404, 404],
        "axum does not route it; nothing is counted"
    );
}

#[test]
fn limits_of_the_service_itself_are_merged() {
    let own = [("ratelimit", "\"db\";r=1;t=9"), ("ratelimit-policy", "\"db\";q=5;w=9")];
    let service =
        Router::new().route("/", get(move || async move { (axum::response::AppendHeaders(own), "hello") }));
    let app = App::serving(service, rules("rules: [{id: all, key: ip, limit: 2/m}]"));
    let answer = app.get("/", &[]);
    assert_eq!(answer.header("ratelimit"), Some("\"db\";r=1;t=9, \"all\";r=1;t=30"));
}

#[test]
fn mistakes_are_explained_when_the_layer_is_built() {
    let explain = |built: Result<RateLimitLayer, LayerError>| built.expect_err("a mistake").to_string();
    assert!(explain(RateLimitLayer::limit("100/x")).contains("100/x"));
    assert!(explain(RateLimitLayer::limit_by("colour", "1/m")).contains("unknown attribute 'colour'"));
    assert_eq!(explain(RateLimitLayer::builder().build()), "nothing to limit by: set a limit or rules");
    assert_eq!(
        explain(RateLimitLayer::rules("rules: [{id: a, key: ip, limit: 1/m, on_exceed: queue}]")),
        "rule a: on_exceed: queue needs the server; use hold or reject"
    );
    assert_eq!(
        explain(RateLimitLayer::rules("rules: [{id: a, key: 'json:email', limit: 1/m}]")),
        "rule a: json:email is in the body, which a layer does not read; add an attribute by `identify`"
    );
    let proxies = RateLimitLayer::builder().limit("1/m").trusted_proxies(["10.0.0.0/33"]);
    assert!(explain(proxies.build()).contains("10.0.0.0/33"));
    let store = RateLimitLayer::builder().limit("1/m").store("redis://127.0.0.1");
    assert_eq!(explain(store.build()), "store: it must be opened inside a tokio runtime");
}
