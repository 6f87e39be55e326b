//! Requests made to cost more than they should: they are answered, and others are served meanwhile. That the work is
//! linear in what a client sends is counted in `fuzz/src/linearity/connections.rs`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use tollgate_testkit::{Client, Server};

use crate::proxy::api::Api;
use crate::proxy::{get, in_front_of};

fn chunked(path: &str, chunks: &str) -> String {
    format!("POST {path} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
}

/// A body full of what could begin a request, and chunked requests behind it; how many there are.
fn looks_like_heads(size: usize) -> (String, usize) {
    let text = "POST / ".repeat(size / 7);
    let count = size / 2_500;
    let filled = chunked("/", &format!("{:x}\r\n{text}\r\n", text.len()));
    (filled + &chunked("/", "1\r\nx\r\n").repeat(count), count + 1)
}

fn silent_api() -> Api {
    Api::saying("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
}

fn send_heads(server: &Server, size: usize) -> Option<()> {
    let (bytes, count) = looks_like_heads(size);
    let mut client = Client::to(server.proxy);
    client.write(bytes.as_bytes());
    for _ in 0..count {
        assert_eq!(client.try_answer()?.status, 200);
    }
    Some(())
}

/// A POST of which every byte is a chunk.
fn one_byte_chunks(path: &str, body: &str) -> String {
    let chunks: String = body.chars().map(|byte| format!("1\r\n{byte}\r\n")).collect();
    chunked(path, &chunks)
}

#[test]
fn bodies_in_one_byte_chunks_are_read_for_their_fields_and_queued() {
    let api = silent_api();
    for (rule, expected) in [
        ("{ id: none, match: /jobs, key: 'json:email', limit: 0/h }", 429),
        ("{ id: all, match: /jobs, key: 'form:email', limit: 1000/h }", 200),
        ("{ id: jobs, match: /jobs, limit: 1/y, on_exceed: queue }", 202),
    ] {
        let server = in_front_of(&api, &format!("rules: [{rule}]"));
        if expected == 202 {
            assert_eq!(get(&server, "/jobs", &[]).status, 200);
        }
        let body = format!(r#"{{"email":"ann","text":"{}"}}"#, "x".repeat(20_000));
        let mut client = Client::to(server.proxy);
        client.write(one_byte_chunks("/jobs", &body).as_bytes());
        assert_eq!(client.answer().status, expected, "{rule}");
    }
}

/// Bodies that are read for a field and never end: one client took the memory for all of them, and all others got 503.
#[test]
fn one_client_does_not_take_the_memory_for_all_bodies() {
    let api = silent_api();
    let rules = "trusted_proxies: ['127.0.0.1']\nrules: [{ id: r, key: 'json:email', limit: 1000000/h }]";
    let server = in_front_of(&api, rules);
    let pad = "x".repeat(60 << 10);
    let unfinished = |client: &str| {
        let mut connection = Client::to(server.proxy);
        let head = format!(
            "POST / HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {client}\r\ncontent-length: 100000\r\n\r\n"
        );
        connection.write(head.as_bytes());
        connection.write(format!("{{\"x\":\"{pad}").as_bytes());
        connection
    };
    let post = |client: &str| {
        let headers = [("x-forwarded-for", client)];
        let body = format!("{{\"email\":\"ann\",\"x\":\"{pad}\"}}");
        Client::to(server.proxy).request("POST", "/", &headers, body.as_bytes()).status
    };
    // An eighth of 64 MiB, for one network.
    let mut open: Vec<Client> = (0..130).map(|n| unfinished(&format!("2001:db8::{n}"))).collect();
    tollgate_testkit::eventually("its share is taken", || {
        open.push(unfinished("2001:db8::fffe"));
        post("2001:db8::ffff") == 429
    });
    assert_eq!((post("2001:db8:0:1::"), post("192.0.2.1"), post("127.0.0.1")), (200, 200, 200));
    drop(open);
    tollgate_testkit::eventually("its share is free again", || post("2001:db8::ffff") == 200);
}

#[test]
fn an_attack_stops_neither_others_nor_a_stop() {
    let api = silent_api();
    let server = in_front_of(&api, "");
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    send_heads(&server, 520 << 10).expect("all are answered");
                }
            });
        }
        for _ in 0..5 {
            let ready = server.admin("GET", "/readyz", "");
            assert_eq!(ready.status, 200, "{ready}");
            assert_eq!(get(&server, "/", &[]).status, 200, "what is ready serves");
        }
        over.store(true, Ordering::Relaxed);
    });
    let (bytes, _) = looks_like_heads(520 << 10);
    let mut clients: Vec<_> = (0..4).map(|_| Client::to(server.proxy)).collect();
    clients.iter_mut().for_each(|client| client.write(&bytes.as_bytes()[..256 << 10]));
    let (ended, log) = server.stop();
    assert_eq!(ended.code(), Some(0), "{log}");
}
