//! What a request costs once its response is known.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::app::{App, rules};

/// Answers with the status and the cost that the request asks for.
async fn obey(headers: HeaderMap) -> Response<Body> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let status: u16 = text("x-want").and_then(|status| status.parse().ok()).unwrap_or(200);
    let mut response = Response::builder().status(status);
    if let Some(cost) = text("x-want-cost") {
        response = response.header("x-cost", cost);
    }
    response.body(Body::from("done")).expect("a valid response")
}

fn obeying(text: &str) -> App {
    App::serving(Router::new().route("/login", post(obey).get(obey)), rules(text))
}

#[test]
fn only_failures_count_where_the_rule_says_so() {
    let app = obeying("rules: [{id: login, key: ip, limit: 2/m, count_when: failure}]");
    assert_eq!(app.statuses(5, "/login", &[]), [200; 5]);
    assert_eq!(app.statuses(3, "/login", &[("x-want", "401")]), [401, 401, 429]);
    assert_eq!(app.get("/login", &[]).status, 429);
}

#[test]
fn the_cost_is_what_the_response_says() {
    let app = obeying("rules: [{id: export, key: ip, limit: 10/m, cost_from: x-cost}]");
    assert_eq!(app.get("/login", &[("x-want-cost", "9")]).status, 200);
    assert_eq!(app.get("/login", &[("x-want-cost", "0")]).status, 200);
    assert_eq!(
        app.get("/login", &[("x-want-cost", "nonsense")]).status,
        200,
        "it costs 1, as without a header"
    );
    assert_eq!(app.get("/login", &[]).status, 429);
}

#[tokio::test]
async fn a_service_that_fails_without_a_response_is_a_failure() {
    for (count_when, expected) in [("failure", [false, false, true]), ("success", [false, false, false])] {
        let layer = rules(&format!("rules: [{{id: a, limit: 2/m, count_when: {count_when}}}]"));
        let failing = service_fn(|_: Request<()>| async { Err::<Response<Body>, &str>("broken") });
        let service = layer.layer(failing);
        for is_denied in expected {
            let response = service.clone().oneshot(Request::new(())).await;
            match response {
                Ok(response) => assert!(is_denied && response.status() == StatusCode::TOO_MANY_REQUESTS),
                Err(error) => assert!(!is_denied && error == "broken", "the error is the inner service's"),
            }
        }
    }
}

const ONE_AT_A_TIME: &str = "rules: [{id: slots, algorithm: concurrency, limit: 1/m}]";

#[tokio::test]
async fn a_concurrency_slot_is_free_again_at_the_end_of_the_body() {
    let service = rules(ONE_AT_A_TIME).layer(service_fn(|_: Request<()>| async {
        Ok::<_, Infallible>(Response::new(Body::from("hello")))
    }));
    let call = || service.clone().oneshot(Request::new(()));
    let first = call().await.expect("it cannot fail");
    assert_eq!(call().await.expect("it cannot fail").status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(first.into_body().collect().await.expect("a body").to_bytes(), "hello");
    let second = call().await.expect("it cannot fail");
    assert_eq!(second.status(), StatusCode::OK);
    drop(second);
    assert_eq!(
        call().await.expect("it cannot fail").status(),
        StatusCode::OK,
        "a body that is dropped has ended"
    );
}

#[tokio::test]
async fn a_service_that_panics_keeps_its_charge_and_frees_its_slot() {
    let text = "
rules:
  - {id: slots, algorithm: concurrency, limit: 1/m}
  - {id: all, limit: 2/m}
";
    let mut service = rules(text).layer(service_fn(|request: Request<bool>| {
        assert!(request.body(), "the call panics");
        async { Ok::<_, Infallible>(Response::new(Body::empty())) }
    }));
    let call = catch_unwind(AssertUnwindSafe(|| drop(service.call(Request::new(false)))));
    assert!(call.is_err());
    assert_eq!(service.call(Request::new(true)).await.expect("it cannot fail").status(), StatusCode::OK);
    let denied = service.call(Request::new(true)).await.expect("it cannot fail");
    assert_eq!(denied.headers()["ratelimit"], "\"all\";r=0;t=30", "two were charged");
}

/// A handler that panics inside a real server takes its connection with it, not the limiter.
#[test]
fn a_handler_that_panics_frees_its_slot() {
    async fn panicking(headers: HeaderMap) -> &'static str {
        assert!(!headers.contains_key("x-panic"), "the handler panics");
        "hello"
    }
    let app = App::serving(Router::new().route("/", axum::routing::get(panicking)), rules(ONE_AT_A_TIME));
    let mut client = tollgate_testkit::Client::to(app.address);
    client.write(b"GET / HTTP/1.1\r\nhost: a\r\nx-panic: 1\r\n\r\n");
    assert!(client.try_answer().is_none(), "the connection is closed");
    tollgate_testkit::eventually("the slot is free", || app.get("/", &[]).status == 200);
}
