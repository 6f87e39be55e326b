//! Requests that are held until their release time.

use std::time::{Duration, Instant};

use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Client, Server, eventually};

use crate::proxy::api::Api;
use crate::proxy::{explained, get, in_front_of};

pub fn metric(server: &Server, name: &str) -> u64 {
    let page = server.admin("GET", "/metrics", "").text();
    let line = page.lines().find(|line| line.split([' ', '{']).next() == Some(name)).expect(name);
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

/// A client that has sent its request and waits for the answer.
fn send(server: &Server, path: &str) -> Client {
    let mut client = Client::to(server.proxy);
    client.write(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes());
    client
}

#[test]
fn of_eight_at_once_one_passes_five_wait_and_two_are_denied() {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "rules: [{ id: q, algorithm: leaky-bucket, limit: 10/s, burst: 6, max_wait: 10s }]",
    );
    let start = Instant::now();
    let clients: Vec<_> = (0..8).map(|n| send(&server, &format!("/{n}"))).collect();
    let mut answers: Vec<_> =
        clients.into_iter().map(|mut client| (client.answer().status, start.elapsed())).collect();
    answers.retain(|(status, _)| *status == 200);
    assert_eq!(answers.len(), 6);
    let last = answers.iter().map(|(_, at)| *at).max().unwrap_or_default();
    assert!(last >= Duration::from_millis(500), "the last waits for five turns: {last:?}");
    assert_eq!(metric(&server, "tollgate_held_requests"), 0);
    // Decided first, on another thread, one may find others waiting already: it stands before them for a moment.
    assert!((5..=6).contains(&metric(&server, "tollgate_held_total")));
}

#[test]
fn held_requests_are_sent_in_order_and_at_the_rate() {
    let api = Api::echo();
    let interval = Duration::from_millis(200);
    let server = in_front_of(&api, "rules: [{ id: q, algorithm: leaky-bucket, limit: 5/s, burst: 10 }]");
    let start = Instant::now();
    let mut clients = Vec::new();
    for n in 0..10 {
        clients.push(send(&server, &format!("/{n}")));
        eventually("it has passed or waits", || {
            api.received().len() + metric(&server, "tollgate_held_requests") as usize > n
        });
    }
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.answer().status, 200);
        assert!(start.elapsed() >= interval * n as u32, "{n} after {:?}", start.elapsed());
    }
    let order: Vec<_> = api.received().iter().map(|request| request.target().to_owned()).collect();
    assert_eq!(order, (0..10).map(|n| format!("/{n}")).collect::<Vec<_>>());
}

fn wait_for_held(server: &Server, count: u64) {
    eventually("they wait", || metric(server, "tollgate_held_requests") == count);
}

/// A request has left its queue before it is refunded.
fn wait_for_used(server: &Server, used: u64) {
    eventually("they are refunded", || server.used("q", "") == [used]);
}

/// Three requests, each held before the next is sent.
fn hold_three(server: &Server) -> Vec<Client> {
    let hold = |count| {
        let client = send(server, "/");
        wait_for_held(server, count);
        client
    };
    (1..=3).map(hold).collect()
}

#[test]
fn a_wait_longer_than_max_wait_is_denied_at_once_and_charges_nothing() {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/m, burst: 10, max_wait: 30s }]",
    );
    assert_eq!(get(&server, "/", &[]).status, 200);
    let start = Instant::now();
    let denied = get(&server, "/", &[]);
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("30")));
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(server.used("q", ""), [1]);
}

#[test]
fn a_client_that_disconnects_is_refunded() {
    let api = Api::echo();
    let server =
        in_front_of(&api, "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/h, burst: 4, max_wait: 5h }]");
    assert_eq!(get(&server, "/", &[]).status, 200);
    let waits = |count| wait_for_held(&server, count);
    let mut held = hold_three(&server);
    assert_eq!((get(&server, "/", &[]).status, server.used("q", "")), (429, vec![4]));
    // With a body too, and from the middle of the queue.
    drop(held.remove(1));
    waits(2);
    wait_for_used(&server, 3);
    let mut client = Client::to(server.proxy);
    client.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello");
    waits(3);
    drop(client);
    waits(2);
    drop(held);
    waits(0);
    wait_for_used(&server, 1);
}

/// They keep their turns, those that leave are refunded, and the rule finds the rest if it comes back.
#[test]
fn held_requests_outlive_their_rule() {
    let api = Api::echo();
    let rule = "rules: [{ id: q, algorithm: leaky-bucket, limit: 20/m, burst: 4, max_wait: 5h }]";
    let server = in_front_of(&api, rule);
    let configure = |rules: &str, generations: &str| {
        server.folder.configure(&format!("upstreams: ['{}']\n{rules}", api.url()));
        server.wait_for_log(&format!("rules generation {generations}"));
    };
    assert_eq!(get(&server, "/", &[]).status, 200);
    let mut held = hold_three(&server);
    configure("rules: []", "1 → 2");
    assert_eq!(get(&server, "/", &[]).status, 200, "a new one does not wait");
    drop(held.remove(1));
    wait_for_held(&server, 2);
    configure(rule, "2 → 3");
    eventually("the last place is free", || server.used("q", "")[0] <= 3);
    for client in &mut held {
        assert_eq!(client.answer().status, 200);
    }
    assert_eq!(metric(&server, "tollgate_held_requests"), 0);
}

