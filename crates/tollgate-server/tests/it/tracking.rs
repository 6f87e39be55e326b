//! Tracked keys of a fleet: every node reports the same numbers, and they survive the nodes.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::servers::cassandra::Cassandra;
use tollgate_testkit::servers::memcached::Memcached;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Folder, Server, eventually, tollgate};

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

    fn track(&self, user: &str) -> Vec<Value> {
        self.nodes.iter().map(|node| track(node, user)).collect()
    }
}

fn track(node: &Server, user: &str) -> Value {
    let answer = node.admin("GET", &format!("/v1/keys?rule=a&key=user:{user}"), "");
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

fn counts(track: &Value) -> (u64, u64) {
    (track["tries"].as_u64().unwrap_or_default(), track["denials"].as_u64().unwrap_or_default())
}

/// The part of an answer that does not depend on when it is read.
fn tracked(track: &Value) -> Value {
    let field = |name: &str| (name.to_owned(), track[name].clone());
    Value::Object(["tries", "denials", "last_seen", "latest", "scope"].map(field).into_iter().collect())
}

/// `latest`, newest first, with as many times as it should have.
fn check_latest(track: &Value, times: usize) {
    let latest: Vec<_> = track["latest"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    assert_eq!(latest.len(), times, "{track}");
    assert!(latest.is_sorted_by(|newer, older| seconds(newer) >= seconds(older)), "{track}");
    assert_eq!(track["last_seen"].as_str(), latest.first().copied(), "{track}");
}

/// Times of one length compare as text.
fn seconds(time: &str) -> String {
    let (whole, fraction) =
        time.trim_end_matches('Z').split_once('.').unwrap_or((time.trim_end_matches('Z'), ""));
    format!("{whole}.{fraction:0<3}")
}

/// Every node reports what the fleet has seen, before and after all nodes were stopped and started.
fn every_node_reports_the_fleets_numbers(counters: &str) {
    let mut fleet = Fleet::start(counters, RULES);
    fleet.try_out("ann", TRIES);
    let seen = (TRIES as u64, TRIES as u64 - 20);
    eventually("every node reports the same numbers", || {
        fleet.track("ann").iter().all(|track| counts(track) == seen && track["scope"] == "fleet")
    });
    let track: Vec<_> = fleet.track("ann").iter().map(tracked).collect();
    check_latest(&track[0], 16);
    assert!(track.iter().all(|other| other == &track[0]), "{track:#?}");
    let shown = shown(&fleet.nodes[1], "ann");
    assert!(shown.contains("tries 30, denials 10, last seen 2"), "{shown}");

    fleet.stop_nodes();
    fleet.start_nodes();
    let after: Vec<_> = fleet.track("ann").iter().map(tracked).collect();
    assert_eq!(after, track, "a restart of all nodes loses nothing");

    let reset = fleet.nodes[0].admin("DELETE", "/v1/keys?rule=a&key=user:ann", "");
    assert_eq!((reset.status, counts(&reset.json()["reset"])), (200, seen), "{reset}");
    assert!(fleet.track("ann").iter().all(|track| counts(track) == (0, 0)), "forgotten on every node");
    fleet.try_out("ann", 3);
    eventually("it begins anew", || fleet.track("ann").iter().all(|track| counts(track).0 == 3));
}

/// What `tollgate key show` prints.
fn shown(node: &Server, user: &str) -> String {
    let key = format!("user:{user}");
    let admin = format!("http://{}", node.admin);
    let ran = tollgate(&["key", "show", "a", &key, "--admin", &admin]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    ran.stdout
}

#[test]
fn three_nodes_on_redis_report_the_fleets_numbers() {
    if let Some(redis) = Redis::start(Make::Redis, "tracking on redis") {
        every_node_reports_the_fleets_numbers(&redis.url());
        let keys = redis.command(&["KEYS", "*"]);
        assert!(keys.contains("tg1:default:a:{user:ann}:track"), "{keys}");
    }
}

#[test]
fn three_nodes_on_memcached_report_the_fleets_numbers() {
    if let Some(memcached) = Memcached::start("tracking on memcached") {
        every_node_reports_the_fleets_numbers(&memcached.url());
    }
}

#[test]
fn three_nodes_on_cassandra_report_the_fleets_numbers() {
    let Some(cassandra) = Cassandra::start("tracking on Cassandra") else { return };
    let folder = Folder::new();
    let url = cassandra.url("limits");
    let file = folder.configure(&format!("counters: {url}\n"));
    let init = || tollgate(&["store", "init", "-c", file.to_str().expect("a path")]);
    eventually("a new server knows its first user", || init().code == Some(0));
    every_node_reports_the_fleets_numbers(&url);
}

/// The writes of tracking records that a Redis has seen, by the node that sent them: when each came.
struct Writes(thread::JoinHandle<HashMap<String, Vec<f64>>>);

impl Writes {
    /// Watches from now on, until the server ends.
    fn watch(redis: &Redis) -> Writes {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port)).expect("redis is there");
        stream.write_all(b"MONITOR\r\n").expect("redis listens");
        let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("+OK"));
        Writes(thread::spawn(move || {
            let mut writes: HashMap<String, Vec<f64>> = HashMap::new();
            for line in
                lines.filter(|line| line.contains("\"EVALSHA\"") && line.contains("{user:ann}:track\""))
            {
                let at = line.trim_start_matches('+').split(' ').next().and_then(|at| at.parse().ok());
                let (_, after) = line.split_once(":track\" \"").expect("the writer follows the name");
                let writer = after.split('"').next().unwrap_or_default().to_owned();
                writes.entry(writer).or_default().push(at.expect("a time"));
            }
            writes
        }))
    }
}

