//! Envoy: the configuration of envoyproxy/ratelimit, and messages of the rate limit service and of external
//! authorization.

use tollgate_server::testing::envoy::configured;
use tollgate_server::testing::grpc::{authorization_request, rate_limit_request};

use super::{MAX_BYTES, Target, text, texts};

pub(super) const CONFIG: Target = Target {
    name: "envoy_config",
    run: |input| {
        let Some(input) = text(input) else { return };
        configured(input, "shop", "user=42\npath=/a/b");
    },
    words: &[
        "domain: shop\n",
        "descriptors:\n",
        "- key: user\n",
        "value: 'a*'",
        "rate_limit: { unit: minute, requests_per_unit: 5 }",
        "unlimited: true",
        "replaces: [{ name: a }]",
        "name: a",
        "shadow_mode: true",
        "quota_mode: true",
        "share_threshold: true",
        "{ key: path, value: '/*' }",
        "week",
        "*",
    ],
    seeds: || {
        texts(&[
            "domain: shop\ndescriptors:\n- key: user\n  rate_limit: { unit: minute, requests_per_unit: 5 }\n  descriptors:\n\
             \x20 - { key: path, value: '/a/*', share_threshold: true, rate_limit: { unit: day, requests_per_unit: 0, name: a } }\n\
             - { key: user, value: '42', shadow_mode: true, rate_limit: { unlimited: true, replaces: [{ name: a }] } }\n",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const REQUEST: Target = Target {
    name: "rate_limit_request",
    run: |input| {
        rate_limit_request(input);
    },
    words: &[
        "\x0a\x04shop",
        "\x12\x0c\x0a\x0a\x0a\x04user\x12\x0242",
        "\x18\x05",
        "\x1a\x02\x08\x03",
        "\x12\x04\x08\x05\x10\x02",
    ],
    seeds: || vec![b"\x0a\x04shop\x12\x0c\x0a\x0a\x0a\x04user\x12\x0242\x18\x05".to_vec()],
    max_bytes: MAX_BYTES,
};

/// A field of a message that has bytes, fewer than 128.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("short");
    [&[number << 3 | 2, length], bytes].concat()
}

pub(super) const AUTHORIZATION: Target = Target {
    name: "authorization_request",
    run: |input| {
        authorization_request(input);
        // What a client can write is never an error of the call: here the input is its path, a header and its host.
        let bytes = &input[..input.len().min(20)];
        let header = field(13, &field(1, &[field(1, b"x-a"), field(3, bytes)].concat()));
        let http = [field(2, b"GET"), field(4, bytes), field(5, bytes), header].concat();
        let source = field(1, &field(1, &field(1, &field(2, b"192.0.2.1"))));
        let attributes = [source, field(4, &field(2, &http))].concat();
        assert!(authorization_request(&field(1, &attributes)).is_some(), "an error of the call");
    },
    words: &[
        "\x0a\x0f\x0a\x0d\x0a\x0b\x12\x09192.0.2.1",
        "\x12\x03GET",
        "\x22\x02/a",
        "\x2a\x09a.example",
        "\x6a",
        "\x1a",
    ],
    seeds: || {
        let raw = field(1, &[field(1, b"accept"), field(3, b"text/html")].concat());
        let joined = field(3, &[field(1, b"x-a"), field(2, b"b")].concat());
        let http =
            [field(2, b"GET"), field(4, b"/a?b"), field(5, b"a.example"), joined, field(13, &raw)].concat();
        let source = field(1, &field(1, &field(1, &field(2, b"192.0.2.1"))));
        vec![field(1, &[source, field(4, &field(2, &http))].concat())]
    },
    max_bytes: MAX_BYTES,
};
