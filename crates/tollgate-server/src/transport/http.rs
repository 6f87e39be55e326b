//! The decision API: `/v1/check`, `/v1/check/batch`, `/v1/settle` and `/v1/request-allowed`.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::header::{HeaderValue, WWW_AUTHENTICATE};
use hyper::{Request, StatusCode};
use tollgate::{Hit, Time, Verdict};

use crate::answer::{self, Problem};
use crate::connection::{Answer, read_body};
use crate::gate::Gate;
use crate::guard;
use crate::log_rate::LogRate;
use crate::receipt;
use crate::tokens::{Role, Tokens};

mod asked;
mod settle;
#[cfg(feature = "testing")]
pub mod testing;
mod told;

pub use asked::Asked;
pub use told::Told;

/// Longer bodies are answered with 413.
const MAX_CHECK_BYTES: usize = 256 << 10;
const MAX_BATCH_BYTES: usize = 4 << 20;
const MAX_BATCH: usize = 1_000;

/// Each path, and the method that it takes.
pub const ROUTES: [(&str, &str); 4] = [
    ("POST", "/v1/check"),
    ("POST", "/v1/check/batch"),
    ("POST", "/v1/settle"),
    ("GET", "/v1/request-allowed"),
];

/// Paths whose callers pass the Host and Origin of somebody else's request on.
const ANY_ORIGIN: [&str; 2] = ["/v1/forward-auth", "/json"];

/// Which callers are served.
#[derive(Default)]
pub struct Door {
    pub admits: Admits,
    refusals: LogRate,
}

#[derive(Default)]
pub enum Admits {
    /// On a loopback address: no pages of other sites, no names of other hosts.
    #[default]
    Local,
    /// Tokens of the role `check`.
    Tokens(Arc<Tokens>),
    /// Beyond loopback, and no such token exists.
    Anybody,
}

impl Door {
    pub fn new(address: SocketAddr, tokens: Option<Arc<Tokens>>) -> Door {
        let admits = match tokens.filter(|tokens| tokens.has_check()) {
            Some(tokens) => Admits::Tokens(tokens),
            None if address.ip().to_canonical().is_loopback() => Admits::Local,
            None => Admits::Anybody,
        };
        Door { admits, refusals: LogRate::default() }
    }

    fn guard(&self, request: &Request<Incoming>) -> Result<(), Problem> {
        let judged = match &self.admits {
            Admits::Tokens(tokens) => guard::by_token(tokens, request.headers(), Role::Check).map(|_name| ()),
            Admits::Local if !ANY_ORIGIN.contains(&request.uri().path()) => {
                guard::by_origin(request.uri().authority(), request.headers())
            }
            Admits::Local | Admits::Anybody => Ok(()),
        };
        judged.map_err(|refused| {
            guard::log_refused(&self.refusals, "decision", request, &refused);
            refused.1
        })
    }
}

/// Answers one request.
pub async fn handle(gate: Arc<Gate>, door: Arc<Door>, request: Request<Incoming>) -> Answer {
    let answered = match door.guard(&request) {
        Ok(()) => route(&gate, request).await,
        Err(problem) => Err(problem),
    };
    answered.unwrap_or_else(|problem| {
        let unauthorised = problem.status == StatusCode::UNAUTHORIZED;
        let mut answer = Answer::from(problem);
        if unauthorised {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    })
}

async fn route(gate: &Gate, request: Request<Incoming>) -> Result<Answer, Problem> {
    let path = request.uri().path();
    let Some((method, path)) = ROUTES.iter().find(|(_, known)| *known == path) else {
        return Err(Problem::not_found(path));
    };
    if request.method().as_str() != *method {
        return Err(Problem::method(*method));
    }
    match *path {
        "/v1/check" => check(gate, request).await,
        "/v1/check/batch" => batch(gate, request).await,
        "/v1/settle" => settled(gate, request).await,
        _ => request_allowed(gate, &request).await,
    }
}

async fn check(gate: &Gate, request: Request<Incoming>) -> Result<Answer, Problem> {
    let body = read_body(request, MAX_CHECK_BYTES).await?;
    decided(gate, &Asked::parse(&body)?).await
}

async fn settled(gate: &Gate, request: Request<Incoming>) -> Result<Answer, Problem> {
    let body = read_body(request, MAX_CHECK_BYTES).await?;
    settle::settle(gate, &body).await
}

async fn batch(gate: &Gate, request: Request<Incoming>) -> Result<Answer, Problem> {
    let body = read_body(request, MAX_BATCH_BYTES).await?;
    let asked = Asked::parse_batch(&body)?;
    if asked.len() > MAX_BATCH {
        let detail = format!("{} checks in one batch: at most {MAX_BATCH}", asked.len());
        return Err(Problem::bad_field("body", detail));
    }
    // All are looked at before any is charged: a bad one changes nothing.
    for (n, each) in asked.iter().enumerate() {
        each.hit().map_err(|problem| in_item(n, problem))?;
    }
    let now = gate.now();
    let mut told = Vec::with_capacity(asked.len());
    for each in &asked {
        let verdict = each.decide(gate, now).await?;
        told.push(each.told(gate, &verdict).with_status(answer::status(&verdict)));
    }
    Ok(answer::json(StatusCode::OK, &told))
}

fn in_item(n: usize, problem: Problem) -> Problem {
    let field = problem.field.map(|field| format!("[{n}].{field}"));
    Problem { field, detail: format!("[{n}]: {}", problem.detail), ..problem }
}

async fn request_allowed(gate: &Gate, request: &Request<Incoming>) -> Result<Answer, Problem> {
    let query = request.uri().query().unwrap_or_default();
    decided(gate, &Asked::from_query(query)?).await
}

impl Asked<'_> {
    async fn decide(&self, gate: &Gate, now: Time) -> Result<Verdict, Problem> {
        let hit: Hit<'_> = gate.identify(self.hit()?, now);
        Ok(if self.is_peek() { gate.peek(&hit, now).await } else { gate.check(&hit, now).await })
    }

    /// The verdict as its caller is told.
    fn told(&self, gate: &Gate, verdict: &Verdict) -> Told {
        let expected = self.wants_receipt() || receipt::is_expected(verdict);
        Told::of(verdict).with_receipt(expected.then(|| gate.receipts.write(verdict)).flatten())
    }
}

/// The verdict with its headers.
async fn decided(gate: &Gate, asked: &Asked<'_>) -> Result<Answer, Problem> {
    let verdict = asked.decide(gate, gate.now()).await?;
    let mut answer = answer::json(answer::status(&verdict), &asked.told(gate, &verdict));
    answer::write_headers(&mut answer, &verdict, gate.live.load().headers);
    Ok(answer)
}
