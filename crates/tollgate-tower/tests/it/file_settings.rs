//! A file of the server in a layer: what is followed, and what is rejected.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tollgate_tower::{Hit, IncomingRequest, KeyVisibility, LayerError, PeerAddress, Policy, RateLimitLayer};
use tower::{Layer, ServiceExt, service_fn};

use crate::app::{App, rules, still};

fn reason(built: Result<RateLimitLayer, LayerError>) -> String {
    built.expect_err("it is not supported").to_string()
}

/// Without `identify`, nothing adds an identity.
fn rejected(text: &str) -> String {
    reason(still(RateLimitLayer::builder().rules(text)).build())
}

fn identify<'r>(_: IncomingRequest<'r>, hit: Hit<'r>) -> Hit<'r> {
    hit.user("ann").email("ann@example.com")
}

/// A regression: such rules were accepted, skipped every request and did not limit.
#[test]
fn a_rule_whose_key_no_request_has_is_rejected() {
    for (file, words) in [
        (
            "{identity: {email: 'json:email'}, rules: [{id: a, key: email, limit: 1/m}]}",
            "rule a: email is json:email, in the body",
        ),
        (
            "{identity: {user: 'form:login'}, rules: [{id: a, key: [ip, user], limit: 1/m}]}",
            "rule a: user is form:login, in the body",
        ),
        (
            "{identity: {user: 'jwt:sub'}, rules: [{id: a, key: user, limit: 1/m}]}",
            "rule a: user is jwt:sub, and a layer verifies no tokens",
        ),
        ("rules: [{id: a, key: 'jwt:sub', limit: 1/m}]", "rule a: jwt:sub is never present"),
        ("rules: [{id: a, key: api_key, limit: 1/m}]", "identity: { api_key: 'header:x-api-key' }"),
        (
            "rules: [{id: a, key: 'attr:tenant', limit: 1/m}]",
            "rule a: attr:tenant is never present: add it by `identify`",
        ),
        (
            "rules: [{id: a, key: ip, limits_by: {attr: plan, free: [1/m], pro: [9/m]}}]",
            "rule a: attr:plan is never present",
        ),
        (
            "rules: [{id: a, key: ip, limit: 1/m, ban: {key: ['json:email'], after: 3, for: 1h}}]",
            "rule a: json:email is in the body",
        ),
        (
            "rules: [{id: a, uid: ann, key: user, limit: 1/m, missing_key: shared}]",
            "rule a: user is never present",
        ),
        (
            "rules: [{id: a, key: ip, limit: 1/m, ban: {key: [user], after: 3, for: 1h}}]",
            "rule a: user is never present",
        ),
    ] {
        let error = rejected(file);
        assert!(error.contains(words), "{file}: {error}");
    }
    let app = App::new(rules("{identity: {user: 'header:x-user'}, rules: [{id: a, key: user, limit: 1/m}]}"));
    assert_eq!(app.statuses(2, "/", &[("x-user", "ann")]), [200, 429]);
}

#[test]
fn an_entry_of_a_list_that_no_request_matches_is_rejected() {
    assert!(rejected("allow: ['json:email:a@b.c']").starts_with("allow: json:email:"));
    assert!(
        rejected("bans: [{key: 'form:login:ann'}]").starts_with("bans: form:login:ann: form:login is in")
    );
    assert!(rejected("bans: [{key: 'user:ann'}]").starts_with("bans: user:ann: user is never present"));
    let app = App::new(rules("rules: []"));
    assert!(app.limiter.ban("user:ann", Duration::from_secs(60), "").is_err());
    let apply = |text: &str| app.limiter.apply(Policy::from_yaml(text).expect("valid"));
    assert!(matches!(apply("bans: [{key: 'user:ann'}]"), Err(LayerError::UnsupportedKey { .. })));
}

#[test]
fn a_rule_that_limits_without_its_key_is_accepted() {
    assert!(RateLimitLayer::limit_by("user", "1/m").is_ok(), "its requests share one counter");
    let app = App::new(rules("rules: [{id: a, key: user, limit: 1/m, missing_key: deny}]"));
    assert_eq!(app.get("/", &[]).status, 429);
}

#[test]
fn identify_may_add_any_identity_but_not_the_body() {
    let with = |text: &str| still(RateLimitLayer::builder().rules(text).identify(identify)).build();
    let layer = with("{identity: {user: 'jwt:sub'}, rules: [{id: a, key: [user, email], limit: 1/m}]}");
    assert_eq!(App::new(layer.expect("supported")).statuses(2, "/", &[]), [200, 429]);
    let error = reason(with("{identity: {mac: 'json:mac'}, rules: [{id: a, key: mac, limit: 1/m}]}"));
    assert!(error.contains("and remove it from `identity`"), "{error}");
}

