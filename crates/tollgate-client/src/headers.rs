//! What a server says about its limits: `RateLimit` and `RateLimit-Policy`, their predecessors, `Retry-After`, and the
//! status of gRPC.
//!
//! The headers are untrusted input. Every field is bounded and read once from left to right; a field that is not valid
//! is ignored as a whole. Nothing here knows what a client does with the result.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::header::{DATE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

pub(crate) mod grpc;
mod structured;

use structured::{BareItem, Member};

/// Limits that are read from one response; further ones are ignored.
pub const MAX_REPORTED: usize = 8;
/// Longer field values are ignored.
const MAX_FIELD_BYTES: usize = 4096;
/// Lines of one field; further ones are ignored.
const MAX_LINES: usize = 8;
/// A reset from here on is a Unix time in seconds, from a thousand times this in milliseconds: as a duration it would be
/// 31 years.
const FIRST_UNIX_SECOND: u64 = 1_000_000_000;
const FIRST_UNIX_MILLISECOND: u64 = FIRST_UNIX_SECOND * 1000;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// `Limit`, `Remaining` and `Reset` under the names that are in use, the most specific first.
const TRIPLES: [[HeaderName; 3]; 3] = [
    [
        HeaderName::from_static("ratelimit-limit"),
        HeaderName::from_static("ratelimit-remaining"),
        HeaderName::from_static("ratelimit-reset"),
    ],
    [
        HeaderName::from_static("x-ratelimit-limit"),
        HeaderName::from_static("x-ratelimit-remaining"),
        HeaderName::from_static("x-ratelimit-reset"),
    ],
    [
        HeaderName::from_static("x-rate-limit-limit"),
        HeaderName::from_static("x-rate-limit-remaining"),
        HeaderName::from_static("x-rate-limit-reset"),
    ],
];

/// What one response says about the server's limits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerLimits {
    /// At most [`MAX_REPORTED`].
    pub limits: Vec<ReportedLimit>,
    /// `RetryInfo` of a gRPC status, or `Retry-After` in either form.
    pub retry_after: Option<Duration>,
}

/// One limit of a server, as far as it is stated.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReportedLimit {
    /// The name of the policy; empty in the older headers.
    pub name: String,
    /// The partition key, encoded as it was sent.
    pub partition: Option<String>,
    /// Requests per window.
    pub quota: Option<u64>,
    /// The length of the window.
    pub window: Option<Duration>,
    /// Requests that may still be sent.
    pub remaining: Option<u64>,
    /// Until the quota is available again.
    pub reset: Option<Duration>,
}

impl ServerLimits {
    /// Reads the headers of a response. `now` is used where the response has no `Date`.
    pub fn read(headers: &HeaderMap, now: SystemTime) -> ServerLimits {
        let date = single(headers, &DATE).and_then(|text| httpdate::parse_http_date(text).ok());
        let now = date.unwrap_or(now);
        let mut limits = structured_limits(headers);
        if limits.is_empty() {
            limits.extend(TRIPLES.iter().find_map(|names| triple(headers, names, now)));
        }
        limits.truncate(MAX_REPORTED);
        let field = || single(headers, &RETRY_AFTER).and_then(|text| retry_after(text, now));
        let retry_after = grpc::retry_delay(headers).or_else(field);
        ServerLimits { limits, retry_after }
    }

    /// Whether the response says nothing about limits.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.retry_after.is_none()
    }
}

/// The value of a field that has one line.
fn single<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    let mut lines = headers.get_all(name).iter();
    let value = lines.next()?;
    if lines.next().is_some() {
        return None;
    }
    text(value)
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().filter(|text| text.len() <= MAX_FIELD_BYTES).map(str::trim)
}

/// The members of a list that may be spread over lines; `None` if a line is not valid.
fn members<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<Vec<Member<'h>>> {
    let mut members = Vec::new();
    for line in headers.get_all(name).iter().take(MAX_LINES) {
        structured::read_list(text(line)?, MAX_REPORTED, &mut members)?;
    }
    Some(members)
}

