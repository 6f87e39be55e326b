//! Requests that take the path without hyper are served as all others are.

use std::io::Write as _;

use tollgate_testkit::{Answer, Client, Server};

use crate::proxy::api::{Api, Received};
use crate::proxy::in_front_of;

/// Not plain, and removed before the request is forwarded.
const NOT_PLAIN: &str = "te: gzip\r\n";

/// Plain, but not verbatim; removed before the request is forwarded.
const NOT_VERBATIM: &str = "x_forwarded_proto: ftp\r\n";

/// An API whose responses are framed in every way.
fn api_of_all_framings() -> Api {
    Api::start(|request, stream| {
        let is_head = request.line.starts_with("HEAD ");
        let large = "x".repeat(1 << 20);
        let response = match request.target() {
            "/length" => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\netag: \"a\"\r\n\r\nhello".to_owned(),
            "/empty" => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(),
            "/no-content" => "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            "/not-modified" => "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n".to_owned(),
            "/chunked" => "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
                 5;a=b\r\nhello\r\n00A\r\n, 12345678\r\n0\r\nx-sum: 1\r\nx-secret: 2\r\n\r\n"
                .to_owned(),
            "/until-close" => "HTTP/1.1 200 OK\r\n\r\nhello".to_owned(),
            "/old" => "HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello".to_owned(),
            "/hints" => "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
                .to_owned(),
            "/odd" => "HTTP/1.1 299 Odd\r\nset-cookie: a\r\nset-cookie: b\r\nconnection: x-private\r\nx-private: 1\r\n\
                 keep-alive: timeout=5\r\ncontent-length: 0\r\n\r\n"
                .to_owned(),
            "/large" => format!("HTTP/1.1 500 Oh\r\ncontent-length: {}\r\n\r\n{large}", large.len()),
            "/large-chunks" => format!(
                "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{large}\r\n1\r\ny\r\n0\r\n\r\n",
                large.len()
            ),
            other => panic!("no response for {other}"),
        };
        // The head of the last response.
        let head_end =
            if request.target() == "/hints" { response.len() - 2 } else { find_head_end(&response) };
        let end = if is_head { head_end } else { response.len() };
        let sent = stream.write_all(&response.as_bytes()[..end]).is_ok();
        sent && !matches!(request.target(), "/until-close" | "/old")
    })
}

fn find_head_end(response: &str) -> usize {
    response.find("\r\n\r\n").map_or(0, |end| end + 4)
}

const TARGETS: [&str; 11] = [
    "/length",
    "/empty",
    "/no-content",
    "/not-modified",
    "/chunked",
    "/until-close",
    "/old",
    "/hints",
    "/odd",
    "/large",
    "/large-chunks",
];

/// Sends a request; returns the answer and what the API was sent, both without what differs from call to call.
fn exchange(
    server: &Server,
    api: &Api,
    method: &str,
    target: &str,
    more: &str,
    body: &str,
) -> (Answer, Received) {
    let length = body.len();
    let head =
        format!("{method} {target} HTTP/1.1\r\nhost: h\r\nuser-agent: test\r\ncontent-length: {length}\r\n");
    let mut client = Client::to(server.proxy);
    client.write(format!("{head}{more}\r\n{body}").as_bytes());
    let mut answer = if method == "HEAD" { client.head() } else { client.answer() };
    answer.headers.retain(|(name, _)| name != "date");
    answer.headers.sort();
    let mut received = api.last();
    received.headers.sort();
    (answer, received)
}

/// Sends a request verbatim, without hyper, and with it.
fn check_same(server: &Server, api: &Api, method: &str, target: &str, more: &str, body: &str) {
    let (other, otherwise) = exchange(server, api, method, target, &format!("{NOT_PLAIN}{more}"), body);
    for line in ["", NOT_VERBATIM] {
        let (plain, plainly) = exchange(server, api, method, target, &format!("{line}{more}"), body);
        let case = format!("{method} {target} {more} {body} {line}");
        assert_eq!((plain.status, &plain.headers), (other.status, &other.headers), "{case}");
        assert!(plain.body == other.body, "{case}: {} and {} bytes", plain.body.len(), other.body.len());
        assert_eq!((&plainly.line, &plainly.body), (&otherwise.line, &otherwise.body), "{case}");
        assert_eq!(plainly.headers, otherwise.headers, "{case}");
    }
}

#[test]
fn plain_requests_are_forwarded_and_answered_as_others_are() {
    let api = api_of_all_framings();
    let server = in_front_of(&api, "rules: [{ id: all, limit: 1000000/h }]\nheaders: none\n");
    for target in TARGETS {
        for (method, body) in [("GET", ""), ("POST", ""), ("POST", "body"), ("DELETE", "body"), ("HEAD", "")]
        {
            check_same(&server, &api, method, target, "", body);
        }
    }
}

