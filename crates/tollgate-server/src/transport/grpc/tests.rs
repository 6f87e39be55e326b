//! Silent, slow and stopping connections, on a clock that is paused.

use std::path::Path;
use std::time::Duration;

use h2::SendStream;
use h2::client::SendRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
use tokio::sync::watch;
use tokio::time::Instant;

use super::*;
use crate::assemble;
use crate::config::Config;
use crate::connection::WRITE_TIMEOUT;

/// A connection, its task, and the sender of its shutdown.
fn connect(buffer: usize) -> (DuplexStream, tokio::task::JoinHandle<()>, watch::Sender<bool>) {
    let (client, server) = duplex(buffer);
    let (stop, shutdown) = watch::channel(false);
    let mut config = Config::parse("rules: []", Path::new("")).unwrap_or_else(|_| unreachable!("valid"));
    let gate = assemble::gate(&mut config, String::new(), None).unwrap_or_else(|_| unreachable!("valid"));
    let calls = Arc::clone(&GrpcServer::new(Arc::new(gate), None).calls);
    let peer = SocketAddr::from(([127, 0, 0, 1], 1));
    let served = async move { serve_client(&calls, server, peer, shutdown).await.unwrap_or_default() };
    (client, tokio::spawn(served), stop)
}

/// The test clock has a resolution of one millisecond.
fn is_close(elapsed: Duration, expected: Duration) -> bool {
    elapsed >= expected && elapsed < expected + Duration::from_millis(10)
}

fn health_check(method: &str) -> Request<()> {
    call_of(health::SERVICE, method)
}

fn call_of(service: &str, method: &str) -> Request<()> {
    let uri = format!("http://localhost/{service}/{method}");
    let request = Request::post(uri).header(CONTENT_TYPE, "application/grpc");
    request.body(()).expect("a request")
}

async fn open(client: DuplexStream) -> SendRequest<Bytes> {
    let (requests, connection) = h2::client::handshake(client).await.expect("HTTP/2");
    tokio::spawn(connection);
    requests
}

const EMPTY_MESSAGE: Bytes = Bytes::from_static(&[0; 5]);

