//! Queued requests, replayed at the allowed rate.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollgate_testkit::{Answer, Client, Folder, Server, eventually, tollgate};

use crate::proxy::api::Api;
use crate::proxy::{explained, get, in_front_of};

const QUEUE: &str = "rules: [{ id: jobs, match: /jobs, limit: 1/s, on_exceed: queue }]\n";
const STUCK: &str = "rules: [{ id: jobs, match: /jobs, limit: 1/h, on_exceed: queue }]\n";

fn post(server: &Server, body: &str) -> Answer {
    let headers = [("content-type", "text/plain"), ("authorization", "Bearer secret"), ("x-other", "1")];
    Client::to(server.proxy).request("POST", "/jobs?n=1", &headers, body.as_bytes())
}

fn status_of(server: &Server, answer: &Answer) -> Value {
    let place = answer.header("location").expect("a status URL").to_owned();
    let answer = get(server, &place, &[]);
    assert_eq!(answer.status, 200, "{answer}");
    answer.json()
}

fn list(server: &Server, query: &str) -> Value {
    server.admin("GET", &format!("/v1/queue{query}"), "").json()
}

#[test]
fn excess_requests_are_sent_later_at_the_allowed_rate() {
    let api = Api::echo();
    let server = in_front_of(&api, QUEUE);
    let start = Instant::now();
    let answers: Vec<_> = (0..5).map(|n| post(&server, &format!("job {n}"))).collect();
    assert_eq!(answers[0].status, 200);
    for answer in &answers[1..] {
        assert_eq!(answer.status, 202, "{answer}");
        assert_eq!(answer.json()["status"], "queued");
        assert_eq!(answer.json()["status_url"], answer.header("location").expect("a status URL"));
    }
    for answer in &answers[1..] {
        eventually("it is done", || status_of(&server, answer)["status"] == "done");
        assert_eq!(status_of(&server, answer)["response_status"], 200);
    }
    assert!(start.elapsed() >= Duration::from_secs(4), "one a second: {:?}", start.elapsed());
    let bodies: Vec<_> =
        api.received().iter().map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect();
    assert_eq!(bodies, (0..5).map(|n| format!("job {n}")).collect::<Vec<_>>(), "in order, each once");
    let replayed = &api.received()[1];
    assert_eq!(replayed.line, "POST /jobs?n=1 HTTP/1.1");
    assert_eq!(replayed.header("authorization"), Some("Bearer secret"));
    assert_eq!((replayed.header("x-other"), replayed.header("x-forwarded-for")), (None, Some("127.0.0.1")));
    let id = answers[1].json()["id"].clone();
    assert_eq!(replayed.header("idempotency-key"), id.as_str());
    let metrics = server.admin("GET", "/metrics", "").text();
    for (state, count) in [("queued", 0), ("sending", 0), ("done", 4), ("dead", 0)] {
        let line = format!("tollgate_queue_requests{{state=\"{state}\"}} {count}\n");
        assert!(metrics.contains(&line), "no {line} in\n{metrics}");
    }
}

#[test]
fn queued_requests_outlive_their_rule() {
    let api = Api::echo();
    let server = in_front_of(&api, QUEUE);
    let answers: Vec<_> = (0..4).map(|n| post(&server, &format!("job {n}"))).collect();
    server.folder.configure(&format!("upstreams: ['{}']\nrules: []", api.url()));
    server.wait_for_log("rules generation 1 → 2");
    for answer in &answers[1..] {
        assert_eq!(answer.status, 202, "{answer}");
        eventually("it is done", || status_of(&server, answer)["status"] == "done");
    }
    assert_eq!(api.received().len(), 4, "each once");
}

#[test]
fn the_response_to_a_queued_request_may_be_429() {
    let api = Api::echo();
    let server = in_front_of(&api, &format!("queue: {{ answer: 429 }}\n{QUEUE}"));
    assert_eq!(post(&server, "one").status, 200);
    let answer = post(&server, "two");
    assert_eq!((answer.status, answer.header("content-type")), (429, Some("application/problem+json")));
    assert!(answer.header("retry-after").is_some());
    eventually("it is done", || status_of(&server, &answer)["status"] == "done");
}

