//! Automatic bans on nodes that share a store: one threshold, one strike a burst and one ban for all of them.

use std::sync::Arc;
use std::thread;

use serde_json::{Value, json};
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::servers::sentinel::SentinelGroup;
use tollgate_testkit::{Folder, Server, eventually, tollgate};

use crate::grpc::client::{GrpcClient, OVER_LIMIT};

const RULES: &str = "store_deadline: 5s
rules:
  - { id: a, match: /a, key: user, limit: 1/d, ban: { after: 6, within: 1h, for: 1h, max: 8h } }
  - { id: b, match: /b, key: user, limit: 1/d, ban: { after: 6, within: 1h, for: 1h, max: 8h } }";
const NODES: usize = 3;

/// Three nodes with one store. Each has a folder, and so a rules database, of its own.
struct Fleet {
    folders: Vec<Arc<Folder>>,
    nodes: Vec<Server>,
}

impl Fleet {
    fn start(url: &str, rest: &str) -> Fleet {
        let folders: Vec<_> = (0..NODES).map(|_| Folder::new()).collect();
        for folder in &folders {
            folder.configure(&format!("counters: {url}\n{rest}{RULES}"));
        }
        let nodes = folders.iter().map(Server::start_in).collect();
        let fleet = Fleet { folders, nodes };
        fleet.wait_until_shared();
        fleet
    }

    fn wait_until_shared(&self) {
        eventually("every node counts in the store", || {
            self.nodes
                .iter()
                .all(|node| reason(node, "nobody") == "ok" && metric(node, "tollgate_violations_shared") == 1)
        });
    }

    /// Ends all nodes at once, without a word, and starts them again.
    fn kill_and_restart(&mut self) {
        self.nodes.iter().for_each(|node| node.signal("KILL"));
        self.nodes.clear();
        self.nodes = self.folders.iter().map(Server::start_in).collect();
    }

    fn everywhere(&self, user: &str, expected: &str) {
        eventually(&format!("{user} is answered '{expected}' on every node"), || {
            self.nodes.iter().all(|node| reason(node, user) == expected)
        });
    }

    /// Denials that count towards bans, on all nodes.
    fn violations(&self) -> u64 {
        self.nodes.iter().map(|node| metric(node, "tollgate_violations_total{counted=\"fleet\"}")).sum()
    }

    /// The ban of a user, which is the same on all nodes.
    fn ban(&self, user: &str) -> Value {
        let bans: Vec<_> = self.nodes.iter().map(|node| ban(node, user)).collect();
        assert!(bans.iter().all(|ban| *ban == bans[0]), "{bans:?}");
        bans[0].clone()
    }

    /// A request that passes, and denials one after the other, on one node after the other.
    fn offend(&self, user: &str, denials: usize) {
        assert_eq!(self.nodes[0].check(&json!({ "user": user, "path": "/a" })).status, 200);
        self.deny(user, denials);
    }

    fn deny(&self, user: &str, denials: usize) {
        let before = self.violations();
        for n in 0..denials {
            let answer = self.nodes[n % NODES].check(&json!({ "user": user, "path": "/a" }));
            assert_eq!(answer.status, 429, "denial {n}: {answer}");
        }
        eventually("all of them are counted", || self.violations() == before + denials as u64);
    }
}

fn reason(node: &Server, user: &str) -> String {
    let reply = node.check(&json!({ "user": user, "path": "/a", "peek": true })).json();
    reply["reason"].as_str().unwrap_or_default().to_owned()
}

