//! Nodes that share their counters on a real Redis: one limit for all, and what happens while it does not answer.

use serde_json::{Value, json};
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Folder, Server, eventually, tollgate};

fn redis(what: &str) -> Option<Redis> {
    Redis::start(Make::Redis, what)
}

fn node(redis: &Redis, rest: &str) -> Server {
    Server::start(&format!("counters: {}\n{rest}", redis.url()))
}

fn check(server: &Server, user: &str) -> (u16, Value) {
    let answer = server.check(&json!({ "user": user }));
    (answer.status, answer.json())
}

#[test]
fn three_nodes_share_one_limit() {
    let Some(redis) = redis("three nodes share one limit") else { return };
    let rules = "store_deadline: 5s\nrules: [{ id: a, key: user, limit: 10/d }, { id: all, limit: 1000/d }]";
    let nodes: Vec<Server> = (0..3).map(|_| node(&redis, rules)).collect();
    eventually("every node is connected", || {
        nodes
            .iter()
            .all(|node| node.check(&json!({ "user": "probe", "peek": true })).json()["reason"] == "ok")
    });
    let answers: Vec<_> = (0..30).map(|n| check(&nodes[n % 3], "ann")).collect();
    assert_eq!(answers.iter().filter(|(status, _)| *status == 200).count(), 10);
    assert!(answers.iter().all(|(status, body)| matches!(
        (status, body["reason"].as_str()),
        (200, Some("ok")) | (429, Some("limit"))
    )));
    assert_eq!(answers[9].1["remaining"], 0);
    assert!(
        redis.command(&["KEYS", "tg1:*"]).contains("tg1:default:a:{user:ann}:gcra-d"),
        "keys can be read"
    );
    // Looked up, and forgotten, on whichever node.
    assert_eq!(nodes[1].used("a", "user:ann"), [10]);
    assert_eq!(nodes[2].admin("DELETE", "/v1/keys?rule=a&key=user:ann", "").status, 200);
    eventually("the other nodes have forgotten the denial", || check(&nodes[0], "ann").0 == 200);
}

#[test]
fn while_redis_is_frozen_on_store_error_applies_and_health_reports_it() {
    let Some(redis) = redis("rules without their store") else { return };
    let rules = "rules:
      - { id: open, match: /open, key: user, limit: 1/d }
      - { id: closed, match: /closed, key: user, limit: 100/d, on_store_error: closed }
      - { id: local, match: /local, key: user, limit: 4/d, on_store_error: local }
nodes: 2
store_deadline: 500ms";
    let server = node(&redis, rules);
    let send = |path: &str| {
        let answer = server.check(&json!({ "user": "ann", "path": path }));
        (answer.status, answer.json()["reason"].as_str().unwrap_or_default().to_owned())
    };
    eventually("it is connected", || send("/closed") == (200, "ok".to_owned()));
    assert_eq!((send("/open").0, send("/open").0), (200, 429));
    let health = || server.admin("GET", "/healthz", "").json();
    assert_eq!(health()["protection"], "on");

    redis.process.signal("STOP");
    eventually("it is noticed", || {
        send("/closed");
        let health = health();
        (&health["protection"], &health["protection_cause"]) == (&json!("off"), &json!("store"))
    });
    eventually("the last denial is a second old", || send("/open") == (200, "store_error".to_owned()));
    assert_eq!(send("/closed"), (503, "store_error".to_owned()));
    let local: Vec<_> = (0..4).map(|_| send("/local").0).collect();
    assert_eq!(local, [200, 200, 429, 429], "half of four for each of two nodes");
    let metrics = server.admin("GET", "/metrics", "").text();
    assert!(metrics.contains("tollgate_central_protected 0"), "{metrics}");
    server.wait_for_log("store does not answer: on_store_error is in force");

    redis.process.signal("CONT");
    eventually("it decides again", || send("/closed") == (200, "ok".to_owned()));
    eventually("and says so", || health()["protection"] == "on");
    assert!(health()["protection_cause"].is_null());
    server.wait_for_log("store answers again");
    assert_eq!(server.log().matches("store does not answer").count(), 1, "one line for one outage");
}

