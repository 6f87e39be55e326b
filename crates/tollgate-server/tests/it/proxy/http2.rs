//! HTTP/2 as only a client of its own can speak it: WebSockets inside a connection, and requests that are cancelled.

use std::io::{Read, Write};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::ext::Protocol;
use h2::{Reason, RecvStream, SendStream};
use hyper::{Method, Request, Response, Version};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tollgate_testkit::{SOON, Server, eventually};

use crate::proxy::api::{Api, Received};
use crate::proxy::hold::metric;
use crate::proxy::in_front_of;

/// Runs a client of HTTP/2 to its end.
fn with_client<F: Future<Output = ()>>(server: &Server, talk: impl FnOnce(SendRequest<Bytes>) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stream = TcpStream::connect(server.proxy).await.expect("the proxy accepts");
        let (client, connection) = h2::client::handshake(stream).await.expect("it speaks HTTP/2");
        let connection = tokio::spawn(connection);
        timeout(SOON, talk(client)).await.expect("nothing hangs");
        connection.abort();
    });
}

fn websocket(server: &Server, protocol: &'static str) -> Request<()> {
    let uri = format!("http://{}/ws", server.proxy);
    let request = Request::builder().method(Method::CONNECT).version(Version::HTTP_2).uri(uri);
    let request = request.header("sec-websocket-version", "13").header("sec-websocket-protocol", "chat");
    request.extension(Protocol::from_static(protocol)).body(()).expect("a request")
}

async fn connect(
    client: SendRequest<Bytes>,
    request: Request<()>,
) -> (Response<RecvStream>, SendStream<Bytes>) {
    let mut client = client.ready().await.expect("the connection takes a request");
    while !client.is_extended_connect_protocol_enabled() {
        tokio::time::sleep(Duration::from_millis(1)).await; // until its settings have come
    }
    let (response, send) = client.send_request(request, false).expect("it is sent");
    (response.await.expect("a response"), send)
}

async fn read(body: &mut RecvStream, count: usize) -> Vec<u8> {
    let mut read = Vec::new();
    while read.len() < count {
        let bytes = body.data().await.expect("more").expect("no error");
        body.flow_control().release_capacity(bytes.len()).expect("it was taken");
        read.extend_from_slice(&bytes);
    }
    read
}

/// An API that accepts WebSockets and echoes.
fn echoing() -> Api {
    Api::start(|request, stream| {
        let accept = accept(request);
        let head = format!(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
             sec-websocket-protocol: chat\r\nsec-websocket-accept: {accept}\r\n\r\nhello"
        );
        stream.write_all(head.as_bytes()).expect("the proxy reads");
        let mut heard = [0; 1024];
        while let Ok(count @ 1..) = stream.read(&mut heard) {
            stream.write_all(&heard[..count]).expect("the proxy reads");
        }
        false
    })
}

fn accept(request: &Received) -> String {
    use base64::Engine;
    let key = request.header("sec-websocket-key").expect("a key").to_owned();
    let salted = key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    let hash = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, salted.as_bytes());
    base64::prelude::BASE64_STANDARD.encode(hash)
}

#[test]
fn a_websocket_over_http2_reaches_an_api_that_knows_it_over_http1() {
    let api = echoing();
    let rules = "rules:
  - { id: ws, match: GET /ws, limit: 2/h }
  - { id: open, match: GET /ws, algorithm: concurrency, limit: 1/1h }";
    let server = in_front_of(&api, rules);
    with_client(&server, |client| async {
        let (response, mut send) = connect(client.clone(), websocket(&server, "websocket")).await;
        assert_eq!(response.status(), 200);
        assert_eq!(
            response.headers().get("sec-websocket-protocol").map(|value| value.as_bytes()),
            Some(&b"chat"[..])
        );
        for name in ["sec-websocket-accept", "upgrade", "connection"] {
            assert!(!response.headers().contains_key(name), "{name}");
        }
        assert!(response.headers().contains_key("ratelimit"));
        let mut body = response.into_body();
        assert_eq!(read(&mut body, 5).await, b"hello");
        send.send_data(Bytes::from_static(b"both ways"), false).expect("it is sent");
        assert_eq!(read(&mut body, 9).await, b"both ways");
        // It is one that is open, beside others on the same connection.
        assert_eq!(connect(client.clone(), websocket(&server, "websocket")).await.0.status(), 429);
        send.send_data(Bytes::new(), true).expect("it ends");
        while let Some(rest) = body.data().await {
            assert_eq!(rest.expect("the end of one side is the end of the other").len(), 0);
        }
        let seen = api.last();
        assert_eq!((seen.line.as_str(), seen.header("upgrade")), ("GET /ws HTTP/1.1", Some("websocket")));
        assert_eq!(
            (seen.header("connection"), seen.header("sec-websocket-version")),
            (Some("upgrade"), Some("13"))
        );
        let mut status = 429;
        while status == 429 {
            status = connect(client.clone(), websocket(&server, "websocket")).await.0.status().as_u16();
        }
        assert_eq!(status, 200, "its permit was given back");
        assert_eq!(connect(client, websocket(&server, "websocket")).await.0.status(), 429);
    });
    assert_eq!(server.used("ws", ""), [2]);
}

