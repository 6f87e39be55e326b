//! The admin address: health, metrics, rules, bans and keys.
//!
//! Without tokens it serves local callers only: it checks the `Host` header against DNS rebinding and
//! refuses calls from other origins.

use std::sync::Arc;

use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS};
use hyper::{Request, StatusCode};
use tokio::sync::Mutex;

use crate::answer::Problem;
use crate::connection::{Answer, Shutdown};
use crate::gate::Gate;
use crate::log_rate::LogRate;
use crate::tokens::Tokens;
use crate::transport::proxy::Proxy;

mod allow;
mod audit;
mod bans;
mod call;
mod cursor;
mod edit;
mod enforce;
mod guard;
mod health;
mod keys;
mod openapi;
mod overrides;
mod page;
mod queue;
mod reply;
mod router;
mod rules;
#[cfg(feature = "testing")]
pub mod testing;

use reply::Reply;

pub struct Admin {
    gate: Arc<Gate>,
    proxy: Option<Arc<Proxy>>,
    tokens: Option<Arc<Tokens>>,
    refusals: LogRate,
    shutdown: Shutdown,
    /// Held by an import: one at a time, for each may fill a good part of the memory.
    importing: Mutex<()>,
}

impl Admin {
    pub fn new(
        gate: Arc<Gate>,
        proxy: Option<Arc<Proxy>>,
        tokens: Option<Arc<Tokens>>,
        shutdown: Shutdown,
    ) -> Admin {
        Admin { gate, proxy, tokens, refusals: LogRate::default(), shutdown, importing: Mutex::default() }
    }
}

/// Answers one request.
pub async fn handle(admin: Arc<Admin>, request: Request<Incoming>) -> Reply {
    let answered = router::route(admin, request).await;
    let mut reply = answered.unwrap_or_else(|problem: Problem| {
        let unauthorised = problem.status == StatusCode::UNAUTHORIZED;
        let mut answer = Answer::from(problem);
        if unauthorised {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer.map(Either::Left)
    });
    // What a client has written may be in an answer: no browser is to take it for a script or a page.
    reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}
