//! Many clients at once: never one more than the limit.

use std::sync::Barrier;
use std::thread;

use serde_json::json;
use tollgate_testkit::{Client, Server};

const CLIENTS: usize = 64;
const EACH: usize = 4;

#[test]
fn exactly_the_limit_passes_when_64_clients_race_for_the_last_tokens() {
    let algorithms = [
        "gcra",
        "token-bucket",
        "leaky-bucket, on_exceed: reject",
        "fixed-window, window: first-hit",
        "sliding-log",
        "sliding-compact",
        "sliding-counter",
        "tiered-window",
        "concurrency",
    ];
    let rules: Vec<_> = algorithms
        .iter()
        .enumerate()
        .map(|(n, algorithm)| format!("{{ id: r{n}, match: /r{n}, limit: 100/y, algorithm: {algorithm} }}"))
        .collect();
    let server = Server::start(&format!("rules: [{}]", rules.join(", ")));
    let together = Barrier::new(CLIENTS);
    let send = || {
        let mut client = Client::to(server.http);
        let mut passed = vec![0; algorithms.len()];
        for (n, passed) in passed.iter_mut().enumerate() {
            let body = json!({ "path": format!("/r{n}") }).to_string();
            together.wait();
            for _ in 0..EACH {
                match client.request("POST", "/v1/check", &[], body.as_bytes()).status {
                    200 => *passed += 1,
                    status => assert_eq!(status, 429),
                }
            }
        }
        passed
    };
    let mut total = vec![0; algorithms.len()];
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(send)).collect();
        for client in clients {
            let passed = client.join().expect("no client panics");
            total.iter_mut().zip(passed).for_each(|(total, passed)| *total += passed);
        }
    });
    assert_eq!(total, vec![100; algorithms.len()], "of {}", CLIENTS * EACH);
}

#[test]
fn clients_denied_by_their_own_limits_never_drain_the_shared_one() {
    let server = Server::start("rules: [{ id: shared, limit: 1000/y }, { id: own, key: user, limit: 2/y }]");
    thread::scope(|scope| {
        for n in 0..CLIENTS {
            let address = server.http;
            scope.spawn(move || {
                let mut client = Client::to(address);
                let body = json!({ "user": n }).to_string();
                let statuses =
                    [(); 6].map(|()| client.request("POST", "/v1/check", &[], body.as_bytes()).status);
                assert_eq!(statuses, [200, 200, 429, 429, 429, 429]);
            });
        }
    });
    assert_eq!(server.used("shared", ""), [2 * CLIENTS as u64]);
}
