//! What counts in the end: decided by the response, or when the request is over.

use std::io::Write;
use std::sync::Barrier;
use std::thread;

use tollgate_testkit::{Client, Server, eventually};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of};

/// Answers with the status that the path names, and with the cost in the query.
fn scripted() -> Api {
    Api::start(|request, stream| {
        let target = request.target();
        let status = target.get(1..4).unwrap_or("200");
        let cost =
            target.split_once("cost=").map_or(String::new(), |(_, cost)| format!("x-cost: {cost}\r\n"));
        stream.write_all(format!("HTTP/1.1 {status} X\r\n{cost}content-length: 0\r\n\r\n").as_bytes()).is_ok()
    })
}

fn statuses(server: &Server, paths: &[&str]) -> Vec<u16> {
    paths.iter().map(|path| get(server, path, &[]).status).collect()
}

#[test]
fn only_failed_logins_count() {
    let api = scripted();
    let server = in_front_of(&api, "rules: [{ id: login, limit: 2/h, count_when: failure }]");
    let paths = ["/200", "/200", "/200", "/401", "/204", "/500", "/200"];
    assert_eq!(statuses(&server, &paths), [200, 200, 200, 401, 204, 500, 429]);
}

#[test]
fn only_success_counts_or_only_some_statuses() {
    let api = scripted();
    let server = in_front_of(
        &api,
        "rules:
  - { id: success, match: '/{status}', limit: 1/h, count_when: success }
  - { id: some, match: '/{status}/some', limit: 1/h, count_when: 'status:401,403' }",
    );
    assert_eq!(statuses(&server, &["/500", "/404", "/200", "/200"]), [500, 404, 200, 429]);
    assert_eq!(
        statuses(&server, &["/200/some", "/404/some", "/403/some", "/200/some"]),
        [200, 404, 403, 429]
    );
}

#[test]
fn rules_that_always_count_are_not_given_back_with_others() {
    let api = scripted();
    let server = in_front_of(
        &api,
        "rules: [{ id: all, limit: 10/h }, { id: failed, limit: 10/h, count_when: failure }]",
    );
    assert_eq!(statuses(&server, &["/200", "/401"]), [200, 401]);
    assert_eq!((server.used("all", ""), server.used("failed", "")), (vec![2], vec![1]));
}

#[test]
fn parallel_logins_cannot_all_slip_through() {
    let api = scripted();
    let server = in_front_of(&api, "rules: [{ id: login, limit: 5/h, count_when: failure }]");
    let together = Barrier::new(40);
    let passed: usize = thread::scope(|scope| {
        let tries: Vec<_> = (0..40)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = Client::to(server.proxy);
                    together.wait();
                    usize::from(client.request("GET", "/401", &[], b"").status == 401)
                })
            })
            .collect();
        tries.into_iter().map(|each| each.join().expect("no panic")).sum()
    });
    assert_eq!(passed, 5);
}

#[test]
fn an_unanswered_request_stays_charged() {
    let api = Api::start(|_, stream| {
        std::io::Read::read(stream, &mut [0; 1]).ok();
        false
    });
    let server = in_front_of(&api, "rules: [{ id: login, limit: 5/h, count_when: failure }]");
    let mut client = Client::to(server.proxy);
    client.write(b"GET /login HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("it arrives", || api.received().len() == 1);
    drop(client);
    assert_eq!(server.used("login", ""), [1]);
}

#[test]
fn the_cost_may_come_from_the_response() {
    let api = scripted();
    let server = in_front_of(&api, "rules: [{ id: units, limit: 100/h, cost: 10, cost_from: x-cost }]");
    let used = |path: &str| {
        assert_eq!(get(&server, path, &[]).status, 200);
        server.used("units", "")[0]
    };
    assert_eq!(used("/200"), 10, "unless it does not");
    assert_eq!(used("/200?cost=nonsense"), 20);
    assert_eq!(used("/200?cost=0"), 20);
    assert_eq!(used("/200?cost=3"), 50, "each unit costs ten");
}

#[test]
fn a_cost_above_the_charge_becomes_a_debt_of_at_most_one_burst() {
    let api = scripted();
    let server = in_front_of(&api, "rules: [{ id: units, limit: 10/h, cost_from: x-cost }]");
    assert_eq!(get(&server, "/200?cost=1000000", &[]).status, 200);
    assert_eq!(server.used("units", ""), [20]);
    let denied = get(&server, "/200", &[]);
    let wait: u64 = denied.header("retry-after").and_then(|wait| wait.parse().ok()).expect("a wait");
    assert!(denied.status == 429 && (3955..=3960).contains(&wait), "eleven of ten an hour: {wait}");
}

/// Answers when released, by the path `/go`.
fn gated() -> (Api, std::sync::Arc<(std::sync::Mutex<usize>, std::sync::Condvar)>) {
    let gate = std::sync::Arc::new((std::sync::Mutex::new(0), std::sync::Condvar::new()));
    let opened = std::sync::Arc::clone(&gate);
    let api = Api::start(move |_, stream| {
        let (go, changed) = &*opened;
        let mut go = changed.wait_while(go.lock().expect("no panic"), |go| *go == 0).expect("no panic");
        *go -= 1;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").is_ok()
    });
    (api, gate)
}

#[test]
fn concurrency_is_bounded_and_no_permit_leaks() {
    let (api, gate) = gated();
    let server = in_front_of(&api, "rules: [{ id: busy, algorithm: concurrency, limit: 2/h }]");
    let send = || {
        let mut client = Client::to(server.proxy);
        client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        client
    };
    let mut busy = vec![send(), send()];
    eventually("two are in flight", || api.received().len() == 2);
    assert_eq!(get(&server, "/", &[]).status, 429);
    *gate.0.lock().expect("no panic") += 1;
    gate.1.notify_all();
    eventually("one is free", || server.used("busy", "") == [1]);
    busy.push(send());
    eventually("two are in flight", || api.received().len() == 3);
    assert_eq!(get(&server, "/", &[]).status, 429);
    drop(busy);
    eventually("who has gone gives back", || server.used("busy", "") == [0]);
}

#[test]
fn an_unreleased_permit_expires() {
    let (api, _gate) = gated();
    let server = in_front_of(&api, "rules: [{ id: busy, algorithm: concurrency, limit: 1/2s }]");
    let mut stuck = Client::to(server.proxy);
    stuck.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("it is in flight", || api.received().len() == 1);
    assert_eq!(get(&server, "/", &[]).status, 429);
    eventually("its permit has expired", || {
        let mut next = Client::to(server.proxy);
        next.write(b"GET /next HTTP/1.1\r\nhost: x\r\n\r\n");
        api.received().iter().any(|request| request.target() == "/next")
    });
}

#[test]
fn a_permit_is_given_back_where_there_is_no_answer() {
    let server = Server::start(
        "upstreams: ['http://127.0.0.1:1']\nrules: [{ id: busy, algorithm: concurrency, limit: 1/h }]",
    );
    for _ in 0..5 {
        assert_eq!(get(&server, "/", &[]).status, 502);
    }
    assert_eq!(server.used("busy", ""), [0]);
}
