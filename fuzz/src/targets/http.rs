//! Requests as clients send them: heads, connections, headers, fields of bodies, and bodies of the decision API.

use std::sync::LazyLock;

use serde_json::Value;
use tollgate_server::testing::http::{batch_len, is_check, is_query, plain_bodies};
use tollgate_server::testing::proxy::{
    AfterSending, BodyLength, Completeness, Connections, form_fields, forwarded_headers, heads, json_fields,
};

use super::{MAX_BYTES, Target, first_line, text, texts};

pub(super) const HEADS: Target = Target {
    name: "http_heads",
    run: |input| {
        let whole = heads(input, input.len().max(1));
        for piece in [1, 3] {
            assert_eq!(heads(input, piece), whole, "heads depend on how they are read, in pieces of {piece}");
        }
        let ambiguous = whole.iter().position(|head| *head == BodyLength::Both);
        assert!(
            ambiguous.is_none_or(|at| at + 1 == whole.len()),
            "a head was reported behind an ambiguous one"
        );
    },
    words: HTTP_WORDS,
    seeds: http_seeds,
    max_bytes: MAX_BYTES,
};

pub(super) const CONNECTION: Target = Target {
    name: "http_connection",
    run: |input| {
        // Nothing passes, so no upstream is needed.
        const CONFIG: &str = "upstreams: ['http://127.0.0.1:9']\n\
            rules: [{ id: none, key: 'json:email', missing_key: shared, limit: 0/h }]";
        static DENYING: LazyLock<Connections> =
            LazyLock::new(|| Connections::new(CONFIG, std::path::Path::new("")));
        let answer = DENYING.converse(input, AfterSending::HangsUp);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "not an answer of HTTP");
        assert!(!answer.windows(15).any(|bytes| bytes == b"HTTP/1.1 200 OK"), "a request has passed");
    },
    words: HTTP_WORDS,
    seeds: http_seeds,
    max_bytes: MAX_BYTES,
};

pub(super) const PLAIN_CALLS: Target = Target {
    name: "http_plain_calls",
    run: |input| {
        let whole = plain_bodies(input, input.len().max(1));
        for piece in [1, 3] {
            assert_eq!(
                plain_bodies(input, piece),
                whole,
                "calls depend on how they are read, in pieces of {piece}"
            );
        }
    },
    words: HTTP_WORDS,
    seeds: || {
        texts(&[
            "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc",
            "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n\
             POST /v1/check HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}GET",
        ])
    },
    max_bytes: MAX_BYTES,
};

const HTTP_WORDS: &[&str] = &[
    "GET / HTTP/1.1\r\n",
    "POST /v1/check HTTP/1.1\r\n",
    "POST / HTTP/1.0\r\n",
    "host: x\r\n",
    "content-length: 3\r\n",
    "Content-Length : 5\r\n",
    "transfer-encoding: chunked\r\n",
    "transfer-encoding: gzip, chunked\r\n",
    "expect: 100-continue\r\n",
    "connection: upgrade, x\r\n",
    "upgrade: websocket\r\n",
    "content-type: application/json\r\n",
    "0\r\n\r\n",
    "3\r\nabc\r\n",
    "1;a=b\r\n",
    "\r\n\r\n",
    "\r\n",
    "\n\n",
];

fn http_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /b?c=d HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 17\r\n\r\n{\"email\":\"a@b.c\"}GET / HTTP/1.1\r\nhost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nx-a: b\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "\r\n\nPOST http://h/a HTTP/1.0\ncontent-length: 1\n\nxGET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    ])
}

