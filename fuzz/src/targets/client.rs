//! Responses as servers send them to the client side: the headers about their limits.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tollgate_client::headers::{MAX_REPORTED, ServerLimits};

use super::{MAX_BYTES, Target, texts};
use crate::response_headers;

pub(super) const LIMIT_HEADERS: Target = Target {
    name: "limit_headers",
    run: |input| {
        let now: SystemTime = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
        let headers = response_headers(input);
        let limits = ServerLimits::read(&headers, now);
        assert!(limits.limits.len() <= MAX_REPORTED, "more limits than the bound");
        assert_eq!(limits, ServerLimits::read(&headers, now), "the same headers are read differently");
        if limits.is_empty() {
            assert!(limits.retry_after.is_none(), "an empty result states a wait");
        }
    },
    words: &[
        "ratelimit: ",
        "ratelimit-policy: ",
        "x-ratelimit-limit: 5\n",
        "x-ratelimit-remaining: ",
        "x-ratelimit-reset: 1800000030",
        "ratelimit-remaining: 0\n",
        "retry-after: ",
        "date: Fri, 15 Jan 2027 08:00:00 GMT\n",
        "\"default\"",
        ";q=100",
        ";w=60",
        ";r=50",
        ";t=30",
        ";pk=:dXNlcg==:",
        ";qu=\"requests\"",
        "limit=100, remaining=50, reset=5",
        ", ",
        "\\\"",
        "999999999999999",
    ],
    seeds: || {
        texts(&[
            "ratelimit-policy: \"burst\";q=100;w=60, \"daily\";q=1000;w=86400;pk=:dXNlcg==:\nratelimit: \"burst\";r=50;t=30",
            "ratelimit-policy: 100;w=60\nratelimit: limit=100, remaining=50, reset=5",
            "ratelimit-limit: 100, 100;w=60\nratelimit-remaining: 3\nratelimit-reset: 9",
            "x-ratelimit-limit: 60\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1800000030\nretry-after: 30",
            "retry-after: Fri, 15 Jan 2027 08:02:00 GMT\ndate: Fri, 15 Jan 2027 08:00:00 GMT",
        ])
    },
    max_bytes: MAX_BYTES,
};
