//! A tonic server on loopback: its health service, called by its own client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tollgate_client::{KeyOf, Throttle, ThrottleLayer};
use tollgate_tower::{HeaderStyle, RateLimitLayer, RateLimiter};
use tonic::transport::{Channel, Server, server::TcpIncoming};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;
use tower::Layer;

use crate::app::{connect, rules, still};

struct Grpc {
    runtime: Runtime,
    client: HealthClient<Channel>,
    limiter: Arc<RateLimiter>,
}

/// A server on a free port.
async fn serve(layer: RateLimitLayer) -> Channel {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address: SocketAddr = incoming.local_addr().expect("it is bound");
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));
    connect(address).await
}

impl Grpc {
    fn serving(layer: RateLimitLayer) -> Grpc {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a runtime");
        let limiter = Arc::clone(layer.limiter());
        let client = runtime.block_on(async { HealthClient::new(serve(layer).await) });
        Grpc { runtime, client, limiter }
    }

    /// Asks for the health of the server, or of a service that is not there.
    fn check(&self, service: &str) -> Result<tonic::metadata::MetadataMap, Status> {
        let mut client = self.client.clone();
        let request = HealthCheckRequest { service: service.to_owned() };
        let response = self.runtime.block_on(async move { client.check(request).await });
        response.map(|response| response.metadata().clone())
    }

    fn codes(&self, count: usize, service: &str) -> Vec<Code> {
        (0..count).map(|_| self.check(service).map_or_else(|status| status.code(), |_| Code::Ok)).collect()
    }
}

/// The client's layer of this project, without the headers that it could learn from instead.
#[tokio::test]
async fn a_client_learns_from_the_status_of_a_denied_call() {
    let layer = RateLimitLayer::builder().limit("2/h").headers(HeaderStyle::None);
    let layer = still(layer).build().expect("a limit");
    let limiter = Arc::clone(layer.limiter());
    let throttle = Throttle::builder().max_wait(Duration::from_secs(1)).build().expect("no limit");
    let throttle = ThrottleLayer::new(throttle).key(KeyOf::function(|_| "health".to_owned()));
    let mut client = HealthClient::new(throttle.layer(serve(layer).await));
    let mut failures = Vec::new();
    for _ in 0..4 {
        failures.extend(client.check(HealthCheckRequest::default()).await.err());
    }
    let [denied, kept] = &failures[..] else { panic!("{failures:?}") };
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert!(kept.message().contains("the rate limit does not allow the call in time"), "{kept}");
    limiter.clock().advance(Duration::from_secs(1800));
    let kept = client.check(HealthCheckRequest::default()).await.expect_err("the client has its own clock");
    assert_ne!(kept.code(), Code::ResourceExhausted);
}

#[test]
fn a_denied_call_is_exhausted_and_says_when_to_retry() {
    let grpc = Grpc::serving(rules(
        "rules: [{id: health, match: POST /grpc.health.v1.Health/**, key: ip, limit: 2/m}]",
    ));
    let metadata = grpc.check("").expect("it is allowed");
    assert_eq!(metadata.get("ratelimit").expect("a header"), "\"health\";r=1;t=30");
    assert_eq!(grpc.check("").map(|_| ()).map_err(|status| status.code()), Ok(()));
    let denied = grpc.check("").expect_err("it is denied");
    assert_eq!(denied.code(), Code::ResourceExhausted);
    assert_eq!(denied.message(), "Too many requests: rule health allows 2/m, try again in 30s");
    let retry = denied.get_details_retry_info().expect("RetryInfo");
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(30)));
    assert_eq!(denied.metadata().get("retry-after").expect("a header"), "30");
    grpc.limiter.clock().advance(Duration::from_secs(30));
    assert_eq!(grpc.codes(2, ""), [Code::Ok, Code::ResourceExhausted]);
}

#[test]
fn a_denied_call_has_a_ticket_and_the_wait_that_the_rule_allows_to_be_told() {
    let text = "rules: [{id: all, limit: 1/m, deny: {message: slow down, body: x, content_type: text/plain, \
                retry_after_max: 7s}}]";
    let layer = still(RateLimitLayer::builder().rules(text)).ticket_key("0123456789abcdef0123456789abcdef");
    let grpc = Grpc::serving(layer.build().expect("valid rules"));
    let metadata = grpc.check("").expect("it is allowed");
    assert!(metadata.get("tollgate-ticket").is_none());
    let denied = grpc.check("").expect_err("it is denied");
    assert_eq!((denied.code(), denied.message()), (Code::ResourceExhausted, "slow down"));
    let retry = denied.get_details_retry_info().expect("RetryInfo");
    assert_eq!(retry.retry_delay, Some(Duration::from_secs(7)));
    assert_eq!(denied.metadata().get("retry-after").expect("a header"), "7");
    assert!(denied.metadata().get("tollgate-ticket").is_some());
}

#[test]
fn a_banned_caller_has_no_permission() {
    let grpc = Grpc::serving(rules("rules: [{id: all, key: ip, limit: 9/m}]"));
    grpc.limiter.ban("ip:127.0.0.1", Duration::from_secs(3600), "abuse").expect("a key");
    let banned = grpc.check("").expect_err("it is banned");
    assert_eq!(
        (banned.code(), banned.message()),
        (Code::PermissionDenied, "Banned until 2027-01-15T09:00:00Z: abuse")
    );
}

/// The HTTP status of a gRPC response is 200 even if the call has failed: its status is in the trailers.
#[test]
fn calls_are_settled_by_their_status() {
    let grpc = Grpc::serving(rules("rules: [{id: failures, key: ip, limit: 2/m, count_when: failure}]"));
    assert_eq!(grpc.codes(5, ""), [Code::Ok; 5]);
    assert_eq!(grpc.codes(3, "no.such.Service"), [Code::NotFound, Code::NotFound, Code::ResourceExhausted]);
    let grpc = Grpc::serving(rules("rules: [{id: successes, key: ip, limit: 2/m, count_when: success}]"));
    assert_eq!(grpc.codes(5, "no.such.Service"), [Code::NotFound; 5]);
    assert_eq!(grpc.codes(3, ""), [Code::Ok, Code::Ok, Code::ResourceExhausted]);
}

#[test]
fn concurrent_calls_are_counted_until_they_end() {
    let grpc = Grpc::serving(rules("rules: [{id: slots, key: ip, algorithm: concurrency, limit: 1/m}]"));
    let request = HealthCheckRequest { service: String::new() };
    let mut client = grpc.client.clone();
    let stream = grpc.runtime.block_on(async move { client.watch(request).await }).expect("it is allowed");
    assert_eq!(grpc.codes(2, ""), [Code::ResourceExhausted; 2], "the stream is open");
    drop(stream);
    tollgate_testkit::eventually("the slot is free", || grpc.codes(1, "") == [Code::Ok]);
}
