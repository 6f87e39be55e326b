//! Requests made to cost more than they should: the work is linear in what a client sends, and others are served meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::api::Api;
use crate::harness::{Client, Server};
use crate::{get, in_front_of};

/// What doubling the input may cost at most.
const LINEAR: f64 = 2.2;
/// A busy machine makes a measurement slower, so one that is linear is enough; one that is not linear never looks so.
const TRIES: usize = 6;

/// The CPU time that a process has used.
fn cpu_time(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).expect("the process runs");
    let used = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(used.sum())
}

/// Fails unless twice the size costs at most [`LINEAR`] times the CPU time.
fn check_linear(server: &Server, size: usize, attack: impl Fn(usize)) {
    let cost = |size| {
        let before = cpu_time(server.id());
        attack(size);
        cpu_time(server.id()) - before
    };
    cost(size); // what is done once
    let ratios = (0..TRIES).map(|_| {
        let single = cost(size);
        cost(2 * size).as_secs_f64() / single.as_secs_f64()
    });
    let mut seen = Vec::new();
    for ratio in ratios {
        seen.push(ratio);
        if ratio <= LINEAR {
            return;
        }
    }
    panic!("doubling the input cost {seen:.2?} times as much");
}

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

#[test]
fn bodies_that_look_like_heads_cost_linear_time() {
    let api = silent_api();
    let server = in_front_of(&api, "");
    check_linear(&server, 260 << 10, |size| send_heads(&server, size).expect("all are answered"));
}

/// A POST of which every byte is a chunk.
fn one_byte_chunks(path: &str, body: &str) -> String {
    let chunks: String = body.chars().map(|byte| format!("1\r\n{byte}\r\n")).collect();
    chunked(path, &chunks)
}

fn post_one_byte_chunks(server: &Server, size: usize, expected: u16) {
    let body = format!(r#"{{"email":"ann","text":"{}"}}"#, "x".repeat(size));
    let mut client = Client::to(server.proxy);
    client.write(one_byte_chunks("/jobs", &body).as_bytes());
    assert_eq!(client.answer().status, expected);
}

#[test]
fn fields_in_one_byte_chunks_cost_linear_time_for_denied_requests_too() {
    let api = silent_api();
    let rules = "rules: [{ id: none, match: /jobs, key: 'json:email', limit: 0/h }]";
    let server = in_front_of(&api, rules);
    check_linear(&server, 30_000, |size| post_one_byte_chunks(&server, size, 429));
    let rules = "rules: [{ id: all, match: /jobs, key: 'form:email', limit: 1000/h }]";
    let server = in_front_of(&api, rules);
    check_linear(&server, 30_000, |size| post_one_byte_chunks(&server, size, 200));
}

#[test]
fn queued_bodies_in_one_byte_chunks_cost_linear_time() {
    let api = silent_api();
    let server = in_front_of(&api, "rules: [{ id: jobs, match: /jobs, limit: 1/h, on_exceed: queue }]");
    assert_eq!(get(&server, "/jobs", &[]).status, 200);
    check_linear(&server, 30_000, |size| post_one_byte_chunks(&server, size, 202));
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
