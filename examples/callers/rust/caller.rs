//! Asks Tollgate's decision API, with a deadline. Without an answer the caller fails open or closed.
//!
//!     echo '{"user":"42"}' | cargo run -p tollgate-server --example caller -- open 100 http://127.0.0.1:8080
//!
//! Reads a request from each line of stdin, and writes a verdict for each. Arguments: open or closed, the deadline in
//! milliseconds, and the nodes, nearest first. Needs hyper, hyper-util, http-body-util, serde_json and tokio.

#![allow(clippy::print_stdout)]

use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;

const MAX_REQUEST: usize = 256 << 10; // bytes; Tollgate reads no more
const MAX_ANSWER: usize = 1 << 20;
const MAX_IDLE: usize = 64; // connections kept to each node
/// A node is left alone for so long after it has failed.
const REST: Duration = Duration::from_secs(1);

/// What becomes of a request without an answer.
#[derive(Clone, Copy, PartialEq)]
pub enum Failing {
    Open,
    Closed,
}

pub struct Verdict {
    pub allowed: bool,
    /// By Tollgate; otherwise this is how the caller fails.
    pub decided: bool,
    /// For the client: 200, 400, 403, 413, 429 or 503.
    pub status: StatusCode,
    pub reason: String,
    pub retry_after: Option<Duration>,
    /// Wait so long before going on.
    pub delay: Duration,
}

/// Asks nodes, nearest first. May be shared by tasks.
pub struct Caller {
    nodes: Vec<Node>,
    deadline: Duration,
    failing: Failing,
}

struct Node {
    address: String,
    state: Mutex<NodeState>,
}

#[derive(Default)]
struct NodeState {
    idle: Vec<SendRequest<Full<Bytes>>>,
    rests_until: Option<Instant>,
}

enum CallError {
    /// Nothing was sent: the next node may be called.
    NotConnected(io::Error),
    Broken(String),
    /// An answer, but not one of Tollgate's, such as a load balancer's own 503.
    NoVerdict(String),
}

impl Caller {
    /// Nodes are `http://HOST:PORT`.
    pub fn new(nodes: &[String], deadline: Duration, failing: Failing) -> Caller {
        let address = |url: &String| url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let node = |url| Node { address: address(url), state: Mutex::default() };
        Caller { nodes: nodes.iter().map(node).collect(), deadline, failing }
    }

    /// Whether a request may pass. The answer comes within the deadline.
    pub async fn check(&self, request: &Value) -> Verdict {
        let body = Bytes::from(request.to_string());
        if body.len() > MAX_REQUEST {
            return Verdict::rejected(StatusCode::PAYLOAD_TOO_LARGE, "the request is too long");
        }
        let end = tokio::time::Instant::now() + self.deadline;
        let mut why = "every node failed less than a second ago".to_owned();
        for node in self.nodes.iter().filter(|node| !node.rests()) {
            let result = tokio::time::timeout_at(end, node.call(&body)).await;
            match result.unwrap_or_else(|_| Err(CallError::Broken("timed out".to_owned()))) {
                Ok(verdict) => return verdict,
                Err(CallError::NotConnected(error)) => {
                    node.rest();
                    why = error.to_string();
                }
                Err(CallError::Broken(error)) => {
                    node.rest();
                    why = error;
                    break;
                }
                Err(CallError::NoVerdict(answer)) => {
                    why = answer;
                    break;
                }
            }
        }
        let open = self.failing == Failing::Open;
        let status = if open { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        Verdict { allowed: open, decided: false, ..Verdict::rejected(status, &why) }
    }
}

impl Node {
    async fn call(&self, body: &Bytes) -> Result<Verdict, CallError> {
        while let Some(mut kept) = self.kept() {
            if kept.ready().await.is_ok() {
                match self.send(kept, body).await {
                    Err(CallError::Broken(_)) => break, // the node closed it meanwhile
                    reply => return reply,
                }
            }
        }
        self.send(self.connect().await?, body).await
    }

    fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        self.state.lock().expect("no panic while it is held").idle.pop()
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, CallError> {
        let stream = TcpStream::connect(&self.address).await.map_err(CallError::NotConnected)?;
        stream.set_nodelay(true).ok();
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
        tokio::spawn(connection); // ends when the sender is dropped
        Ok(sender)
    }

    /// The connection is kept only if all went well.
    async fn send(
        &self,
        mut connection: SendRequest<Full<Bytes>>,
        body: &Bytes,
    ) -> Result<Verdict, CallError> {
        let request = Request::post("/v1/check")
            .header("host", &self.address)
            .header("content-type", "application/json")
            .body(Full::new(body.clone()))
            .map_err(broken)?;
        let response = connection.send_request(request).await.map_err(broken)?;
        let status = response.status();
        let answer = Limited::new(response.into_body(), MAX_ANSWER).collect().await.map_err(broken)?;
        let mut state = self.state.lock().expect("no panic while it is held");
        if state.idle.len() < MAX_IDLE {
            state.idle.push(connection);
        }
        drop(state);
        Verdict::read(status, &answer.to_bytes())
    }

    fn rests(&self) -> bool {
        let until = self.state.lock().expect("no panic while it is held").rests_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    fn rest(&self) {
        self.state.lock().expect("no panic while it is held").rests_until = Some(Instant::now() + REST);
    }
}

fn broken(error: impl ToString) -> CallError {
    CallError::Broken(error.to_string())
}

impl Verdict {
    fn rejected(status: StatusCode, reason: &str) -> Verdict {
        let reason = reason.to_owned();
        Verdict { allowed: false, decided: true, status, reason, retry_after: None, delay: Duration::ZERO }
    }

    fn read(status: StatusCode, answer: &[u8]) -> Result<Verdict, CallError> {
        let reply: Value = serde_json::from_slice(answer).unwrap_or_default();
        let millis = |name: &str| reply[name].as_u64().map(Duration::from_millis);
        match (status.as_u16(), reply["allowed"].as_bool(), reply["detail"].as_str()) {
            // Allowed, banned, over the limit, a rule that fails closed.
            (200 | 403 | 429 | 503, Some(allowed), _) => Ok(Verdict {
                allowed,
                retry_after: millis("retry_after_ms"),
                delay: millis("delay_ms").unwrap_or_default(),
                ..Verdict::rejected(status, reply["reason"].as_str().unwrap_or_default())
            }),
            // A value that is invalid or too long: never a reason to fail open.
            (400 | 413, _, Some(detail)) => Ok(Verdict::rejected(status, detail)),
            _ => {
                let start = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
                Err(CallError::NoVerdict(format!("status {status} without a verdict: {start}")))
            }
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [failing, deadline, nodes @ ..] = args.as_slice() else {
        return Err("usage: caller open|closed DEADLINE_MS NODE...".into());
    };
    let failing = if failing == "open" { Failing::Open } else { Failing::Closed };
    let caller = Caller::new(nodes, Duration::from_millis(deadline.parse()?), failing);
    for line in io::stdin().lines() {
        let verdict = caller.check(&serde_json::from_str(&line?)?).await;
        let shown = json!({
            "allowed": verdict.allowed,
            "decided": verdict.decided,
            "status": verdict.status.as_u16(),
            "reason": verdict.reason,
            "retry_after_ms": verdict.retry_after.map(|wait| wait.as_millis()),
            "delay_ms": verdict.delay.as_millis(),
        });
        println!("{shown}");
    }
    Ok(())
}