#[test]
fn what_is_queued_survives_a_kill() {
    let api = Api::echo();
    let server = in_front_of(&api, STUCK);
    assert_eq!(post(&server, "one").status, 200);
    let answer = post(&server, "two");
    assert_eq!(answer.status, 202);
    let folder = Arc::clone(&server.folder);
    server.kill();
    folder.configure(&format!("upstreams: ['{}']\n{}", api.url(), STUCK.replace("1/h", "100/s")));
    let server = Server::start_in(&folder);
    let id = answer.json()["id"].as_str().expect("an id").to_owned();
    let at = server.admin.to_string();
    let ran = tollgate(&["queue", "retry", &id, "--admin", &format!("http://{at}")]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    eventually("it is done", || status_of(&server, &answer)["status"] == "done");
    assert_eq!(api.last().body, b"two");
}

#[test]
fn an_api_that_fails_is_tried_again_and_then_no_more() {
    let failures = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&failures);
    let api = Api::start(move |_, stream| {
        let fails = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        let status = if fails { "503 Busy" } else { "201 Created" };
        stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).is_ok()
    });
    let server = in_front_of(&api, &format!("queue: {{ max_tries: 3, backoff: 20ms }}\n{QUEUE}"));
    assert_eq!(post(&server, "now").status, 201);
    failures.store(2, Ordering::SeqCst);
    let answer = post(&server, "later");
    eventually("it is done", || status_of(&server, &answer)["status"] == "done");
    assert_eq!(status_of(&server, &answer)["tries"], 3);
    let keys: Vec<_> = api.received()[1..]
        .iter()
        .map(|request| request.header("idempotency-key").map(str::to_owned))
        .collect();
    assert!(keys.len() == 3 && keys.iter().all(|key| key.is_some() && *key == keys[0]), "{keys:?}");

    failures.store(100, Ordering::SeqCst);
    let answer = post(&server, "never");
    eventually("it is queued or dead", || status_of(&server, &answer)["status"] == "dead");
    let dead = list(&server, "?state=dead");
    assert_eq!(
        (&dead["counts"]["dead"], &dead["items"][0]["error"]),
        (&json!(1), &json!("answered with 503"))
    );
    assert_eq!(dead["items"][0]["headers"]["authorization"], "…");
    failures.store(0, Ordering::SeqCst);
    let id = dead["items"][0]["id"].as_str().expect("an id");
    let at = format!("http://{}", server.admin);
    let ran = tollgate(&["queue", "ls", "--admin", &at]);
    assert!(ran.stdout.contains(id) && ran.stdout.contains("dead"), "{}", ran.stdout);
    assert_eq!(tollgate(&["queue", "retry", id, "--admin", &at]).code, Some(0));
    eventually("it is done", || status_of(&server, &answer)["status"] == "done");
    let shown = tollgate(&["queue", "show", id, "--admin", &at]);
    assert!(shown.stdout.contains("\"status\": 201"), "{}", shown.stdout);
    assert_eq!(tollgate(&["queue", "drop", id, "--admin", &at]).code, Some(0));
    assert_eq!(tollgate(&["queue", "show", id, "--admin", &at]).code, Some(1));
}

#[test]
fn queue_ls_counts_what_it_does_not_list() {
    let api = Api::echo();
    let server = in_front_of(&api, STUCK);
    assert_eq!(post(&server, "one").status, 200);
    for body in ["two", "three", "four"] {
        assert_eq!(post(&server, body).status, 202);
    }
    let at = format!("http://{}", server.admin);
    let list = |more: &[&str]| tollgate(&[&["queue", "ls", "--admin", &at], more].concat());
    let all = list(&[]);
    assert_eq!((all.stdout.lines().count(), &*all.stderr), (4, "3 queued, 0 sending, 0 done, 0 dead\n"));
    let two = list(&["--count", "2"]);
    assert_eq!(two.stdout.lines().count(), 3, "{two:?}");
    assert!(two.stderr.contains("dead; the oldest 2 of 3 are listed: --count lists up to 1000"), "{two:?}");
    assert_eq!(list(&["--count", "1001"]).code, Some(2));
}

