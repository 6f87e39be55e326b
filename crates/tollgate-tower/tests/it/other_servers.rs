//! Below the layers of tower-http in one stack, and on hyper without a framework.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::routing::get;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tollgate_testkit::Client;
use tollgate_tower::PeerAddress;
use tonic::Code;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer, ServiceExt};
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;

use crate::app::{connect, rules};

const RULES: &str = "rules: [{id: all, key: ip, limit: 2/m}]";

fn timeout() -> TimeoutLayer {
    TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(60))
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A regression: these layers need an empty body of the type of the response, which had no default, so it did not compile.
#[test]
fn layers_that_respond_themselves_may_be_outside_in_axum() {
    let runtime = runtime();
    let layers = (CorsLayer::permissive(), timeout(), rules(RULES));
    let app = Router::new().route("/", get(|| async { "hello" })).layer(layers);
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    runtime.spawn(async move { axum::serve(listener, app).await });
    let send = |method| Client::to(address).request(method, "/", &[("origin", "https://a.example")], b"");
    let answers = [(); 3].map(|()| send("GET"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429]);
    assert_eq!(answers[0].text(), "hello");
    assert_eq!(answers[2].header("access-control-allow-origin"), Some("*"));
    let preflight = Client::to(address).request(
        "OPTIONS",
        "/",
        &[("origin", "https://a.example"), ("access-control-request-method", "GET")],
        b"",
    );
    assert_eq!((preflight.status, preflight.text().as_str()), (200, ""), "it is not counted");
}

#[test]
fn layers_that_respond_themselves_may_be_outside_in_tonic() {
    let codes = runtime().block_on(async {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address = incoming.local_addr().expect("it is bound");
        let (_, health) = tonic_health::server::health_reporter();
        let layers = (CorsLayer::permissive(), timeout(), rules(RULES));
        tokio::spawn(Server::builder().layer(layers).add_service(health).serve_with_incoming(incoming));
        let mut client = HealthClient::new(connect(address).await);
        let mut codes = Vec::new();
        for _ in 0..3 {
            let checked = client.check(HealthCheckRequest::default()).await;
            codes.push(checked.map_or_else(|status| status.code(), |_| Code::Ok));
        }
        codes
    });
    assert_eq!(codes, [Code::Ok, Code::Ok, Code::ResourceExhausted]);
}

#[test]
fn a_server_on_hyper_names_the_peer_of_each_connection() {
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let hello = tower::service_fn(|_: Request<hyper::body::Incoming>| async {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
    });
    let limited = rules(RULES).layer(hello);
    runtime.spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.expect("a connection");
            let service = limited.clone().map_request(move |mut request: Request<_>| {
                request.extensions_mut().insert(PeerAddress(peer.ip()));
                request
            });
            tokio::spawn(async move {
                let service = TowerToHyperService::new(service);
                Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await.ok();
            });
        }
    });
    let send = |source: &str| {
        let source = source.parse().expect("an address");
        Client::connect_from(source, address).request("GET", "/", &[], b"")
    };
    let answers = [(); 3].map(|()| send("127.0.0.1"));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429]);
    assert_eq!(answers[0].text(), "hello");
    assert_eq!(answers[1].header("ratelimit"), Some("\"all\";r=0;t=60"));
    assert_eq!(answers[2].json()["violated-policies"][0], "all");
    assert_eq!(send("127.0.0.2").status, 200, "another client");
}
