//! Bounds: connections that do nothing, clients that are slow, and those that never read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tollgate_testkit::{Client, eventually};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of, resident_kib};

const IDLE: usize = 10_000;
const HELD: usize = 1_000;
const MAX_KIB: usize = 300 << 10;

#[test]
fn ten_thousand_idle_connections_and_a_thousand_held_requests_fit_300_mb() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("the limit can be raised");
    let api = Api::echo();
    let server = in_front_of(
        &api,
        "rules: [{ id: q, match: /held, algorithm: leaky-bucket, limit: 1/h, burst: 2000, max_wait: 3000h }]",
    );
    let mut idle = Vec::with_capacity(IDLE);
    for _ in 0..IDLE {
        let mut client = Client::to(server.proxy);
        assert_eq!(
            client
                .request("GET", "/", &[("user-agent", "a browser of some kind"), ("accept", "*/*")], b"")
                .status,
            200
        );
        idle.push(client);
    }
    assert_eq!(get(&server, "/held", &[]).status, 200);
    let held: Vec<_> = (0..HELD)
        .map(|_| {
            let mut client = Client::to(server.proxy);
            client.write(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n");
            client
        })
        .collect();
    eventually("all of them wait", || {
        server.admin("GET", "/metrics", "").text().contains(&format!("tollgate_held_requests {HELD}\n"))
    });
    let resident = resident_kib(server.id());
    assert!(resident < MAX_KIB, "{resident} KiB");
    assert_eq!(get(&server, "/", &[]).status, 200, "others are served");
    assert_eq!(idle[0].request("GET", "/", &[], b"").status, 200);
    drop((idle, held));
    eventually("no request is held any more", || {
        server.admin("GET", "/metrics", "").text().contains("tollgate_held_requests 0\n")
    });
}

#[test]
fn slow_heads_and_endless_bodies_do_not_block_other_clients() {
    let api = Api::echo();
    let server = in_front_of(&api, "proxy: { idle_timeout: 300ms }");
    let mut slow: Vec<_> = (0..200)
        .map(|n| {
            let mut stream = TcpStream::connect(server.proxy).expect("the proxy accepts");
            let start = match n % 4 {
                0 => &b""[..],
                1 => b"GET / HT",
                2 => b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc",
                _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            };
            stream.write_all(start).expect("it is taken");
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(get(&server, "/", &[]).status, 200);
    }
    // A body that stops is cut off by idle_timeout: 408, or the end of the connection.
    let stuck = &mut slow[2];
    stuck.set_read_timeout(Some(Duration::from_secs(30))).expect("possible");
    let mut answer = Vec::new();
    stuck.read_to_end(&mut answer).ok();
    assert!(answer.starts_with(b"HTTP/1.1 408"), "{:?}", String::from_utf8_lossy(&answer));
}

#[test]
fn a_client_that_reads_nothing_is_cut_off_and_costs_little() {
    let api = Api::start(|_, stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1073741824\r\n\r\n").ok();
        let block = vec![b'x'; 1 << 20];
        while stream.write_all(&block).is_ok() {}
        false
    });
    let server = in_front_of(&api, "");
    let before = resident_kib(server.id());
    let mut deaf: Vec<_> = (0..20)
        .map(|_| {
            let mut client = Client::to(server.proxy);
            client.write(b"GET /big HTTP/1.1\r\nhost: x\r\n\r\n");
            client
        })
        .collect();
    eventually("all of them are answered", || api.received().len() == 20);
    let start = Instant::now();
    assert!(resident_kib(server.id()) < before + (64 << 10), "what is not read waits upstream");
    // WRITE_TIMEOUT: twenty seconds without a byte taken.
    eventually("they are cut off", || {
        server
            .admin("GET", "/metrics", "")
            .text()
            .contains(&format!("in_flight{{upstream=\"{}\"}} 0", api.url()))
    });
    assert!(start.elapsed() < Duration::from_secs(30));
    deaf.clear();
}
