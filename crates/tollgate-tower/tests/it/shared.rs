//! Counters on real servers that several processes share.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tollgate_stores::counters::cassandra;
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_tower::RateLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

fn layer(redis: &Redis, rules: &str) -> RateLimitLayer {
    layer_at(&redis.url(), rules)
}

fn layer_at(store: &str, rules: &str) -> RateLimitLayer {
    // A busy machine is slow; these tests are not about the deadline.
    let builder = RateLimitLayer::builder().rules(rules).store(store).store_deadline(Duration::from_secs(20));
    builder.build().expect("valid rules")
}

async fn status(layer: &RateLimitLayer) -> StatusCode {
    let service =
        layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Body::empty())) }));
    service.oneshot(Request::new(())).await.expect("it cannot fail").status()
}

const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

/// Two layers have one limit, of a state that the store decides on and of one that it counts itself; a request that is not
/// counted is refunded.
async fn check_shared(store: &str) {
    for algorithm in ["gcra", "fixed-window"] {
        let rules = format!("rules: [{{id: {algorithm}, limit: 3/d, algorithm: {algorithm}}}]");
        let [one, other] = [layer_at(store, &rules), layer_at(store, &rules)];
        assert_eq!([status(&one).await, status(&other).await, status(&one).await], [OK; 3], "{algorithm}");
        assert_eq!([status(&one).await, status(&other).await], [DENIED; 2], "{algorithm}");
    }
    let rules = "{deny_cache: false, rules: [{id: logins, limit: 1/d, count_when: failure}]}";
    let layer = layer_at(store, rules);
    for _ in 0..3 {
        // The refund is sent in the background, so the next request may come before it.
        let mut attempts = 0;
        while status(&layer).await != OK {
            attempts += 1;
            assert!(attempts < 2000, "the charge was not refunded");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn layers_share_the_counters_of_one_redis() {
    let Some(redis) = Redis::start(Make::Redis, "layers that share a Redis") else { return };
    check_shared(&redis.url()).await;
}

#[tokio::test]
async fn layers_share_the_counters_of_one_memcached() {
    let Some(memcached) = Memcached::start("layers that share a Memcached") else { return };
    check_shared(&memcached.url()).await;
}

#[tokio::test]
async fn layers_share_the_counters_of_one_cassandra() {
    let Some(cassandra) = Cassandra::shared("layers that share a Cassandra") else { return };
    let url = cassandra.url("layers");
    let address = url.parse().expect("a valid address");
    let mut attempts = 0;
    // A new server does not know its first user at once.
    while let Err(error) = cassandra::init(&address).await {
        attempts += 1;
        assert!(attempts < 600, "{error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    check_shared(&url).await;
}

#[tokio::test]
async fn a_layer_whose_memcached_dies_fails_open_or_closed() {
    let Some(mut memcached) = Memcached::start("a layer whose Memcached dies") else { return };
    let open = layer_at(&memcached.url(), "rules: [{id: all, limit: 1/h, on_store_error: open}]");
    let closed = layer_at(&memcached.url(), "rules: [{id: other, limit: 9/h, on_store_error: closed}]");
    assert_eq!([status(&open).await, status(&open).await, status(&closed).await], [OK, DENIED, OK]);
    memcached.process.kill();
    assert_eq!(status(&closed).await, StatusCode::SERVICE_UNAVAILABLE);
    let open = layer_at(&memcached.url(), "rules: [{id: all, limit: 1/h, on_store_error: open}]");
    assert_eq!([status(&open).await, status(&open).await], [OK; 2]);
}

#[tokio::test]
async fn a_settled_request_is_refunded_in_the_store() {
    let Some(redis) = Redis::start(Make::Redis, "refunds of a layer on Redis") else { return };
    let layer = layer(&redis, "{deny_cache: false, rules: [{id: all, limit: 1/h, count_when: failure}]}");
    for _ in 0..3 {
        assert_eq!(status(&layer).await, OK);
        refunded(&redis).await;
    }
}

/// Returns once no counter has anything in it.
async fn refunded(redis: &Redis) {
    for _ in 0..2000 {
        if redis.command(&["DBSIZE"]).contains(":0") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the charge was not refunded: {}", redis.command(&["KEYS", "*"]));
}

/// The request is dropped while Redis works on its charge.
#[tokio::test]
async fn a_request_that_is_dropped_before_the_answer_of_the_store_is_refunded() {
    let Some(redis) = Redis::start(Make::Redis, "requests that are dropped while Redis decides") else {
        return;
    };
    let layer = layer(&redis, "rules: [{id: all, limit: 5/h}]");
    assert_eq!(status(&layer).await, OK);
    redis.command(&["FLUSHALL"]);
    redis.command(&["CLIENT", "PAUSE", "300", "ALL"]);
    let mut service =
        layer.layer(service_fn(|_: Request<()>| pending::<Result<Response<Body>, Infallible>>()));
    let mut call = Box::pin(service.call(Request::new(())));
    let answered = tokio::time::timeout(Duration::from_millis(100), &mut call).await;
    assert!(answered.is_err(), "Redis is paused");
    drop(call);
    refunded(&redis).await;
    assert_eq!(status(&layer).await, OK);
}

#[tokio::test]
async fn rules_fail_open_or_closed_while_the_store_is_down() {
    let Some(mut redis) = Redis::start(Make::Redis, "a layer whose Redis dies") else { return };
    let open = layer(&redis, "rules: [{id: all, limit: 1/h, on_store_error: open}]");
    let closed = layer(&redis, "rules: [{id: all, limit: 9/h, on_store_error: closed}]");
    let local = layer(&redis, "rules: [{id: other, limit: 2/h, on_store_error: local}]");
    assert_eq!([status(&closed).await, status(&local).await], [OK; 2]);
    redis.process.kill();
    assert_eq!([status(&open).await, status(&open).await, status(&open).await], [OK; 3]);
    assert_eq!(status(&closed).await, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!([status(&local).await, status(&local).await, status(&local).await], [OK, OK, DENIED]);
}
