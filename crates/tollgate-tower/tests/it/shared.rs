//! Counters on a real Redis that several processes share.

use std::convert::Infallible;
use std::future::pending;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_tower::RateLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

fn layer(redis: &Redis, rules: &str) -> RateLimitLayer {
    // A busy machine is slow; these tests are not about the deadline.
    let builder =
        RateLimitLayer::builder().rules(rules).store(&redis.url()).store_deadline(Duration::from_secs(20));
    builder.build().expect("valid rules")
}

async fn status(layer: &RateLimitLayer) -> StatusCode {
    let service =
        layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Body::empty())) }));
    service.oneshot(Request::new(())).await.expect("it cannot fail").status()
}

const OK: StatusCode = StatusCode::OK;
const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

#[tokio::test]
async fn layers_share_the_counters_of_one_redis() {
    let Some(redis) = Redis::start(Make::Redis, "layers that share a Redis") else { return };
    let rules = "rules: [{id: all, limit: 3/h}]";
    let [one, other] = [layer(&redis, rules), layer(&redis, rules)];
    assert_eq!([status(&one).await, status(&other).await, status(&one).await], [OK; 3]);
    assert_eq!([status(&one).await, status(&other).await], [DENIED; 2]);
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