/// An email in a shared Redis could be read by everyone who can read the Redis.
#[test]
fn by_default_credentials_and_emails_are_hashed_and_the_rest_is_readable() {
    let Some(redis) = redis("sensitive names on redis") else { return };
    let rules = "rules:
      - { id: login, match: /login, key: [ip, email], limit: 3/d }
      - { id: api, match: /api, key: header:X-Api-Key, limit: 3/d }
      - { id: tenant, match: /api, key: [header:x-tenant, user], limit: 30/d }";
    let nodes = [(); 2].map(|()| node(&redis, rules));
    eventually("both are connected", || {
        nodes.iter().all(|node| check(node, "probe").1["reason"] == "no_rule")
    });
    let send = |n: usize, body: Value| nodes[n % 2].check(&body).status;
    let login = json!({ "path": "/login", "ip": "203.0.113.9", "email": "Ann@example.com" });
    let api = json!({ "path": "/api", "user": "bob@example.com", "headers": { "x-api-key": "k-123", "x-tenant": "acme" } });
    eventually("both reach the store", || {
        nodes.iter().all(|node| {
            let peek =
                json!({ "path": "/login", "ip": "203.0.113.9", "email": "probe@example.com", "peek": true });
            node.check(&peek).json()["reason"] == "ok"
        })
    });
    for request in [&login, &api] {
        let passed = (0..6).filter(|n| send(*n, request.clone()) == 200).count();
        assert_eq!(passed, 3, "both nodes use the same name for {request}");
    }
    let keys = redis.command(&["KEYS", "*"]);
    let named = |start: &str, end: &str| keys.lines().any(|key| key.starts_with(start) && key.ends_with(end));
    assert!(named("tg1:default:login:{email:#", "+ip:203.0.113.9:gcra-d"), "{keys}");
    assert!(named("tg1:default:api:{header:x-api-key:#", "}:gcra-d"), "{keys}");
    assert!(
        keys.contains("tg1:default:tenant:{user:#") && keys.contains("}|header:x-tenant:acme+user:#"),
        "{keys}"
    );
    for secret in ["ann", "bob", "k-123"] {
        assert!(!keys.to_lowercase().contains(secret), "{secret} in {keys}");
    }
    assert_eq!(nodes[1].used("login", "ip:203.0.113.9+email:ann@example.com"), [3]);
    nodes[0].wait_for_log("store_keys: sensitive: identities in the store are hashed without a key");
}

/// What is hashed without a key can be guessed, and nodes must not differ in it.
#[test]
fn the_secret_of_the_fleet_is_the_key_of_the_hash() {
    let Some(redis) = redis("keyed names on redis") else { return };
    let folder = Folder::new();
    let secret = folder.write("secret", "a secret of thirty-two bytes, at least\n");
    let rules = "rules: [{ id: login, key: email, limit: 9/d }]";
    let names_under = |settings: &str| {
        redis.command(&["FLUSHALL"]);
        let node = node(&redis, &format!("{settings}{rules}"));
        eventually("it is connected", || {
            node.check(&json!({ "email": "ann@example.com" })).json()["reason"] == "ok"
        });
        (redis.command(&["KEYS", "*"]), node)
    };
    let (unkeyed, _) = names_under("");
    // printf %s email:ann@example.com | sha256sum | cut -c -32
    assert!(unkeyed.contains("{email:#35f3b3170d36d0a179d1bf8e9cf8cfc3}"), "{unkeyed}");
    let keyed_settings = format!("store_secret_file: {}\n", secret.display());
    let (keyed, node) = names_under(&keyed_settings);
    // printf %s email:ann@example.com | openssl dgst -sha256 -hmac "$(cat secret)" -r | cut -c -32
    assert!(keyed.contains("{email:#bce30e070aa59b010379c373517ef5bb}"), "{keyed}");
    assert!(!node.log().contains("without a key"), "{}", node.log());
    let (plain, node) = names_under("store_keys: plain\n");
    assert!(plain.contains("{email:ann@example.com}"), "{plain}");
    assert!(!node.log().contains("without a key"), "{}", node.log());
    let (hashed, node) = names_under("store_keys: hashed\n");
    assert!(hashed.contains("tg1:default:login:{#35f3b3170d36d0a179d1bf8e9cf8cfc3}"), "{hashed}");
    node.wait_for_log("store_keys: hashed: identities in the store are hashed without a key");
}

#[test]
fn hashed_names_show_no_identity() {
    let Some(redis) = redis("hashed names on redis") else { return };
    let folder = Folder::new();
    let secret = folder.write("secret", "a secret of thirty-two bytes, at least");
    let rules = "rules: [{ id: a, key: user, limit: 3/d }]";
    let config = format!("store_keys: hashed\nstore_secret_file: {}\n{rules}", secret.display());
    let nodes = [(); 2].map(|()| node(&redis, &config));
    eventually("both are connected", || nodes.iter().all(|node| check(node, "probe").1["reason"] == "ok"));
    let passed = (0..6).filter(|n| check(&nodes[n % 2], "ann").0 == 200).count();
    assert_eq!(passed, 3, "both call her the same");
    let keys = redis.command(&["KEYS", "*"]);
    assert!(keys.contains("tg1:default:a:{#") && !keys.contains("ann"), "{keys}");
}