#[test]
fn expired_requests_are_given_up() {
    let api = Api::echo();
    let server = in_front_of(&api, &format!("queue: {{ ttl: 300ms }}\n{}", STUCK.replace("1/h", "1/2s")));
    assert_eq!(post(&server, "one").status, 200);
    let answer = post(&server, "two");
    eventually("it is dead", || status_of(&server, &answer)["status"] == "dead");
    assert_eq!(api.received().len(), 1);
}

#[test]
fn too_large_or_too_many_requests_are_not_queued() {
    let api = Api::echo();
    let server = in_front_of(&api, &format!("queue: {{ max_body: 10, max_items: 1 }}\n{STUCK}"));
    assert_eq!(post(&server, "one").status, 200);
    assert_eq!(post(&server, "longer than ten").status, 413);
    assert_eq!(post(&server, "two").status, 202);
    let full = post(&server, "three");
    assert_eq!((full.status, full.json()["detail"].as_str()), (429, Some("the queue is full")));
    let told = explained(&server, &full);
    assert_eq!((&told["rule"], &told["ticket"]["limit"]), (&"jobs".into(), &"1/h".into()), "{told}");
}

#[test]
fn a_rule_that_rejects_beside_one_that_queues_rejects() {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "rules:
  - { id: jobs, match: /jobs, limit: 2/h, on_exceed: queue }
  - { id: all, match: /jobs, limit: 1/h }",
    );
    assert_eq!([post(&server, "1").status, post(&server, "2").status], [200, 429]);
    assert_eq!(list(&server, "")["items"], json!([]));
    assert_eq!(get(&server, "/.tollgate/queue/nonsense", &[]).status, 404);
}

#[test]
fn a_long_queue_goes_out_about_in_the_order_in_which_it_came() {
    const JOBS: usize = 60;
    let api = Api::echo();
    let rules = "rules: [{ id: jobs, match: /jobs, limit: 20/s, burst: 1, on_exceed: queue }]\n";
    let server = in_front_of(&api, rules);
    let answers: Vec<_> = (0..JOBS).map(|n| post(&server, &n.to_string())).collect();
    let last = answers.iter().rfind(|answer| answer.status == 202).expect("most are queued");
    eventually("all are done", || {
        status_of(&server, last)["status"] == "done" && api.received().len() == JOBS
    });
    let replayed: Vec<usize> = api
        .received()
        .iter()
        .filter(|request| request.header("idempotency-key").is_some())
        .map(|request| String::from_utf8_lossy(&request.body).parse().expect("a number"))
        .collect();
    let mut sorted = replayed.clone();
    sorted.sort_unstable();
    let displaced = |n: &usize| sorted.binary_search(&replayed[*n]).map_or(0, |place| place.abs_diff(*n));
    let mean = (0..replayed.len()).map(|n| displaced(&n)).sum::<usize>() / replayed.len();
    assert!(mean <= JOBS / 8, "a third of them by chance: {mean} in {replayed:?}");
}

