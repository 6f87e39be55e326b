//! Error responses to clients: problem details as JSON, HTML where the client prefers it, or what the rule says.

use hyper::Response;
use hyper::header::{HeaderName, HeaderValue};
use tollgate::internal::EngineVerdict;
use tollgate::internal::denial::{Denial, TICKET_HEADER};

pub use tollgate::internal::denial::ErrorFormat;

use crate::connection::FullResponse;
use crate::response::{self, ProblemDetails};

/// The format for a client that sent this `Accept`.
pub fn format(accept: Option<&HeaderValue>) -> ErrorFormat {
    ErrorFormat::of_accept(accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default())
}

/// The response to a denied or banned client.
pub fn denied(verdict: &EngineVerdict, ticket: Option<&str>, format: ErrorFormat) -> FullResponse {
    let denial = Denial::of(verdict);
    let status = response::status(verdict);
    if let Some(body) = denial.own_body(format) {
        let content_type = HeaderValue::from_str(&body.content_type).expect("media types fit a header");
        let mut answer = response::with_type(status, content_type, body.text.as_bytes().to_vec());
        write_ticket(&mut answer, ticket);
        return answer;
    }
    match format {
        ErrorFormat::Json => response::denial(denial, ticket),
        ErrorFormat::Html => response::html_page(status, &denial.detail, ticket),
    }
}

/// The response to a request that cannot be served.
pub fn problem(problem: ProblemDetails, format: ErrorFormat) -> FullResponse {
    match format {
        ErrorFormat::Json => FullResponse::from(problem),
        ErrorFormat::Html => response::html_page(problem.status, &problem.detail, problem.ticket()),
    }
}

/// For a response whose body has no place for it, or whose body may be dropped on the way.
pub fn write_ticket<B>(answer: &mut Response<B>, ticket: Option<&str>) {
    if let Some(ticket) = ticket {
        let ticket = HeaderValue::from_str(ticket).expect("a ticket is base64");
        answer.headers_mut().insert(HeaderName::from_static(TICKET_HEADER), ticket);
    }
}
