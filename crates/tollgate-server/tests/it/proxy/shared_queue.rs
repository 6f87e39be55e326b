//! Queued requests on a real Redis, sent by several nodes that share the work.

use std::collections::HashMap;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::servers::cluster::RedisCluster;
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::servers::sentinel::SentinelGroup;
use tollgate_testkit::{Answer, Client, Server, eventually, tollgate};

use crate::proxy::api::Api;
use crate::proxy::get;

fn redis(what: &str) -> Option<Redis> {
    Redis::start(Make::Redis, what)
}

/// Nodes in front of `api` that share counters, and so the queue, by one line of the file.
fn nodes(count: usize, counters: &str, api: &Api, rest: &str) -> Vec<Server> {
    let config = format!("counters: {counters}\nstore_deadline: 5s\nupstreams: ['{}']\n{rest}", api.url());
    let nodes: Vec<_> = (0..count).map(|_| Server::start(&config)).collect();
    eventually("every node is connected", || {
        nodes.iter().all(|node| {
            node.admin("GET", "/v1/queue", "").status == 200
                && node.check(&json!({ "path": "/probe", "peek": true })).json()["reason"] != "store_error"
        })
    });
    nodes
}

fn post(node: &Server, body: &str) -> Answer {
    Client::to(node.proxy).request("POST", "/jobs", &[("content-type", "text/plain")], body.as_bytes())
}

fn status_of(node: &Server, answer: &Answer) -> Value {
    let place = answer.header("location").expect("a status URL").to_owned();
    let answer = get(node, &place, &[]);
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

fn counts(node: &Server) -> Value {
    node.admin("GET", "/v1/queue", "").json()["counts"].clone()
}

/// An API that answers everything and notes when.
fn clocked() -> (Api, Arc<Mutex<Vec<Instant>>>) {
    let arrivals: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&arrivals);
    let api = Api::start(move |_, stream| {
        noted.lock().expect("no panic").push(Instant::now());
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    (api, arrivals)
}

#[test]
fn nodes_share_the_work_at_one_rate_and_each_answers_for_all() {
    let Some(redis) = redis("nodes that share a queue") else { return };
    let (api, arrivals) = clocked();
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 5/s, on_exceed: queue }]";
    // With no more rights than docs/stores.md names.
    let rights = "on >secret ~tg1:* +ping +select +role +time +script|load +evalsha +get +set +del +strlen +getrange +setrange \
        +append +pexpire +eval +exists +incr +hset +hget +hmget +hdel +hincrby +zadd +zrem +zcard +zscore +zrange \
        +zrangebyscore +xadd +xack +xdel +xlen +xrange +xgroup +xinfo +xreadgroup +xautoclaim +xclaim +xpending";
    let words: Vec<_> = ["ACL", "SETUSER", "tollgate"].into_iter().chain(rights.split_whitespace()).collect();
    assert_eq!(redis.command(&words), "+OK\r\n");
    let nodes = nodes(3, &redis.url().replace("//", "//tollgate:secret@"), &api, rules);
    let start = Instant::now();
    let answers: Vec<_> = (0..20).map(|n| post(&nodes[n % 3], &format!("job {n}"))).collect();
    let queued: Vec<_> = answers.iter().filter(|answer| answer.status == 202).collect();
    assert!(queued.len() >= 10, "{}", queued.len());
    assert!(answers.iter().all(|answer| matches!(answer.status, 201 | 202)));
    for answer in &queued {
        for node in &nodes {
            eventually("it is done", || status_of(node, answer)["status"] == "done");
            assert_eq!(status_of(node, answer)["response_status"], 201);
        }
    }
    assert!(start.elapsed() >= Duration::from_millis(2_900), "15 above the burst, 5 a second");
    let received = api.received();
    let mut times: HashMap<String, usize> = HashMap::new();
    for request in &received {
        *times.entry(String::from_utf8_lossy(&request.body).into_owned()).or_default() += 1;
    }
    assert_eq!((received.len(), times.len()), (20, 20), "each once: {times:?}");
    // Burst and rate hold over the group: 5 at once and one every 200 ms, decided before they arrive.
    let arrivals = arrivals.lock().expect("no panic").clone();
    for (n, at) in arrivals.iter().enumerate() {
        let passed = at.duration_since(start).as_millis() as usize;
        assert!(n < 5 + passed / 200 + 1, "request {n} came after {passed} ms");
    }
    assert_eq!(redis.command(&["TYPE", "tg1:queue:{default}"]), "+stream\r\n");
    assert_eq!(redis.command(&["XLEN", "tg1:queue:{default}"]), ":0\r\n", "nothing is in flight");
}