#[tokio::test(start_paused = true)]
async fn a_client_that_never_finishes_its_preface_is_cut_off() {
    for preface in ["", "PRI * HTTP/2.0\r\n"] {
        let (mut client, served, _stop) = connect(1 << 10);
        let start = Instant::now();
        client.write_all(preface.as_bytes()).await.expect("sent");
        served.await.expect("it ends");
        assert!(is_close(start.elapsed(), HEADER_TIMEOUT), "{:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_that_answers_no_ping_is_cut_off() {
    let (mut client, served, _stop) = connect(1 << 10);
    let start = Instant::now();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    tokio::spawn(async move {
        let mut ignored = Vec::new();
        client.read_to_end(&mut ignored).await
    });
    served.await.expect("it ends");
    assert!(is_close(start.elapsed(), PING_INTERVAL * 2), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_idle_client_that_answers_pings_stays() {
    let (client, served, _stop) = connect(1 << 10);
    let mut requests = open(client).await;
    tokio::time::sleep(PING_INTERVAL * 20).await;
    assert!(!served.is_finished());
    let (response, mut stream) = requests.send_request(health_check("Check"), false).expect("sent");
    stream.send_data(EMPTY_MESSAGE, true).expect("sent");
    assert_eq!(response.await.expect("a response").status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_ends_is_an_error_of_its_call() {
    let (client, _served, _stop) = connect(1 << 10);
    let mut requests = open(client).await;
    let start = Instant::now();
    let (response, mut stream) = requests.send_request(health_check("Check"), false).expect("sent");
    stream.send_data(Bytes::from_static(&[0, 0]), false).expect("sent");
    let response = response.await.expect("a response");
    assert_eq!(response.headers()["grpc-status"], "4");
    assert!(is_close(start.elapsed(), BODY_TIMEOUT), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_never_reads_is_cut_off() {
    let (mut client, served, _stop) = connect(64);
    let start = Instant::now();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.expect("sent");
    // Each ping is answered, until nothing more can be written.
    while client.write_all(b"\0\0\x08\x06\0\0\0\0\x0012345678").await.is_ok() {}
    served.await.expect("it ends");
    assert!(is_close(start.elapsed(), WRITE_TIMEOUT), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_stop_tells_watchers_and_ends() {
    let (client, served, stop) = connect(1 << 10);
    let mut requests = open(client).await;
    let (response, mut stream) = requests.send_request(health_check("Watch"), false).expect("sent");
    stream.send_data(EMPTY_MESSAGE, true).expect("sent");
    let mut body = response.await.expect("a response").into_body();
    assert_eq!(&body.data().await.expect("a message").expect("data")[..], [0, 0, 0, 0, 2, 8, 1]);
    let start = Instant::now();
    stop.send_replace(true);
    assert_eq!(&body.data().await.expect("a message").expect("data")[..], [0, 0, 0, 0, 2, 8, 2]);
    let trailers = body.trailers().await.expect("trailers").expect("trailers");
    assert_eq!(trailers["grpc-status"], "0");
    drop(requests);
    drop(body);
    served.await.expect("it ends");
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_peer_without_a_call_does_not_delay_a_stop() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    for end in [0, 10, preface.len() - 9, preface.len()] {
        let (mut client, served, stop) = connect(1 << 10);
        client.write_all(&preface[..end]).await.expect("sent");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let start = Instant::now();
        stop.send_replace(true);
        served.await.expect("it ends");
        assert!(start.elapsed() < Duration::from_millis(10), "{end} bytes: {:?}", start.elapsed());
        let mut sent = Vec::new();
        client.read_to_end(&mut sent).await.expect("the end");
        let has_goaway = sent.windows(9).any(|frame| frame == [0, 0, 8, 7, 0, 0, 0, 0, 0]);
        assert_eq!(has_goaway, end > preface.len() - 10, "{end} bytes: {sent:?}");
    }
}

/// Sends zeros for as long as the server's windows allow; returns how many, once they allow none for a while.
async fn send_zeros(stream: &mut SendStream<Bytes>, bytes: usize) -> usize {
    let mut sent = 0;
    while sent < bytes {
        stream.reserve_capacity(bytes - sent);
        let capacity = timeout(Duration::from_millis(1), poll_fn(|cx| stream.poll_capacity(cx))).await;
        let Ok(Some(Ok(capacity))) = capacity else { break };
        let part = capacity.min(bytes - sent);
        stream.send_data(vec![0; part].into(), false).expect("open");
        sent += part;
    }
    stream.reserve_capacity(0);
    sent
}

fn prefix(length: usize) -> Bytes {
    let mut prefix = vec![0];
    prefix.extend((length as u32).to_be_bytes());
    prefix.into()
}

#[tokio::test(start_paused = true)]
async fn unfinished_messages_of_a_connection_are_bounded_together() {
    let (client, _served, _stop) = connect(64 << 10);
    let mut requests = open(client).await;
    let mut calls = Vec::new();
    let mut sent = 0;
    for _ in 0..32 {
        requests = requests.ready().await.expect("open");
        let (response, mut stream) = requests.send_request(health_check("Check"), false).expect("sent");
        stream.send_data(prefix(MAX_MESSAGE_BYTES), false).expect("sent");
        sent += send_zeros(&mut stream, MAX_MESSAGE_BYTES - 1).await;
        calls.push((response, stream));
    }
    assert!(sent <= CONNECTION_WINDOW as usize, "{sent} bytes of unfinished messages");
    assert!(sent >= CONNECTION_WINDOW as usize / 2, "{sent} bytes");
    for (response, _) in &mut calls {
        assert_eq!(response.await.expect("a response").headers()["grpc-status"], "4");
    }
    drop(calls);
    // Their windows are free again: messages of more bytes than the window of the connection.
    for _ in 0..8 {
        requests = requests.ready().await.expect("open");
        let (response, mut stream) = requests.send_request(health_check("Check"), false).expect("sent");
        stream.send_data(prefix(MAX_MESSAGE_BYTES), false).expect("sent");
        assert_eq!(send_zeros(&mut stream, MAX_MESSAGE_BYTES).await, MAX_MESSAGE_BYTES);
        stream.send_data(Bytes::new(), true).expect("sent");
        assert_eq!(response.await.expect("a response").headers()["grpc-status"], "3");
    }
}

fn list_services() -> Bytes {
    Bytes::from_static(&[0, 0, 0, 0, 2, 7 << 3 | 2, 0])
}

#[tokio::test(start_paused = true)]
async fn reflection_waits_for_a_client_that_takes_no_replies_and_then_ends() {
    let (client, _served, _stop) = connect(64 << 10);
    let mut builder = h2::client::Builder::new();
    let (mut requests, connection) =
        builder.initial_window_size(0).handshake::<_, Bytes>(client).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = call_of(reflection::SERVICE, "ServerReflectionInfo");
    let (response, mut stream) = requests.send_request(request, false).expect("sent");
    let start = Instant::now();
    stream.send_data(list_services(), false).expect("sent");
    stream.send_data(prefix(MAX_MESSAGE_BYTES), false).expect("sent");
    let sent = send_zeros(&mut stream, 8 << 20).await;
    assert!(sent <= STREAM_WINDOW as usize, "{sent} bytes were taken, and no reply was");
    let mut body = response.await.expect("a response").into_body();
    let trailers = body.trailers().await.expect("trailers").expect("trailers");
    assert_eq!(trailers["grpc-status"], "4");
    assert!(is_close(start.elapsed(), WRITE_TIMEOUT), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reflection_stream_has_a_bounded_number_of_requests_of_a_bounded_length() {
    for (message, count, status) in [
        (list_services(), reflection::MAX_REQUESTS, "0"),
        (list_services(), reflection::MAX_REQUESTS + 1, "8"),
        (
            [prefix(reflection::MAX_REQUEST_BYTES), vec![0; reflection::MAX_REQUEST_BYTES].into()]
                .concat()
                .into(),
            1,
            "3",
        ),
        (
            [prefix(reflection::MAX_REQUEST_BYTES + 1), vec![0; reflection::MAX_REQUEST_BYTES + 1].into()]
                .concat()
                .into(),
            1,
            "8",
        ),
    ] {
        let (client, _served, _stop) = connect(64 << 10);
        let mut requests = open(client).await;
        let request = call_of(reflection::SERVICE_ALPHA, "ServerReflectionInfo");
        let (response, mut stream) = requests.send_request(request, false).expect("sent");
        for _ in 0..count {
            stream.send_data(message.clone(), false).expect("sent");
        }
        stream.send_data(Bytes::new(), true).expect("sent");
        let response = response.await.expect("a response");
        let found = match response.headers().get("grpc-status") {
            Some(status) => status.clone(),
            None => {
                let mut body = response.into_body();
                while let Some(data) = body.data().await {
                    let data = data.expect("data");
                    body.flow_control().release_capacity(data.len()).expect("received");
                }
                body.trailers().await.expect("trailers").expect("trailers")["grpc-status"].clone()
            }
        };
        assert_eq!(found, status, "{count} messages of {} bytes", message.len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_reflection_message_that_has_begun_has_the_time_of_any_other() {
    for (begun, expected) in [(&b""[..], HEADER_TIMEOUT), (&[0, 0], BODY_TIMEOUT)] {
        let (client, _served, _stop) = connect(1 << 10);
        let mut requests = open(client).await;
        let request = call_of(reflection::SERVICE, "ServerReflectionInfo");
        let start = Instant::now();
        let (response, mut stream) = requests.send_request(request, false).expect("sent");
        stream.send_data(Bytes::from_static(begun), false).expect("sent");
        assert_eq!(response.await.expect("a response").headers()["grpc-status"], "4");
        assert!(is_close(start.elapsed(), expected), "{:?}", start.elapsed());
    }
}
