//! Error responses to clients: problem details as JSON, or HTML where the client prefers it.

use hyper::header::HeaderValue;
use tollgate::internal::EngineVerdict;

use crate::connection::FullResponse;
use crate::response::{self, ProblemDetails};

/// The format of an error response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorFormat {
    Json,
    Html,
}

impl ErrorFormat {
    /// HTML only where `Accept` prefers it: `*/*` is no preference.
    pub fn of(accept: Option<&HeaderValue>) -> ErrorFormat {
        let ranges = accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default().split(',');
        let mut html = 0;
        let mut json = 0;
        for range in ranges {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
            let weight = weight.map_or(1000, thousandths);
            match name.as_str() {
                "text/html" | "application/xhtml+xml" => html = html.max(weight),
                "application/json" | "application/problem+json" | "application/*" => json = json.max(weight),
                _ => {}
            }
        }
        if html > json { ErrorFormat::Html } else { ErrorFormat::Json }
    }
}

/// `0.8` is 800; an invalid quality is 0.
fn thousandths(quality: &str) -> u32 {
    let (whole, fraction) = quality.split_once('.').unwrap_or((quality, ""));
    let digits = format!("{fraction:0<3}");
    match (whole, digits.get(..3).and_then(|digits| digits.parse::<u32>().ok())) {
        ("1", _) => 1000,
        ("0" | "", Some(thousandths)) => thousandths,
        _ => 0,
    }
}

/// The response to a denied or banned client.
pub fn denied(verdict: &EngineVerdict, ticket: Option<&str>, format: ErrorFormat) -> FullResponse {
    match format {
        ErrorFormat::Json => response::denial(verdict, ticket),
        ErrorFormat::Html => {
            let message = verdict.message().unwrap_or_default();
            response::html_page(response::status(verdict), &message, ticket)
        }
    }
}

/// The response to a request that cannot be served.
pub fn problem(problem: ProblemDetails, format: ErrorFormat) -> FullResponse {
    match format {
        ErrorFormat::Json => FullResponse::from(problem),
        ErrorFormat::Html => response::html_page(problem.status, &problem.detail, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_is_sent_to_clients_that_prefer_it() {
        let format = |accept| ErrorFormat::of(Some(&HeaderValue::from_static(accept)));
        for accept in [
            "text/html",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/json;q=0.5, text/html;q=0.9",
        ] {
            assert_eq!(format(accept), ErrorFormat::Html, "{accept}");
        }
        for accept in [
            "*/*",
            "",
            "application/json",
            "application/json, text/html",
            "text/html;q=0",
            "text/*;q=",
            "text/plain",
        ] {
            assert_eq!(format(accept), ErrorFormat::Json, "{accept}");
        }
        assert_eq!(ErrorFormat::of(None), ErrorFormat::Json);
    }
}
