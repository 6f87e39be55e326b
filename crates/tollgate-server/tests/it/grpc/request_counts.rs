//! Metrics of the listener: calls by status, and open connections.

use tollgate_testkit::{Server, eventually};
use tonic::Code;

use super::authorization::{http, status};
use super::client::{GrpcClient, OK, OVER_LIMIT};
use super::messages::{CheckRequest, CheckResponse, HealthCheckRequest, HealthCheckResponse};

#[test]
fn calls_are_counted_by_status_and_connections_while_they_are_open() {
    let server = Server::start("rules: [{ id: a, key: user, limit: 1/d }, { id: b, key: ip, limit: 1/d }]");
    let page = || server.admin("GET", "/metrics", "").text();
    let open = || {
        let page = page();
        let line = page.lines().find(|line| line.starts_with("tollgate_connections{listener=\"grpc\"} "));
        line.expect("the listener").rsplit(' ').next().expect("a value").to_owned()
    };
    assert_eq!(open(), "0");
    let client = GrpcClient::to(server.grpc);
    for expected in [OK, OVER_LIMIT, OVER_LIMIT] {
        assert_eq!(client.single("shop", &[("user", "ann")]).code, expected);
    }
    let health = HealthCheckRequest { service: "none".to_owned() };
    let unknown: Result<HealthCheckResponse, _> = client.call("/grpc.health.v1.Health/Check", health);
    assert_eq!(unknown.expect_err("no such service").code(), Code::NotFound);
    assert_eq!([(); 2].map(|()| status(&client, "203.0.113.1", http("GET", "/"))), [200, 429]);
    let nothing: Result<CheckResponse, _> =
        client.call("/envoy.service.auth.v3.Authorization/Check", CheckRequest::default());
    assert_eq!(nothing.expect_err("no source").code(), Code::InvalidArgument);
    let page = page();
    for (transport, status, count) in [
        ("grpc", "OK", 1),
        ("grpc", "OVER_LIMIT", 2),
        ("grpc", "NOT_FOUND", 1),
        ("ext_authz", "200", 1),
        ("ext_authz", "429", 1),
        ("ext_authz", "INVALID_ARGUMENT", 1),
    ] {
        let line =
            format!("tollgate_requests_total{{transport=\"{transport}\",status=\"{status}\"}} {count}\n");
        assert!(page.contains(&line), "no {line} in\n{page}");
    }
    assert_eq!(open(), "1");
    drop(client);
    eventually("the connection is closed", || open() == "0");
}
