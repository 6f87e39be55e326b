//! Views of the whole fleet: real nodes on one rules database, and what becomes of those that do not answer.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_testkit::servers::postgres::Postgres;
use tollgate_testkit::{Answer, Client, Folder, Server, binary, eventually, free_port, run, tollgate};

use crate::proxy::protocols::certificate;

const TOKEN: &str = "a-token-of-the-fleet";
const RULES: &str =
    "rules: [{ id: login, key: ip, limit: 2/h }, { id: mail, match: /mail, key: email, limit: 2/h }]";

/// A node with an address of its own, which the other nodes know.
struct Node {
    server: Server,
    address: String,
}

/// What differs from node to node.
#[derive(Default)]
struct Settings<'s> {
    /// In place of the token that all nodes know.
    own_token: Option<&'s str>,
    /// The name of its certificate.
    certificate: Option<&'s str>,
    /// More lines of the configuration.
    more: &'s str,
}

impl Node {
    fn start(database: &str, settings: &Settings<'_>) -> Node {
        let folder = Folder::new();
        let port = free_port();
        let token = settings.own_token.unwrap_or(TOKEN);
        folder.write_private("tokens", format!("read {token} fleet\n"));
        folder.write_private("fleet-token", format!("{TOKEN}\n"));
        let scheme = if settings.certificate.is_some() { "https" } else { "http" };
        let address = format!("{scheme}://127.0.0.1:{port}");
        let tls = settings.certificate.map_or(String::new(), |name| {
            certificate(&folder, name);
            format!("tls: {{ admin: {{ cert: {name}.pem, key: {name}.key }} }}\n")
        });
        let more = settings.more;
        folder.write(
            "tollgate.yaml",
            format!(
                "listen: {{ http: 127.0.0.1:0, admin: 127.0.0.1:{port}, resp: off, grpc: off }}\n\
                 rules_db: {database}\nadvertise: {address}\ntokens_file: tokens\n{tls}{RULES}\n\
                 fleet: {{ token_file: fleet-token{more} }}\n"
            ),
        );
        Node { server: Server::start_in(&folder), address }
    }

    fn get(&self, path: &str) -> Answer {
        let token = format!("Bearer {TOKEN}");
        Client::to(self.server.admin).request("GET", path, &[("authorization", &token)], b"")
    }

    fn json(&self, path: &str) -> Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{answer}");
        answer.json()
    }

    /// Requests of a client, the first two of which are allowed.
    fn check(&self, ip: &str, times: usize) {
        for _ in 0..times {
            self.server.check(&json!({ "ip": ip }));
        }
    }

    /// Its id, as it is shown.
    fn id(&self) -> String {
        let found = self.json("/v1/nodes?scope=node")["nodes"][0]["node"].take();
        found.as_str().expect("an id").to_owned()
    }

    /// A view of all nodes, once so many have answered: on a busy machine one may take too long.
    fn view(&self, path: &str, count: usize) -> Value {
        let mut view = Value::Null;
        eventually("the nodes answer in time", || {
            view = self.json(path);
            answered(&view) == count
        });
        view
    }

    fn wait_for_nodes(&self, count: usize) {
        eventually("all nodes are listed", || {
            self.json("/v1/nodes")["nodes"].as_array().is_some_and(|nodes| nodes.len() == count)
        });
    }
}

fn sqlite() -> (String, Arc<Folder>) {
    let folder = Folder::new();
    (format!("sqlite:{}", folder.path("shared.db").display()), folder)
}

/// The reasons of missing nodes by address.
fn missing(body: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let list = body["nodes"]["missing"].as_array().expect("a list");
    list.iter().map(|one| (text(&one["address"]), text(&one["why"]))).collect()
}

fn answered(body: &Value) -> usize {
    body["nodes"]["answered"].as_array().map_or(0, Vec::len)
}

