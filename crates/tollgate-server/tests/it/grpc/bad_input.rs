//! Clients that break the protocol are told so, or disconnected; others are served on.

use std::net::SocketAddr;

use bytes::Bytes;
use hyper::{HeaderMap, Request, Response};
use tokio::io::AsyncWriteExt as _;
use tollgate_testkit::Server;

use super::authorization::CHECK;
use super::client::SHOULD_RATE_LIMIT;

/// Sends one request with this body; returns the head of the response and its trailers.
fn send(address: SocketAddr, request: Request<()>, body: &[u8]) -> (Response<()>, HeaderMap) {
    send_after(b"", address, request, body)
}

/// As [`send`], on a connection that begins with these bytes.
pub fn send_after(
    first: &[u8],
    address: SocketAddr,
    request: Request<()>,
    body: &[u8],
) -> (Response<()>, HeaderMap) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("the listener accepts");
        stream.write_all(first).await.expect("sent");
        let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        let (response, mut stream) = client.send_request(request, body.is_empty()).expect("sent");
        if !body.is_empty() {
            stream.send_data(Bytes::copy_from_slice(body), true).expect("sent");
        }
        let (head, mut body) = response.await.expect("a response").into_parts();
        while let Some(data) = body.data().await {
            let data = data.expect("data");
            body.flow_control().release_capacity(data.len()).expect("capacity");
        }
        let trailers = body.trailers().await.expect("trailers").unwrap_or_default();
        (Response::from_parts(head, ()), trailers)
    })
}

pub fn call(method: &str, content_type: &str) -> Request<()> {
    call_of(SHOULD_RATE_LIMIT, method, content_type)
}

fn call_of(path: &str, method: &str, content_type: &str) -> Request<()> {
    let uri = format!("http://localhost{path}");
    let request = Request::builder().method(method).uri(uri).header("content-type", content_type);
    request.body(()).expect("a request")
}

/// The status of a call with this body, and its message.
fn status(address: SocketAddr, body: &[u8]) -> (String, String) {
    let (head, trailers) = send(address, call("POST", "application/grpc"), body);
    let headers = if trailers.is_empty() { head.headers() } else { &trailers };
    let text = |name| headers[name].to_str().expect("text").to_owned();
    (text("grpc-status"), text("grpc-message"))
}

#[test]
fn broken_messages_are_named() {
    let server = Server::start("rules: []");
    for (body, code, message) in [
        (&b""[..], "3", "the call has no message"),
        (&[0, 0, 0], "3", "the stream ends inside a message"),
        (&[0, 0, 0, 0, 9, 1], "3", "the stream ends inside a message"),
        (&[1, 0, 0, 0, 1, 0], "12", "compressed messages are not supported: send grpc-encoding: identity"),
        (
            &[0, 0, 0, 0, 1, 0xff],
            "3",
            "the message is not valid Protocol Buffers: the message ends inside a field",
        ),
        (
            &[0, 0, 0, 0, 2, 8, 1],
            "3",
            "the message is not valid Protocol Buffers: field 1 has another wire type than its definition",
        ),
        (
            &[0, 0, 0, 0, 3, 10, 1, 0xff],
            "3",
            "the message is not valid Protocol Buffers: field 1 is not UTF-8 text",
        ),
        (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "3", "the call has more than one message"),
    ] {
        assert_eq!(status(server.grpc, body), (code.to_owned(), message.to_owned()), "{body:?}");
    }
}

/// Envoy forwards a request after an error of the call if it fails open, and a client can make messages long.
#[test]
fn a_message_that_is_too_long_is_a_denial() {
    let server = Server::start("rules: []");
    let long: &[u8] = &[0, 0x40, 0, 0, 0, 1];
    for (path, denied) in [(SHOULD_RATE_LIMIT, true), (CHECK, true), ("/grpc.health.v1.Health/Check", false)]
    {
        let (head, trailers) = send(server.grpc, call_of(path, "POST", "application/grpc"), long);
        let is_answered = trailers.get("grpc-status").is_some_and(|status| status == "0");
        assert_eq!(is_answered, denied, "{path}: {head:?} {trailers:?}");
        assert_eq!(head.headers().get("grpc-status").is_some_and(|status| status == "8"), !denied, "{path}");
    }
}

#[test]
fn what_is_not_grpc_gets_a_status_of_http() {
    let server = Server::start("rules: []");
    assert_eq!(send(server.grpc, call("POST", "application/json"), b"{}").0.status(), 415);
    assert_eq!(send(server.grpc, call("POST", "application/grpc-web"), b"").0.status(), 415);
    assert_eq!(send(server.grpc, call("GET", "application/grpc"), b"").0.status(), 405);
}

/// A call with more than 16 KiB of headers is answered, and the connection goes on.
#[test]
fn headers_that_are_too_long_are_refused() {
    let server = Server::start("rules: []");
    for (length, expected) in [(8 << 10, 200), (20 << 10, 431)] {
        let mut long = call("POST", "application/grpc");
        long.headers_mut().insert("x-long", "x".repeat(length).parse().expect("a value"));
        assert_eq!(send(server.grpc, long, b"").0.status(), expected, "{length} bytes");
    }
}
