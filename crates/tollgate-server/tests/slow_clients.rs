//! Clients that are slow, silent or gone do not stand in the way of others, nor of a stop.
//! When each of them is cut off is tested where the bounds are, in `connection`.

mod harness;

use std::net::TcpStream;

use harness::{Client, Server, is_closed, pour};
use serde_json::json;

const HALF_A_HEAD: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\nx-a: ";
const HALF_A_BODY: &[u8] =
    b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"user\":";
const WHOLE: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";

fn start() -> Server {
    Server::start("rules: [{ id: all, key: user, limit: 100/h }]")
}

/// Connections to both addresses, each after it has sent `bytes`.
fn crowd(server: &Server, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let addresses = [server.http, server.admin].into_iter().cycle();
    let connect = |address| {
        let mut stream = TcpStream::connect(address).expect("the server accepts");
        pour(&mut stream, bytes);
        stream
    };
    addresses.take(count).map(connect).collect()
}

#[test]
fn a_crowd_of_silent_connections_stops_nobody() {
    let server = start();
    let _silent = crowd(&server, 1000, b"");
    let _half = crowd(&server, 300, HALF_A_HEAD);
    let _unfinished = crowd(&server, 300, HALF_A_BODY);
    for n in 1..=20 {
        let answer = server.check(&json!({ "user": "ann" }));
        assert_eq!((answer.status, &answer.json()["remaining"]), (200, &json!(100 - n)));
        assert_eq!(server.admin("GET", "/readyz", "").status, 200);
    }
}

#[test]
fn clients_that_never_read_stop_nobody() {
    let server = start();
    let _unread = crowd(&server, 100, &WHOLE.repeat(2000));
    assert_eq!(server.check(&json!({ "user": "ann" })).status, 200);
    assert_eq!(server.admin("GET", "/healthz", "").status, 200);
}

#[test]
fn a_request_under_way_is_charged_only_when_it_is_whole() {
    let server = start();
    let mut client = Client::to(server.http);
    client.write(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 14\r\n\r\n{\"user\":");
    assert_eq!(server.used("all", "user:ann"), [0]);
    drop(client);
    let mut client = Client::to(server.http);
    for byte in b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 14\r\n\r\n{\"user\":\"ann\"}"
    {
        client.write(&[*byte]);
    }
    assert_eq!(client.answer().status, 200);
    assert_eq!(server.used("all", "user:ann"), [1]);
}

#[test]
fn requests_in_one_go_are_answered_in_order() {
    let server = start();
    let mut client = Client::to(server.http);
    let mut all = Vec::new();
    for n in 0..20 {
        let body = json!({ "user": "ann", "cost": n }).to_string();
        let head =
            format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        all.extend([head, body].concat().bytes());
    }
    client.write(&all);
    let mut left = 100;
    for n in 0..20 {
        left -= if left >= n { n } else { 0 };
        assert_eq!(client.answer().json()["remaining"], left);
    }
}

#[test]
fn idle_connections_are_closed_by_a_stop_and_do_not_delay_it() {
    let server = start();
    let mut silent = crowd(&server, 200, b"");
    let mut kept: Vec<_> = (0..50).map(|_| Client::to(server.http)).collect();
    for client in &mut kept {
        assert_eq!(client.ask("POST", "/v1/check", &[], b"{}").status, 200);
    }
    let (ended, log) = server.stop();
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(log.contains("state saved") && !log.contains("did not finish in time"), "{log}");
    assert!(silent.iter_mut().all(is_closed));
    assert!(kept.iter_mut().all(|client| client.try_answer().is_none()));
}

#[test]
fn half_a_request_delays_a_stop_no_longer_than_the_time_to_drain() {
    let server = start();
    let _half = crowd(&server, 10, HALF_A_HEAD);
    let _unfinished = crowd(&server, 10, HALF_A_BODY);
    let start = std::time::Instant::now();
    let (ended, log) = server.stop();
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(start.elapsed().as_secs() < 10, "the documented bound of a stop: {:?}", start.elapsed());
    assert!(log.contains("state saved"), "{log}");
}
