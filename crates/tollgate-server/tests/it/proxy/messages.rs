//! What an API sees of a request, and a client of a response.

use std::io::Write;

use tollgate_testkit::{Client, Server};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of};

#[test]
fn a_request_arrives_as_it_was_sent() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    for (n, method) in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PURGE"].iter().enumerate() {
        let path = format!("/a%20b//c/../d;x=1?q={n}&q=ä%00#");
        let path = path.trim_end_matches('#').replace('ä', "%C3%A4");
        let answer = client.request(
            method,
            &path,
            &[("host", "api.example.com:81"), ("X-A", "1"), ("x-a", "2")],
            b"body",
        );
        assert_eq!((answer.status, answer.body.as_slice()), (200, &b"body"[..]));
        let seen = api.last();
        assert_eq!(seen.line, format!("{method} {path} HTTP/1.1"));
        assert_eq!((seen.header("host"), seen.body.as_slice()), (Some("api.example.com:81"), &b"body"[..]));
        let twice: Vec<_> =
            seen.headers.iter().filter(|(name, _)| name == "x-a").map(|(_, value)| value.as_str()).collect();
        assert_eq!(twice, ["1", "2"]);
    }
    assert_eq!(api.connections(), 1, "one connection serves all of them");
}

#[test]
fn a_response_arrives_as_it_was_sent() {
    let api = Api::saying(
        "HTTP/1.1 418 Short and stout\r\nx-a: 1\r\nx-a: 2\r\nset-cookie: a=b\r\nconnection: x-private\r\nx-private: 1\r\nkeep-alive: timeout=5\r\ncontent-length: 3\r\n\r\ntea",
    );
    let server = in_front_of(&api, "");
    let answer = get(&server, "/", &[]);
    assert_eq!(
        (answer.status, answer.text().as_str(), answer.header("set-cookie")),
        (418, "tea", Some("a=b"))
    );
    let twice = answer.headers.iter().filter(|(name, _)| name == "x-a").count();
    assert_eq!(twice, 2);
    for hop in ["x-private", "keep-alive", "connection"] {
        assert_eq!(answer.header(hop), None, "{hop}");
    }
}

#[test]
fn a_head_has_the_length_and_no_body() {
    let api = Api::saying("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n");
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    for _ in 0..2 {
        let answer = client.request("HEAD", "/", &[], b"");
        assert_eq!((answer.status, answer.header("content-length")), (200, Some("1000")));
    }
}

#[test]
fn the_api_receives_the_client_address_and_clients_cannot_forge_it() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let lies = [("x-forwarded-for", "1.1.1.1"), ("forwarded", "for=1.1.1.1"), ("x-forwarded-proto", "https")];
    get(&server, "/", &[&[("host", "api.example.com")][..], &lies].concat());
    let seen = api.last();
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
    assert_eq!(seen.header("x-forwarded-proto"), Some("http"));
    assert_eq!(seen.header("x-forwarded-host"), Some("api.example.com"));
    assert_eq!(seen.header("forwarded"), Some("for=127.0.0.1;host=\"api.example.com\";proto=http"));
}

#[test]
fn behind_a_trusted_proxy_the_client_is_the_one_it_names() {
    let api = Api::echo();
    let server =
        in_front_of(&api, "trusted_proxies: [127.0.0.0/8]\nrules: [{ id: ip, key: ip, limit: 1/h }]");
    let send = |client: &str| get(&server, "/", &[("x-forwarded-for", client)]).status;
    assert_eq!([send("203.0.113.1"), send("203.0.113.2"), send("203.0.113.1")], [200, 200, 429]);
    assert_eq!(send("9.9.9.9, 203.0.113.2"), 429, "what stands left of the client is its own text");
    assert_eq!(api.last().header("x-forwarded-for"), Some("203.0.113.2, 127.0.0.1"));
}

#[test]
fn the_host_may_be_the_upstreams_own() {
    let api = Api::echo();
    let server = in_front_of(&api, "proxy: { host: upstream }");
    get(&server, "/", &[("host", "public.example.com")]);
    let seen = api.last();
    assert_eq!(seen.header("host"), Some(api.address.to_string().as_str()));
    assert_eq!(seen.header("x-forwarded-host"), Some("public.example.com"));
}

#[test]
fn an_old_client_is_served_and_its_connection_closed() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    client.write(b"GET / HTTP/1.0\r\n\r\n");
    let first = client.line().expect("an answer");
    assert!(first.starts_with("HTTP/1.0 200"), "{first}");
    assert_eq!(api.last().line, "GET / HTTP/1.1");
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let mut client = Client::to(server.proxy);
    let requests: Vec<_> =
        (10..40).map(|n| format!("POST /{n} HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{n}")).collect();
    client.write(requests.concat().as_bytes());
    for n in 10..40 {
        assert_eq!(client.answer().text(), n.to_string());
    }
}

#[test]
fn a_response_never_reaches_another_client() {
    let api = Api::start(|request, stream| {
        let path = request.target();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{path}", path.len());
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let server = in_front_of(&api, "");
    std::thread::scope(|scope| {
        for client in 0..16 {
            let address = server.proxy;
            scope.spawn(move || {
                let mut connection = Client::to(address);
                for n in 0..50 {
                    let path = format!("/{client}/{n}");
                    assert_eq!(connection.request("GET", &path, &[], b"").text(), path);
                }
            });
        }
    });
}

#[test]
fn settings_of_the_proxy_follow_the_file() {
    let first = Api::saying("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n1");
    let second = Api::saying("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n2");
    let server: Server = in_front_of(&first, "");
    assert_eq!(get(&server, "/", &[]).text(), "1");
    server.folder.configure(&format!("upstreams: ['{}']\n", second.url()));
    server.wait_for_log("rules generation 1 → 2");
    assert_eq!(get(&server, "/", &[]).text(), "2");
}
