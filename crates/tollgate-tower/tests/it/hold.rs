//! Requests that wait for their turn, with paused time.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance};
use tollgate_tower::{RateLimitLayer, RateLimiter};
use tower::{BoxError, Layer, ServiceExt, service_fn};

use crate::app::{rules, still};

const RULES: &str = "rules: [{id: q, algorithm: leaky-bucket, limit: 1/s, burst: 4, on_exceed: hold}]";

/// Served requests: their number, and the second in which the service was called.
type Log = Arc<Mutex<Vec<(usize, u64)>>>;

struct Room {
    layer: RateLimitLayer,
    log: Log,
    begun: Instant,
}

impl Room {
    fn new(layer: RateLimitLayer) -> Room {
        Room { layer, log: Log::default(), begun: Instant::now() }
    }

    /// Calls the service, as far as it goes at once.
    async fn call(&self, number: usize) -> JoinHandle<Result<StatusCode, BoxError>> {
        let log = Arc::clone(&self.log);
        let begun = self.begun;
        let service = self.layer.layer(service_fn(move |_: Request<()>| {
            let log = Arc::clone(&log);
            async move {
                log.lock().expect("no test panics here").push((number, begun.elapsed().as_secs()));
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        }));
        let called = tokio::spawn(async move { Ok(service.oneshot(Request::new(())).await?.status()) });
        tokio::task::yield_now().await;
        called
    }

    fn limiter(&self) -> &RateLimiter {
        self.layer.limiter()
    }

    fn served(&self) -> Vec<(usize, u64)> {
        self.log.lock().expect("no test panics here").clone()
    }

    /// Lets a time pass for timers and for the limiter.
    async fn pass(&self, seconds: u64) {
        for _ in 0..seconds {
            self.limiter().clock().advance(Duration::from_secs(1));
            advance(Duration::from_secs(1)).await;
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn held_requests_are_served_in_order_and_at_the_rate() {
    let room = Room::new(rules(RULES));
    let mut calls = Vec::new();
    for number in 0..5 {
        calls.push(room.call(number).await);
    }
    assert_eq!(room.limiter().held(), 3);
    room.pass(4).await;
    assert_eq!(room.served(), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    let last = calls.pop().expect("five").await.expect("no panic").expect("no error");
    assert_eq!(last, StatusCode::TOO_MANY_REQUESTS, "more than fit are denied at once");
    assert_eq!(room.limiter().held(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_held_request_that_is_dropped_leaves_no_trace() {
    let room = Room::new(rules(RULES));
    let mut calls = Vec::new();
    for number in 0..4 {
        calls.push(room.call(number).await);
    }
    calls[2].abort();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(room.limiter().held(), 2);
    calls.push(room.call(4).await);
    assert_eq!(room.limiter().held(), 3, "its place is free");
    room.pass(4).await;
    assert_eq!(room.served(), [(0, 0), (1, 1), (3, 2), (4, 3)], "later requests have moved up");
}

#[tokio::test(start_paused = true)]
async fn a_held_request_that_is_never_polled_is_refunded() {
    let room = Room::new(rules(RULES));
    let service = room
        .layer
        .layer(service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new(Body::empty())) }));
    room.call(0).await.await.expect("no panic").expect("no error");
    for _ in 0..10 {
        drop(tower::Service::call(&mut service.clone(), Request::new(())));
    }
    assert_eq!(room.limiter().held(), 0);
    for number in 1..4 {
        room.call(number).await;
    }
    assert_eq!(room.limiter().held(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_held_requests_is_bounded() {
    let room =
        Room::new(still(RateLimitLayer::builder().rules(RULES).max_held(1)).build().expect("valid rules"));
    room.call(0).await;
    room.call(1).await;
    let refused = room.call(2).await.await.expect("no panic").expect("no error");
    assert_eq!(refused, StatusCode::TOO_MANY_REQUESTS);
    room.pass(1).await;
    room.call(3).await;
    room.pass(1).await;
    assert_eq!(room.served(), [(0, 0), (1, 1), (3, 2)], "a refused request costs nothing");
}