#[test]
fn requests_queued_by_one_node_are_sent_by_another_at_the_same_time() {
    /// So many does one node send at once.
    const AT_ONCE: usize = 16;
    let Some(redis) = redis("nodes that send at the same time") else { return };
    let under_way = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&under_way);
    let seen = Arc::clone(&most);
    let api = Api::start(move |request, stream| {
        if request.header("idempotency-key").is_some() {
            seen.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let deadline = Instant::now() + Duration::from_secs(20);
            while seen.load(Ordering::SeqCst) <= AT_ONCE && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            counted.fetch_sub(1, Ordering::SeqCst);
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let rules =
        "rules: [{ id: jobs, match: /jobs, limit: 20/3s, algorithm: fixed-window, on_exceed: queue }]";
    let nodes = nodes(2, &redis.url(), &api, rules);
    let answers: Vec<_> = (0..60).map(|n| post(&nodes[n % 2], &format!("job {n}"))).collect();
    let queued: Vec<_> = answers.iter().filter(|answer| answer.status == 202).collect();
    assert!(queued.len() >= 20, "{}", queued.len());
    for answer in queued {
        eventually("it is done", || status_of(&nodes[0], answer)["status"] == "done");
    }
    assert!(most.load(Ordering::SeqCst) > AT_ONCE, "{most:?} at the same time");
}

#[test]
fn what_a_killed_node_was_sending_is_sent_by_another() {
    let Some(redis) = redis("a node that is killed") else { return };
    // The first try gets no answer; later ones do.
    let tries = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tries);
    let api = Api::start(move |request, stream| {
        if request.body == b"later" && counted.fetch_add(1, Ordering::SeqCst) == 0 {
            std::io::Read::read(stream, &mut [0; 1]).ok();
            return false;
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 1/s, on_exceed: queue }]";
    let mut nodes = nodes(2, &redis.url(), &api, rules);
    assert_eq!(post(&nodes[0], "now").status, 201);
    let answer = post(&nodes[0], "later");
    assert_eq!(answer.status, 202, "{answer}");
    let in_flight = |node: &Server| {
        let metrics = node.admin("GET", "/metrics", "").text();
        metrics.contains(&format!("tollgate_upstream_in_flight{{upstream=\"{}\"}} 1", api.url()))
    };
    eventually("a node is sending it", || nodes.iter().any(&in_flight));
    let victim = nodes.iter().position(&in_flight).expect("one is");
    assert_eq!(status_of(&nodes[1 - victim], &answer)["status"], "sending");
    nodes.remove(victim).kill();
    let survivor = &nodes[0];
    eventually("the other has sent it", || status_of(survivor, &answer)["status"] == "done");
    assert_eq!(status_of(survivor, &answer)["tries"], 2);
    let sent: Vec<_> = api.received().into_iter().filter(|request| request.body == b"later").collect();
    assert_eq!(sent.len(), 2, "once for each of them");
    assert_eq!(sent[0].header("idempotency-key"), answer.json()["id"].as_str());
    assert_eq!(sent[0].header("idempotency-key"), sent[1].header("idempotency-key"));
}

#[test]
fn of_many_none_is_lost_when_a_node_is_killed() {
    const JOBS: usize = 120;
    let Some(redis) = redis("a node that is killed among many jobs") else { return };
    let (api, _) = clocked();
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 40/s, burst: 1, on_exceed: queue }]";
    let mut nodes = nodes(3, &redis.url(), &api, rules);
    let answers: Vec<_> = (0..JOBS).map(|n| post(&nodes[n % 3], &format!("job {n}"))).collect();
    assert!(answers.iter().all(|answer| matches!(answer.status, 201 | 202)));
    let arrived = || api.received().len();
    let before = arrived();
    eventually("some are sent", || arrived() > before + 10);
    nodes.remove(0).kill();
    for answer in answers.iter().filter(|answer| answer.status == 202) {
        eventually("it is done", || status_of(&nodes[0], answer)["status"] == "done");
    }
    let mut bodies: Vec<_> = api.received().into_iter().map(|request| request.body).collect();
    let sent = bodies.len();
    bodies.sort();
    bodies.dedup();
    assert_eq!(bodies.len(), JOBS, "each at least once");
    assert!(sent <= JOBS + 16, "only what was in flight is sent again: {sent}");
}

