//! Messages that two servers would read differently are refused, and nothing of them reaches the API.

use tollgate_testkit::{Client, Server};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of};

const HIDDEN: &str = "GET /hidden HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// Sends bytes; returns the responses until the connection is closed.
fn answers(server: &Server, bytes: &[u8]) -> Vec<u16> {
    let mut client = Client::to(server.proxy);
    client.write(bytes);
    std::iter::from_fn(|| client.try_answer()).map(|answer| answer.status).collect()
}

fn check_refused(requests: &[String]) {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    for request in requests {
        let statuses = answers(&server, request.as_bytes());
        assert!(
            statuses.iter().all(|status| (400..=501).contains(status)) && statuses.len() <= 1,
            "{statuses:?} to {request:?}"
        );
        assert!(api.received().iter().all(|seen| seen.target() != "/hidden"), "{request:?}");
    }
    assert!(api.received().is_empty(), "{:?}", api.received());
    assert_eq!(get(&server, "/", &[]).status, 200, "others are served as ever");
}

#[test]
fn conflicting_lengths_are_refused() {
    let with =
        |headers: &str, body: &str| format!("POST / HTTP/1.1\r\nhost: x\r\n{headers}\r\n{body}{HIDDEN}");
    check_refused(&[
        with("content-length: 4\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n"),
        with("transfer-encoding: chunked\r\ncontent-length: 4\r\n", "0\r\n\r\n"),
        with("Transfer-Encoding: chunked\r\nX: y\r\nContent-Length: 0\r\n", "0\r\n\r\n"),
        with("content-length: 4\r\ncontent-length: 5\r\n", "abcde"),
        with("content-length: 4, 5\r\n", "abcde"),
        with("content-length: 4, 4\r\n", "abcd"),
        with("content-length: +4\r\n", "abcd"),
        with("content-length: -4\r\n", "abcd"),
        with("content-length: 0x4\r\n", "abcd"),
        with("content-length: 4 \u{b}\r\n", "abcd"),
        with("content-length:\r\n", "abcd"),
        with("content-length: 99999999999999999999999\r\n", "abcd"),
    ]);
}

#[test]
fn odd_codings_are_refused() {
    let with = |coding: &str| {
        format!("POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: {coding}\r\n\r\n0\r\n\r\n{HIDDEN}")
    };
    check_refused(
        &[
            "xchunked",
            "chunked, identity",
            "identity",
            "gzip, chunked",
            "chunked, chunked",
            "chunked;q=1",
            "\"chunked\"",
            "",
            "\u{b}chunked",
            "chunked\r\ntransfer-encoding: identity",
            "identity\r\ntransfer-encoding: chunked",
            "chunked\r\ntransfer-encoding: chunked",
        ]
        .map(with),
    );
    check_refused(&[format!(
        "POST / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{HIDDEN}"
    )]);
}

#[test]
fn bad_chunks_are_refused() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    for body in [
        "x\r\nabc\r\n0\r\n\r\n",
        "-1\r\nabc\r\n0\r\n\r\n",
        "+3\r\nabc\r\n0\r\n\r\n",
        "0x3\r\nabc\r\n0\r\n\r\n",
        "3 3\r\nabc\r\n0\r\n\r\n",
        "3\nabc\n0\n\n",
        "3\r\nabcd\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n",
        "10000000000000003\r\nabc\r\n0\r\n\r\n",
        "\r\n3\r\nabc\r\n0\r\n\r\n",
        "3;a=\nb\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc\r\n",
    ] {
        let request =
            format!("POST /chunks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{body}{HIDDEN}");
        let statuses = answers(&server, request.as_bytes());
        assert!(statuses.iter().all(|status| (400..=502).contains(status)), "{statuses:?} to {body:?}");
    }
    assert!(api.received().is_empty(), "{:?}", api.received());
    assert_eq!(get(&server, "/", &[]).status, 200);
}

#[test]
fn odd_heads_are_refused() {
    let mut requests: Vec<String> = [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost:\r\nhost: b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a\r\nhost:\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: a/b@c\r\n\r\n",
        "GET / HTTP/1.1\r\nhost : x\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\ncontent-length : 40\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\n content-length: 40\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\nx: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\nx: a\rb\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding\u{a0}: chunked\r\n\r\n",
        "GET / HTTP/1.2\r\nhost: x\r\n\r\n",
        "GET / HTTP/2.0\r\nhost: x\r\n\r\n",
        "GET  /  HTTP/1.1\r\nhost: x\r\n\r\n",
        "GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
        "G@T / HTTP/1.1\r\nhost: x\r\n\r\n",
        "CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n",
        "GET / HTTP/1.1\r\nhost: x\r\nexpect: 200-maybe\r\n\r\n",
        "\u{16}\u{3}\u{1}",
    ]
    .map(str::to_owned)
    .to_vec();
    requests.push(format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "x".repeat(80 << 10)));
    requests.push(format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "x".repeat(80 << 10)));
    requests.push(format!("GET / HTTP/1.1\r\nhost: x\r\n{}\r\n", "x: y\r\n".repeat(200)));
    check_refused(&requests);
}

/// Two such requests once took both permits for five minutes: they were refused after they had been charged.
#[test]
fn a_refused_request_takes_no_permit() {
    let api = Api::echo();
    let server = in_front_of(&api, "rules: [{ id: busy, algorithm: concurrency, limit: 2/5m }]");
    for _ in 0..3 {
        assert_eq!(answers(&server, b"GET / HTTP/1.1\r\nhost:\r\nhost: x\r\n\r\n"), [400]);
    }
    assert_eq!(get(&server, "/", &[]).status, 200);
}

#[test]
fn the_host_in_the_request_line_overrides_the_header() {
    let api = Api::echo();
    let server = in_front_of(&api, "rules: [{ id: admin, host: admin.example.com, limit: 0/h }]");
    let bytes =
        b"GET http://admin.example.com/x?y HTTP/1.1\r\nhost: public.example.com\r\nconnection: close\r\n\r\n";
    assert_eq!(answers(&server, bytes), [429]);
    let bytes =
        b"GET http://public.example.com/x?y HTTP/1.1\r\nhost: admin.example.com\r\nconnection: close\r\n\r\n";
    assert_eq!(answers(&server, bytes), [200]);
    let seen = api.last();
    assert_eq!((seen.line.as_str(), seen.header("host")), ("GET /x?y HTTP/1.1", Some("public.example.com")));
}

#[test]
fn text_that_looks_like_a_request_is_a_body() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let body = "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n";
    let request = format!(
        "POST /mail HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
        body.len()
    );
    let mut client = Client::to(server.proxy);
    for _ in 0..3 {
        client.write(request.as_bytes());
        assert_eq!(client.answer().text(), body);
    }
}
