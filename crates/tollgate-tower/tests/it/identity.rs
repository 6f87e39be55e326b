//! Who a request is counted for: addresses behind proxies, headers, extensions, closures.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::routing::get;
use http::StatusCode;
use tollgate_tower::{ForwardingHeader, Hit, IncomingRequest, PeerAddress, RateLimitLayer};
use tower::ServiceExt;

use crate::app::{App, rules, still};

#[test]
fn a_forged_address_is_ignored_without_a_trusted_proxy() {
    let app = App::new(rules("rules: [{id: all, key: ip, limit: 1/m}]"));
    assert_eq!(app.get("/", &[("x-forwarded-for", "1.1.1.1")]).status, 200);
    assert_eq!(app.get("/", &[("x-forwarded-for", "2.2.2.2")]).status, 429);
    assert_eq!(app.get("/", &[("forwarded", "for=3.3.3.3")]).status, 429);
}

#[test]
fn behind_a_trusted_proxy_the_address_that_it_appended_counts() {
    let builder = RateLimitLayer::builder().limit("1/m").trusted_proxies(["127.0.0.0/8", "10.0.0.0/8"]);
    let app = App::new(still(builder).build().expect("a limit"));
    assert_eq!(app.get("/", &[("x-forwarded-for", "203.0.113.9")]).status, 200);
    for forged in
        ["1.1.1.1, 203.0.113.9", "203.0.113.9, 10.0.0.7", "x, , 203.0.113.9:80", "\u{e9}, 203.0.113.9"]
    {
        assert_eq!(app.get("/", &[("x-forwarded-for", forged)]).status, 429, "{forged}");
    }
    let lines = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "203.0.113.9")];
    assert_eq!(app.get("/", &lines).status, 429);
    assert_eq!(app.get("/", &[("x-forwarded-for", "203.0.113.10")]).status, 200);
    let forwarded = [("forwarded", "for=9.9.9.9"), ("x-forwarded-for", "203.0.113.10")];
    assert_eq!(app.get("/", &forwarded).status, 429, "the other header is the client's own text");
}

#[test]
fn proxies_may_write_forwarded_instead() {
    let builder = RateLimitLayer::builder().limit("1/m").trusted_proxies(["127.0.0.1"]);
    let builder = builder.forwarding_header(ForwardingHeader::Forwarded);
    let app = App::new(still(builder).build().expect("a limit"));
    assert_eq!(app.get("/", &[("forwarded", "for=203.0.113.9")]).status, 200);
    assert_eq!(app.get("/", &[("forwarded", "for=1.1.1.1, for=203.0.113.9")]).status, 429);
    assert_eq!(app.get("/", &[("x-forwarded-for", "203.0.113.9"), ("forwarded", "for=2.2.2.2")]).status, 200);
}

#[test]
fn a_header_that_is_counted_by_and_repeated_is_counted_for_each_value() {
    let app = App::new(rules("rules: [{id: keys, key: 'header:x-api-key', limit: 2/m}]"));
    assert_eq!(app.get("/", &[("x-api-key", "a"), ("x-api-key", "b")]).status, 200);
    assert_eq!(app.statuses(2, "/", &[("x-api-key", "b")]), [200, 429]);
    assert_eq!(app.get("/", &[("x-api-key", "fresh"), ("x-api-key", "b")]).status, 429);
    assert_eq!(
        app.statuses(3, "/", &[("x-api-key", "fresh")]),
        [200, 200, 429],
        "a denied request costs nothing"
    );
    let names: Vec<String> = (0..9).map(|n| format!("many-{n}")).collect();
    let many: Vec<_> = names.iter().map(|value| ("x-api-key", value.as_str())).collect();
    assert_eq!(app.get("/", &many).status, 429, "no bypass by more values than are counted");
}

#[test]
fn a_missing_key_is_skipped_denied_or_shared_as_the_rule_says() {
    let rule = |missing: &str| {
        format!("rules: [{{id: a, key: 'header:x-key', limit: 1/m, missing_key: {missing}}}]")
    };
    for (missing, expected) in [("skip", [200, 200]), ("deny", [429, 429]), ("shared", [200, 429])] {
        assert_eq!(App::new(rules(&rule(missing))).statuses(2, "/", &[]), expected, "{missing}");
    }
}

#[derive(Clone)]
struct Account {
    id: Arc<str>,
    plan: &'static str,
}

fn identify<'r>(request: IncomingRequest<'r>, hit: Hit<'r>) -> Hit<'r> {
    match request.extension::<Account>() {
        Some(account) => hit.user(&*account.id).attribute("plan", account.plan),
        None => hit,
    }
}

/// Stands in for real authentication.
async fn authenticate(mut request: Request, next: Next) -> axum::response::Response {
    if let Some(id) = request.headers().get("authorization").and_then(|id| id.to_str().ok()) {
        let plan = if id.starts_with("pro-") { "pro" } else { "free" };
        let account = Account { id: id.into(), plan };
        request.extensions_mut().insert(account);
    }
    next.run(request).await
}

#[test]
fn identities_come_from_extensions_of_outer_layers() {
    let text =
        "rules: [{id: api, key: user, missing_key: deny, limits_by: {attr: plan, free: [1/m], pro: [3/m]}}]";
    let layer = still(RateLimitLayer::builder().rules(text).identify(identify)).build().expect("valid rules");
    let service = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    let app = App::serving(service.layer(middleware::from_fn(authenticate)), rules("rules: []"));
    assert_eq!(app.statuses(2, "/", &[("authorization", "ann")]), [200, 429]);
    assert_eq!(app.statuses(4, "/", &[("authorization", "pro-bob")]), [200, 200, 200, 429]);
    assert_eq!(app.get("/", &[]).status, 429, "it needs a user");
}

/// The service called in process: no connection, so no address.
#[tokio::test]
async fn requests_without_an_address_share_one_counter() {
    let layer = still(RateLimitLayer::builder().limit("2/m")).build().expect("a limit");
    let app = Router::new().route("/", get(|| async {})).layer(layer);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let response = app.clone().oneshot(Request::new(Body::empty())).await.expect("it cannot fail");
        statuses.push(response.status());
    }
    assert_eq!(statuses, [StatusCode::OK, StatusCode::OK, StatusCode::TOO_MANY_REQUESTS]);
    let mut addressed = Request::new(Body::empty());
    addressed.extensions_mut().insert(PeerAddress("203.0.113.9".parse().expect("an address")));
    assert_eq!(app.oneshot(addressed).await.expect("it cannot fail").status(), StatusCode::OK);
}

#[test]
fn rules_may_name_hosts() {
    let app = App::new(rules("rules: [{id: a, host: api.example.com, key: ip, limit: 1/m}]"));
    assert_eq!(app.statuses(2, "/", &[("host", "API.example.com:80")]), [200, 429]);
    assert_eq!(app.statuses(2, "/", &[("host", "example.com")]), [200, 200]);
}