#[test]
fn a_queue_outlives_its_redis() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(mut redis) = Redis::start_with(Make::Redis, "a queue whose redis is killed", &durable) else {
        return;
    };
    let api = Api::echo();
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 1/3s, on_exceed: queue }]";
    let config = format!("upstreams: ['{}']\nqueue: {{ store: '{}' }}\n{rules}", api.url(), redis.url());
    let node = Server::start(&config);
    eventually("it is connected", || node.admin("GET", "/v1/queue", "").status == 200);
    assert_eq!(post(&node, "one").status, 200);
    let answer = post(&node, "two");
    assert_eq!(answer.status, 202);
    redis.process.kill();
    assert_eq!(get(&node, answer.header("location").expect("a status URL"), &[]).status, 503);
    redis.restart(&durable);
    eventually("it is done", || {
        let place = answer.header("location").expect("a status URL");
        let answer = get(&node, place, &[]);
        answer.status == 200 && answer.json()["status"] == "done"
    });
    assert_eq!(api.last().body, b"two");
}

#[test]
fn a_slow_node_keeps_the_requests_that_it_is_sending() {
    let Some(redis) = redis("a node that takes long") else { return };
    let api = Api::start(move |request, stream| {
        if request.body == b"slow" {
            // Longer than the timeout of a delivery that is not renewed.
            std::thread::sleep(Duration::from_secs(13));
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 1/s, on_exceed: queue }]";
    let nodes = nodes(2, &redis.url(), &api, rules);
    assert_eq!(post(&nodes[0], "now").status, 201);
    let answer = post(&nodes[0], "slow");
    eventually("it is done", || status_of(&nodes[1], &answer)["status"] == "done");
    assert_eq!(status_of(&nodes[1], &answer)["tries"], 1);
    assert_eq!(api.received().len(), 2, "no other node has sent it");
}

#[test]
fn failures_dead_letters_and_the_command_line_are_the_same_on_every_node() {
    let Some(redis) = redis("dead letters on redis") else { return };
    let failing = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&failing);
    let api = Api::start(move |_, stream| {
        let fails = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let status = if fails { "503 Busy" } else { "201 Created" };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).is_ok()
    });
    let rules = "queue: { max_tries: 3, backoff: 20ms, max_items: 2 }
rules: [{ id: jobs, match: /jobs, limit: 1/s, on_exceed: queue }]";
    let nodes = nodes(2, &redis.url(), &api, rules);
    assert_eq!(post(&nodes[0], "now").status, 201);
    failing.store(2, Ordering::SeqCst);
    let answer = post(&nodes[1], "later");
    eventually("it is done", || status_of(&nodes[0], &answer)["status"] == "done");
    assert_eq!(status_of(&nodes[0], &answer)["tries"], 3);

    failing.store(1_000, Ordering::SeqCst);
    let answer = post(&nodes[0], "never");
    eventually("it is dead", || status_of(&nodes[1], &answer)["status"] == "dead");
    failing.store(0, Ordering::SeqCst);
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let [first, second] = [0, 1].map(|n: usize| format!("http://{}", nodes[n].admin));
    let ran = tollgate(&["queue", "ls", "--state", "dead", "--admin", &second]);
    assert!(ran.stdout.contains(&id) && ran.stdout.contains("answered with 503"), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 2, "a header and the request: {}", ran.stdout);
    assert_eq!(tollgate(&["queue", "retry", &id, "--admin", &second]).code, Some(0));
    eventually("it is done", || status_of(&nodes[0], &answer)["status"] == "done");
    assert_eq!(api.last().body, b"never");
    let shown = tollgate(&["queue", "show", &id, "--admin", &first]);
    assert!(shown.stdout.contains("\"status\": 201"), "{}", shown.stdout);
    assert_eq!(counts(&nodes[0]), json!({ "queued": 0, "sending": 0, "done": 2, "dead": 0 }));
    assert_eq!(tollgate(&["queue", "drop", &id, "--admin", &second]).code, Some(0));
    assert_eq!(tollgate(&["queue", "show", &id, "--admin", &first]).code, Some(1));
    let left = redis.command(&["KEYS", "*"]);
    assert!(!left.contains(&id), "nothing is left of it: {left}");
}

