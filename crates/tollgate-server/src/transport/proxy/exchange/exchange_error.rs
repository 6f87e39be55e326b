//! Why a request is not served, and the response that says so.

use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::header::{CONNECTION, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use tollgate::Time;
use tollgate::internal::EngineVerdict;
use tollgate::internal::headers::HeaderStyle;
use tollgate::internal::verdict::whole_seconds;

use crate::connection::FullResponse;
use crate::error_response::{self, ErrorFormat};
use crate::metrics::{RequestStatus, Transport};
use crate::response::{self, ProblemDetails};
use crate::transport::proxy::body::ResponseBody;
use crate::transport::proxy::exchange::ConnectionContext;
use crate::transport::proxy::upstream::forward::ForwardError;

/// Why a request is not served.
pub enum ExchangeError {
    Denied {
        verdict: Box<EngineVerdict>,
        at: Time,
    },
    /// It would wait too long, or with too many others.
    TooManyRequests {
        detail: &'static str,
        retry_after: Duration,
        /// If a rule denies it.
        ticket: Option<String>,
    },
    /// Two servers could read it differently.
    Ambiguous(ProblemDetails),
    Problem(ProblemDetails),
}

impl From<ForwardError> for ExchangeError {
    fn from(failure: ForwardError) -> ExchangeError {
        ExchangeError::Problem(failure.into())
    }
}

impl ConnectionContext {
    /// The response to the client. It is counted.
    pub fn conclude(
        &self,
        served: Result<Response<ResponseBody>, ExchangeError>,
        format: ErrorFormat,
        header_style: HeaderStyle,
    ) -> Response<ResponseBody> {
        let response = served.unwrap_or_else(|failure| {
            self.error_response(failure, format, header_style).map(ResponseBody::Full)
        });
        let status = RequestStatus::Http(response.status());
        self.proxy.gate.requests.add(Transport::Proxy, status, 1);
        response
    }

    /// The response to a request that is not served.
    fn error_response(
        &self,
        failure: ExchangeError,
        format: ErrorFormat,
        header_style: HeaderStyle,
    ) -> FullResponse {
        match failure {
            ExchangeError::Denied { verdict, at } => {
                let ticket = self.proxy.gate.ticket(&verdict, at);
                let mut response = error_response::denied(&verdict, ticket.as_deref(), format);
                response::write_headers(&mut response, &verdict, header_style);
                response
            }
            ExchangeError::TooManyRequests { detail, retry_after, ticket } => {
                let mut problem = ProblemDetails::new(StatusCode::TOO_MANY_REQUESTS, detail);
                if let Some(ticket) = ticket {
                    problem = problem.with_ticket(&ticket);
                }
                let mut response = error_response::problem(problem, format);
                let seconds = HeaderValue::from(whole_seconds(retry_after).as_secs());
                response.headers_mut().insert(RETRY_AFTER, seconds);
                response
            }
            ExchangeError::Ambiguous(problem) => {
                self.proxy.counts.rejected.fetch_add(1, Ordering::Relaxed);
                let mut response = error_response::problem(problem, format);
                // Where this request ends is ambiguous, so the start of the next one is too.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                response
            }
            ExchangeError::Problem(problem) => error_response::problem(problem, format),
        }
    }
}
