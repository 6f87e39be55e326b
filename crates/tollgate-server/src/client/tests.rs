//! Calls to a small server on this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::*;

const PROBES: usize = 3;

/// A server that responds to an import after [`PROBES`] liveness requests, to `/prefix/echo`, and to nothing else.
async fn slow_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let probes = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let probes = Arc::clone(&probes);
            let service = service_fn(move |request: Request<Incoming>| {
                let probes = Arc::clone(&probes);
                async move {
                    match request.uri().path() {
                        "/healthz" => _ = probes.fetch_add(1, Ordering::Relaxed),
                        "/import" => {
                            while probes.load(Ordering::Relaxed) < PROBES {
                                tokio::time::sleep(Duration::from_millis(1)).await;
                            }
                        }
                        "/prefix/echo" => {}
                        _ => std::future::pending().await,
                    }
                    let length = request.into_body().collect().await?.to_bytes().len();
                    Ok::<_, hyper::Error>(Response::new(Full::new(Bytes::from(length.to_string()))))
                }
            });
            let serving = hyper::server::conn::http1::Builder::new();
            tokio::spawn(serving.serve_connection(TokioIo::new(stream), service));
        }
    });
    url
}

fn impatient(url: &str) -> ServerClient {
    ServerClient { idle: Duration::from_millis(20), ..ServerClient::without_token(url).expect("an address") }
}

#[tokio::test]
async fn a_server_that_works_on_an_import_and_still_lives_is_waited_for() {
    let url = slow_server().await;
    let body = Bytes::from(vec![b'x'; 1 << 20]);
    let call = ClientRequest::new(Method::POST, "/import").long_running("text/plain", body);
    let sent = UploadCounter::default();
    let answered = impatient(&url).fetch_json_counted(call, &sent).await.expect("an answer");
    assert_eq!((answered.status, answered.body), (200, Value::from(1 << 20)));
    assert_eq!(sent.bytes(), 1 << 20);
}

#[tokio::test]
async fn a_server_that_does_not_move_is_given_up() {
    let url = slow_server().await;
    let answered = impatient(&url).fetch_json(ClientRequest::new(Method::GET, "/silent")).await;
    let error = answered.err().expect("no answer").to_string();
    assert!(error.contains(&url) && error.contains("timed out"), "{error}");
}

#[tokio::test]
async fn an_address_may_have_a_path() {
    let base = format!("{}/prefix/", slow_server().await);
    let client = ServerClient::without_token(&base).expect("an address");
    let answered = client.fetch_json(ClientRequest::new(Method::GET, "/echo")).await.expect("an answer");
    assert_eq!(answered.body, Value::from(0));
}

#[tokio::test]
async fn a_server_that_is_not_there_is_named_with_the_cause() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    drop(listener);
    let error = call(&url, ClientRequest::new(Method::GET, "/")).await.err().expect("no answer").to_string();
    assert!(error.contains(&url) && error.contains("refused"), "{error}");
}

#[test]
fn values_are_escaped_but_for_unreserved_characters() {
    assert_eq!(percent_encode("aZ09-._~"), "aZ09-._~");
    assert_eq!(percent_encode("a b/ü?"), "a%20b%2F%C3%BC%3F");
}