#[test]
fn other_tunnels_are_refused_and_an_api_may_decline_a_websocket() {
    let api = Api::start(|request, stream| {
        let answer = match request.target() {
            "/ws" => "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno",
            // Neither is a WebSocket, and the client would take either for one.
            "/page" => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi",
            _ => {
                "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-accept: no\r\n\r\n"
            }
        };
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let server = in_front_of(&api, "");
    with_client(&server, |client| async {
        let at = |path: &str| {
            let mut request = websocket(&server, "websocket");
            *request.uri_mut() = format!("http://{}{path}", server.proxy).parse().expect("a place");
            request
        };
        let (response, _) = connect(client.clone(), at("/ws")).await;
        assert_eq!(response.status(), 403);
        assert_eq!(read(&mut response.into_body(), 2).await, b"no");
        assert_eq!(connect(client.clone(), at("/page")).await.0.status(), 502);
        assert_eq!(connect(client.clone(), at("/other")).await.0.status(), 502);
        assert_eq!(connect(client.clone(), websocket(&server, "connect-udp")).await.0.status(), 501);
        let plain =
            Request::builder().method(Method::CONNECT).version(Version::HTTP_2).uri("10.0.0.1:25").body(());
        assert_eq!(connect(client, plain.expect("a request")).await.0.status(), 501);
    });
    assert_eq!(api.received().len(), 3);
}

#[test]
fn what_would_be_two_requests_over_http1_is_never_two() {
    let api = Api::echo();
    let server = in_front_of(&api, "");
    let hidden = "GET /hidden HTTP/1.1\r\nhost: x\r\n\r\n";
    for (name, value, body) in [
        ("content-length", "0", hidden.to_owned()),
        ("content-length", "5", format!("hello{hidden}")),
        ("content-length", "500", hidden.to_owned()),
        ("transfer-encoding", "chunked", format!("0\r\n\r\n{hidden}")),
        ("connection", "content-length", hidden.to_owned()),
    ] {
        with_client(&server, |client| async move {
            let mut client = client.ready().await.expect("the connection takes a request");
            let request = Request::post("http://x/").version(Version::HTTP_2).header(name, value);
            let sent = client.send_request(request.body(()).expect("a request"), false);
            // What the client itself does not send is harmless.
            let Ok((response, mut body_of)) = sent else { return };
            body_of.send_data(Bytes::from(body), true).ok();
            response.await.ok();
        });
        assert_eq!(crate::proxy::get(&server, "/next", &[]).status, 200, "others are served as ever");
    }
    // What was forwarded reveals no more than the sender itself could send.
    for request in api.received() {
        assert!(request.body.is_empty() && matches!(request.target(), "/" | "/next"), "{request:?}");
    }
}

#[test]
fn a_request_that_is_cancelled_while_it_waits_is_refunded() {
    let api = Api::echo();
    let rules = "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/h, burst: 4, max_wait: 5h }]";
    let server = in_front_of(&api, rules);
    assert_eq!(crate::proxy::get(&server, "/", &[]).status, 200);
    with_client(&server, |mut client| async {
        let held = || metric(&server, "tollgate_held_requests");
        let mut sent = Vec::new();
        for end in [true, false, true] {
            let request = Request::get(format!("http://{}/", server.proxy)).version(Version::HTTP_2);
            client = client.ready().await.expect("the connection takes a request");
            sent.push(client.send_request(request.body(()).expect("a request"), end).expect("it is sent"));
        }
        eventually("they wait", || held() == 3);
        assert_eq!(server.used("q", ""), [4]);
        for (cancelled, (_response, mut send)) in sent.into_iter().enumerate() {
            send.send_reset(Reason::CANCEL);
            eventually("it has left", || held() == 2 - cancelled as u64);
        }
        assert_eq!(server.used("q", ""), [1]);
        // The connection goes on.
        let request = Request::get(format!("http://{}/", server.proxy)).version(Version::HTTP_2);
        let mut client = client.ready().await.expect("the connection takes a request");
        let (_response, _send) =
            client.send_request(request.body(()).expect("a request"), true).expect("it is sent");
        eventually("it waits", || held() == 1);
    });
    assert_eq!(api.received().len(), 1);
    eventually("no request is held when the connection has ended", || {
        metric(&server, "tollgate_held_requests") == 0
    });
}

/// A client whose window stayed closed held a connection to the API for ever.
#[test]
fn a_client_that_reads_nothing_releases_its_upstream_connection() {
    let body = "x".repeat(256 << 10);
    let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let api = Api::start(move |_, stream| stream.write_all(answer.as_bytes()).is_ok());
    let server = in_front_of(&api, "proxy: { idle_timeout: 1s }");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let stream = TcpStream::connect(server.proxy).await.expect("the proxy accepts");
        let closed = h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(stream).await;
        let (mut client, connection) = closed.expect("it speaks HTTP/2");
        let connection = tokio::spawn(connection);
        let request = Request::get(format!("http://{}/", server.proxy)).body(()).expect("a request");
        let (response, _) = client.send_request(request, true).expect("it is sent");
        let response = timeout(SOON, response).await.expect("no wait").expect("a response");
        let mut body = response.into_body();
        let error = timeout(SOON, body.data()).await.expect("it ends").expect("not as it should");
        assert_eq!(error.expect_err("nothing was taken").reason(), Some(Reason::CANCEL));
        eventually("the API's connection is free", || metric(&server, "tollgate_upstream_in_flight") == 0);
        connection.abort();
    });
}