/// Asks a node for as long as it lives; when each answer came.
fn keep_sending(
    node: &Server,
    user: &'static str,
    stop: &Arc<AtomicBool>,
) -> thread::JoinHandle<Vec<Instant>> {
    let http = node.http;
    let stop = Arc::clone(stop);
    thread::spawn(move || {
        let mut answered = Vec::new();
        let body = json!({ "user": user }).to_string();
        let head =
            format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut stream = BufReader::new(TcpStream::connect(http).expect("the node is there"));
        while !stop.load(Ordering::Relaxed) {
            if stream.get_mut().write_all(format!("{head}{body}").as_bytes()).is_err()
                || !read_answer(&mut stream)
            {
                break;
            }
            answered.push(Instant::now());
            thread::sleep(Duration::from_millis(2));
        }
        answered
    })
}

/// Reads one answer with a length; `false` if the node is gone.
fn read_answer(stream: &mut BufReader<TcpStream>) -> bool {
    let mut line = String::new();
    let mut len = 0;
    loop {
        line.clear();
        if !matches!(stream.read_line(&mut line), Ok(1..)) {
            return false;
        }
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            len = value.trim().parse().unwrap_or(0);
        }
        if line == "\r\n" {
            let mut body = vec![0; len];
            return std::io::Read::read_exact(stream, &mut body).is_ok();
        }
    }
}

#[test]
fn a_key_is_written_once_a_second_and_a_killed_node_loses_no_more_than_that() {
    let Some(mut redis) = Redis::start(Make::Redis, "writes of tracking records") else { return };
    let mut fleet = Fleet::start(&redis.url(), RULES);
    let written = |node: &Server| metric(node, "tollgate_tracking_writes_total{result=\"written\"}");
    fleet.try_out("bob", NODES);
    eventually("the server knows the script", || fleet.nodes.iter().all(|node| written(node) == 1));
    let writes = Writes::watch(&redis);
    let stop = Arc::new(AtomicBool::new(false));
    let start = Instant::now();
    let clients: Vec<_> = fleet.nodes.iter().map(|node| keep_sending(node, "ann", &stop)).collect();
    eventually("every node has written four times", || fleet.nodes.iter().all(|node| written(node) > 4));

    // One node is killed under load, well after its last write; what it had published by then, the others report.
    thread::sleep(Duration::from_millis(700));
    let victim = fleet.nodes.remove(0);
    victim.kill();
    let killed = Instant::now();
    stop.store(true, Ordering::Relaxed);
    let answered: Vec<_> = clients.into_iter().map(|client| client.join().expect("no panic")).collect();
    let all: usize = answered.iter().map(Vec::len).sum();
    // A busy machine may hold up the node, the store and the test: twice the second that a write may take to come.
    let surely = answered[0].iter().filter(|at| killed.duration_since(**at) > Duration::from_secs(2)).count();
    let least = surely + answered[1].len() + answered[2].len();
    assert!(surely > 0, "{:?} of load", killed.duration_since(start));
    eventually("the others have written all", || fleet.nodes.iter().all(is_settled));
    let track: Vec<_> = fleet.track("ann").iter().map(|track| counts(track).0 as usize).collect();
    let seen = track[0];
    assert_eq!(track[1], seen);
    assert!(seen >= least, "{seen} of at least {least}");
    assert!(seen <= all, "{seen} of {all}: nothing counts twice");
    assert_eq!(metric(&fleet.nodes[0], "tollgate_tracking_dropped_total"), 0);

    redis.process.kill();
    let writes = writes.0.join().expect("it watches");
    assert_eq!(writes.len(), NODES);
    for (writer, at) in writes {
        let span = at[at.len() - 1] - at[0];
        // The node counts a second from one write to the next; on their way they may be held up differently.
        assert!(at.len() as f64 - 1.0 <= span + 1.0, "{writer}: {} writes in {span:.3} s", at.len());
    }
}

