//! The decision API: `/v1/check`, `/v1/check/batch`, `/v1/settle`, `/v1/request-allowed` and `/v1/forward-auth`.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, StatusCode};
use tollgate::internal::EngineVerdict;
use tollgate::{Hit, Time};

use crate::caller_auth::{self, RefusedCaller};
use crate::config::ListenAddress;
use crate::connection::{FullResponse, read_body};
use crate::gate::{Gate, GateSnapshot};
use crate::log_rate::LogLimiter;
use crate::metrics::{RequestStatus, Transport};
use crate::receipt;
use crate::response::{self, ProblemDetails};
use crate::tokens::{Role, Tokens};
use crate::trace_id::TraceId;

mod check_request;
mod check_response;
mod forward_auth;
mod plain_calls;
mod plain_request;
mod rate_limit_json;
mod server;
mod settle;
#[cfg(feature = "testing")]
pub mod testing;

pub use check_request::CheckRequest;
pub use check_response::CheckResponse;
use check_response::list_json;
pub use server::{HttpServer, serve};

/// Longer bodies are answered with 413.
pub const MAX_CHECK_BYTES: usize = 256 << 10;
const MAX_BATCH_BYTES: usize = 4 << 20;
const MAX_BATCH: usize = 1_000;

/// Each path with its method.
pub const ROUTES: [(&str, &str); 6] = [
    ("POST", "/v1/check"),
    ("POST", "/v1/check/batch"),
    ("POST", "/v1/settle"),
    ("GET", "/v1/request-allowed"),
    ("GET", forward_auth::PATH),
    ("POST", rate_limit_json::PATH),
];

/// Which callers are served.
#[derive(Default)]
pub struct CallerAccess {
    pub allowed_callers: AllowedCallers,
    refusals: LogLimiter,
}

#[derive(Default)]
pub enum AllowedCallers {
    /// On a loopback address or a Unix socket: rejects cross-origin requests and foreign host names.
    #[default]
    Local,
    /// Tokens of the role `check`.
    Tokens(Arc<Tokens>),
    /// Beyond loopback, with no such token configured.
    Anyone,
}

impl CallerAccess {
    pub fn new(address: &ListenAddress, tokens: Option<Arc<Tokens>>) -> CallerAccess {
        let allowed_callers = match tokens.filter(|tokens| tokens.has_check()) {
            Some(tokens) => AllowedCallers::Tokens(tokens),
            None if address.is_local() => AllowedCallers::Local,
            None => AllowedCallers::Anyone,
        };
        CallerAccess { allowed_callers, refusals: LogLimiter::default() }
    }

    fn authorize(&self, request: &Request<Incoming>) -> Result<(), ProblemDetails> {
        let authorized = match &self.allowed_callers {
            AllowedCallers::Tokens(tokens) => {
                caller_auth::authorize_token(tokens, request.headers(), Role::Check).map(|_name| ())
            }
            // Callers of envoyproxy/ratelimit's path know this server by any name.
            AllowedCallers::Local if request.uri().path() == rate_limit_json::PATH => {
                caller_auth::authorize_program(request.uri().authority(), request.headers())
            }
            AllowedCallers::Local => {
                caller_auth::authorize_local(request.uri().authority(), request.headers())
            }
            AllowedCallers::Anyone => Ok(()),
        };
        authorized.map_err(|refused| {
            self.log_refused(request, &refused);
            refused.problem
        })
    }

    fn log_refused(&self, request: &Request<Incoming>, refused: &RefusedCaller) {
        caller_auth::log_refused(&self.refusals, "decision", request, refused);
    }
}

/// Handles one request.
pub async fn handle(
    gate: Arc<Gate>,
    access: Arc<CallerAccess>,
    request: Request<Incoming>,
    peer: SocketAddr,
) -> FullResponse {
    // Host, Origin and Authorization of this one are those of a gateway's client.
    let is_forward_auth = request.uri().path() == forward_auth::PATH;
    let (transport, answer) = match is_forward_auth {
        true => (Transport::ForwardAuth, forward_auth::decide(&gate, &access, request, peer.ip()).await),
        false => (Transport::Http, answer(&gate, &access, request).await),
    };
    gate.requests.add(transport, RequestStatus::Http(answer.status()), 1);
    answer
}

async fn answer(gate: &Gate, access: &CallerAccess, request: Request<Incoming>) -> FullResponse {
    let result = match access.authorize(&request) {
        Ok(()) => route(gate, request).await,
        Err(problem) => Err(problem),
    };
    result.unwrap_or_else(FullResponse::from)
}