#[test]
fn memcached_and_cassandra_are_one_line_too() {
    let rules = "store_deadline: 5s\nrules: [{ id: a, key: user, limit: 4/d }, { id: w, limit: 90/d, algorithm: fixed-window }]";
    let shared = |url: &str| {
        let nodes = [(); 2].map(|()| Server::start(&format!("counters: {url}\n{rules}")));
        let reason = |node: &Server| check(node, "probe").1["reason"].clone();
        eventually("both are connected", || nodes.iter().all(|node| reason(node) == "ok"));
        let passed = (0..8).filter(|n| check(&nodes[n % 2], "ann").0 == 200).count();
        assert_eq!(passed, 4, "{url}");
        assert_eq!(nodes[0].used("a", "user:ann"), [4], "{url}");
    };
    if let Some(memcached) = Memcached::start("nodes that share a memcached") {
        shared(&memcached.url());
    }
    if let Some(cassandra) = Cassandra::start("nodes that share a Cassandra") {
        let folder = Folder::new();
        let url = cassandra.url("limits");
        let file = folder.configure(&format!("counters: {url}\n"));
        let init = || tollgate(&["store", "init", "-c", file.to_str().expect("a path")]);
        eventually("a new server knows its first user", || init().code == Some(0));
        assert_eq!(init().code, Some(0), "what is there stays");
        shared(&url);
    }
}

#[test]
fn a_receipt_is_settled_once_on_whichever_node() {
    let Some(redis) = redis("receipts of nodes that share a store") else { return };
    let folder = Folder::new();
    let key = folder.write("receipts", "a secret of thirty-two bytes, at least");
    let rules = "rules: [{ id: login, key: user, limit: 3/d, count_when: failure }]";
    let config = format!("receipt_key_file: {}\n{rules}", key.display());
    let [one, two] = [(); 2].map(|()| node(&redis, &config));
    eventually("both are connected", || {
        [&one, &two].iter().all(|node| check(node, "probe").1["reason"] == "ok")
    });
    let (status, body) = check(&one, "ann");
    assert_eq!((status, one.used("login", "user:ann")), (200, vec![1]));
    let settled = json!({ "receipt": body["receipt"], "status": 200 }).to_string();
    let settle = |node: &Server| node.request("POST", "/v1/settle", &settled).status;
    assert_eq!((settle(&two), settle(&one), settle(&two)), (200, 409, 409));
    eventually("it is given back", || one.used("login", "user:ann") == [0]);
}

#[test]
fn permits_are_shared_and_given_back_on_whichever_node() {
    let rules = "rules: [{ id: jobs, key: user, limit: 2/5m, algorithm: concurrency }]";
    let shared = |url: &str| {
        let folder = Folder::new();
        let key = folder.write("receipts", "a secret of thirty-two bytes, at least");
        let config =
            format!("counters: {url}\nstore_deadline: 5s\nreceipt_key_file: {}\n{rules}", key.display());
        let [one, two] = [(); 2].map(|()| Server::start(&config));
        eventually("both are connected", || {
            [&one, &two].iter().all(|node| check(node, "probe").1["reason"] != "store_error")
        });
        let first = check(&one, "ann");
        let second = check(&two, "ann");
        assert_eq!((first.0, second.0, check(&one, "ann").0), (200, 200, 429), "{url}");
        let done = json!({ "receipt": first.1["receipt"] }).to_string();
        assert_eq!(two.request("POST", "/v1/settle", done).status, 200, "{url}");
        eventually("there is a permit again", || check(&one, "ann").0 == 200);
        assert_eq!(check(&two, "ann").0, 429, "{url}");
    };
    if let Some(redis) = redis("permits on redis") {
        shared(&redis.url());
    }
    if let Some(memcached) = Memcached::start("permits on memcached") {
        shared(&memcached.url());
    }
}

#[test]
fn what_the_store_cannot_keep_is_rejected_with_the_reason() {
    let folder = Folder::new();
    for (config, says) in [
        ("counters: mysql://u:hunter2@host\n", "unknown store 'mysql'"),
        ("counters: redis://host:x\n", "is not a number between 1 and 65535"),
        ("counters: redis://h\nstore_keys: secret\n", "sensitive"),
        ("counters: redis://h\nstore_deadline: 0s\n", "expected a duration above 0"),
        ("counters: redis://h\nrules: [{ id: a, limit: 3_000_000/s }]\n", "limit 3000000/s of rule a"),
        (
            "counters: memcached://h\nrules: [{ id: a, limit: 1_000_000/h, algorithm: sliding-log }]\n",
            "bytes a key",
        ),
    ] {
        let file = folder.configure(config);
        let ran = tollgate(&["rules", "check", file.to_str().expect("a path")]);
        assert_eq!(ran.code, Some(3), "{config}: {}", ran.stderr);
        assert!(ran.stderr.contains(says), "{config}: {}", ran.stderr);
        assert!(!ran.stderr.contains("hunter2"), "no password is shown: {}", ran.stderr);
    }
}