/// A regression: they were ignored, so that all clients behind a load balancer shared one counter.
#[test]
fn trusted_proxies_and_headers_of_the_file_are_followed() {
    let text = "{trusted_proxies: [127.0.0.0/8], trusted_header: forwarded, headers: x-ratelimit, \
                rules: [{id: all, key: ip, limit: 1/m}]}";
    let app = App::new(rules(text));
    assert_eq!(app.statuses(2, "/", &[("forwarded", "for=203.0.113.9")]), [200, 429]);
    let other = app.get("/", &[("forwarded", "for=203.0.113.10")]);
    assert_eq!((other.status, other.header("x-ratelimit-limit")), (200, Some("1")));
    assert_eq!(other.header("ratelimit"), None);
    let own = RateLimitLayer::builder().rules(text).trusted_proxies(["10.0.0.0/8"]);
    let app = App::new(still(own).build().expect("valid"));
    assert_eq!(app.get("/", &[("forwarded", "for=203.0.113.9")]).status, 200);
    let forged = app.get("/", &[("forwarded", "for=203.0.113.10")]);
    assert_eq!(forged.status, 429, "the builder's own proxies come first");
}

#[test]
fn new_rules_cannot_change_what_is_fixed_and_need_not_repeat_it() {
    let app = App::new(rules("{trusted_proxies: [127.0.0.1], rules: [{id: all, key: ip, limit: 1/m}]}"));
    let apply = |text: &str| app.limiter.apply(Policy::from_yaml(text).expect("valid"));
    for text in ["trusted_proxies: [10.0.0.0/8]", "trusted_header: forwarded", "headers: none"] {
        let name = text.split(':').next().unwrap_or_default();
        let error = apply(text).expect_err("it is fixed").to_string();
        assert!(error.starts_with(name), "{error}");
    }
    apply("{trusted_proxies: [127.0.0.1], rules: [{id: all, key: ip, limit: 1/m}]}").expect("the same");
    apply("rules: [{id: all, key: ip, limit: 1/m}]").expect("rules alone");
    assert_eq!(app.statuses(2, "/", &[("x-forwarded-for", "203.0.113.9")]), [200, 429]);
    assert_eq!(app.get("/", &[("x-forwarded-for", "203.0.113.10")]).status, 200);
}

#[tokio::test]
async fn addresses_of_one_network_are_one_client_as_the_file_says() {
    let layer = rules("{ipv6_prefix: 48, rules: [{id: all, key: ip, limit: 1/m}]}");
    let status = async |address: &str| {
        let inner = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
        let mut request = Request::new(());
        request.extensions_mut().insert(PeerAddress(address.parse().expect("an address")));
        layer.layer(inner).oneshot(request).await.expect("it cannot fail").status()
    };
    assert_eq!(status("2001:db8:1:2::1").await, StatusCode::OK);
    assert_eq!(status("2001:db8:1:3::1").await, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(status("2001:db8:2::1").await, StatusCode::OK);
}

#[tokio::test]
async fn a_secret_file_that_only_the_server_reads_is_named() {
    let builder =
        RateLimitLayer::builder().rules("{store_secret_file: key, rules: []}").store("redis://127.0.0.1");
    let error = reason(builder.build());
    assert!(error.contains("store_secret_file of the rules, key, is not read"), "{error}");
    let counters = reason(RateLimitLayer::rules("counters: redis://127.0.0.1"));
    assert!(counters.contains("`store` of a tollgate-tower layer"), "{counters}");
}

/// The address leads nowhere: nothing is decided.
#[tokio::test]
async fn new_rules_cannot_rename_the_counters_of_a_store() {
    let builder = || RateLimitLayer::builder().store("redis://127.0.0.1:1");
    let apply = |layer: &RateLimitLayer, text: &str| {
        layer.limiter().apply(Policy::from_yaml(text).expect("valid")).map_err(|error| error.to_string())
    };
    let followed = builder().rules("{store_keys: hashed, rules: []}").build().expect("valid");
    assert_eq!(apply(&followed, "store_keys: hashed"), Ok(()));
    for (text, name) in [
        ("store_keys: plain", "store_keys"),
        ("store_deadline: 7s", "store_deadline"),
        ("store_secret_file: x", "store_secret_file"),
    ] {
        let error = apply(&followed, text).expect_err(text);
        assert!(error.starts_with(name), "{error}");
    }
    let own = builder().rules("rules: []").store_keys(KeyVisibility::All).store_secret("secret").build();
    let own = own.expect("valid");
    assert_eq!(apply(&own, "{store_keys: hashed, store_secret_file: x}"), Ok(()), "the builder's come first");
}
