//! The admin listener: dashboard, health, metrics, rules, bans and keys.
//!
//! Without tokens it serves local callers only: it checks the `Host` header against DNS rebinding and refuses calls
//! from other origins.

use std::sync::Arc;

use http_body_util::Either;
use hyper::Request;
use hyper::body::Incoming;
use hyper::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use tokio::sync::{Mutex, Semaphore};

use crate::connection::{FullResponse, Shutdown};
use crate::gate::Gate;
use crate::log_rate::LogLimiter;
use crate::tokens::Tokens;
use crate::transport::proxy::Proxy;

mod activity;
mod allow;
mod audit;
mod bans;
mod caller;
mod cursor;
mod dashboard;
mod decisions;
mod edit;
mod enforce;
mod explain;
mod guard;
mod guarded_work;
mod health;
mod keys;
mod live;
mod log;
mod nodes;
mod openapi;
mod overrides;
mod queue;
mod ramp;
mod request;
mod response;
mod router;
mod rules;
mod scope;
mod series;
mod simulate;
mod suggest;
#[cfg(feature = "testing")]
pub mod testing;
mod top;

use response::AdminResponse;

pub struct Admin {
    gate: Arc<Gate>,
    proxy: Option<Arc<Proxy>>,
    tokens: Option<Arc<Tokens>>,
    refusals: LogLimiter,
    shutdown: Shutdown,
    /// Held by an import: one at a time, since each may use much memory.
    importing: Arc<Mutex<()>>,
    /// One permit per open stream of `/v1/live`.
    streams: Arc<Semaphore>,
    /// Held by a simulation: one at a time, since each has counters of its own.
    simulating: Arc<Mutex<()>>,
}

impl Admin {
    pub fn new(
        gate: Arc<Gate>,
        proxy: Option<Arc<Proxy>>,
        tokens: Option<Arc<Tokens>>,
        shutdown: Shutdown,
    ) -> Admin {
        Admin {
            gate,
            proxy,
            tokens,
            refusals: LogLimiter::default(),
            shutdown,
            importing: Arc::default(),
            simulating: Arc::default(),
            streams: Arc::new(Semaphore::new(live::MAX_STREAMS)),
        }
    }
}

/// Handles one request.
pub async fn handle(admin: Arc<Admin>, request: Request<Incoming>) -> AdminResponse {
    let answered = router::route(admin, request).await;
    let mut reply = answered.unwrap_or_else(|problem| FullResponse::from(problem).map(Either::Left));
    // A response may contain client input: a browser must not interpret it as a script or a page.
    reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    reply
}
