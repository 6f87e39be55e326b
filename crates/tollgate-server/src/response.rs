//! HTTP responses: JSON, and problem details (RFC 9457).

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tollgate::internal::EngineVerdict;
use tollgate::internal::denial::{self, Denial, TICKET_URN_PREFIX};
use tollgate::internal::document::{self, Problems};
use tollgate::internal::headers::{HeaderStyle, headers};

use crate::connection::{FullResponse, ReadBodyError};

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub fn json(status: StatusCode, body: &impl Serialize) -> FullResponse {
    let body = serde_json::to_vec(body).expect("what we answer is valid JSON");
    with_type(status, JSON, body)
}

pub fn text(status: StatusCode, content_type: &'static str, body: String) -> FullResponse {
    with_type(status, HeaderValue::from_static(content_type), body.into_bytes())
}

pub fn with_type(status: StatusCode, content_type: HeaderValue, body: Vec<u8>) -> FullResponse {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, content_type);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// An HTML error page.
pub fn html_page(status: StatusCode, detail: &str, ticket: Option<&str>) -> FullResponse {
    let title = status.canonical_reason().unwrap_or("Error");
    text(status, "text/html; charset=utf-8", denial::html_page(title, detail, ticket))
}

pub fn status(verdict: &EngineVerdict) -> StatusCode {
    StatusCode::from_u16(denial::status(verdict)).expect("verdicts have valid statuses")
}

pub fn write_headers<B>(answer: &mut Response<B>, verdict: &EngineVerdict, style: HeaderStyle) {
    for (name, value) in headers(verdict, style).iter() {
        let value = HeaderValue::from_str(value).expect("rule ids and numbers fit a header");
        answer.headers_mut().insert(HeaderName::from_static(name), value);
    }
}

/// A denial as a registered problem type, for APIs behind the proxy.
pub fn denial(denial: Denial<'_>, ticket: Option<&str>) -> FullResponse {
    let status = StatusCode::from_u16(denial.status).expect("denials have valid statuses");
    let mut body = json!({
        "type": denial.kind,
        "title": status.canonical_reason(),
        "status": status.as_u16(),
        "detail": denial.detail,
    });
    if let Some(ticket) = ticket {
        body[INSTANCE] = ticket_urn(ticket).into();
    }
    if !denial.violated.is_empty() {
        body["violated-policies"] = denial.violated.into();
    }
    let body = serde_json::to_vec(&body).expect("a problem is valid JSON");
    with_type(status, PROBLEM_JSON, body)
}

/// The member with the ticket.
const INSTANCE: &str = "instance";

fn ticket_urn(ticket: &str) -> String {
    format!("{TICKET_URN_PREFIX}{ticket}")
}

const PROBLEM_JSON: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Why a request cannot be served.
#[derive(Debug)]
pub struct ProblemDetails {
    pub status: StatusCode,
    pub detail: String,
    /// The invalid part of the request.
    pub field: Option<String>,
    /// The methods that are allowed.
    pub allow: Option<Cow<'static, str>>,
    /// Additional members by name.
    pub extensions: Vec<(&'static str, Value)>,
}

impl ProblemDetails {
    pub fn new(status: StatusCode, detail: impl Into<String>) -> ProblemDetails {
        ProblemDetails { status, detail: detail.into(), field: None, allow: None, extensions: Vec::new() }
    }

    pub fn bad_field(field: impl Into<String>, detail: impl Into<String>) -> ProblemDetails {
        ProblemDetails { field: Some(field.into()), ..ProblemDetails::new(StatusCode::BAD_REQUEST, detail) }
    }

    /// Adds a member.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> ProblemDetails {
        self.extensions.push((name, value.into()));
        self
    }

    /// Adds the ticket of a denied request.
    pub fn with_ticket(self, ticket: &str) -> ProblemDetails {
        self.with(INSTANCE, ticket_urn(ticket))
    }

    /// The ticket of a denied request.
    pub fn ticket(&self) -> Option<&str> {
        let (_, instance) = self.extensions.iter().find(|(name, _)| *name == INSTANCE)?;
        instance.as_str()?.strip_prefix(TICKET_URN_PREFIX)
    }

    pub fn not_found(path: &str) -> ProblemDetails {
        ProblemDetails::new(StatusCode::NOT_FOUND, format!("there is nothing at {path}"))
    }

    pub fn method_not_allowed(allow: impl Into<Cow<'static, str>>) -> ProblemDetails {
        let allow = allow.into();
        let detail = format!("use {allow} here");
        ProblemDetails { allow: Some(allow), ..ProblemDetails::new(StatusCode::METHOD_NOT_ALLOWED, detail) }
    }
}

/// The problems of a text, by line and path.
impl From<Problems> for ProblemDetails {
    fn from(problems: Problems) -> ProblemDetails {
        let list = problems.iter().map(|problem| {
            json!({
                "line": problem.position().map(|position| position.line),
                "column": problem.position().map(|position| position.column),
                "path": problem.path(),
                "message": problem.message(),
            })
        });
        let list: Value = list.collect();
        let field = problems.iter().next().map_or_else(|| "body".to_owned(), field_of);
        ProblemDetails::bad_field(field, problems.to_string()).with("problems", list)
    }
}

/// The part of a text that a problem refers to. An unknown or missing key is named in the message only.
fn field_of(problem: &document::Problem) -> String {
    let quoted = problem.message().split('\'').nth(1);
    let named = ["unknown key", "missing"].iter().any(|word| problem.message().contains(word));
    match (problem.path(), quoted.filter(|_| named)) {
        ("", None) => "body".to_owned(),
        ("", Some(name)) => name.to_owned(),
        (path, None) => path.to_owned(),
        (path, Some(name)) => format!("{path}.{name}"),
    }
}

impl From<ReadBodyError> for ProblemDetails {
    fn from(error: ReadBodyError) -> ProblemDetails {
        match error {
            ReadBodyError::TooLong { max } => ProblemDetails::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is longer than {max} bytes"),
            ),
            ReadBodyError::TooSlow => {
                ProblemDetails::new(StatusCode::REQUEST_TIMEOUT, "the body took too long to arrive")
            }
            ReadBodyError::Broken => ProblemDetails::bad_field("body", "the body could not be read"),
        }
    }
}

impl From<ProblemDetails> for FullResponse {
    fn from(problem: ProblemDetails) -> FullResponse {
        let mut body = json!({
            "type": "about:blank",
            "title": problem.status.canonical_reason(),
            "status": problem.status.as_u16(),
            "detail": problem.detail,
        });
        if let Some(field) = problem.field {
            body["field"] = field.into();
        }
        for (name, value) in problem.extensions {
            body[name] = value;
        }
        let body = serde_json::to_vec(&body).expect("a problem is valid JSON");
        let mut answer = with_type(problem.status, PROBLEM_JSON, body);
        if let Some(allow) = problem.allow.and_then(|allow| HeaderValue::from_str(&allow).ok()) {
            answer.headers_mut().insert(ALLOW, allow);
        }
        if problem.status == StatusCode::UNAUTHORIZED {
            answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        answer
    }
}

/// Milliseconds, rounded up, so that a reported time is never too early.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