fn three_nodes_are_merged_and_those_that_do_not_answer_are_named(database: &str) {
    let [a, b, c] = [(); 3].map(|()| Node::start(database, &Settings::default()));
    for (node, times) in [(&a, 3), (&b, 4), (&c, 5)] {
        node.check("192.0.2.1", times);
        node.server.check(&json!({ "path": "/mail", "email": "ann@example.com" }));
    }
    c.check("192.0.2.9", 4);
    for node in [&a, &b, &c] {
        node.wait_for_nodes(3);
    }

    let top = a.view("/v1/top?scope=fleet", 3);
    let denied: Vec<_> =
        top["keys"].as_array().expect("keys").iter().map(|key| (&key["key"], &key["count"])).collect();
    assert_eq!(denied, [(&json!("ip:192.0.2.1"), &json!(6)), (&json!("ip:192.0.2.9"), &json!(2))]);
    assert_eq!((answered(&top), missing(&top)), (3, vec![]));
    assert_eq!(a.json("/v1/top")["keys"][0]["count"], 1, "this node only");
    eventually("the command line shows all nodes", || {
        let args = ["top", "--scope", "fleet", "--once", "--json", "--admin", &a.address];
        let ran = run(binary().args(args).env("TOLLGATE_TOKEN", TOKEN));
        let view: Value = serde_json::from_str(&ran.stdout).expect("JSON");
        answered(&view) == 3 && view["keys"][0]["count"] == 6 && view["rules"][0]["denied"] == 8
    });
    let near = c.view("/v1/top?scope=fleet&outcome=allowed&rule=mail", 3);
    let nodes: Vec<_> = near["keys"].as_array().expect("keys").iter().map(|key| &key["node"]).collect();
    assert_eq!(nodes.len(), 3, "masked keys are listed for each node: {near}");

    eventually("the seconds are complete on all nodes", || {
        let series = b.json("/v1/series?scope=fleet");
        let sum = |name: &str| -> u64 {
            series["points"].as_array().into_iter().flatten().filter_map(|point| point[name].as_u64()).sum()
        };
        (sum("denied"), sum("allowed"), answered(&series)) == (8, 11, 3)
    });
    let activity = b.view("/v1/activity?scope=fleet&rule=login", 3);
    let login = &activity["rules"][0];
    assert_eq!((&login["denied"], &login["allowed"]), (&json!(8), &json!(8)), "{activity}");
    let recent: u64 =
        login["recent"].as_array().into_iter().flatten().filter_map(|pair| pair[0].as_u64()).sum();
    assert_eq!(recent, 8);
    assert_eq!(login["headroom"].as_array().map(Vec::len), Some(10));
    let decisions = b.view("/v1/decisions?scope=fleet&limit=1000", 3);
    let ids: Vec<_> = decisions["decisions"]
        .as_array()
        .expect("decisions")
        .iter()
        .filter_map(|one| one["id"].as_str())
        .collect();
    for node in [&a, &b, &c] {
        assert!(ids.iter().any(|id| id.starts_with(&node.id())), "{ids:?}");
    }
    assert_eq!(a.json("/v1/decisions?scope=fleet&limit=2")["decisions"].as_array().map(Vec::len), Some(2));

    let mut nodes = Value::Null;
    eventually("all nodes answer in time", || {
        nodes = a.json("/v1/nodes");
        nodes["nodes"].as_array().is_some_and(|nodes| nodes.iter().all(|node| node["answered"] == true))
    });
    assert_eq!(nodes["nodes"][0]["is_self"], true, "{nodes}");
    for node in nodes["nodes"].as_array().expect("nodes") {
        assert_eq!((&node["answered"], &node["health"]["status"]), (&json!(true), &json!("ok")), "{node}");
        assert!(node["generation"].as_u64() > Some(0) && node["last_seen"].as_f64() > Some(1.0), "{node}");
    }

    b.server.freeze();
    let frozen = b.address.clone();
    let killed = c.address.clone();
    c.server.kill();
    let top = a.json("/v1/top?scope=fleet");
    assert_eq!((&top["keys"][0]["count"], answered(&top)), (&json!(1), 1));
    let mut why = missing(&top);
    why.sort_by_key(|(address, _)| *address != frozen);
    assert_eq!(why[0], (frozen, "no answer within 2s".to_owned()));
    assert_eq!(why[1].0, killed);
    assert!(why[1].1.to_lowercase().contains("refused"), "{why:?}");
    let nodes = a.json("/v1/nodes");
    let unanswered =
        nodes["nodes"].as_array().expect("nodes").iter().filter(|node| node["answered"] == false);
    let unanswered: Vec<_> = unanswered.collect();
    assert_eq!(unanswered.len(), 2, "{nodes}");
    assert!(unanswered.iter().all(|node| node["why"].is_string() && node["generation"].is_u64()), "{nodes}");
    assert!(!a.server.log().contains(TOKEN), "{}", a.server.log());

    let args = ["top", "--scope", "fleet", "--once", "--admin", &a.address];
    let ran = run(binary().args(args).env("TOLLGATE_TOKEN", TOKEN));
    assert!(ran.stdout.starts_with("tollgate, 1 of 3 nodes answer; this one: ok"), "{ran:?}");
    assert!(ran.stdout.contains(&format!("not counted: {}: no answer within 2s", b.address)), "{ran:?}");

    b.server.thaw();
    eventually("the frozen node answers again", || answered(&a.json("/v1/top?scope=fleet")) == 2);
    let (ended, _) = b.server.stop();
    assert!(ended.success());
    assert_eq!(a.json("/v1/nodes")["nodes"].as_array().map(Vec::len), Some(2), "it has left the fleet");
}

