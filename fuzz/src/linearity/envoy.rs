//! Envoy: its configuration, and messages of the rate limit service and of external authorization.

use tollgate_server::testing::envoy::configured;
use tollgate_server::testing::grpc::{authorization_request, rate_limit_request};

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
    case("envoy: joined headers of a request to authorize", SMALL, |size| {
        let header = |n: usize| field(3, &[field(1, format!("x-{n}").as_bytes()), field(2, b"v")].concat());
        authorization((0..size / 12).flat_map(header).collect())
    }),
    case("envoy: raw headers of a request to authorize", SMALL, |size| {
        let header = field(1, &[field(1, b"x-a"), field(3, b"v")].concat());
        authorization(field(13, &header.repeat(size / header.len())))
    }),
    case("envoy: a long path of a request to authorize", SMALL, |size| {
        authorization(field(4, format!("/{}", fill("a/../%2e", size)).as_bytes()))
    }),
];

/// A field with bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length > 127 {
        field.push((length & 127) as u8 | 128);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(bytes);
    field
}

/// A request to authorize with these fields of HTTP.
fn authorization(http: Vec<u8>) -> Work {
    let http = [field(2, b"GET"), field(4, b"/"), field(5, b"a.example"), http].concat();
    let source = field(1, &field(1, &field(1, &field(2, b"192.0.2.1"))));
    let message = field(1, &[source, field(4, &field(2, &http))].concat());
    Box::new(move || assert_eq!(authorization_request(&message), Some(true)))
}

fn config(descriptors: String, descriptor: String) -> Work {
    let text = format!("domain: shop\ndescriptors:\n{descriptors}");
    Box::new(move || assert!(configured(&text, "shop", &descriptor), "{text}"))
}

fn message(text: String) -> Work {
    Box::new(move || {
        rate_limit_request(text.as_bytes());
    })
}