async fn route(gate: &Gate, request: Request<Incoming>) -> Result<FullResponse, ProblemDetails> {
    let path = request.uri().path();
    let Some((method, path)) = ROUTES.iter().find(|(_, known)| *known == path) else {
        return Err(ProblemDetails::not_found(path));
    };
    if request.method().as_str() != *method {
        return Err(ProblemDetails::method_not_allowed(*method));
    }
    match *path {
        "/v1/check" => check(gate, request).await,
        "/v1/check/batch" => batch(gate, request).await,
        "/v1/settle" => settle_receipt(gate, request).await,
        rate_limit_json::PATH => {
            let trace = gate.trace(request.headers());
            let body = read_body(request, MAX_CHECK_BYTES).await?;
            let mut answer = Vec::new();
            let status = rate_limit_json::decide(gate, &body, trace, &mut answer).await?;
            Ok(response::with_type(status, response::JSON, answer))
        }
        _ => request_allowed(gate, &request).await,
    }
}

async fn check(gate: &Gate, request: Request<Incoming>) -> Result<FullResponse, ProblemDetails> {
    let trace = gate.trace(request.headers());
    let body = read_body(request, MAX_CHECK_BYTES).await?;
    respond(gate, &CheckRequest::parse(&body)?, trace).await
}

async fn settle_receipt(gate: &Gate, request: Request<Incoming>) -> Result<FullResponse, ProblemDetails> {
    let body = read_body(request, MAX_CHECK_BYTES).await?;
    settle::settle(gate, &body).await
}

async fn batch(gate: &Gate, request: Request<Incoming>) -> Result<FullResponse, ProblemDetails> {
    let trace = gate.trace(request.headers());
    let body = read_body(request, MAX_BATCH_BYTES).await?;
    let checks = CheckRequest::parse_batch(&body)?;
    if checks.len() > MAX_BATCH {
        let detail = format!("{} checks in one batch: at most {MAX_BATCH}", checks.len());
        return Err(ProblemDetails::bad_field("body", detail));
    }
    // All are validated before any is charged: an invalid one changes nothing.
    let hits = checks.iter().enumerate().map(|(n, each)| each.hit().map_err(|problem| in_item(n, problem)));
    let hits = hits.collect::<Result<Vec<_>, _>>()?;
    let now = gate.now();
    let snapshot = gate.snapshot().with_trace(trace);
    let hits: Vec<_> = hits.into_iter().map(|hit| snapshot.identify(hit, now)).collect();
    let mut verdicts = Vec::with_capacity(checks.len());
    let mut rest = hits.as_slice();
    // In the order of the request: runs of checks, and runs of peeks.
    for run in checks.chunk_by(|one, next| one.is_peek() == next.is_peek()) {
        let (hits, later) = rest.split_at(run.len());
        rest = later;
        verdicts.extend(match run[0].is_peek() {
            true => gate.peek_batch(&snapshot, hits, now).await,
            false => gate.check_batch(&snapshot, hits, now).await,
        });
    }
    let answers = checks.iter().zip(&verdicts);
    let answers: Vec<_> = answers
        .map(|(check, verdict)| check.response(gate, verdict, now).with_status(response::status(verdict)))
        .collect();
    Ok(response::with_type(StatusCode::OK, response::JSON, list_json(&answers)))
}

fn in_item(n: usize, problem: ProblemDetails) -> ProblemDetails {
    let field = problem.field.map(|field| format!("[{n}].{field}"));
    ProblemDetails { field, detail: format!("[{n}]: {}", problem.detail), ..problem }
}

async fn request_allowed(gate: &Gate, request: &Request<Incoming>) -> Result<FullResponse, ProblemDetails> {
    let query = request.uri().query().unwrap_or_default();
    respond(gate, &CheckRequest::from_query(query)?, gate.trace(request.headers())).await
}

impl CheckRequest<'_> {
    async fn decide(
        &self,
        gate: &Gate,
        snapshot: &GateSnapshot,
        now: Time,
    ) -> Result<EngineVerdict, ProblemDetails> {
        let hit: Hit<'_> = snapshot.identify(self.hit()?, now);
        Ok(match self.is_peek() {
            true => gate.peek(snapshot, &hit, now).await,
            false => gate.check(snapshot, &hit, now).await,
        })
    }

    /// The verdict as a response to its caller.
    fn response<'v>(&self, gate: &Gate, verdict: &'v EngineVerdict, now: Time) -> CheckResponse<'v> {
        let expected = self.wants_receipt() || receipt::is_expected(verdict);
        let receipt = expected.then(|| gate.receipts.write(verdict)).flatten();
        CheckResponse::of(verdict).with_receipt(receipt).with_ticket(gate.ticket(verdict, now))
    }
}

/// The verdict with its headers.
async fn respond(
    gate: &Gate,
    check: &CheckRequest<'_>,
    trace: Option<TraceId>,
) -> Result<FullResponse, ProblemDetails> {
    let snapshot = gate.snapshot().with_trace(trace);
    let now = gate.now();
    let verdict = check.decide(gate, &snapshot, now).await?;
    let json = check.response(gate, &verdict, now).to_json();
    let mut answer = response::with_type(response::status(&verdict), response::JSON, json);
    response::write_headers(&mut answer, &verdict, snapshot.live.headers);
    Ok(answer)
}
