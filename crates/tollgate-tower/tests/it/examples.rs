//! The programs of `examples/`, run as they are.

use std::net::SocketAddr;

use tokio::runtime::Runtime;
use tollgate_testkit::{Client, Folder, eventually};
use tonic::Code;
use tonic::transport::server::TcpIncoming;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::app::connect;

#[allow(dead_code)] // its `main`
#[path = "../../../../examples/axum/main.rs"]
mod axum_example;

#[allow(dead_code)]
#[path = "../../../../examples/tonic/main.rs"]
mod tonic_example;

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

#[test]
fn the_axum_example_limits_failed_logins_and_reloads_its_rules() {
    let runtime = runtime();
    let folder = Folder::new();
    let rules = folder.path("rules.yaml");
    let original = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/axum/rules.yaml");
    std::fs::copy(original, &rules).expect("the rules can be copied");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a port");
    let address = listener.local_addr().expect("it is bound");
    let file = rules.clone();
    runtime
        .spawn(async move { axum_example::serve(listener, file).await.map_err(|error| error.to_string()) });
    let login =
        |password: &str| Client::to(address).request("POST", "/login", &[], password.as_bytes()).status;
    assert_eq!(login("correct horse"), 200);
    let failures: Vec<u16> = (0..7).map(|_| login("guess")).collect();
    assert_eq!(failures, [401, 401, 401, 401, 401, 429, 429]);
    let report = Client::to(address).request("GET", "/reports", &[("authorization", "ann")], b"");
    assert_eq!((report.status, report.text().as_str()), (200, "a report\n"));
    std::fs::write(&rules, "rules: [{id: all, key: ip, limit: 1000/s}]").expect("the rules can be written");
    eventually("the new rules are in force", || {
        Client::to(address).request("GET", "/", &[], b"").header("ratelimit-policy")
            == Some("\"all\";q=1000;w=1")
    });
    assert_eq!(login("guess"), 401);
}

#[test]
fn the_tonic_example_limits_calls() {
    let runtime = runtime();
    let codes = runtime.block_on(async {
        let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address: SocketAddr = incoming.local_addr().expect("it is bound");
        tokio::spawn(async move { tonic_example::serve(incoming).await.map_err(|error| error.to_string()) });
        let mut client = HealthClient::new(connect(address).await);
        let mut codes = Vec::new();
        for _ in 0..11 {
            let call = client.check(HealthCheckRequest::default()).await;
            codes.push(call.map_or_else(|status| status.code(), |_| Code::Ok));
        }
        codes
    });
    assert_eq!(codes[..10], [Code::Ok; 10]);
    assert_eq!(codes[10], Code::ResourceExhausted);
}
