//! Silent, slow and stopping connections, on a clock that is paused.

use std::path::Path;
use std::time::Duration;

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
    let uri = format!("http://localhost/{}/{method}", health::SERVICE);
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
