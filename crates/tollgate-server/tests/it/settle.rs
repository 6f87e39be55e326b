//! Receipts over the decision API: given back, corrected, and only once.

use serde_json::{Value, json};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Server, eventually};

fn settle(server: &Server, body: &Value) -> u16 {
    server.request("POST", "/v1/settle", body.to_string()).status
}

fn receipt(server: &Server, hit: &Value) -> Value {
    let answer = server.check(hit);
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()["receipt"].clone()
}

#[test]
fn a_login_that_succeeded_does_not_count() {
    let server = Server::start("rules: [{ id: login, key: user, limit: 2/h, count_when: failure }]");
    for status in [200, 200, 401, 200, 500] {
        let receipt = receipt(&server, &json!({ "user": "ann" }));
        assert_eq!(settle(&server, &json!({ "receipt": receipt, "status": status })), 200);
    }
    assert_eq!(server.check(&json!({ "user": "ann" })).status, 429);
}

#[test]
fn a_receipt_is_used_once() {
    let server = Server::start("rules: [{ id: login, limit: 5/h, count_when: failure }]");
    let receipt = receipt(&server, &json!({}));
    let body = json!({ "receipt": receipt, "status": 200 });
    assert_eq!([(); 3].map(|()| settle(&server, &body)), [200, 409, 409]);
    assert_eq!(server.used("login", ""), [0]);
}

#[test]
fn what_is_never_settled_stays_charged() {
    let server = Server::start("rules: [{ id: login, limit: 5/h, count_when: failure }]");
    receipt(&server, &json!({}));
    assert_eq!(server.used("login", ""), [1]);
}

#[test]
fn a_cost_that_is_known_later_is_corrected() {
    let server = Server::start("rules: [{ id: units, limit: 100/h }]");
    assert_eq!(receipt(&server, &json!({ "cost": 10 })), Value::Null, "none was requested");
    let ten = json!({ "cost": 10, "receipt": true });
    for (cost, used) in [(json!(3), 13), (json!(50), 63), (Value::Null, 63)] {
        let receipt = receipt(&server, &ten);
        assert_eq!(settle(&server, &json!({ "receipt": receipt, "cost": cost })), 200);
        assert_eq!(server.used("units", ""), [used]);
    }
}

#[test]
fn permits_are_given_back() {
    let server = Server::start("rules: [{ id: busy, algorithm: concurrency, limit: 1/m }]");
    for _ in 0..3 {
        let receipt = receipt(&server, &json!({}));
        assert_eq!(server.check(&json!({})).status, 429);
        assert_eq!(settle(&server, &json!({ "receipt": receipt })), 200);
    }
}

#[test]
fn an_invalid_receipt_is_rejected() {
    let server = Server::start("rules: [{ id: a, limit: 5/h }]");
    let other = Server::start("rules: [{ id: a, limit: 5/h }]");
    let foreign = receipt(&other, &json!({ "receipt": true }));
    for body in [
        json!({ "receipt": foreign }),
        json!({ "receipt": "" }),
        json!({ "receipt": 5 }),
        json!({}),
        json!({ "receipt": "x", "more": 1 }),
        json!({ "receipt": "x", "status": 99 }),
    ] {
        let answer = server.request("POST", "/v1/settle", body.to_string());
        assert_eq!(
            (answer.status, answer.header("content-type")),
            (400, Some("application/problem+json")),
            "{body}"
        );
    }
    assert_eq!(server.request("GET", "/v1/settle", "").status, 405);
}

#[test]
fn nodes_that_share_a_secret_recognise_each_others_receipts() {
    let start = || {
        let folder = tollgate_testkit::Folder::new();
        folder.write("key", "0123456789abcdef0123456789abcdef");
        folder.configure("receipt_key_file: key\nrules: [{ id: a, limit: 5/h }]");
        Server::start_in(&folder)
    };
    let one = start();
    let other = start();
    let receipt = receipt(&one, &json!({ "receipt": true }));
    assert_eq!(settle(&other, &json!({ "receipt": receipt })), 409);
    assert_eq!(settle(&one, &json!({ "receipt": receipt })), 200);
}

/// Its text was longer than what was read of one, so a client with long keys held its permits until they expired.
#[test]
fn a_receipt_of_long_keys_is_settled() {
    let Some(redis) = Redis::start(Make::Redis, "receipts of long keys") else { return };
    let rule =
        |id: &str| format!("  - {{ id: {id}, key: [user, email], algorithm: concurrency, limit: 1/m }}\n");
    let rules: String = ["a", "b", "c", "d"].into_iter().map(rule).collect();
    let server = Server::start(&format!("counters: {}\nstore_deadline: 5s\nrules:\n{rules}", redis.url()));
    let long = "x".repeat(4_000);
    let hit = json!({ "user": long, "email": format!("{long}@x.example") });
    let receipt = receipt(&server, &hit);
    assert_eq!(server.check(&hit).status, 429);
    assert_eq!(settle(&server, &json!({ "receipt": receipt })), 200);
    eventually("the permits are back", || server.check(&hit).status == 200);
}
