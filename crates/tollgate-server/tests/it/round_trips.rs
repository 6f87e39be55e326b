//! Round trips to a central store: calls that arrive together share them.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::servers::redis::{Make, Redis};
use tollgate_testkit::{Server, eventually};

use crate::grpc::client::{GrpcClient, OK, request};
use crate::resp::{RespClient, frame, throttled};

/// What arrives within it is one burst.
const DELAY: Duration = Duration::from_millis(20);
/// Bursts of a batch, with some for what the node does besides, such as asking for bans every second.
const FEW: usize = 6;

/// A relay that delays what it passes on to a server, and counts the bursts.
struct DelayingRelay {
    port: u16,
    bursts: Arc<AtomicUsize>,
}

impl DelayingRelay {
    fn start(server: u16) -> DelayingRelay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let bursts = Arc::new(AtomicUsize::new(0));
        let counted = bursts.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", server)).expect("the server is there");
                let requests = (client.try_clone().expect("a clone"), server.try_clone().expect("a clone"));
                let bursts = counted.clone();
                thread::spawn(move || pass_bursts(requests, &bursts));
                thread::spawn(move || std::io::copy(&mut &server, &mut &client));
            }
        });
        DelayingRelay { port, bursts }
    }

    /// How many bursts pass meanwhile.
    fn bursts_during(&self, call: impl FnOnce()) -> usize {
        let before = self.bursts.load(Ordering::SeqCst);
        call();
        self.bursts.load(Ordering::SeqCst) - before
    }
}

fn pass_bursts((mut client, mut server): (TcpStream, TcpStream), bursts: &AtomicUsize) {
    let mut buffer = vec![0; 1 << 20];
    while let Ok(first @ 1..) = client.read(&mut buffer) {
        thread::sleep(DELAY);
        client.set_nonblocking(true).expect("a socket");
        let more = client.read(&mut buffer[first..]).unwrap_or(0);
        client.set_nonblocking(false).expect("a socket");
        bursts.fetch_add(1, Ordering::SeqCst);
        if server.write_all(&buffer[..first + more]).is_err() {
            return;
        }
    }
    server.shutdown(std::net::Shutdown::Write).ok();
}

/// A node whose counters are in a Redis behind a relay.
fn start(what: &str, rules: &str) -> Option<(Redis, DelayingRelay, Server)> {
    let redis = Redis::start(Make::Redis, what)?;
    let relay = DelayingRelay::start(redis.port);
    let url = format!("redis://127.0.0.1:{}", relay.port);
    let server =
        Server::start(&format!("counters: {url}\nstore_deadline: 5s\non_store_error: closed\n{rules}"));
    // The script is loaded then.
    eventually("the store answers", || server.check(&json!({ "user": "probe" })).status == 200);
    Some((redis, relay, server))
}

#[test]
fn a_pipeline_of_throttles_shares_round_trips_and_keeps_its_order() {
    let Some((_redis, relay, server)) =
        start("round trips of CL.THROTTLE", "rules: [{ id: a, key: user, limit: 9/d }]")
    else {
        return;
    };
    let mut client = RespClient::to(server.resp);
    let pipeline: Vec<u8> = (0..16).flat_map(|n| frame(&format!("CL.THROTTLE key{n} 9 10 864000"))).collect();
    let replies = throttled([0, 10, 9, -1, 86_400]).repeat(16);
    let bursts = relay.bursts_during(|| client.exchange(&pipeline, &replies));
    assert!((1..=FEW).contains(&bursts), "{bursts} round trips for 16 keys");

    // Calls on the same key are decided one after the other, also between others.
    let mixed = "CL.THROTTLE same 2 10 864000\nCL.THROTTLE other 2 10 864000\nCL.THROTTLE same 2 10 864000 0\n\
                 CL.THROTTLE same 2 10 864000 2\nCL.THROTTLE same 2 10 864000\nDEL same other\n\
                 CL.THROTTLE same 2 10 864000 3";
    let pipeline: Vec<u8> = mixed.lines().flat_map(frame).collect();
    let replies = [
        throttled([0, 3, 2, -1, 86_400]),
        throttled([0, 3, 2, -1, 86_400]),
        throttled([0, 3, 2, -1, 86_400]),
        throttled([0, 3, 0, -1, 259_200]),
        throttled([1, 3, 0, 86_400, 259_200]),
        ":2\r\n".to_owned(),
        throttled([0, 3, 0, -1, 259_200]),
    ];
    client.exchange(&pipeline, &replies.concat());
}