/// Whether a node has nothing more to write to the store.
fn is_settled(node: &Server) -> bool {
    metric(node, "tollgate_tracking_pending_keys") == 0
}

fn metric(node: &Server, name: &str) -> u64 {
    let page = node.admin("GET", "/metrics", "").text();
    let line =
        page.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name}: {page}"));
    line.trim().parse().expect("a number")
}

#[test]
fn without_the_store_a_node_reports_its_own_numbers_and_nothing_counts_twice_afterwards() {
    let Some(redis) = Redis::start(Make::Redis, "tracking without its store") else { return };
    let rules = "store_deadline: 200ms
rules: [{ id: a, key: user, limit: 1000/d, track: true }, { id: b, key: user, limit: 1000/d }]";
    let fleet = Fleet::start(&redis.url(), rules);
    fleet.try_out("ann", 9);
    eventually("all is written", || fleet.track("ann").iter().all(|track| counts(track).0 == 9));

    redis.process.signal("STOP");
    for node in &fleet.nodes {
        for _ in 0..4 {
            assert_eq!(node.check(&json!({ "user": "ann" })).json()["reason"], "store_error");
        }
    }
    for node in &fleet.nodes {
        let track = track(node, "ann");
        assert_eq!((counts(&track).0, &track["scope"]), (7, &json!("node")), "{track}");
        assert!(track["store_error"].as_str().is_some_and(|error| error.contains("127.0.0.1")), "{track}");
        assert_eq!(track["limits"], json!([]), "{track}");
        assert_eq!(node.admin("GET", "/v1/keys?rule=b&key=user:ann", "").status, 503, "it tracks nothing");
    }
    let key = "user:ann";
    let admin = format!("http://{}", fleet.nodes[0].admin);
    let ran = tollgate(&["key", "show", "a", key, "--admin", &admin]);
    assert!(
        ran.stdout.contains("tries 7, ") && ran.stderr.contains("only what this node has seen"),
        "{ran:?}"
    );
    // A write that was sent may run as soon as the server goes on, and is repeated all the same.
    let failed = |node: &Server| metric(node, "tollgate_tracking_writes_total{result=\"failed\"}");
    eventually("writes have failed", || fleet.nodes.iter().all(|node| failed(node) > 0));

    redis.process.signal("CONT");
    eventually("all is written", || fleet.nodes.iter().all(is_settled));
    assert!(fleet.track("ann").iter().all(|track| counts(track).0 == 21 && track["scope"] == "fleet"));
}

#[test]
fn a_record_is_named_as_its_counters_are() {
    let Some(redis) = Redis::start(Make::Redis, "hashed names of tracking records") else { return };
    let folder = Folder::new();
    let secret = folder.write("secret", "a secret of thirty-two bytes, at least");
    let rules = "rules: [{ id: a, key: user, limit: 20/d, track: { times: 3, keep: 1h } }]";
    let hashed = format!("store_keys: hashed\nstore_secret_file: {}\n{rules}", secret.display());
    let fleet = Fleet::start(&redis.url(), &hashed);
    fleet.try_out("ann", 6);
    eventually("all is written", || fleet.track("ann").iter().all(|track| counts(track).0 == 6));
    check_latest(&fleet.track("ann")[0], 3);
    let keys = redis.command(&["KEYS", "*"]);
    let record = keys.lines().find(|name| name.ends_with("}:track")).expect("a record");
    assert!(record.starts_with("tg1:default:a:{#") && !keys.contains("ann"), "{keys}");
    let lives: u64 =
        redis.command(&["TTL", record]).trim().trim_start_matches(':').parse().expect("a number");
    assert!((3_500..=3_600).contains(&lives), "{lives}");
    let written = fleet.nodes[0].admin("GET", "/v1/rules/a", "").json();
    assert_eq!(written["track"], json!({ "times": 3, "keep": "1h" }), "{written}");
}
