//! Envoy: its configuration, and messages of the rate limit service.

use tollgate_server::testing::envoy::configured;
use tollgate_server::testing::grpc::rate_limit_request;

use super::{Case, Work, bounded, case, fill, numbered};

const SMALL: usize = 16 << 10;
const LIMIT: &str = "rate_limit: { unit: day, requests_per_unit: 5 }";

pub(super) const CASES: &[Case] = &[
    case("envoy: many values of a key", SMALL, |size| {
        config(numbered(size, |n| format!("- {{ key: a, value: v{n}, {LIMIT} }}\n")), String::new())
    }),
    case("envoy: many wildcards of a key", SMALL, |size| {
        config(numbered(size, |n| format!("- {{ key: a, value: 'v{n}*', {LIMIT} }}\n")), "a=x".to_owned())
    }),
    case("envoy: the same key again", SMALL, |size| {
        let text = format!("domain: shop\ndescriptors:\n{}", fill("- { key: a }\n", size));
        Box::new(move || assert!(!configured(&text, "shop", "")))
    }),
    case("envoy: a value against many wildcards", 4 << 10, |size| {
        let pattern = fill("a*", size / 2);
        config(
            format!("- {{ key: a, value: '{pattern}b', {LIMIT} }}\n"),
            format!("a={}", "a".repeat(size / 2)),
        )
    }),
    bounded("envoy: descriptors of a request", "at most 1000 are read", 16 << 10, |size| {
        message(fill("\x12\x0c\x0a\x0a\x0a\x04user\x12\x0242", size))
    }),
    case("envoy: unknown fields of a request", 16 << 10, |size| message(fill("\x58\x01", size))),
];

fn config(descriptors: String, descriptor: String) -> Work {
    let text = format!("domain: shop\ndescriptors:\n{descriptors}");
    Box::new(move || assert!(configured(&text, "shop", &descriptor), "{text}"))
}

fn message(text: String) -> Work {
    Box::new(move || {
        rate_limit_request(text.as_bytes());
    })
}