#[test]
fn only_what_has_more_than_hold_after_ahead_waits_and_may_leave() {
    let api = Api::echo();
    let server =
        in_front_of(&api, "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/h, burst: 6, hold_after: 2 }]");
    for _ in 0..3 {
        assert_eq!(get(&server, "/", &[]).status, 200);
    }
    let waits = |count| wait_for_held(&server, count);
    let mut held = hold_three(&server);
    let full = get(&server, "/", &[]);
    assert_eq!((full.status, server.used("q", "")), (429, vec![6]));
    // The first that is held goes: the others move up, and the last place is free.
    drop(held.remove(0));
    waits(2);
    wait_for_used(&server, 5);
    held.push(send(&server, "/"));
    waits(3);
    drop(held);
    waits(0);
    wait_for_used(&server, 3); // what passed at once stays charged
    assert_eq!(api.received().len(), 3);
}

#[test]
fn the_number_of_held_requests_is_bounded() {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "proxy: { max_held: 2 }\nrules: [{ id: q, algorithm: leaky-bucket, limit: 1/h, burst: 100, max_wait: 30h }]",
    );
    assert_eq!(get(&server, "/", &[]).status, 200);
    let _held = [send(&server, "/"), send(&server, "/")];
    eventually("they wait", || metric(&server, "tollgate_held_requests") == 2);
    let denied = get(&server, "/", &[]);
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("10800")));
    assert_eq!(denied.json()["detail"], "Too many requests are held already");
    let told = explained(&server, &denied);
    assert_eq!((&told["rule"], &told["ticket"]["limit"]), (&"q".into(), &"1/h".into()), "{told}");
    assert_eq!(server.used("q", ""), [3], "it charges nothing");
    assert_eq!(metric(&server, "tollgate_not_held_total"), 1);
}

#[test]
fn of_several_delays_the_longest_wins_and_a_denial_charges_none() {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "rules:
  - { id: slow, match: /both, algorithm: leaky-bucket, limit: 5/s, burst: 3, max_wait: 10s }
  - { id: fast, algorithm: leaky-bucket, limit: 100/s, burst: 50, max_wait: 10s }",
    );
    let start = Instant::now();
    let mut clients = [(); 3].map(|()| send(&server, "/both"));
    let statuses = clients.each_mut().map(|client| client.answer().status);
    assert_eq!(statuses, [200; 3]);
    assert!(start.elapsed() >= Duration::from_millis(400), "{:?}", start.elapsed());
}

#[test]
fn on_exceed_reject_is_nginx_nodelay() {
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "rules: [{ id: q, algorithm: leaky-bucket, on_exceed: reject, limit: 1/h, burst: 6 }]",
    );
    let statuses = [(); 7].map(|()| get(&server, "/", &[]).status);
    assert_eq!(statuses, [200, 200, 200, 200, 200, 200, 429]);
}

#[test]
fn a_body_that_waited_arrives_whole() {
    let api = Api::echo();
    let server = in_front_of(&api, "rules: [{ id: q, algorithm: leaky-bucket, limit: 5/s, burst: 3 }]");
    let body: Vec<u8> = (0..300_000).map(|n| n as u8).collect();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let answer = Client::to(server.proxy).request("POST", "/", &[], &body);
                assert!(answer.status == 200 && answer.body == body);
            });
        }
    });
}

#[test]
fn nodes_that_share_redis_hold_at_one_rate_and_refund_disconnected_clients() {
    let Some(redis) = Redis::start(Make::Redis, "nodes that hold together") else { return };
    let api = Api::echo();
    let rules = "store_deadline: 5s
rules:
  - { id: q, match: '/q/**', algorithm: leaky-bucket, limit: 10/s, burst: 8, max_wait: 10s }
  - { id: paused, match: /paused, algorithm: leaky-bucket, limit: 1/s, burst: 2, max_wait: 10s }
  - { id: slow, match: /slow, algorithm: leaky-bucket, limit: 1/h, burst: 2, max_wait: 2h }";
    let nodes = [(); 2].map(|()| in_front_of(&api, &format!("counters: {}\n{rules}", redis.url())));
    for node in &nodes {
        eventually("it is connected", || node.admin("GET", "/healthz", "").json()["protection"] == "on");
    }
    let start = Instant::now();
    let mut clients: Vec<_> = (0..8).map(|n| send(&nodes[n % 2], &format!("/q/{n}"))).collect();
    let statuses: Vec<_> = clients.iter_mut().map(|client| client.answer().status).collect();
    assert_eq!(statuses, [200; 8]);
    assert!(start.elapsed() >= Duration::from_millis(700), "one every 100 ms: {:?}", start.elapsed());

    // A delay counts from the time of the store, not from that of the request: both are charged after the pause.
    let start = Instant::now();
    let pause = Duration::from_millis(500);
    redis.command(&["CLIENT", "PAUSE", "500", "ALL"]);
    let mut clients = [(); 2].map(|()| send(&nodes[0], "/paused"));
    let statuses = clients.each_mut().map(|client| client.answer().status);
    assert_eq!(statuses, [200; 2]);
    assert!(start.elapsed() >= pause + Duration::from_secs(1), "released early: {:?}", start.elapsed());

    assert_eq!(get(&nodes[0], "/slow", &[]).status, 200);
    let held = send(&nodes[0], "/slow");
    eventually("it waits", || metric(&nodes[0], "tollgate_held_requests") == 1);
    assert_eq!(get(&nodes[1], "/slow", &[]).status, 429);
    drop(held);
    eventually("its place is free on every node", || nodes[1].used("slow", "") == [1]);
}