#[test]
fn the_api_gets_the_same_headers_whichever_path_a_request_takes() {
    let api = api_of_all_framings();
    for config in [
        "rules: [{ id: all, key: [header:x-a], limit: 1000000/h }]\nheaders: none\n",
        "rules: [{ id: all, key: [header:x_a], limit: 1000000/h }]\nheaders: none\n",
        "rules: [{ id: all, limit: 1000000/h }]\nheaders: none\nstrip_headers: [x-a, x-forwarded-for]\n",
        "rules: [{ id: all, limit: 1000000/h }]\nheaders: none\nproxy: { host: upstream }\n",
        "rules: [{ id: all, limit: 1000000/h }]\nheaders: none\ntrusted_proxies: [127.0.0.0/8]\n",
        "rules: [{ id: all, limit: 1000/h, algorithm: concurrency }]\nheaders: none\n",
        "rules: [{ id: all, limit: 1000000/h, count_when: failure }]\nheaders: none\n",
    ] {
        let server = in_front_of(&api, config);
        for more in [
            "X-A: 1\r\nx-a: 2\r\nCookie: a=1; b=\u{e9}\r\n",
            "Connection: Keep-Alive\r\nKeep-Alive: timeout=5\r\nProxy: http://evil\r\n",
            "X-Forwarded-For: 9.9.9.9\r\nForwarded: for=9.9.9.9\r\nX-Forwarded-Proto: ftp\r\nX-Forwarded-Host: evil\r\n",
            "x_forwarded_for: 9.9.9.9\r\nX-Real-IP: 9.9.9.9\r\nx.a: 3\r\n",
            "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nEmpty:\r\n",
        ] {
            for target in ["/length", "/chunked"] {
                check_same(&server, &api, "GET", target, more, "");
                check_same(&server, &api, "POST", target, more, "body");
            }
        }
    }
}

#[test]
fn requests_are_denied_alike_and_never_twice() {
    let api = Api::echo();
    for line in ["", NOT_VERBATIM, NOT_PLAIN] {
        let server = in_front_of(&api, "rules: [{ id: all, limit: 2/h }]\n");
        let mut client = Client::to(server.proxy);
        let statuses = [(); 4].map(|()| {
            client.write(format!("GET / HTTP/1.1\r\nhost: h\r\n{line}\r\n").as_bytes());
            let answer = client.answer();
            (answer.status, answer.header("ratelimit").map(str::to_owned))
        });
        let remaining = |left, reset| Some(format!("\"all\";r={left};t={reset}"));
        assert_eq!(statuses.each_ref().map(|(status, _)| *status), [200, 200, 429, 429], "{line}");
        assert_eq!(statuses[0].1, remaining(1, 1800), "{line}");
        assert!(statuses[1].1.as_ref().is_some_and(|left| left.contains("r=0")), "{line}");
    }
}

#[test]
fn trailers_are_for_clients_that_take_them() {
    let api = api_of_all_framings();
    let server = in_front_of(&api, "");
    for (more, sum) in [("", None), ("te: trailers\r\n", Some("1"))] {
        let (answer, _) = exchange(&server, &api, "GET", "/chunked", more, "");
        assert_eq!(answer.text(), "hello, 12345678");
        assert_eq!((answer.header("x-sum"), answer.header("x-secret")), (sum, None), "{more}");
    }
}

#[test]
fn a_connection_goes_over_to_hyper_and_loses_nothing() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let request = |target: &str, more: &str, body: &str| {
        let length = body.len();
        format!("POST {target} HTTP/1.1\r\nhost: h\r\ncontent-length: {length}\r\n{more}\r\n{body}")
    };
    let long = "x".repeat(20 << 10);
    let requests = [
        request("/1", "", "a"),
        request("/2", "", ""),
        request("/3", NOT_PLAIN, "b"),
        request("/4", "", &long),
        request("/5", "connection: close\r\n", "c"),
    ];
    for piece in [1, 7, 1 << 20] {
        let mut client = Client::to(server.proxy);
        requests.concat().as_bytes().chunks(piece).for_each(|bytes| client.write(bytes));
        let answers: Vec<String> =
            std::iter::from_fn(|| client.try_answer()).map(|answer| answer.text()).collect();
        assert_eq!(answers, ["a", "", "b", &long, "c"], "in pieces of {piece}");
    }
}

#[test]
fn a_plain_connection_to_the_api_is_used_again() {
    let api = api_of_all_framings();
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    for target in
        ["/length", "/empty", "/no-content", "/not-modified", "/chunked", "/hints", "/odd", "/large"]
    {
        client.request("GET", target, &[], b"");
        client.request("HEAD", target, &[], b"");
    }
    assert_eq!(api.connections(), 1);
    client.request("GET", "/until-close", &[], b"");
    client.request("GET", "/old", &[], b"");
    client.request("GET", "/length", &[], b"");
    assert_eq!(api.connections(), 3);
}

#[test]
fn a_body_that_is_cut_off_is_not_taken_for_a_whole_one() {
    for response in [
        "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhel",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nx\r\n",
    ] {
        let api = Api::start(move |_, stream| {
            stream.write_all(response.as_bytes()).expect("the proxy reads");
            false
        });
        let server = in_front_of(&api, "");
        let mut client = Client::to(server.proxy);
        client.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        assert!(client.try_answer().is_none(), "{response:?}");
    }
}

/// It was lost if the end of the connection was read together with it.
#[test]
fn what_has_arrived_of_a_body_that_is_cut_off_is_sent() {
    let api = Api::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel").expect("the proxy reads");
        false
    });
    let server = in_front_of(&api, "");
    for _ in 0..50 {
        let mut client = Client::to(server.proxy);
        client.write(b"GET / HTTP/1.1\r\nhost: h\r\n\r\n");
        assert_eq!(client.head().status, 200);
        assert_eq!(client.read(3), b"hel");
        assert!(client.try_answer().is_none(), "the client sees that it is not whole");
    }
}
