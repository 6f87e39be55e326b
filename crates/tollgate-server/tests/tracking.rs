//! Tracked keys of a fleet: every node tells the same numbers, and they outlive the nodes.

mod harness;
#[path = "../../tollgate-stores/tests/servers/mod.rs"]
mod servers;

use std::sync::Arc;

use harness::{Folder, Server, eventually, tollgate};
use serde_json::{Value, json};
use servers::cassandra::Cassandra;
use servers::memcached::Memcached;
use servers::redis::{Make, Redis};

const RULES: &str = "store_deadline: 5s\nrules: [{ id: a, key: user, limit: 20/d, track: true }]";
const NODES: usize = 3;
const TRIES: usize = 30;

/// Three nodes on one store, each with a folder that outlives it.
struct Fleet {
    folders: Vec<Arc<Folder>>,
    nodes: Vec<Server>,
}

impl Fleet {
    fn start(counters: &str, rest: &str) -> Fleet {
        let folder = |_| {
            let folder = Folder::new();
            folder.configure(&format!("counters: {counters}\n{rest}"));
            folder
        };
        let folders: Vec<_> = (0..NODES).map(folder).collect();
        let mut fleet = Fleet { folders, nodes: Vec::new() };
        fleet.start_nodes();
        fleet
    }

    fn start_nodes(&mut self) {
        self.nodes = self.folders.iter().map(Server::start_in).collect();
        let connected = |node: &Server| {
            node.check(&json!({ "user": "probe", "peek": true })).json()["reason"] != "store_error"
        };
        eventually("every node is connected", || self.nodes.iter().all(connected));
    }

    fn stop_nodes(&mut self) {
        for node in self.nodes.drain(..) {
            assert!(node.stop().0.success());
        }
    }

    /// Spreads tries over the nodes.
    fn try_out(&self, user: &str, tries: usize) {
        for n in 0..tries {
            let status = self.nodes[n % self.nodes.len()].check(&json!({ "user": user })).status;
            assert!(matches!(status, 200 | 429), "{status}");
        }
    }

    fn told(&self, user: &str) -> Vec<Value> {
        self.nodes.iter().map(|node| told(node, user)).collect()
    }
}

fn told(node: &Server, user: &str) -> Value {
    let answer = node.admin("GET", &format!("/v1/keys?rule=a&key=user:{user}"), "");
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

fn counts(told: &Value) -> (u64, u64) {
    (told["tries"].as_u64().unwrap_or_default(), told["denials"].as_u64().unwrap_or_default())
}

/// The part of an answer that does not depend on when it is asked.
fn tracked(told: &Value) -> Value {
    let field = |name: &str| (name.to_owned(), told[name].clone());
    Value::Object(["tries", "denials", "last_seen", "latest", "scope"].map(field).into_iter().collect())
}

/// `latest`, newest first, with as many times as it should have.
fn check_latest(told: &Value, times: usize) {
    let latest: Vec<_> = told["latest"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert_eq!(latest.len(), times, "{told}");
    assert!(latest.is_sorted_by(|newer, older| seconds(newer) >= seconds(older)), "{told}");
    assert_eq!(told["last_seen"].as_str(), latest.first().copied(), "{told}");
}

/// Times of one length compare as text.
fn seconds(time: &str) -> String {
    let (whole, fraction) =
        time.trim_end_matches('Z').split_once('.').unwrap_or((time.trim_end_matches('Z'), ""));
    format!("{whole}.{fraction:0<3}")
}

/// Every node tells what the fleet has seen, before and after all nodes were stopped and started.
fn every_node_tells_the_fleets_numbers(counters: &str) {
    let mut fleet = Fleet::start(counters, RULES);
    fleet.try_out("ann", TRIES);
    let seen = (TRIES as u64, TRIES as u64 - 20);
    eventually("every node tells the same numbers", || {
        fleet.told("ann").iter().all(|told| counts(told) == seen && told["scope"] == "fleet")
    });
    let told: Vec<_> = fleet.told("ann").iter().map(tracked).collect();
    check_latest(&told[0], 16);
    assert!(told.iter().all(|other| other == &told[0]), "{told:#?}");
    let shown = shown(&fleet.nodes[1], "ann");
    assert!(shown.contains("tries 30, denials 10, last seen 2"), "{shown}");

    fleet.stop_nodes();
    fleet.start_nodes();
    let after: Vec<_> = fleet.told("ann").iter().map(tracked).collect();
    assert_eq!(after, told, "a restart of all nodes loses nothing");

    let reset = fleet.nodes[0].admin("DELETE", "/v1/keys?rule=a&key=user:ann", "");
    assert_eq!((reset.status, counts(&reset.json()["reset"])), (200, seen), "{reset}");
    assert!(fleet.told("ann").iter().all(|told| counts(told) == (0, 0)), "forgotten on every node");
    fleet.try_out("ann", 3);
    eventually("it begins anew", || fleet.told("ann").iter().all(|told| counts(told).0 == 3));
}

/// What `tollgate key show` prints.
fn shown(node: &Server, user: &str) -> String {
    let (key, admin) = (format!("user:{user}"), format!("http://{}", node.admin));
    let ran = tollgate(&["key", "show", "a", &key, "--admin", &admin]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

#[test]
fn three_nodes_on_redis_tell_the_fleets_numbers() {
    if let Some(redis) = Redis::start(Make::Redis, "tracking on redis") {
        every_node_tells_the_fleets_numbers(&redis.url());
        let keys = redis.ask(&["KEYS", "*"]);
        assert!(keys.contains("tg1:default:a:{user:ann}:track"), "{keys}");
    }
}

#[test]
fn three_nodes_on_memcached_tell_the_fleets_numbers() {
    if let Some(memcached) = Memcached::start("tracking on memcached") {
        every_node_tells_the_fleets_numbers(&memcached.url());
    }
}

#[test]
fn three_nodes_on_cassandra_tell_the_fleets_numbers() {
    let Some(cassandra) = Cassandra::start("tracking on Cassandra") else { return };
    let (folder, url) = (Folder::new(), cassandra.url("limits"));
    let file = folder.configure(&format!("counters: {url}\n"));
    let init = || tollgate(&["store", "init", "-c", file.to_str().expect("a path")]);
    eventually("a new server knows its first user", || init().code == Some(0));
    every_node_tells_the_fleets_numbers(&url);
}
