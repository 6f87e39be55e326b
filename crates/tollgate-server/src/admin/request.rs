//! One call of the admin API: the caller, parameters of path and query, headers and body.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode};
use tollgate::internal::request::percent::{self, Plus};

use crate::admin::Admin;
use crate::connection::{ReadBodyError, read_body, read_body_within};
use crate::gate::Gate;
use crate::insight::Insight;
use crate::response::ProblemDetails;

const DEFAULT_LIMIT: usize = 100;
pub const MAX_LIMIT: usize = 1_000;

pub struct AdminRequest {
    pub admin: Arc<Admin>,
    /// The caller's name, for the log of changes.
    pub caller: String,
    /// The value of the path's parameter, still encoded.
    pub path_parameter: String,
    head: Parts,
    body: Option<Incoming>,
}

impl AdminRequest {
    pub fn new(admin: Arc<Admin>, caller: String, name: String, request: Request<Incoming>) -> AdminRequest {
        let (head, body) = request.into_parts();
        AdminRequest { admin, caller, path_parameter: name, head, body: Some(body) }
    }

    pub fn gate(&self) -> &Gate {
        &self.admin.gate
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The counts of all decisions.
    pub fn insight(&self) -> Result<&Insight, ProblemDetails> {
        let starting = || ProblemDetails::new(StatusCode::SERVICE_UNAVAILABLE, "the node is starting");
        self.gate().insight.get().ok_or_else(starting)
    }

    pub fn path(&self) -> &str {
        self.head.uri.path()
    }

    pub fn query(&self) -> &str {
        self.head.uri.query().unwrap_or_default()
    }

    /// A header that may occur at most once: ignoring an invalid precondition could overwrite another edit.
    pub fn header(&self, name: &'static str) -> Result<Option<&str>, ProblemDetails> {
        let mut values = self.head.headers.get_all(name).iter();
        let first = values.next();
        let second = values.next();
        let text = first.map(|value| value.to_str()).transpose();
        match (text, second) {
            (Ok(text), None) => Ok(text),
            _ => Err(ProblemDetails::bad_field(name, format!("'{name}' is unexpected, or given twice"))),
        }
    }

    /// The values of the query parameters, still encoded, each at most once; unknown parameters are rejected.
    pub fn raw_parameters<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<&str>; N], ProblemDetails> {
        let mut values = [None; N];
        for pair in self.query().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let at = names.iter().position(|known| *known == name);
            match at.map(|at| values[at].replace(value)) {
                Some(None) => {}
                Some(Some(_)) => {
                    return Err(ProblemDetails::bad_field(name, format!("'{name}' is given twice")));
                }
                None => {
                    let known = match &names[..] {
                        [] => "there are no parameters".to_owned(),
                        names => format!("use {}", names.join(" and ")),
                    };
                    let detail = format!("unknown parameter '{name}': {known}");
                    return Err(ProblemDetails::bad_field(name, detail));
                }
            }
        }
        Ok(values)
    }

    pub fn parameters<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<String>; N], ProblemDetails> {
        let raw = self.raw_parameters(names)?;
        Ok(raw.map(|value| value.map(|value| percent::text(percent::decode(value, Plus::Literal).collect()))))
    }

    /// Reads the body; it can be read only once.
    pub async fn read_body(&mut self, max: usize) -> Result<Bytes, ProblemDetails> {
        Ok(read_body(self.request()?, max).await?)
    }

    /// Reads a body with a timeout of its own.
    pub async fn read_slow_body(&mut self, max: usize, within: Duration) -> Result<Bytes, ProblemDetails> {
        Ok(read_body_within(self.request()?, max, within).await?)
    }

    fn request(&mut self) -> Result<Request<Incoming>, ReadBodyError> {
        let body = self.body.take().ok_or(ReadBodyError::Broken)?;
        Ok(Request::from_parts(self.head.clone(), body))
    }
}

/// The number of items per page.
pub fn limit(value: Option<&str>) -> Result<usize, ProblemDetails> {
    let Some(value) = value else { return Ok(DEFAULT_LIMIT) };
    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or_else(|| {
        ProblemDetails::bad_field("limit", format!("'limit' must be a number from 1 to {MAX_LIMIT}"))
    })
}

/// A parameter that is `true` or `false`.
pub fn flag(name: &str, value: Option<&str>) -> Result<bool, ProblemDetails> {
    match value {
        None | Some("false") => Ok(false),
        Some("true" | "") => Ok(true),
        Some(_) => Err(ProblemDetails::bad_field(name, format!("'{name}' must be true or false"))),
    }
}

/// One of several words; the first one by default.
pub fn choice<T: Copy, const N: usize>(
    name: &str,
    value: Option<&str>,
    known: [(&str, T); N],
) -> Result<T, ProblemDetails> {
    let found = known.iter().find(|(word, _)| value.is_none_or(|value| value == *word));
    found.map(|(_, value)| *value).ok_or_else(|| {
        let words: Vec<_> = known.iter().map(|(word, _)| *word).collect();
        ProblemDetails::bad_field(name, format!("'{name}' must be one of {}", words.join(", ")))
    })
}

/// The body as text.
pub fn text(body: &[u8]) -> Result<&str, ProblemDetails> {
    std::str::from_utf8(body).map_err(|error| {
        let line = body[..error.valid_up_to()].iter().filter(|byte| **byte == b'\n').count() + 1;
        ProblemDetails::bad_field("body", format!("the body is not UTF-8: see line {line}"))
    })
}
