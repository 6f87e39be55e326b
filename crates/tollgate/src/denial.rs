//! A denial as an HTTP response: status, and problem details (RFC 9457) of a registered type, an HTML page, or
//! the body of the rule.

use crate::rule::OwnBody;
use crate::verdict::{EngineVerdict, Reason};

/// The registry of problem types.
macro_rules! registry {
    () => {
        "https://iana.org/assignments/http-problem-types#"
    };
}

/// The header that carries the ticket of a denial where the body has no place for it.
pub const TICKET_HEADER: &str = "tollgate-ticket";

/// In front of a ticket where a URI reference is expected.
pub const TICKET_URN_PREFIX: &str = "urn:tollgate:ticket:";

/// The response to a denied client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial<'v> {
    pub status: u16,
    /// The problem type.
    pub kind: &'static str,
    pub detail: String,
    /// The names of the limits that deny, as headers show them.
    pub violated: Vec<String>,
    /// The body that the denying rule has instead.
    body: Option<&'v OwnBody>,
}

/// The format of an error response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorFormat {
    Json,
    Html,
}

impl<'v> Denial<'v> {
    pub fn new(status: u16, kind: &'static str, detail: String) -> Denial<'v> {
        Denial { status, kind, detail, violated: Vec::new(), body: None }
    }

    /// The denial of a verdict that does not allow.
    pub fn of(verdict: &'v EngineVerdict) -> Denial<'v> {
        let kind = match verdict.reason {
            Reason::Ban => "about:blank",
            Reason::StoreError => concat!(registry!(), "temporary-reduced-capacity"),
            _ => concat!(registry!(), "quota-exceeded"),
        };
        let denying = verdict.enforced().filter(|limit| !limit.is_allowed());
        Denial {
            violated: denying.map(|limit| limit.policy().to_string()).collect(),
            body: verdict.deny_options().and_then(|deny| deny.body.as_ref()),
            ..Denial::new(status(verdict), kind, verdict.message().unwrap_or_default())
        }
    }

    /// The rule's own body, if it is for clients of this format: HTML for those that prefer it, anything else for the
    /// others.
    pub fn own_body(&self, format: ErrorFormat) -> Option<&'v OwnBody> {
        self.body.filter(|body| body.is_html() == (format == ErrorFormat::Html))
    }
}

impl ErrorFormat {
    /// By the value of `Accept`. HTML only where it is preferred: `*/*` is no preference.
    pub fn of_accept(accept: &str) -> ErrorFormat {
        let mut html = 0;
        let mut json = 0;
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
            let weight = weight.map_or(1000, thousandths);
            let is_one_of = |names: &[&str]| names.iter().any(|one| name.eq_ignore_ascii_case(one));
            if is_one_of(&["text/html", "application/xhtml+xml"]) {
                html = html.max(weight);
            } else if is_one_of(&["application/json", "application/problem+json", "application/*"]) {
                json = json.max(weight);
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

/// An error page.
pub fn html_page(title: &str, detail: &str, ticket: Option<&str>) -> String {
    let detail =
        detail.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
    let ticket = ticket.map(|ticket| format!("\n<p><small>Ticket: <code>{ticket}</code></small></p>"));
    let ticket = ticket.unwrap_or_default();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title></head>\n\
         <body><h1>{title}</h1>\n<p>{detail}</p>{ticket}</body></html>\n"
    )
}

/// The HTTP status of a verdict.
pub fn status(verdict: &EngineVerdict) -> u16 {
    match (verdict.allowed, verdict.reason) {
        (true, _) => 200,
        (false, Reason::Ban) => 403,
        (false, Reason::StoreError) => 503,
        (false, _) => 429,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn html_is_sent_to_clients_that_prefer_it() {
        for accept in [
            "text/html",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/json;q=0.5, text/html;q=0.9",
        ] {
            assert_eq!(ErrorFormat::of_accept(accept), ErrorFormat::Html, "{accept}");
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
            assert_eq!(ErrorFormat::of_accept(accept), ErrorFormat::Json, "{accept}");
        }
    }
}