#[test]
fn descriptors_and_batches_share_round_trips() {
    let rules = "rules: [{ id: a, key: user, limit: 9/d, algorithm: fixed-window }, { id: b, key: 'attr:tenant', limit: 9/d }]";
    let Some((_redis, relay, server)) = start("round trips of batches", rules) else { return };
    let client = GrpcClient::to(server.grpc);
    let users = ["ann", "bob", "eve", "kim", "lea", "max", "tom", "zoe"];
    let entries: Vec<_> = users.iter().map(|user| [("user", *user), ("tenant", "acme")]).collect();
    let descriptors: Vec<_> = entries.iter().map(|entries| &entries[..]).collect();
    let bursts = relay.bursts_during(|| {
        let answer = client.limit(request("shop", &descriptors)).expect("an answer");
        assert_eq!(answer.overall_code, OK, "{answer:?}");
    });
    assert!((1..=FEW).contains(&bursts), "{bursts} round trips for 8 descriptors");

    let checks: Vec<Value> = (0..40).map(|n| json!({ "user": format!("user{n}") })).collect();
    let bursts = relay.bursts_during(|| {
        let answer = server.request("POST", "/v1/check/batch", Value::from(checks.clone()).to_string());
        assert!(
            answer.json().as_array().is_some_and(|all| all.iter().all(|one| one["remaining"] == 8)),
            "{answer}"
        );
    });
    assert!((1..=FEW).contains(&bursts), "{bursts} round trips for 40 checks");

    // Equal checks are decided in their order.
    let same: Vec<Value> = (0..12).map(|_| json!({ "user": "same" })).collect();
    let answer = server.request("POST", "/v1/check/batch", Value::from(same).to_string()).json();
    let allowed: Vec<_> = (0..12).map(|n| answer[n]["allowed"] == true).collect();
    assert_eq!(allowed, (0..12).map(|n| n < 9).collect::<Vec<_>>(), "{answer}");

    let mut client = RespClient::to(server.resp);
    let pipeline: Vec<u8> = (0..16).flat_map(|n| frame(&format!("TOLLGATE.CHECK user resp{n}"))).collect();
    let count = |replies: &str| replies.matches("*6\r\n:0\r\n$1\r\na\r\n$3\r\n9/d\r\n:8\r\n:-1\r\n").count();
    let bursts = relay.bursts_during(|| {
        let replies = client.exchange_until(&pipeline, |replies| count(replies) == 16);
        assert_eq!(count(&replies), 16, "{replies}");
    });
    assert!((1..=FEW).contains(&bursts), "{bursts} round trips for 16 checks");
}

/// A decision that needs no call, such as one of a request that no rule matches, is not in the histogram.
#[test]
fn the_histogram_of_the_store_has_the_calls_that_were_made() {
    let rules = "rules: [{ id: a, match: /limited, key: user, limit: 2/d }]";
    let Some((_redis, _relay, server)) = start("the store's latency", rules) else { return };
    let metrics = || server.admin("GET", "/metrics", "").text();
    let value = |metrics: &str, name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<f64>().ok()).unwrap_or_else(|| panic!("{name}: {metrics}"))
    };
    let count = || value(&metrics(), "tollgate_central_check_seconds_count");
    let before = count();
    for _ in 0..5 {
        server.check(&json!({ "path": "/free", "user": "ann" }));
    }
    assert_eq!(count(), before, "no rule matches");
    let limited = |user: &str| server.check(&json!({ "path": "/limited", "user": user })).status;
    assert_eq!([limited("ann"), limited("ann"), limited("ann")], [200, 200, 429]);
    assert_eq!(count(), before + 3.0);
    assert_eq!(limited("ann"), 429);
    assert_eq!(count(), before + 3.0, "the denial was known");
    RespClient::to(server.resp)
        .exchange(&frame("CL.THROTTLE a 9 10 864000"), &throttled([0, 10, 9, -1, 86_400]));
    assert_eq!(count(), before + 4.0);

    let metrics = metrics();
    let bucket =
        |bound: &str| value(&metrics, &format!("tollgate_central_check_seconds_bucket{{le=\"{bound}\"}}"));
    assert_eq!(bucket("0.000001"), 0.0, "the first bucket is a microsecond");
    assert_eq!(bucket("0.01"), 0.0, "the relay delays every call");
    assert_eq!(bucket("+Inf"), before + 4.0);
    assert!(value(&metrics, "tollgate_central_check_seconds_sum") >= (before + 4.0) * DELAY.as_secs_f64());
}
