//! The verdict as HTTP headers: the IETF draft (revision 11), `Retry-After`, and the older `X-` names.
//!
//! The syntax of the draft is in this module only: a later revision will rename parameters.

use std::time::Duration;

use smallvec::SmallVec;

use crate::verdict::{LimitVerdict, Verdict, whole_seconds};

mod joined;

pub use joined::join_limits;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HeaderStyle {
    #[default]
    Ietf,
    XRateLimit,
    Both,
    /// `Retry-After` alone.
    None,
}

pub type Headers = SmallVec<[(&'static str, String); 6]>;

/// The headers of a verdict, names in lower case. Shadow rules never show.
pub fn headers(verdict: &Verdict, style: HeaderStyle) -> Headers {
    let mut headers = Headers::new();
    if let Some(reported) = verdict.reported().filter(|_| style != HeaderStyle::None) {
        let reset = reset_seconds(verdict, reported);
        if matches!(style, HeaderStyle::Ietf | HeaderStyle::Both) {
            let policies: Vec<_> = verdict.enforced().map(policy).collect();
            headers.push(("ratelimit-policy", policies.join(", ")));
            let (name, remaining) = (reported.policy(), reported.remaining);
            headers.push(("ratelimit", format!("\"{name}\";r={remaining};t={reset}")));
        }
        if matches!(style, HeaderStyle::XRateLimit | HeaderStyle::Both) {
            headers.push(("x-ratelimit-limit", reported.limit.rate().count().to_string()));
            headers.push(("x-ratelimit-remaining", reported.remaining.to_string()));
            headers.push(("x-ratelimit-reset", reset.to_string()));
        }
    }
    if let Some(wait) = verdict.retry_after {
        headers.push(("retry-after", whole_seconds(wait).as_secs().to_string()));
    }
    headers
}

/// `"login-email";q=5;w=60`
fn policy(limit: &LimitVerdict) -> String {
    let rate = limit.limit.rate();
    format!("\"{}\";q={};w={}", limit.policy(), rate.count(), rate.period().secs())
}

/// The wait when denied, else until everything is there again; rounded up.
fn reset_seconds(verdict: &Verdict, reported: &LimitVerdict) -> u64 {
    let exact = verdict.retry_after.unwrap_or(reported.reset_after);
    if exact == Duration::ZERO { 0 } else { whole_seconds(exact).as_secs() }
}
