//! The verdict as HTTP headers: the IETF draft (revision 11), `Retry-After`, and the older `X-` names.
//!
//! The syntax of the draft is confined to this module: a later revision will rename parameters.

use std::fmt::Write;
use std::time::Duration;

use smallvec::SmallVec;

use crate::decimal::push_number;
use crate::verdict::{EngineVerdict, LimitVerdict, whole_seconds};

mod merge;

pub use merge::merge_ratelimit;

/// Which headers a response gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[deny(missing_docs)]
#[non_exhaustive]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy`, as in revision 11 of the draft.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    XRateLimit,
    /// Both kinds.
    Both,
    /// `Retry-After` only.
    None,
}

/// Room for the headers of one or two limits.
const USUAL_BYTES: usize = 96;

/// Headers, names in lower case, in one buffer that can be reused for the next verdict.
#[derive(Clone, Debug, Default)]
pub struct Headers {
    text: String,
    /// Names, and the end offsets of their values.
    ends: SmallVec<[(&'static str, usize); 6]>,
}

/// The headers of a verdict.
pub fn headers(verdict: &EngineVerdict, style: HeaderStyle) -> Headers {
    let mut headers = Headers::default();
    headers.write(verdict, style);
    headers
}

impl Headers {
    /// Overwrites the headers with those of a verdict. Shadow rules are never included.
    pub fn write(&mut self, verdict: &EngineVerdict, style: HeaderStyle) {
        self.text.clear();
        self.ends.clear();
        if let Some(reported) = verdict.reported().filter(|_| style != HeaderStyle::None) {
            let reset = reset_seconds(verdict, reported);
            let remaining = reported.remaining();
            if matches!(style, HeaderStyle::Ietf | HeaderStyle::Both) {
                self.text.reserve(USUAL_BYTES);
                for (n, limit) in verdict.enforced().filter(|limit| !limit.repeated).enumerate() {
                    self.text.push_str(if n > 0 { ", " } else { "" });
                    push_policy(&mut self.text, limit);
                }
                self.end("ratelimit-policy");
                push_item(&mut self.text, reported, [(";r=", remaining), (";t=", reset)]);
                self.end("ratelimit");
            }
            if matches!(style, HeaderStyle::XRateLimit | HeaderStyle::Both) {
                self.put("x-ratelimit-limit", reported.limit.rate().count());
                self.put("x-ratelimit-remaining", remaining);
                self.put("x-ratelimit-reset", reset);
            }
        }
        if let Some(wait) = verdict.client_wait() {
            self.put("retry-after", whole_seconds(wait).as_secs());
        }
    }

    /// Adds a header that is not part of a verdict.
    pub fn add(&mut self, name: &'static str, value: &str) {
        self.text.push_str(value);
        self.end(name);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut start = 0;
        self.ends.iter().map(move |(name, end)| {
            let value = &self.text[start..*end];
            start = *end;
            (*name, value)
        })
    }

    fn put(&mut self, name: &'static str, value: u64) {
        push_number(&mut self.text, value);
        self.end(name);
    }

    fn end(&mut self, name: &'static str) {
        self.ends.push((name, self.text.len()));
    }
}

/// Appends a limit with its quota, which a rule with one limit has written before.
fn push_policy(text: &mut String, limit: &LimitVerdict) {
    let rate = limit.limit.rate();
    let parameters = [(";q=", rate.count()), (";w=", rate.period().secs())];
    let make = || {
        let mut item = String::new();
        push_item(&mut item, limit, parameters);
        item
    };
    match limit.rule.policy_item(make) {
        Some(item) => text.push_str(item),
        None => push_item(text, limit, parameters),
    }
}

/// Appends a limit by its name, with parameters.
fn push_item(text: &mut String, limit: &LimitVerdict, parameters: [(&str, u64); 2]) {
    text.push('"');
    if limit.of_several {
        write!(text, "{}", limit.policy()).expect("writing to a string cannot fail");
    } else {
        text.push_str(limit.rule.id.as_str()); // as above, without formatting
    }
    text.push('"');
    for (name, value) in parameters {
        text.push_str(name);
        push_number(text, value);
    }
}

/// On denial the wait, else the time until the full limit is available again; rounded up.
fn reset_seconds(verdict: &EngineVerdict, reported: &LimitVerdict) -> u64 {
    let exact = verdict.client_wait().unwrap_or(reported.reset_after());
    if exact == Duration::ZERO { 0 } else { whole_seconds(exact).as_secs() }
}