#[test]
fn three_nodes_on_sqlite_are_merged_and_those_that_do_not_answer_are_named() {
    let (database, _folder) = sqlite();
    three_nodes_are_merged_and_those_that_do_not_answer_are_named(&database);
}

#[test]
fn three_nodes_on_postgresql_are_merged_and_those_that_do_not_answer_are_named() {
    let Some(server) = Postgres::start("views of a fleet on PostgreSQL") else { return };
    three_nodes_are_merged_and_those_that_do_not_answer_are_named(&server.url());
}

#[test]
fn a_wrong_token_and_a_certificate_that_is_not_trusted_are_named() {
    let (database, folder) = sqlite();
    let other_token = Node::start(
        &database,
        &Settings { own_token: Some("another-token-entirely"), ..Settings::default() },
    );
    let trusted = Node::start(&database, &Settings { certificate: Some("trusted"), ..Settings::default() });
    let untrusted =
        Node::start(&database, &Settings { certificate: Some("untrusted"), ..Settings::default() });
    let ca = trusted.server.folder.path("trusted.pem");
    std::fs::copy(ca, folder.path("ca.pem")).expect("the certificate");
    let more = format!(", ca_file: {}", folder.path("ca.pem").display());
    let asking = Node::start(&database, &Settings { more: &more, ..Settings::default() });
    asking.wait_for_nodes(4);
    let why = missing(&asking.view("/v1/top?scope=fleet", 2));
    let of =
        |node: &Node| &why.iter().find(|(address, _)| *address == node.address).expect("it is missing").1;
    assert_eq!(of(&other_token), "it does not know the token of fleet.token_file (401)");
    assert!(of(&untrusted).contains("invalid peer certificate"), "{why:?}");
    for node in [&asking, &other_token] {
        assert!(!node.server.log().contains(TOKEN), "{}", node.server.log());
    }
    // The file is read for each view.
    asking.server.folder.write_private("fleet-token", "two words");
    let top = asking.json("/v1/top?scope=fleet");
    assert_eq!(answered(&top), 1);
    assert!(
        missing(&top).iter().all(|(_, why)| why.contains("fleet.token_file") && !why.contains("two")),
        "{top}"
    );
    asking.server.folder.write_private("fleet-token", TOKEN);
    asking.view("/v1/series?scope=fleet", 2);
}

/// A server that answers every request with `head` and then writes without an end.
fn endless(head: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 4096];
            if stream.read(&mut request).is_err() {
                continue;
            }
            stream.write_all(head.as_bytes()).ok();
            while stream.write_all(&[b' '; 65_536]).is_ok() {}
        }
    });
    address
}

