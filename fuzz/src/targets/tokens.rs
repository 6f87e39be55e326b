//! Signed input of callers: tokens and receipts; and the keys of tokens.

use tollgate_server::testing;

use super::{MAX_BYTES, Target, text, texts};

pub(super) const JWT: Target = Target {
    name: "jwt",
    run: |input| {
        // As a whole it has no signature that fits; as the parts of a token it gets one.
        assert_eq!(text(input).and_then(testing::token_subject), None, "an unsigned token was believed");
        let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
        let claims = input.get(at + 1..).unwrap_or_default();
        testing::token_subject(&testing::signed_token(&input[..at], claims));
    },
    words: &[
        "{\"alg\":\"HS256\"}\n",
        "\"kid\":\"a\"",
        "\"crit\":[]",
        "\"sub\":\"ann\"",
        "\"exp\":",
        "\"nbf\":",
        "1800000000.5",
        "1e400",
        ".",
        "\n",
    ],
    seeds: || {
        texts(&[
            "{\"alg\":\"HS256\"}\n{\"sub\":\"ann\",\"exp\":1900000000}",
            "{\"alg\":\"HS256\",\"kid\":null}\n{\"sub\":42,\"nbf\":1.5e9}",
            "eyJhbGciOiJub25lIn0.e30.",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const KEY_SET: Target = Target {
    name: "key_set",
    run: |input| {
        text(input).map(testing::is_key_set);
    },
    words: &[
        "\"kty\":\"RSA\"",
        "\"kty\":\"EC\"",
        "\"kty\":\"OKP\"",
        "\"crv\":\"P-256\"",
        "\"n\":\"",
        "\"e\":\"AQAB\"",
        "\"x\":\"",
        "\"use\":\"sig\"",
        "\"k\":\"",
        "AAAA",
    ],
    seeds: || {
        texts(&[
            "{\"keys\":[{\"kty\":\"oct\",\"kid\":\"s\",\"k\":\"BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc\"}]}",
            "{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo\",\"alg\":\"EdDSA\"}]}",
            "{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU\",\"y\":\"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0\"}]}",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const RECEIPT: Target = Target {
    name: "receipt",
    run: |input| {
        assert_eq!(text(input).and_then(testing::settle), None, "an unsigned receipt was settled");
        testing::settle(&testing::signed_receipt(input));
    },
    words: &[
        "\"id\":[0,1,2]",
        "\"at\":1800000000000000000",
        "\"charges\":[",
        "[\"a\",\"",
        "null",
        "18446744073709551615",
        "[",
        "]",
        ",",
    ],
    seeds: || {
        texts(&[
            "{\"id\":[0,1,2],\"at\":1800000000000000000,\"charges\":[[\"a\",\"gcra:60000000000:5:5\",1,1,[1800000000000000000,1,0],null]]}",
            "{\"id\":[0,1,2],\"at\":1799999999000000000,\"charges\":[[\"a\",\"\",1,1,[1,1,0],[\"default\",[[\"ip\",\"1.2.3.4\",false]],0]]]}",
        ])
    },
    max_bytes: MAX_BYTES,
};
