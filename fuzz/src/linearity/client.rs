//! Headers about limits, as long as they are read.

use std::time::SystemTime;

use tollgate_client::headers::ServerLimits;

use super::{Case, Work, case, fill, work};
use crate::response_headers;

/// Twice this is below the longest field that is read.
const SIZE: usize = 2_000;

pub(super) const CASES: &[Case] = &[
    case("limit headers: items", SIZE, |size| policy(fill("\"a\";q=1;w=1,", size) + "\"a\"")),
    case("limit headers: parameters", SIZE, |size| policy(format!("\"a\"{}", fill(";q=1", size)))),
    case("limit headers: a long name", SIZE, |size| policy(format!("\"{}\";q=1", fill("a", size)))),
    case("limit headers: escapes", SIZE, |size| policy(format!("\"{}\";q=1", fill("\\\\", size)))),
    case("limit headers: an open string", SIZE, |size| policy(format!("\"{}", fill("a", size)))),
    case("limit headers: spaces", SIZE, |size| policy(fill(" ", size) + "\"a\"")),
    case("limit headers: a partition key", SIZE, |size| policy(format!("\"a\";pk=:{}:", fill("a", size)))),
    case("limit headers: a long number", SIZE, |size| policy(format!("\"a\";q={}", fill("1", size)))),
    case("limit headers: a limit of three fields", SIZE, |size| {
        headers(format!("x-ratelimit-limit: {}\nx-ratelimit-remaining: 1", fill("1;w=", size)))
    }),
];

fn policy(value: String) -> Work {
    headers(format!("ratelimit-policy: {value}\nratelimit: {value}"))
}

fn headers(lines: String) -> Work {
    work(response_headers(lines.as_bytes()), |headers| ServerLimits::read(headers, SystemTime::UNIX_EPOCH))
}