/// The limits of `RateLimit-Policy`, completed by `RateLimit`.
fn structured_limits(headers: &HeaderMap) -> Vec<ReportedLimit> {
    let mut limits: Vec<ReportedLimit> = Vec::new();
    for policy in members(headers, &RATELIMIT_POLICY).unwrap_or_default() {
        limits.extend(read_policy(&policy));
    }
    let items = members(headers, &RATELIMIT).unwrap_or_default();
    if items.iter().any(|item| item.key.is_some()) {
        return dictionary(&items, limits);
    }
    for item in &items {
        let BareItem::Text(name) = &item.value else { continue };
        let Some(remaining) = item.integer("r") else { continue };
        let reset = item.integer("t").map(Duration::from_secs);
        let partition = item.bytes("pk").map(str::to_owned);
        let known = limits.iter_mut().find(|limit| {
            limit.name == **name && (limit.partition == partition || limit.partition.is_none())
        });
        match known {
            Some(limit) => {
                limit.remaining = Some(remaining);
                limit.reset = reset;
                limit.partition = partition.or(limit.partition.take());
            }
            None => limits.push(ReportedLimit {
                name: name.to_string(),
                partition,
                remaining: Some(remaining),
                reset,
                ..ReportedLimit::default()
            }),
        }
    }
    limits
}

/// One item of `RateLimit-Policy`. A quota that does not count requests is not a limit on them.
fn read_policy(policy: &Member<'_>) -> Option<ReportedLimit> {
    let counts_requests = policy.text("qu").is_none_or(|unit| unit == "request" || unit == "requests");
    let (name, quota) = match &policy.value {
        BareItem::Text(name) => (name.to_string(), policy.integer("q")?),
        // Revision 7 of the draft and earlier: `100;w=60`.
        BareItem::Integer(quota) => (String::new(), *quota),
        _ => return None,
    };
    let window = policy.integer("w").filter(|seconds| *seconds > 0).map(Duration::from_secs);
    let partition = policy.bytes("pk").map(str::to_owned);
    let limit = ReportedLimit { name, partition, quota: Some(quota), window, ..ReportedLimit::default() };
    counts_requests.then_some(limit)
}

/// Revision 7 of the draft: `limit=100, remaining=50, reset=30`, about the first policy.
fn dictionary(members: &[Member<'_>], policies: Vec<ReportedLimit>) -> Vec<ReportedLimit> {
    let number = |key: &str| {
        let member = members.iter().rfind(|member| member.key == Some(key))?;
        if let BareItem::Integer(number) = member.value { Some(number) } else { None }
    };
    let quota = number("limit");
    let window = policies.iter().find(|policy| policy.quota == quota).and_then(|policy| policy.window);
    let reset = number("reset").map(Duration::from_secs);
    let limit = ReportedLimit { quota, window, remaining: number("remaining"), reset, ..Default::default() };
    if limit.remaining.is_some() { vec![limit] } else { policies }
}

/// A limit from three fields, of which the remaining count is required.
fn triple(headers: &HeaderMap, names: &[HeaderName; 3], now: SystemTime) -> Option<ReportedLimit> {
    let [limit, remaining, reset] = names.each_ref().map(|name| single(headers, name));
    let remaining = number(remaining?)?;
    // `100, 100;w=60` in revisions 2 to 6 of the draft.
    let quota = limit.and_then(|limit| number(limit.split([',', ';']).next()?.trim()));
    let window = limit.and_then(|limit| limit.split_once("w=")).and_then(|(_, rest)| {
        let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next()?;
        number(digits).filter(|seconds| *seconds > 0).map(Duration::from_secs)
    });
    let reset = reset.and_then(|reset| reset_time(reset, now));
    Some(ReportedLimit { quota, window, remaining: Some(remaining), reset, ..ReportedLimit::default() })
}

/// Seconds from now, a Unix time, or an HTTP date.
fn reset_time(text: &str, now: SystemTime) -> Option<Duration> {
    let Some(number) = number(text) else { return until(text, now) };
    let unix = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(match number {
        ..FIRST_UNIX_SECOND => Duration::from_secs(number),
        FIRST_UNIX_SECOND..FIRST_UNIX_MILLISECOND => Duration::from_secs(number).saturating_sub(unix),
        FIRST_UNIX_MILLISECOND.. => Duration::from_millis(number).saturating_sub(unix),
    })
}

/// `Retry-After`: seconds, or an HTTP date.
fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    number(text).map(Duration::from_secs).or_else(|| until(text, now))
}

fn until(text: &str, now: SystemTime) -> Option<Duration> {
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

/// A decimal number; a fraction is rounded up, as servers that send one mean a duration.
fn number(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) || whole.len() > structured::MAX_DIGITS {
        return None;
    }
    let round_up = fraction.bytes().any(|digit| digit != b'0');
    whole.parse::<u64>().ok().map(|number| number + u64::from(round_up))
}

#[cfg(test)]
mod tests;
