//! Clients that disconnect.

use std::convert::Infallible;

use axum::body::Body;
use http::{Request, Response, StatusCode};
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::app::rules;

/// The service may have done its work: otherwise a client could try passwords and hang up before each answer.
#[tokio::test]
async fn a_request_that_is_dropped_in_the_service_keeps_its_charge() {
    for text in [
        "rules: [{id: a, limit: 2/m}]",
        "rules: [{id: a, limit: 2/m, count_when: success}]",
        "rules: [{id: a, limit: 2/m, cost_from: x-cost}]",
    ] {
        let mut service = rules(text)
            .layer(service_fn(|_: Request<()>| std::future::pending::<Result<Response<Body>, Infallible>>()));
        for _ in 0..2 {
            let mut call = Box::pin(service.call(Request::new(())));
            assert!(futures_poll(&mut call).is_pending());
        }
        let denied = service.call(Request::new(())).await.expect("it cannot fail");
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS, "{text}");
    }
}

#[tokio::test]
async fn a_request_that_is_dropped_frees_its_concurrency_slot() {
    let layer = rules("rules: [{id: a, algorithm: concurrency, limit: 1/m}]");
    let service = layer.layer(service_fn(|request: Request<bool>| async move {
        if !request.into_body() {
            std::future::pending::<()>().await;
        }
        Ok::<_, Infallible>(Response::new(Body::empty()))
    }));
    for _ in 0..3 {
        let mut call = Box::pin(service.clone().oneshot(Request::new(false)));
        assert!(futures_poll(&mut call).is_pending());
    }
    assert_eq!(service.oneshot(Request::new(true)).await.expect("it cannot fail").status(), StatusCode::OK);
}

fn futures_poll<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> std::task::Poll<F::Output> {
    future.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()))
}
