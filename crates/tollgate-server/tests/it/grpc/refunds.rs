//! Refunds: descriptors whose hits are given back (`is_negative_hits`).

use tollgate_testkit::Server;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::redis::{Make, Redis};

use super::client::{GrpcClient, OK, OVER_LIMIT, descriptor, request};
use super::envoy_config::start_with;
use super::messages::{RateLimitDescriptor, RateLimitRequest};

/// A descriptor that gives hits back.
fn back(entries: &[(&str, &str)], hits: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(hits), is_negative_hits: true, ..descriptor(entries) }
}

/// The codes of a request with these descriptors, and what remains for each.
fn ask(client: &GrpcClient, descriptors: Vec<RateLimitDescriptor>) -> Vec<(i32, u32)> {
    let answer = client.limit(RateLimitRequest { descriptors, ..request("shop", &[]) }).expect("an answer");
    assert_eq!(answer.overall_code, answer.statuses.iter().map(|status| status.code).max().unwrap_or(OK));
    answer.statuses.iter().map(|status| (status.code, status.limit_remaining)).collect()
}

fn check(counters: &str) {
    let server = Server::start(&format!(
        "{counters}rules:
  - {{ id: window, key: 'attr:window', limit: 5/d, algorithm: fixed-window }}
  - {{ id: bucket, key: 'attr:bucket', limit: 5/d }}
  - {{ id: counter, key: 'attr:counter', limit: 5/d, algorithm: sliding-counter }}
  - {{ id: narrow, key: 'attr:narrow', limit: 0/d, algorithm: fixed-window }}
"
    ));
    let client = GrpcClient::to(server.grpc);
    for key in ["window", "bucket", "counter"] {
        let entries = &[(key, "x")][..];
        for left in (0..5).rev() {
            assert_eq!(ask(&client, vec![descriptor(entries)]), [(OK, left)], "{counters}{key}");
        }
        assert_eq!(ask(&client, vec![descriptor(entries)]), [(OVER_LIMIT, 0)], "{counters}{key}");
        assert_eq!(ask(&client, vec![back(entries, 2)]), [(OK, 2)], "{counters}{key}");
        // With a denied descriptor nothing is given back.
        let with_denied = ask(&client, vec![back(entries, 2), descriptor(&[("narrow", "x")])]);
        assert_eq!(with_denied[1], (OVER_LIMIT, 0), "{counters}{key}");
        assert_eq!(ask(&client, vec![descriptor(entries)]), [(OK, 1)], "{counters}{key}");
        assert_eq!(ask(&client, vec![back(entries, 0)]), [(OK, 1)], "a look: {counters}{key}");
        assert_eq!(ask(&client, vec![back(entries, u64::MAX)]), [(OK, 5)], "at most all: {counters}{key}");
        assert_eq!(ask(&client, vec![descriptor(entries)]), [(OK, 4)], "{counters}{key}");
    }
    assert_eq!(ask(&client, vec![back(&[("window", "new")], 1)]), [(OK, 5)], "nothing was used: {counters}");
}

#[test]
fn refunds_give_back_what_was_used_and_no_more() {
    check("");
}

#[test]
fn refunds_are_made_in_a_central_store() {
    let central =
        |url: String| check(&format!("counters: {url}\nstore_deadline: 5s\non_store_error: closed\n"));
    if let Some(redis) = Redis::start(Make::Redis, "refunds on Redis") {
        central(redis.url());
    }
    if let Some(memcached) = Memcached::start("refunds on Memcached") {
        central(memcached.url());
    }
}

#[test]
fn refunds_are_of_configured_limits_too() {
    let config = "domain: shop\ndescriptors: [{ key: a, rate_limit: { unit: day, requests_per_unit: 3 } }, \
                  { key: b, rate_limit: { unit: day, requests_per_unit: 0 } }]\n";
    for (compat, after_denial) in [("tollgate", 2), ("envoy", 3)] {
        let (_server, client) = start_with(&[("shop.yaml", config)], &format!("compat: {compat}\n"));
        let entries = &[("a", "x")][..];
        assert_eq!(ask(&client, vec![descriptor(entries)]), [(OK, 2)]);
        assert_eq!(ask(&client, vec![back(entries, 9)]), [(OK, 3)]);
        assert_eq!(ask(&client, vec![descriptor(entries)]), [(OK, 2)]);
        let both = ask(&client, vec![back(entries, 1), descriptor(&[("b", "x")])]);
        assert_eq!((both[0].0, both[1]), (OK, (OVER_LIMIT, 0)));
        let mut look = descriptor(entries);
        look.hits_addend = Some(0);
        assert_eq!(ask(&client, vec![look]), [(OK, after_denial)], "each descriptor by itself: {compat}");
    }
}