#[test]
fn expired_excess_or_dropped_requests_are_not_sent() {
    let Some(redis) = redis("old requests on redis") else { return };
    let api = Api::echo();
    let rules = "queue: { ttl: 2s, max_items: 2, name: other }
rules: [{ id: jobs, match: /jobs, limit: 1/h, on_exceed: queue }]";
    let nodes = nodes(2, &redis.url(), &api, rules);
    assert_eq!(post(&nodes[0], "one").status, 200);
    let old = post(&nodes[0], "old");
    let dropped = post(&nodes[1], "dropped");
    assert_eq!((old.status, dropped.status), (202, 202));
    assert_eq!(post(&nodes[1], "too much").json()["detail"], "the queue is full");
    let id = dropped.json()["id"].as_str().expect("an id").to_owned();
    assert_eq!(nodes[0].admin("DELETE", &format!("/v1/queue/{id}"), "").status, 200);
    eventually("it is dead", || status_of(&nodes[1], &old)["status"] == "dead");
    assert_eq!(counts(&nodes[0]), json!({ "queued": 0, "sending": 0, "done": 0, "dead": 1 }));
    assert_eq!(api.received().len(), 1);
    assert_eq!(redis.command(&["EXISTS", "tg1:queue:{other}:order"]), ":1\r\n", "under its own name");
}

#[test]
fn a_long_body_comes_back_as_it_was() {
    let Some(redis) = redis("a long body on redis") else { return };
    let api = Api::echo();
    let rules = "queue: { max_body: 33554432 }
rules: [{ id: jobs, match: /jobs, limit: 1/s, on_exceed: queue }]";
    let nodes = nodes(2, &redis.url(), &api, rules);
    let body: Vec<u8> = (0..20u32 << 20).map(|n| (n % 251) as u8).collect();
    assert_eq!(post(&nodes[0], "one").status, 200);
    let answer = Client::to(nodes[0].proxy).request("POST", "/jobs", &[], &body);
    assert_eq!(answer.status, 202, "{}", answer.status);
    eventually("it is done", || status_of(&nodes[1], &answer)["status"] == "done");
    assert!(api.last().body == body, "byte for byte");
}

#[test]
fn a_cluster_a_group_of_sentinels_and_valkey_keep_a_queue_too() {
    if let Some(cluster) = RedisCluster::start("a queue on a cluster") {
        check_queued(&cluster.url());
    }
    if let Some(group) = SentinelGroup::start("a queue on a group of sentinels") {
        check_queued(&group.url());
    }
    if let Some(valkey) = Redis::start(Make::Valkey, "a queue on valkey") {
        check_queued(&valkey.url());
    }
}

fn check_queued(counters: &str) {
    let api = Api::echo();
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 1/s, on_exceed: queue }]";
    let nodes = nodes(2, counters, &api, rules);
    assert_eq!(post(&nodes[0], "one").status, 200);
    let answer = post(&nodes[0], "two");
    assert_eq!(answer.status, 202, "{answer}");
    eventually("it is done", || status_of(&nodes[1], &answer)["status"] == "done");
    assert_eq!(api.last().body, b"two");
}

#[test]
fn without_redis_no_request_is_reported_as_queued() {
    let Some(mut redis) = redis("a queue without its redis") else { return };
    let api = Api::echo();
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 1/h, on_exceed: queue }]";
    // Counters stay here, so that the limit is still known.
    let config = format!("upstreams: ['{}']\nqueue: {{ store: '{}' }}\n{rules}", api.url(), redis.url());
    let node = Server::start(&config);
    eventually("it is connected", || node.admin("GET", "/v1/queue", "").status == 200);
    assert_eq!(post(&node, "one").status, 200);
    assert_eq!(post(&node, "two").status, 202);
    redis.process.kill();
    let refused = post(&node, "three");
    assert_eq!(refused.status, 503, "{refused}");
    assert_eq!(refused.json()["detail"], "the request could not be queued");
}

#[test]
fn a_queue_on_redis_is_bounded_in_bytes_and_for_each_sender() {
    let Some(redis) = redis("a queue with bounds") else { return };
    crate::proxy::queue::check_bounds(&format!("store: '{}', ", redis.url()));
}
