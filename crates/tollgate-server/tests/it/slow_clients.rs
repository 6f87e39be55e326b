//! Clients that are slow, silent or gone do not stand in the way of others, nor of a stop.
//! When each of them is cut off is tested where the bounds are, in `connection`.

use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;

use serde_json::json;
use tollgate_testkit::{Client, Folder, Server, eventually, is_closed, not_run, pour};

const HALF_A_HEAD: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\nx-a: ";
const HALF_A_BODY: &[u8] =
    b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{\"user\":";
const WHOLE: &[u8] = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}";

fn start() -> Server {
    Server::start("rules: [{ id: all, key: user, limit: 100/h }]")
}

/// Connections to both addresses, each after it has sent `bytes`.
fn open_connections(server: &Server, count: usize, bytes: &[u8]) -> Vec<TcpStream> {
    let addresses = [server.http, server.admin].into_iter().cycle();
    let connect = |address| {
        let mut stream = TcpStream::connect(address).expect("the server accepts");
        pour(&mut stream, bytes);
        stream
    };
    addresses.take(count).map(connect).collect()
}

#[test]
fn many_silent_connections_do_not_block_other_clients() {
    let server = start();
    let _silent = open_connections(&server, 1000, b"");
    let _half = open_connections(&server, 300, HALF_A_HEAD);
    let _unfinished = open_connections(&server, 300, HALF_A_BODY);
    for n in 1..=20 {
        let answer = server.check(&json!({ "user": "ann" }));
        assert_eq!((answer.status, &answer.json()["remaining"]), (200, &json!(100 - n)));
        assert_eq!(server.admin("GET", "/readyz", "").status, 200);
    }
}

#[test]
fn clients_that_never_read_do_not_block_others() {
    let server = start();
    let _unread = open_connections(&server, 100, &WHOLE.repeat(2000));
    assert_eq!(server.check(&json!({ "user": "ann" })).status, 200);
    assert_eq!(server.admin("GET", "/healthz", "").status, 200);
}

#[test]
fn a_request_is_charged_only_when_it_is_complete() {
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
fn pipelined_requests_are_answered_in_order() {
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
    let mut silent = open_connections(&server, 200, b"");
    let mut kept: Vec<_> = (0..50).map(|_| Client::to(server.http)).collect();
    for client in &mut kept {
        assert_eq!(client.request("POST", "/v1/check", &[], b"{}").status, 200);
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
    let _half = open_connections(&server, 10, HALF_A_HEAD);
    let _unfinished = open_connections(&server, 10, HALF_A_BODY);
    let start = std::time::Instant::now();
    let (ended, log) = server.stop();
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(start.elapsed().as_secs() < 10, "the documented bound of a stop: {:?}", start.elapsed());
    assert!(log.contains("state saved"), "{log}");
}

/// An address of this machine that is not loopback; packets to it do not leave the machine.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?; // nothing is sent: it only chooses a route
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

fn open_to_all(folder: &Arc<Folder>, rest: &str) -> Server {
    let listen = "listen: { http: 0.0.0.0:0, admin: 127.0.0.1:0, per_address: 3 }\n";
    Server::start_at(folder, &folder.write("open.yaml", format!("{listen}{rest}")))
}

#[test]
fn one_address_has_a_bounded_share_of_the_connections() {
    let Some(own) = own_address() else {
        return not_run("the bound of connections per address", "this machine has no address but loopback");
    };
    let folder = Folder::new();
    let server = open_to_all(&folder, "");
    let [outside, inside] = [own, [127, 0, 0, 1].into()].map(|ip| SocketAddr::new(ip, server.http.port()));
    let send = |client: &mut Client| {
        client.write(WHOLE);
        client.try_answer().map(|answer| answer.status)
    };
    let mut served: Vec<_> = (0..3).map(|_| Client::to(outside)).collect();
    assert!(served.iter_mut().all(|client| send(client) == Some(200)));
    let refused =
        (0..5).map(|_| is_closed(&mut TcpStream::connect(outside).expect("accepted by the kernel")));
    assert!(refused.collect::<Vec<_>>().into_iter().all(|closed| closed));
    server.wait_for_log("its address has too many");
    let mut local: Vec<_> = (0..10).map(|_| Client::to(inside)).collect();
    assert!(local.iter_mut().all(|client| send(client) == Some(200)), "loopback has no bound");
    assert!(served.iter_mut().all(|client| send(client) == Some(200)), "the first ones stay");
    served.pop();
    eventually("a place is free again", || send(&mut Client::to(outside)) == Some(200));
    assert_eq!(server.stop().0.code(), Some(0));

    let server = open_to_all(&folder, &format!("trusted_proxies: ['{own}']\n"));
    let outside = SocketAddr::new(own, server.http.port());
    let mut balancer: Vec<_> = (0..10).map(|_| Client::to(outside)).collect();
    assert!(balancer.iter_mut().all(|client| send(client) == Some(200)), "a trusted proxy has no bound");
}

fn resident_bytes(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.id())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
}

#[test]
fn an_idle_connection_does_not_keep_the_memory_of_its_last_request() {
    const CONNECTIONS: usize = 1_000;
    let body = format!("{{{}}}", " ".repeat(200_000));
    let long_body =
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let long_head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n{}\r\n{{}}",
        format!("x-long: {}\r\n", "a".repeat(1_000)).repeat(55)
    );
    for (what, request) in [("a long body", long_body), ("a long head", long_head)] {
        let server = start();
        let before = resident_bytes(&server);
        let mut clients = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let mut client = Client::to(server.http);
            client.write(request.as_bytes());
            assert_eq!(client.answer().status, 200, "{what}");
            clients.push(client);
        }
        let each = resident_bytes(&server).saturating_sub(before) / CONNECTIONS;
        assert!(each < 64 << 10, "{what}: {each} bytes for each connection");
    }
}
