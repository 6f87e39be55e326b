//! External authorization: requests that Envoy describes.

use tollgate_testkit::Server;
use tonic::Code;

use super::client::GrpcClient;
use super::messages::{
    Address, Attributes, CheckRequest, CheckResponse, DescribedRequest, HttpRequest, Peer, RawHeader,
    RawHeaders, SocketAddress,
};

pub const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

fn described(source: &str, http: HttpRequest) -> CheckRequest {
    let socket_address = Some(SocketAddress { address: source.to_owned() });
    let source = Some(Peer { address: Some(Address { socket_address }) });
    let request = Some(DescribedRequest { http: Some(http) });
    CheckRequest { attributes: Some(Attributes { source, request }) }
}

pub fn http(method: &str, path: &str) -> HttpRequest {
    let host = b"shop.example".to_vec();
    HttpRequest { method: method.into(), path: path.into(), host, ..HttpRequest::default() }
}

pub fn header(name: &str, value: &str) -> RawHeader {
    RawHeader { key: name.into(), value: Vec::new(), raw_value: value.into() }
}

/// The status for the client: 200 if the request passes.
pub fn status(client: &GrpcClient, source: &str, http: HttpRequest) -> i32 {
    let answer: CheckResponse = client.call(CHECK, described(source, http)).expect("an answer");
    match (answer.ok_response, answer.denied_response) {
        (Some(_), None) => 200,
        (None, Some(denied)) => denied.status.expect("a status").code,
        both => panic!("{both:?}"),
    }
}

#[test]
fn rules_bans_and_identities_apply_as_in_the_proxy() {
    let server = Server::start(
        "trusted_proxies: [10.0.0.0/8]
identity: { api_key: header:x-api-key }
bans: [{ key: 'ip:203.0.113.9', until: 2099-01-01T00:00:00Z }]
rules:
  - { id: api-key, key: api_key, limit: 2/d }
",
    );
    let client = GrpcClient::to(server.grpc);
    assert_eq!(status(&client, "203.0.113.9", http("GET", "/")), 403);
    let forwarded = HttpRequest {
        headers: vec![RawHeader { value: b"203.0.113.9".to_vec(), ..header("x-forwarded-for", "") }],
        ..http("GET", "/")
    };
    assert_eq!(status(&client, "10.1.2.3", forwarded.clone()), 403, "a trusted proxy names its client");
    assert_eq!(status(&client, "203.0.113.8", forwarded), 200, "anyone else is the client");
    let with_keys = |keys: &[&str]| {
        let headers = keys.iter().map(|key| header("x-api-key", key)).collect();
        HttpRequest { header_map: Some(RawHeaders { headers }), ..http("GET", "/") }
    };
    for expected in [200, 200, 429] {
        assert_eq!(status(&client, "203.0.113.1", with_keys(&["k-1"])), expected);
    }
    let two = status(&client, "203.0.113.1", with_keys(&["decoy", "k-1"]));
    assert_ne!(two, 200, "a second value is no way to another counter");
}

#[test]
fn a_denial_is_answered_as_the_rule_says() {
    let server = Server::start(
        "rules: [{ id: all, limit: 1/d,
  deny: { body: '{\"e\":1}', content_type: application/json, retry_after_max: 9s } }]",
    );
    let client = GrpcClient::to(server.grpc);
    assert_eq!(status(&client, "203.0.113.9", http("GET", "/")), 200);
    let answer: CheckResponse =
        client.call(CHECK, described("203.0.113.9", http("GET", "/"))).expect("an answer");
    let denied = answer.denied_response.expect("a denial");
    assert_eq!(denied.body, "{\"e\":1}");
    let header = |name: &str| {
        let headers = denied.headers.iter().filter_map(|option| option.header.as_ref());
        headers.filter(|header| header.key == name).map(|header| header.value.as_str()).collect::<Vec<_>>()
    };
    assert_eq!((header("content-type"), header("retry-after")), (vec!["application/json"], vec!["9"]));
    assert_eq!(header("tollgate-ticket").len(), 1);
}

#[test]
fn what_a_client_can_write_is_a_denial_and_not_an_error_of_the_call() {
    let server = Server::start("rules: [{ id: a, key: ip, limit: 100/s }]");
    let client = GrpcClient::to(server.grpc);
    for request in [
        http("BAD METHOD", "/"),
        http("", "/"),
        http("GET", "/a b"),
        http("GET", "http://other/"),
        HttpRequest { path: vec![0xff, 0], ..http("GET", "/") },
        HttpRequest { host: b"a b".to_vec(), ..http("GET", "/") },
        HttpRequest { host: vec![0], ..http("GET", "/") },
        HttpRequest { headers: vec![header("a b", "c")], ..http("GET", "/") },
        HttpRequest {
            header_map: Some(RawHeaders { headers: vec![header("a", "b\r\nc")] }),
            ..http("GET", "/")
        },
    ] {
        assert_eq!(status(&client, "203.0.113.1", request.clone()), 400, "{request:?}");
    }
    let no_address: Result<CheckResponse, _> = client.call(CHECK, described("", http("GET", "/")));
    let error = no_address.expect_err("no client");
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("attributes.source.address"), "{}", error.message());
    assert_eq!(status(&client, "203.0.113.1", http("GET", "/")), 200, "the connection goes on");
}
