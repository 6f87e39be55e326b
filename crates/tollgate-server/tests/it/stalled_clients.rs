//! Clients that begin and do not go on, on every listener: each is disconnected, and others are served meanwhile. The exact
//! bounds are tested where they are, on a clock that is paused.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use tollgate_testkit::{SOON, Server};

use crate::doors::{
    BARE_PREFACE, Doors, Kind, LISTENERS, PREFACE, PROXY_HEADER, Socket, read_until, small_request,
};
use crate::proxy::api::Api;

/// Longer than the longest bound, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(180);
const ROUND: Duration = Duration::from_millis(500);

/// A connection on which a byte is sent now and then, or nothing more.
struct Stalled {
    what: String,
    socket: Socket,
    trickle: Option<u8>,
}

impl Stalled {
    fn new(what: impl Into<String>, socket: Socket, trickle: Option<u8>) -> Stalled {
        Stalled { what: what.into(), socket, trickle }
    }

    fn is_closed(&mut self) -> bool {
        let is_sent = self.trickle.is_none_or(|byte| self.socket.write_all(&[byte]).is_ok());
        !is_sent || self.socket.is_closed_now()
    }
}

/// Returns when the server has disconnected all of them; others must be served all the time.
fn wait_until_closed(mut stalled: Vec<Stalled>, mut serves_others: impl FnMut()) {
    for each in &mut stalled {
        assert!(!each.socket.is_closed_now(), "{} is given some time", each.what);
    }
    let deadline = Instant::now() + PATIENCE;
    while !stalled.is_empty() {
        serves_others();
        thread::sleep(ROUND);
        stalled.retain_mut(|each| !each.is_closed());
        let open: Vec<_> = stalled.iter().map(|each| &each.what).collect();
        assert!(Instant::now() < deadline, "still open: {open:?}");
    }
}

/// Every listener answers a client over TCP.
fn serves_on_all(doors: &Doors) {
    for listener in ["http", "admin", "proxy"] {
        let mut socket = doors.connect_with(listener, small_request(listener));
        let head = read_until(&mut socket, b"\r\n\r\n");
        assert!(head.starts_with(b"HTTP/1.1 200"), "{listener}: {}", String::from_utf8_lossy(&head));
    }
    read_until(&mut doors.connect_with("resp", b"PING\r\n"), b"+PONG\r\n");
    // The acknowledgement of the settings.
    read_until(&mut doors.connect_with("grpc", PREFACE), b"\0\0\0\x04\x01\0\0\0\0");
}

#[test]
fn clients_that_send_no_request_are_disconnected_on_every_listener() {
    let api = Api::echo();
    let tcp = Doors::open(Kind::Tcp, &api, "");
    let unix = Doors::open(Kind::Unix, &api, "");
    let tls = Doors::open(Kind::Tls, &api, "");
    let mut stalled = Vec::new();
    for listener in LISTENERS {
        stalled.push(Stalled::new(format!("silent, {listener}"), tcp.connect(listener), None));
        stalled.push(Stalled::new(format!("silent, {listener}, Unix"), unix.connect(listener), None));
        let secure = tls.secure(listener);
        stalled.push(Stalled::new(format!("silent, {listener}, TLS"), secure.sock, None));
    }
    let head = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-a: ";
    for listener in ["http", "admin", "proxy"] {
        let socket = tcp.connect_with(listener, head);
        stalled.push(Stalled::new(format!("a head that trickles, {listener}"), socket, Some(b'a')));
    }
    for listener in ["grpc", "proxy"] {
        for end in [10, BARE_PREFACE, PREFACE.len()] {
            let socket = tcp.connect_with(listener, &PREFACE[..end]);
            stalled.push(Stalled::new(format!("{end} bytes of HTTP/2, {listener}"), socket, None));
        }
    }
    let socket = tcp.connect_with("resp", b"PING\r\n*2\r\n$4\r\nECHO\r\n$60000\r\n");
    stalled.push(Stalled::new("a command that trickles", socket, Some(b'a')));
    let forwarded = api.received().len();
    let mut served = 0;
    wait_until_closed(stalled, || {
        serves_on_all(&tcp);
        served += 1;
    });
    assert_eq!(api.received().len(), forwarded + served, "no stalled request was forwarded");
}

#[test]
fn stalled_handshakes_are_disconnected_on_every_listener() {
    let api = Api::echo();
    let tls = Doors::open(Kind::Tls, &api, "");
    let mut stalled = Vec::new();
    for listener in LISTENERS {
        let name = |what: &str| format!("{what}, {listener}");
        stalled.push(Stalled::new(name("nothing at all"), tls.connect(listener), None));
        let header = tls.connect_with(listener, b"PROXY TCP4 203.0.113.1 ");
        stalled.push(Stalled::new(name("a header that trickles"), header, Some(b'1')));
        let endless = tls.connect_with(listener, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x07\xff");
        stalled.push(Stalled::new(name("a header of version 2 that trickles"), endless, Some(0)));
        let silent = tls.connect_with(listener, PROXY_HEADER);
        stalled.push(Stalled::new(name("a header and nothing more"), silent, None));
        stalled.push(Stalled::new(name("the first message of TLS"), tls.hello_only(listener), None));
    }
    wait_until_closed(stalled, || {
        let mut stream = tls.secure("admin");
        stream.write_all(small_request("admin")).expect("the server takes it");
        assert!(read_until(&mut stream, b"\r\n\r\n").starts_with(b"HTTP/1.1 200"));
        let mut stream = tls.secure("resp");
        stream.write_all(b"PING\r\n").expect("the server takes it");
        read_until(&mut stream, b"+PONG\r\n");
    });
}

/// Bound of handshakes in progress for one listener (docs/security.md).
const MAX_HANDSHAKES: usize = 4_096;

#[test]
fn handshakes_in_progress_are_bounded_for_each_listener() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).expect("the limit can be raised");
    let api = Api::echo();
    let tls = Doors::open(Kind::Tls, &api, "");
    let is_refused = |server: &Server| server.log().contains("TLS handshakes are in progress");
    let start = Instant::now();
    let mut silent = Vec::new();
    while !is_refused(&tls.server) {
        assert!(start.elapsed() < SOON && silent.len() < 4 * MAX_HANDSHAKES, "{} are open", silent.len());
        // Each from another client: those of one address have a bound of their own.
        let header = |n: usize| format!("PROXY TCP4 10.0.{}.{} 127.0.0.1 1 2\r\n", n / 250, n % 250);
        let more: Vec<_> = (silent.len()..silent.len() + 64)
            .map(|n| tls.connect_with("http", header(n).as_bytes()))
            .collect();
        silent.extend(more);
    }
    assert!(silent.len() >= MAX_HANDSHAKES, "refused after {}", silent.len());
    let mut stream = tls.secure("admin");
    stream.write_all(small_request("admin")).expect("the server takes it");
    assert!(read_until(&mut stream, b"\r\n\r\n").starts_with(b"HTTP/1.1 200"), "other listeners are served");
    drop(silent);
    let mut stream = tls.secure("http");
    stream.write_all(small_request("http")).expect("the server takes it");
    assert!(read_until(&mut stream, b"\r\n\r\n").starts_with(b"HTTP/1.1 200"), "there is room again");
}
