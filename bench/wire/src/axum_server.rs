//! axum with a constant answer, and with limitador behind it: limitador's server is not published as a crate.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use limitador::RateLimiter;
use limitador::limit::{Limit, Namespace};
use serde::{Deserialize, Serialize};

use crate::request::KEYS;

#[derive(Serialize)]
struct Answer {
    allowed: bool,
    reason: &'static str,
    remaining: u64,
    delay_ms: u64,
}

const ANSWER: Answer = Answer { allowed: true, reason: "ok", remaining: 1000, delay_ms: 0 };

#[derive(Deserialize)]
struct Check {
    user: String,
}

struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

pub fn serve_constant(port: u16) {
    serve(port, Router::new().route("/v1/check", post(async || Json(ANSWER))));
}

pub fn serve_limitador(port: u16) {
    let user = "user".try_into().expect("a variable");
    let limiter = RateLimiter::new(2 * KEYS);
    limiter.add_limit(Limit::new("bench", 1_000_000, 3600, [], [user]));
    let state = Arc::new(Limitador { limiter, namespace: "bench".into() });
    serve(port, Router::new().route("/v1/check", post(check)).with_state(state));
}

async fn check(State(state): State<Arc<Limitador>>, Json(check): Json<Check>) -> Json<Answer> {
    let values = HashMap::from([("user".to_owned(), check.user)]);
    let answer = state.limiter.check_rate_limited_and_update(&state.namespace, &values.into(), 1);
    Json(Answer { allowed: !answer.expect("memory does not fail").limited, ..ANSWER })
}

fn serve(port: u16, app: Router) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let listener =
            tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await.expect("the port is free");
        let listener = axum::serve::ListenerExt::tap_io(listener, |stream| {
            stream.set_nodelay(true).ok();
        });
        axum::serve(listener, app).await.expect("it serves");
    });
}