pub(super) const HEADERS: Target = Target {
    name: "http_headers",
    run: |input| {
        let line = |line: &'static str| line.as_bytes();
        let lines: Vec<(&[u8], &[u8])> = input
            .split(|byte| *byte == b'\n')
            .filter_map(|header| {
                let at = header.iter().position(|byte| *byte == b':')?;
                Some((&header[..at], header[at + 1..].trim_ascii()))
            })
            .collect();
        let [from_client, trusted, by_forwarded] = forwarded_headers(&lines);
        assert_eq!(
            from_client["x-forwarded-for"].as_bytes(),
            line("127.0.0.1"),
            "a client's word was believed"
        );
        for headers in [&from_client, &trusted, &by_forwarded] {
            for gone in ["connection", "keep-alive", "proxy-connection", "x_forwarded_for", "x_api_key"] {
                assert!(!headers.contains_key(gone), "{gone} is passed on");
            }
        }
    },
    words: &[
        "connection: ",
        "x-api-key",
        "x_api_key: 1\n",
        "x-forwarded-for: 1.2.3.4, 5.6.7.8\n",
        "forwarded: for=1.2.3.4;host=\"a\";proto=https\n",
        "for=\"[2001:db8::1]:80\"",
        "te: trailers\n",
        "transfer-encoding: chunked\n",
        ", ",
        "\\\"",
    ],
    seeds: || {
        texts(&[
            "connection: close, x-private\nx-private: 1\nkeep-alive: 5\nx_forwarded_for: 1.1.1.1\n",
            "forwarded: for=1.2.3.4;host=\"a\\\"b\", for=\"[::1]:80\";proto=https\nx-forwarded-for: 10.0.0.1, 2001:db8::1\n",
            "te: gzip, trailers\nupgrade: h2c\ncontent-length: 3\ntransfer-encoding: chunked\n",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const JSON_FIELDS: Target = Target {
    name: "json_fields",
    run: |input| {
        let whole = json_fields(input, "email", Completeness::Complete);
        let cut = json_fields(input, "email", Completeness::Truncated);
        let is_unreadable = whole == ["{", "{}"];
        assert!(
            whole.is_empty() || is_unreadable || whole == cut,
            "a whole body has fields that its start has not"
        );
        json_fields(input, "user.name", Completeness::Complete);
        // What a strict parser reads, and believes last, is found.
        if let Ok(Value::Object(object)) = serde_json::from_slice(input)
            && let Some(Value::String(text)) = object.get("email")
        {
            assert!(whole.contains(text), "{text:?} is not among {whole:?}");
        }
    },
    words: &[
        "\"email\":",
        "\"EMAIL\":",
        "\"user\":{",
        "\"name\":",
        "\"\\u0065mail\":",
        "\\ud800",
        "\\udc00",
        "null",
        "true",
        "1e308",
        "-0",
        "[",
        "]",
        "{",
        "}",
        "\"a\"",
        ",",
        "\u{feff}",
    ],
    seeds: || {
        texts(&[
            "{\"email\":\"ann@example.com\"}",
            "{\"a\":[1,{\"b\":\"\\\"}\"}],\"email\":[\"x\",4.2e1,true,null],\"Email\":42.0}",
            "{\"user\":{\"name\":\"ann\",\"x\":{\"name\":1}},\"email\":\"\\ud83d\\ude00\\ud800\\n\"}",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const FORM_FIELDS: Target = Target {
    name: "form_fields",
    run: |input| {
        let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
        let content_type = String::from_utf8_lossy(&input[..end]);
        let body = input.get(end + 1..).unwrap_or_default();
        let whole = form_fields(&content_type, body, "email", Completeness::Complete);
        let cut = form_fields(&content_type, body, "email", Completeness::Truncated);
        assert!(
            cut.iter().all(|value| whole.contains(value)),
            "the start of a body has fields that it has not"
        );
    },
    words: &[
        "multipart/form-data; boundary=XX\n",
        "application/x-www-form-urlencoded\n",
        "\r\n--XX\r\n",
        "\r\n--XX--",
        "Content-Disposition: form-data; name=\"email\"\r\n\r\n",
        "; filename=\"a\"",
        "; name*=utf-8''%65mail",
        "Content-Transfer-Encoding: quoted-printable\r\n",
        "\n\n",
        ";",
        "email=",
        "%65mail=",
        "&",
        "+",
        "%41",
        "\r\n\r\n",
    ],
    seeds: || {
        texts(&[
            "application/x-www-form-urlencoded\na=1&email=ann%40example.com&EMAIL=b+c",
            "multipart/form-data; boundary=\"XX\"; a=b\n--XX\r\nContent-Disposition: form-data; name=\"email\"\r\n\r\nann\r\n--XX--",
            "multipart/form-data;boundary=XX\npre\r\n--XX \t\r\ncontent-disposition: form-data; name=file; filename=\"a;\\\"\"\r\n\r\nx\r\n--XX\r\n\r\n\r\n--XX--",
            "\nemail=a&email=b",
        ])
    },
    max_bytes: MAX_BYTES,
};

pub(super) const CHECK_BODY: Target = Target {
    name: "check_body",
    run: |input| {
        let single = is_check(input);
        let in_batch = [b"[".as_slice(), input, b"]"].concat();
        assert!(!single || batch_len(&in_batch) == Some(1), "a check is not one in a batch");
        batch_len(input);
        text(input).map(first_line).map(|(query, _)| is_query(query));
    },
    words: &[
        "\"ip\":",
        "\"user\":",
        "\"headers\":{",
        "\"attributes\":{",
        "\"cost\":",
        "\"peek\":true",
        "\"path\":\"/a\"",
        "\"mac\":\"aa:bb:cc:dd:ee:ff\"",
        "userId=",
        "ipAddress=",
        "::ffff:1.2.3.4",
        "null",
        "{",
        "}",
        "[",
        "]",
        ",",
    ],
    seeds: || {
        texts(&[
            "{\"domain\":\"d\",\"method\":\"GET\",\"path\":\"/a\",\"host\":\"h\",\"ip\":\"1.2.3.4\",\"user\":42,\"email\":\"a@b\",\
             \"mac\":\"aa-bb-cc-dd-ee-ff\",\"api_key\":\"k\",\"headers\":{\"A\":\"b\"},\"attributes\":{\"c\":true},\"cost\":2,\"peek\":false}",
            "[{},{\"ip\":\"::1\",\"receipt\":true}]",
            "userId=42&ipAddress=10.0.0.1",
        ])
    },
    max_bytes: MAX_BYTES,
};
