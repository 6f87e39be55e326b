//! Envoy: the configuration of envoyproxy/ratelimit, and messages of the rate limit service.

use tollgate_server::testing::envoy::configured;
use tollgate_server::testing::grpc::rate_limit_request;

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
