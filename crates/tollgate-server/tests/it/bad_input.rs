//! Invalid input: a clear error, nothing charged, and the next request is served.

use serde_json::{Value, json};
use std::io::Read;
use std::net::{Shutdown, TcpStream};
use tollgate_testkit::{Answer, Client, Server, pour};

/// Every request is counted, so that a charge by mistake would show.
const EVERYBODY: &str = "rules: [{ id: all, limit: 9000/d, algorithm: sliding-log }]";

fn start() -> Server {
    Server::start(EVERYBODY)
}

/// The server answers as before, and nothing was charged.
fn goes_on(server: &Server, after: &str) {
    assert_eq!(server.used("all", ""), [0], "{after}");
    let answer = server.check(&json!({ "peek": true }));
    assert_eq!(answer.status, 200, "{after}: {answer}");
}

fn problem(answer: &Answer, status: u16) -> Value {
    assert_eq!(answer.status, status, "{answer}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer}");
    let body = answer.json();
    assert_eq!(body["status"], status);
    assert!(body["title"].is_string() && body["type"].is_string(), "{body}");
    assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{body}");
    body
}

#[test]
fn an_invalid_body_is_rejected_by_the_name_of_its_field() {
    let server = start();
    let long = "x".repeat(5000);
    for (body, field) in [
        ("", "body"),
        ("not json", "body"),
        ("{", "body"),
        ("[]", "body"),
        ("null", "body"),
        ("\"text\"", "body"),
        ("{} {}", "body"),
        (r#"{"colour":"red"}"#, "colour"),
        (r#"{"user":"a","user":"b"}"#, "user"),
        (r#"{"user":{}}"#, "user"),
        (r#"{"path":7}"#, "path"),
        (r#"{"cost":-1}"#, "cost"),
        (r#"{"cost":1.5}"#, "cost"),
        (r#"{"cost":"1"}"#, "cost"),
        (r#"{"cost":99999999999999999999}"#, "cost"),
        (r#"{"cost":1000000001}"#, "cost"),
        (r#"{"peek":"yes"}"#, "peek"),
        (r#"{"headers":["a"]}"#, "headers"),
        (r#"{"headers":{"a":[1]}}"#, "headers.a"),
        (r#"{"attributes":{"a":{"b":1}}}"#, "attributes.a"),
        (r#"{"ip":"1.2.3"}"#, "ip"),
        (r#"{"ip":"1.2.3.4:80"}"#, "ip"),
        (r#"{"ip":""}"#, "ip"),
        (r#"{"ip":"1.2.3.4\u0000"}"#, "ip"),
        (r#"{"mac":"zz:zz:zz:zz:zz:zz"}"#, "mac"),
        (&format!(r#"{{"user":"{long}"}}"#), "user"),
        (&format!(r#"{{"email":"{long}@x.org"}}"#), "email"),
        (&format!(r#"{{"headers":{{"a":"{long}"}}}}"#), "headers.a"),
    ] {
        let answer = server.request("POST", "/v1/check", body);
        assert_eq!(answer.status, 400, "{body}: {answer}");
        let body_of_answer = problem(&answer, 400);
        assert_eq!(body_of_answer["field"], field, "{body}: {body_of_answer}");
    }
    goes_on(&server, "bad bodies");
}

#[test]
fn invalid_utf_8_and_nul_never_get_in_the_way() {
    let server = start();
    for body in [&b"\xff\xfe"[..], b"{\"user\":\"\xff\"}", b"\0", b"{\"user\":\"a\0b\"}", b"{\"us\0er\":1}"] {
        let answer = problem(&server.request("POST", "/v1/check", body), 400);
        assert!(answer["field"].is_string(), "{answer}");
    }
    goes_on(&server, "bad bytes in bodies");

    let raw = |header: &[u8]| {
        let mut client = Client::to(server.http);
        client.write(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\n");
        client.write(header);
        client.write(b"\r\ncontent-length: 13\r\n\r\n{\"peek\":true}");
        client.try_answer().map(|answer| answer.status)
    };
    assert_eq!(raw(b"x-a: a\0b"), Some(400));
    assert_eq!(raw(b"x\0a: ab"), Some(400));
    assert_eq!(raw(b"x-a: \xff\xfe"), Some(200), "opaque bytes in a header that no rule uses");
    goes_on(&server, "bad bytes in headers");

    let escaped = server.check(&json!({ "user": "a\0b", "headers": { "x": "\u{1b}[2J\0" }, "peek": true }));
    assert!(matches!(escaped.status, 200 | 400), "{escaped}");
    goes_on(&server, "NUL, escaped");
}

#[test]
fn a_long_body_is_413_and_a_long_key_names_its_field() {
    let server = start();
    for length in [257 << 10, 1 << 20, 10 << 20] {
        let body = format!(r#"{{"user":"{}"}}"#, "x".repeat(length));
        let detail = problem(&server.request("POST", "/v1/check", &body), 413);
        assert!(detail["detail"].as_str().is_some_and(|text| text.contains("262144 bytes")), "{detail}");
    }
    let batch = format!(r#"[{{"user":"{}"}}]"#, "x".repeat(1 << 20));
    assert_eq!(problem(&server.request("POST", "/v1/check/batch", &batch), 400)["field"], "[0].user");
    let batch = format!(r#"[{{"user":"{}"}}]"#, "x".repeat(5 << 20));
    problem(&server.request("POST", "/v1/check/batch", &batch), 413);
    let ban = json!({ "key": format!("user:{}", "x".repeat(1 << 20)), "for": "1h" });
    problem(&server.admin("POST", "/v1/bans", ban.to_string()), 413);
    let ban = json!({ "key": format!("user:{}", "x".repeat(5000)), "for": "1h" });
    assert_eq!(problem(&server.admin("POST", "/v1/bans", ban.to_string()), 400)["field"], "key");
    goes_on(&server, "long bodies");
}

#[test]
fn expect_continue_is_answered_at_once_with_413_if_the_body_is_too_long() {
    let server = start();
    let mut client = Client::to(server.http);
    client.write(
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99999999\r\nexpect: 100-continue\r\n\r\n",
    );
    problem(&client.answer(), 413);
    goes_on(&server, "expect: 100-continue");
}

#[test]
fn a_body_of_unknown_length_is_bounded_too() {
    let server = start();
    let mut client = Client::to(server.http);
    client.write(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    for _ in 0..8 {
        client.write(&chunk);
    }
    client.write(b"0\r\n\r\n");
    problem(&client.answer(), 413);
    goes_on(&server, "a chunked body");
}

#[test]
fn long_urls_and_headers_are_refused_by_http_itself() {
    let server = start();
    let long = "x".repeat(1 << 20);
    for request in [
        format!("GET /v1/keys?rule=all&key=user:{long} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        format!("GET /v1/bans HTTP/1.1\r\nhost: localhost\r\nx-long: {long}\r\n\r\n"),
        format!("GET /v1/bans HTTP/1.1\r\nhost: localhost\r\n{}\r\n", "a: b\r\n".repeat(1000)),
    ] {
        for address in [server.http, server.admin] {
            let mut client = Client::to(address);
            client.write(request.as_bytes());
            let status = client.try_answer().map(|answer| answer.status);
            assert!(matches!(status, None | Some(400 | 414 | 431)), "{status:?}");
        }
    }
    goes_on(&server, "long heads");
}

#[test]
fn unknown_paths_are_404_and_wrong_methods_405_with_allow() {
    let server = start();
    for path in ["/", "/v1", "/v1/check/", "/v1/checks", "/v1/check/batch/x", "/%00", "/v2/check"] {
        problem(&server.request("POST", path, "{}"), 404);
    }
    for (method, path, allow) in [
        ("GET", "/v1/check", "POST"),
        ("PUT", "/v1/check", "POST"),
        ("DELETE", "/v1/check/batch", "POST"),
        ("POST", "/v1/request-allowed", "GET"),
    ] {
        let answer = server.request(method, path, "{}");
        problem(&answer, 405);
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
    for (method, path, allow) in [
        ("POST", "/healthz", "GET, HEAD"),
        ("POST", "/metrics", "GET"),
        ("PATCH", "/v1/bans", "GET, POST"),
        ("GET", "/v1/bans/user:ann", "DELETE"),
        ("PUT", "/v1/keys", "GET, DELETE"),
        ("PATCH", "/v1/rules", "GET, POST"),
        ("POST", "/v1/rules/a", "GET, PUT, DELETE"),
    ] {
        let answer = server.admin(method, path, "{}");
        problem(&answer, 405);
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
    problem(&server.admin("GET", "/v1/nothing", ""), 404);
    goes_on(&server, "wrong paths and methods");
}

#[test]
fn garbage_instead_of_http_ends_its_connection_only() {
    let server = start();
    for garbage in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"*1\r\n$4\r\nPING\r\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/check HTTP/9.9\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n{}",
        b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        &[b'\n'; 100_000],
    ] {
        for address in [server.http, server.admin] {
            let mut stream = TcpStream::connect(address).expect("the server accepts");
            stream.set_read_timeout(Some(tollgate_testkit::SOON)).expect("a timeout can be set");
            pour(&mut stream, garbage);
            stream.shutdown(Shutdown::Write).ok();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).ok();
            assert!(!answer.starts_with(b"HTTP/1.1 2"), "{}", String::from_utf8_lossy(&answer));
        }
    }
    goes_on(&server, "garbage");
}

#[test]
fn bad_bans_and_keys_are_rejected_by_the_name_of_their_field() {
    let server = start();
    for (body, field) in [
        (json!({ "for": "1h" }), "key"),
        (json!({ "key": "user:a" }), "for"),
        (json!({ "key": "user:a", "for": "soon" }), "for"),
        (json!({ "key": "user:a", "for": "0s" }), "for"),
        (json!({ "key": "user:a", "for": 7 }), "for"),
        (json!({ "key": "user:a", "until": "tomorrow" }), "until"),
        (json!({ "key": "user:a", "until": "2001-01-01T00:00:00Z" }), "until"),
        (json!({ "key": "user:a", "for": "1h", "until": "2126-01-01T00:00:00Z" }), "until"),
        (json!({ "key": "nonsense", "for": "1h" }), "key"),
        (json!({ "key": "ip:1.2.3", "for": "1h" }), "key"),
        (json!({ "key": "ip:1.2.3.4/99", "for": "1h" }), "key"),
        (json!({ "key": "user:a+user:b", "for": "1h" }), "key"),
        (json!({ "key": "user:a", "for": "1h", "colour": "red" }), "colour"),
        (json!({ "key": "user:a", "for": "1h", "reason": "x".repeat(2000) }), "reason"),
        (json!([]), "body"),
    ] {
        let answer = problem(&server.admin("POST", "/v1/bans", body.to_string()), 400);
        assert_eq!(answer["field"], field, "{body}: {answer}");
    }
    assert_eq!(server.admin("GET", "/v1/bans", "").json(), json!({ "bans": [], "next": null, "total": 0 }));
    for (query, status, field) in [
        ("", 400, json!("rule")),
        ("?rule=all&rule=all", 400, json!("rule")),
        ("?rule=all&colour=red", 400, json!("colour")),
        ("?rule=all&key=user:ann", 400, json!("key")),
        ("?rule=all&key=nonsense", 400, json!("key")),
        ("?rule=nobody", 404, Value::Null),
    ] {
        let answer = problem(&server.admin("GET", &format!("/v1/keys{query}"), ""), status);
        assert_eq!(answer["field"], field, "{query}: {answer}");
    }
    goes_on(&server, "bad admin calls");
}
