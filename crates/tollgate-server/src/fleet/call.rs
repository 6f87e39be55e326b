//! One call of another node's admin API, within a deadline and a number of bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::RootCertStore;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use tollgate::internal::time::format_duration;

use super::NodeAnswer;
use crate::client::{self, BaseUrl};

/// Bytes of one answer.
const MAX_ANSWER_BYTES: usize = 8 << 20;
/// Bytes of all answers that are held at the same time.
const MAX_HELD_BYTES: usize = 64 << 20;
/// Bytes of the reason for a refusal.
const MAX_REASON_CHARS: usize = 200;
/// Idle connections to one node.
const MAX_IDLE: usize = 2;

pub type NodeClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// A client that verifies certificates by these roots. It follows no redirects.
pub fn new_client(roots: RootCertStore, connect_timeout: Duration) -> NodeClient {
    let mut builder = Client::builder(TokioExecutor::new());
    builder.pool_max_idle_per_host(MAX_IDLE);
    builder.build(client::connector(roots, connect_timeout))
}

/// The bytes of all answers of one view.
#[derive(Clone)]
pub struct ByteBudget(Arc<AtomicUsize>);

impl Default for ByteBudget {
    fn default() -> ByteBudget {
        ByteBudget(Arc::new(AtomicUsize::new(MAX_HELD_BYTES)))
    }
}

/// Bytes of a budget, returned when this is dropped.
struct ReservedBytes {
    budget: ByteBudget,
    bytes: usize,
}

impl ReservedBytes {
    fn take(&mut self, bytes: usize) -> Result<(), String> {
        let left =
            self.budget.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        left.map_err(|_| format!("the answers of all nodes have more than {MAX_HELD_BYTES} bytes"))?;
        self.bytes += bytes;
        match self.bytes > MAX_ANSWER_BYTES {
            true => Err(format!("its answer has more than {MAX_ANSWER_BYTES} bytes")),
            false => Ok(()),
        }
    }
}

impl Drop for ReservedBytes {
    fn drop(&mut self) {
        self.budget.0.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

pub struct NodeCall {
    pub client: NodeClient,
    pub address: String,
    pub path: String,
    pub token: Option<HeaderValue>,
    pub budget: ByteBudget,
}

/// An answer, with its part of the budget.
pub struct HeldAnswer<T> {
    pub value: T,
    _held: ReservedBytes,
}

impl NodeCall {
    /// The answer, or why there is none.
    pub async fn run<T: NodeAnswer>(
        self,
        deadline: Instant,
        shown: Duration,
    ) -> Result<HeldAnswer<T>, String> {
        let mut held = ReservedBytes { budget: self.budget.clone(), bytes: 0 };
        let received = timeout_at(deadline, self.receive(&mut held)).await;
        let body =
            received.unwrap_or_else(|_| Err(format!("no answer within {}", format_duration(shown))))?;
        let value: T = serde_json::from_slice(&body)
            .map_err(|error| format!("its answer is not understood, does it run another version? {error}"))?;
        Ok(HeldAnswer { value, _held: held })
    }

    async fn receive(&self, held: &mut ReservedBytes) -> Result<Vec<u8>, String> {
        let base = BaseUrl::parse(&self.address).map_err(|error| error.to_string())?;
        if !base.is_confidential() {
            return Err("its address is neither https nor of this machine: no token is sent to it".to_owned());
        }
        let mut request = Request::get(base.join(&self.path));
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::new()).map_err(|error| error.to_string())?;
        let sent = self.client.request(request).await;
        let response = sent.map_err(|error| client::root_cause(&error))?;
        let status = response.status();
        let body = collect(response, held).await?;
        match status {
            StatusCode::OK => Ok(body),
            status => Err(refusal(status, &body, self.token.is_some())),
        }
    }
}

async fn collect(response: Response<Incoming>, held: &mut ReservedBytes) -> Result<Vec<u8>, String> {
    let mut received = Vec::new();
    let mut body = response.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| client::root_cause(&error))?;
        if let Ok(data) = frame.into_data() {
            held.take(data.len())?;
            received.extend_from_slice(&data);
        }
    }
    Ok(received)
}

/// Why a node refused the call.
fn refusal(status: StatusCode, body: &[u8], has_token: bool) -> String {
    let code = status.as_u16();
    match (status, has_token) {
        (StatusCode::UNAUTHORIZED, true) => {
            return format!("it does not know the token of fleet.token_file ({code})");
        }
        (StatusCode::UNAUTHORIZED, false) => {
            return format!("it requires a token: set fleet.token_file ({code})");
        }
        (StatusCode::FORBIDDEN, true) => {
            return format!("the token of fleet.token_file must have the role read there ({code})");
        }
        _ => {}
    }
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let detail = problem["detail"].as_str().unwrap_or_default();
    let detail: String = detail.chars().filter(|char| !char.is_control()).take(MAX_REASON_CHARS).collect();
    format!("it answers with status {code}: {detail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_of_an_answer_and_of_all_answers_are_bounded() {
        let budget = ByteBudget::default();
        let mut first = ReservedBytes { budget: budget.clone(), bytes: 0 };
        assert_eq!(first.take(MAX_ANSWER_BYTES), Ok(()));
        assert!(first.take(1).is_err_and(|why| why.contains("its answer")));
        let mut all = Vec::new();
        while budget.0.load(Ordering::Relaxed) >= MAX_ANSWER_BYTES {
            let mut one = ReservedBytes { budget: budget.clone(), bytes: 0 };
            one.take(MAX_ANSWER_BYTES).expect("there is room");
            all.push(one);
        }
        let mut last = ReservedBytes { budget: budget.clone(), bytes: 0 };
        assert!(last.take(MAX_ANSWER_BYTES).is_err_and(|why| why.contains("all nodes")));
        drop((first, all, last));
        assert_eq!(budget.0.load(Ordering::Relaxed), MAX_HELD_BYTES);
    }

    #[test]
    fn a_refusal_names_the_setting() {
        let check = |status: u16, body: &str, has_token: bool, expected: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            let why = refusal(status, body.as_bytes(), has_token);
            assert!(why.contains(expected), "{why}");
        };
        check(401, "", true, "does not know the token of fleet.token_file");
        check(401, "", false, "set fleet.token_file");
        check(403, "", true, "role read");
        check(503, r#"{"detail":"the node is\n starting"}"#, true, "503: the node is starting");
        check(404, "<html>", true, "status 404");
    }
}