#[test]
fn addresses_that_are_not_those_of_nodes_are_named_and_cost_little() {
    let (database, folder) = sqlite();
    let [a, b] = [(); 2].map(|()| Node::start(&database, &Settings::default()));
    a.wait_for_nodes(2);
    let rows = rusqlite::Connection::open(folder.path("shared.db")).expect("the database");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    let add = |address: &str, age_secs: u64| {
        let seen = (now.as_secs() - age_secs) * 1_000_000_000;
        let values = rusqlite::params![address, 7, "0", 1, seen as i64];
        let sql = "INSERT INTO node (address, id, version, generation, seen) VALUES (?1, ?2, ?3, ?4, ?5)";
        rows.execute(sql, values).expect("a row");
    };
    let twice = b.address.replace("127.0.0.1", "localhost");
    let long = endless("HTTP/1.1 200 OK\r\n\r\n");
    let moved = endless("HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 2\r\n\r\n{}");
    for (address, age) in [
        (twice.as_str(), 0),
        ("http://192.0.2.1:7070", 0),
        ("file:///etc/passwd", 0),
        ("https://silent.example", 3_600),
        (&long, 0),
        (&moved, 0),
    ] {
        add(address, age);
    }
    let mut why = Vec::new();
    eventually("the endless answer has reached its bound in time", || {
        why = missing(&a.view("/v1/top?scope=fleet", 2));
        why.iter().any(|(address, why)| *address == long && why.contains("bytes"))
    });
    for (address, expected) in [
        (twice.as_str(), "counted already"),
        ("http://192.0.2.1:7070", "no token is sent"),
        ("file:///etc/passwd", "not a valid address"),
        ("https://silent.example", "it was last seen"),
        (&long, "more than 8388608 bytes"),
        (&moved, "status 302"),
    ] {
        // Which of two addresses of one node answers first is open.
        let either = [address.to_owned(), if address == twice { b.address.clone() } else { String::new() }];
        let found = why.iter().find(|(missing, _)| either.contains(missing));
        assert!(found.is_some_and(|(_, why)| why.contains(expected)), "{address}: {why:?}");
    }
    assert_eq!(why.len(), 6);
}

#[test]
fn a_scope_is_checked_and_needs_a_database() {
    let alone = Server::start("rules: []\nrules_db: none");
    let refused = alone.admin("GET", "/v1/top?scope=fleet", "");
    assert_eq!(refused.status, 409, "{refused}");
    assert!(refused.text().contains("advertise"), "{refused}");
    let wrong = alone.admin("GET", "/v1/series?scope=world", "");
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("node, fleet"), "{wrong}");
    assert_eq!(alone.admin("GET", "/v1/top?scope=node", "").status, 200);
    let nodes = alone.admin("GET", "/v1/nodes", "").json();
    assert_eq!((&nodes["nodes"][0]["address"], &nodes["nodes"][0]["is_self"]), (&Value::Null, &json!(true)));
}

#[test]
fn settings_that_cannot_be_used_are_errors_at_the_start() {
    let folder = Folder::new();
    let path = folder.configure("rules: []\nfleet: { token_file: missing }");
    let path = path.to_str().expect("text");
    for args in [&["serve", "-c", path][..], &["config", "check", path, "--offline"]] {
        let ran = tollgate(args);
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(format!("{}{}", ran.stdout, ran.stderr).contains("fleet.token_file"), "{ran:?}");
    }
    folder.write("empty.pem", "");
    let path = folder.configure("rules: []\nfleet: { ca_file: empty.pem }");
    let ran = tollgate(&["serve", "-c", path.to_str().expect("text")]);
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stderr.contains("fleet.ca_file"), "{ran:?}");
}

#[test]
fn a_ticket_of_another_node_names_that_node_and_its_address() {
    let (database, _folder) = sqlite();
    let [sealing, asking] = [(); 2].map(|()| Node::start(&database, &Settings::default()));
    asking.wait_for_nodes(2);
    sealing.check("192.0.2.1", 2);
    let denied = sealing.server.check(&json!({ "ip": "192.0.2.1" }));
    let ticket = denied.json()["ticket"].as_str().expect("a denial has a ticket").to_owned();
    let explain = |node: &Node| {
        let url = &node.address;
        run(binary().env("TOLLGATE_TOKEN", TOKEN).args(["explain", &ticket, "--admin", url]))
    };
    assert_eq!(explain(&sealing).code, Some(0));
    let named = format!("of node {}: ask that node", sealing.id());
    let command = format!("tollgate explain TICKET --admin {}`", sealing.address);
    eventually("the other node answers in time", || {
        let foreign = explain(&asking);
        assert_eq!((foreign.code, foreign.stdout.as_str()), (Some(1), ""), "{foreign:?}");
        foreign.stderr.contains(&named) && foreign.stderr.contains(&command)
    });
    let address = sealing.address.clone();
    sealing.server.kill();
    let foreign = explain(&asking);
    assert!(foreign.stderr.contains(&format!("of the fleet, {address} did not answer")), "{foreign:?}");
}