#[test]
fn a_request_queued_for_a_permit_is_sent_when_one_is_given_back() {
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let api = Api::start(move |request, stream| {
        if request.body == b"slow" {
            wait.lock().expect("no panic").recv().ok();
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    let rules = "rules: [{ id: one, match: /jobs, algorithm: concurrency, limit: 1/1h, on_exceed: queue }]\n";
    let server = in_front_of(&api, rules);
    let mut slow = Client::to(server.proxy);
    slow.write(b"POST /jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nslow");
    eventually("it is in flight", || api.received().len() == 1);
    let answer = post(&server, "next");
    assert_eq!(answer.status, 202, "{answer}");
    go.send(()).expect("the API waits");
    assert_eq!(slow.answer().status, 201);
    eventually("it is done", || status_of(&server, &answer)["status"] == "done");
}

fn post_from(server: &Server, host: u8, body: &[u8]) -> Answer {
    Client::connect_from([127, 0, 0, host].into(), server.proxy).request("POST", "/jobs", &[], body)
}

/// What a queue may hold, wherever it is; `store` says where.
pub fn check_bounds(store: &str) {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        &format!("queue: {{ {store}max_items: 100, max_body: 5000, max_bytes: 50000 }}\n{STUCK}"),
    );
    eventually("the queue can be used", || server.admin("GET", "/v1/queue", "").status == 200);
    assert_eq!(post_from(&server, 1, b"").status, 200);
    let small: Vec<_> = (0..12).map(|_| post_from(&server, 1, b"job").status).collect();
    assert_eq!(small, [&[202; 10][..], &[429; 2]].concat(), "a sender may have a tenth of the queue");
    let large = [b'x'; 4000];
    assert_eq!([202, 429], [(); 2].map(|()| post_from(&server, 2, &large).status), "and of its bytes");
    let statuses: Vec<_> = (3..20).map(|host| post_from(&server, host, &large).status).collect();
    let taken = statuses.iter().filter(|status| **status == 202).count();
    assert!((4..=9).contains(&taken), "all senders together are bounded, too: {statuses:?}");
    let first = list(&server, "?state=queued")["items"][0]["id"].clone();
    let remove =
        |id: &Value| server.admin("DELETE", &format!("/v1/queue/{}", id.as_str().expect("an id")), "").status;
    for request in list(&server, "?state=queued")["items"].as_array().expect("a list") {
        assert_eq!(remove(&request["id"]), 200);
    }
    assert_eq!(remove(&first), 404);
    assert_eq!(
        [202, 429],
        [(); 2].map(|()| post_from(&server, 2, &large).status),
        "what is gone leaves room"
    );
}

#[test]
fn a_queue_in_a_file_is_bounded_in_bytes_and_for_each_sender() {
    check_bounds("");
}

/// Each request to a queue that is broken was a line of the log.
#[test]
fn failures_of_the_queue_are_logged_at_a_bounded_rate() {
    let api = Api::echo();
    let folder = Folder::new();
    folder.configure(&format!("upstreams: ['{}']\n{STUCK}", api.url()));
    let server = Server::start_in(&folder);
    assert_eq!(post(&server, "one").status, 200);
    assert_eq!(post(&server, "two").status, 202);
    let file = rusqlite::Connection::open(folder.path("tollgate-queue.db")).expect("the queue's file");
    file.busy_timeout(Duration::from_secs(20)).expect("set");
    file.execute_batch("DROP TABLE sender").expect("dropped");
    let start = Instant::now();
    for n in 0..200 {
        assert_eq!(post(&server, &format!("job {n}")).status, 503);
    }
    let windows = start.elapsed().as_secs() / 10 + 2;
    let (_, log) = server.stop();
    let lines = log.matches("a request could not be queued").count() as u64;
    assert!(lines > 0 && lines <= 60 * windows, "{lines} lines in {windows} windows");
    assert!(log.contains("more of these are counted, not logged"), "{log}");
}

#[test]
fn a_replayed_request_has_the_headers_that_its_rules_know_the_sender_by() {
    let api = Api::echo();
    let rules =
        "rules: [{ id: jobs, match: /jobs, key: 'header:x-tenant', limit: 2/s, burst: 1, on_exceed: queue }]";
    let server = in_front_of(&api, rules);
    let post = || {
        Client::to(server.proxy).request("POST", "/jobs", &[("x-tenant", "ann"), ("x-other", "1")], b"job")
    };
    assert_eq!(post().status, 200);
    assert_eq!(post().status, 202);
    eventually("it is replayed", || api.received().len() == 2);
    let replayed = api.last();
    assert_eq!((replayed.header("x-tenant"), replayed.header("x-other")), (Some("ann"), None));
}

#[test]
fn a_status_request_counts_against_limits_and_bans() {
    let api = Api::echo();
    let rules = "rules:
  - { id: jobs, match: /jobs, limit: 1/h, on_exceed: queue }
  - { id: all, match: '/.tollgate/**', key: ip, limit: 2/h }";
    let server = in_front_of(&api, rules);
    assert_eq!(post(&server, "one").status, 200);
    let answer = post(&server, "two");
    let place = answer.header("location").expect("a status URL").to_owned();
    assert_eq!([(); 3].map(|()| get(&server, &place, &[]).status), [200, 200, 429]);
    let ban = server.admin("POST", "/v1/bans", r#"{"key":"ip:127.0.0.9","for":"1h"}"#);
    assert!(ban.status < 300, "{ban}");
    let banned =
        Client::connect_from([127, 0, 0, 9].into(), server.proxy).request("GET", &place, &[], b"").status;
    assert_eq!(banned, 403);
}