fn metric(node: &Server, name: &str) -> u64 {
    let metrics = node.admin("GET", "/metrics", "").text();
    let line = metrics.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|rest| rest.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

/// A ban as a node lists it; null if it does not.
fn ban(node: &Server, user: &str) -> Value {
    let bans = node.admin("GET", "/v1/bans", "").json()["bans"].as_array().cloned().unwrap_or_default();
    let mut ban = bans.into_iter().find(|ban| ban["key"] == format!("user:{user}")).unwrap_or_default();
    if let Some(ban) = ban.as_object_mut() {
        ban.remove("version"); // of the node's own database
    }
    ban
}

/// What holds on every store.
fn check(url: &str) {
    let mut fleet = Fleet::start(url, "");

    // The sixth denial bans, whichever nodes gave them.
    fleet.offend("ann", 5);
    fleet.everywhere("ann", "limit");
    assert!(fleet.ban("ann").is_null());
    fleet.deny("ann", 1);
    fleet.everywhere("ann", "ban");
    let banned = fleet.ban("ann");
    assert_eq!((&banned["strikes"], &banned["source"]), (&json!(1), &json!("automatic")));
    assert_eq!(banned["reason"], "6 denials by rule a");

    // A burst over all nodes and two rules is one strike.
    thread::scope(|scope| {
        for n in 0..12 {
            let node = &fleet.nodes[n % NODES];
            scope.spawn(move || {
                for m in 0..10 {
                    let path = if m % 2 == 0 { "/a" } else { "/b" };
                    node.check(&json!({ "user": "eve", "path": path }));
                }
            });
        }
    });
    fleet.everywhere("eve", "ban");
    assert_eq!(fleet.ban("eve")["strikes"], 1);

    // All nodes die as soon as one of them has banned: it holds from their first request on.
    fleet.offend("bob", 5);
    fleet.nodes[2].check(&json!({ "user": "bob", "path": "/a" }));
    eventually("a node has banned", || reason(&fleet.nodes[2], "bob") == "ban");
    fleet.kill_and_restart();
    for user in ["ann", "bob", "eve"] {
        let reply: Vec<_> = fleet.nodes.iter().map(|node| reason(node, user)).collect();
        assert_eq!(reply, ["ban"; NODES], "{user}");
        assert_eq!(fleet.ban(user)["strikes"], 1);
    }
    assert_eq!(fleet.ban("ann")["until"], banned["until"]);

    // A ban that was lifted on one node is lifted on all, and does not come back.
    assert_eq!(fleet.nodes[1].admin("DELETE", "/v1/bans/user:ann", "").status, 200);
    fleet.everywhere("ann", "limit");
    fleet.deny("ann", 5);
    fleet.everywhere("ann", "limit");
    eventually("no database has it either", || {
        let rows = |node: &Server| node.admin("GET", "/v1/audit", "").text();
        fleet.nodes.iter().all(|node| {
            let log = rows(node);
            !log.contains("user:ann") || log.contains("\"after\":null")
        })
    });
    fleet.kill_and_restart();
    for node in &fleet.nodes {
        assert_eq!((reason(node, "ann").as_str(), reason(node, "bob").as_str()), ("limit", "ban"));
    }
    fleet.deny("ann", 1);
    fleet.everywhere("ann", "ban");
    assert_eq!(fleet.ban("ann")["strikes"], 1, "what was lifted is forgiven");
}

#[test]
fn bans_are_shared_on_redis() {
    if let Some(redis) = Redis::start(Make::Redis, "bans of nodes that share a Redis") {
        check(&redis.url());
        let keys = redis.command(&["KEYS", "tg1:bans:*"]);
        assert!(keys.contains("tg1:bans:{user:ann}"), "{keys}");
    }
}

#[test]
fn bans_are_shared_on_a_redis_cluster() {
    if let Some(cluster) = RedisCluster::start("bans of nodes that share a Redis Cluster") {
        check(&cluster.url());
    }
}

#[test]
fn bans_are_shared_on_redis_with_sentinels() {
    if let Some(group) = SentinelGroup::start("bans of nodes that share a Redis with sentinels") {
        check(&group.url());
    }
}

#[test]
fn bans_are_shared_on_memcached() {
    if let Some(memcached) = Memcached::start("bans of nodes that share a Memcached") {
        check(&memcached.url());
    }
}

#[test]
fn bans_are_shared_on_cassandra() {
    let Some(cassandra) = Cassandra::start("bans of nodes that share a Cassandra") else { return };
    let folder = Folder::new();
    let url = cassandra.url("bans");
    let file = folder.configure(&format!("counters: {url}\n"));
    let init = || tollgate(&["store", "init", "-c", file.to_str().expect("a path")]);
    eventually("a new server knows its first user", || init().code == Some(0));
    check(&url);
}

/// A database that nodes share has the ban once, and a lift there is a lift in the store.
#[test]
fn a_shared_database_has_one_row_and_its_lift_is_the_stores() {
    let Some(redis) = Redis::start(Make::Redis, "bans in a store and a database") else { return };
    let Some(postgres) = Postgres::start("bans in a store and a database") else { return };
    let mut fleet = Fleet::start(&redis.url(), &format!("rules_db: {}\n", postgres.url()));
    fleet.offend("ann", 6);
    fleet.everywhere("ann", "ban");
    let audit =
        |node: &Server| node.admin("GET", "/v1/audit", "").json()["changes"].as_array().map_or(0, Vec::len);
    eventually("it is in the database", || audit(&fleet.nodes[0]) == 1);
    fleet.kill_and_restart();
    fleet.everywhere("ann", "ban");
    assert_eq!(audit(&fleet.nodes[0]), 1, "one entry for one ban");
    // Rolled back in the database, by version: the store is not involved.
    let log = fleet.nodes[0].admin("GET", "/v1/audit", "").json();
    let version = log["changes"][0]["version"].as_str().unwrap_or_default().to_owned();
    let undone = fleet.nodes[0].admin("POST", &format!("/v1/audit/{version}/rollback"), "");
    assert_eq!(undone.status, 200, "{undone}");
    fleet.everywhere("ann", "limit");
    fleet.deny("ann", 5);
    fleet.everywhere("ann", "limit");
    fleet.kill_and_restart();
    fleet.everywhere("ann", "limit");
}

#[test]
fn while_the_store_does_not_answer_each_node_counts_for_itself() {
    let Some(redis) = Redis::start(Make::Redis, "violations without their store") else { return };
    let rest = "on_store_error: local\nnodes: 1\n";
    let fleet = Fleet::start(&redis.url(), rest);
    fleet.offend("ann", 3);
    redis.process.signal("STOP");
    let node = &fleet.nodes[0];
    let reply =
        || node.check(&json!({ "user": "bob", "path": "/a" })).json()["reason"].as_str().map(str::to_owned);
    eventually("the node's own denials ban", || reply().as_deref() == Some("ban"));
    assert_eq!(ban(node, "bob")["strikes"], 1);
    redis.process.signal("CONT");
    fleet.wait_until_shared();
    eventually("the store decides again", || {
        fleet.nodes.iter().all(|node| node.admin("GET", "/healthz", "").json()["protection"] == "on")
    });
    fleet.offend("eve", 6);
    fleet.everywhere("eve", "ban");
    assert_eq!(fleet.ban("eve")["strikes"], 1);
}

#[test]
fn identities_that_are_hashed_in_names_are_not_shown_by_values() {
    let Some(redis) = Redis::start(Make::Redis, "bans under hashed names") else { return };
    let folder = Folder::new();
    let secret = folder.write("secret", "a secret of thirty-two bytes, at least");
    let rest = format!("store_keys: hashed\nstore_secret_file: {}\n", secret.display());
    let fleet = Fleet::start(&redis.url(), &rest);
    fleet.offend("annabelle", 6);
    fleet.everywhere("annabelle", "ban");
    let entry = redis.command(&["GET", "tg1:{bans}:1"]);
    let keys = redis.command(&["KEYS", "*"]);
    assert!(keys.contains("tg1:bans:{#") && !keys.contains("annabelle"), "{keys}");
    assert!(entry.contains("denials by rule") && !entry.contains("annabelle"), "{entry}");
}

/// Each denied descriptor of a request of Envoy was a violation, if the counters were in a store.
#[test]
fn a_request_of_several_descriptors_is_one_violation() {
    let Some(redis) = Redis::start(Make::Redis, "violations of several descriptors") else { return };
    let ban = "ban: { key: ['attr:tenant'], after: 3, within: 1h, for: 1h }";
    let rules = format!("rules: [{{ id: r, key: user, limit: 0/d, {ban} }}]");
    let server = Server::start(&format!("counters: {}\nstore_deadline: 5s\n{rules}", redis.url()));
    eventually("violations are counted in the store", || metric(&server, "tollgate_violations_shared") == 1);
    let client = GrpcClient::to(server.grpc);
    let of_one = ["a", "b", "c", "d"].map(|user| [("user", user), ("tenant", "one")]);
    let descriptors: Vec<_> = of_one.iter().map(|entries| &entries[..]).collect();
    let counted = || metric(&server, "tollgate_violations_total{counted=\"fleet\"}");
    let bans = || server.admin("GET", "/v1/bans", "").json()["bans"].as_array().map(Vec::len);
    for requests in 1..=3 {
        let codes = client.codes("shop", &descriptors);
        assert!(codes.iter().all(|(code, _)| *code == OVER_LIMIT), "{codes:?}");
        eventually("the violation is counted", || counted() >= requests);
        assert_eq!(counted(), requests);
        if requests < 3 {
            assert_eq!(bans(), Some(0), "{requests} violations so far");
        }
    }
    eventually("the tenant is banned", || bans() == Some(1));
}
