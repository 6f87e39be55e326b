//! A stop with connections open: requests under way are answered, and nothing else is waited for.

use std::io::{Read, Write};
use std::sync::{Arc, Condvar, Mutex};

use tollgate_testkit::{SOON, eventually};

use crate::doors::{BARE_PREFACE, Doors, Kind, LISTENERS, PREFACE, PROXY_HEADER, read_until, small_request};
use crate::proxy::api::Api;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

/// A client of HTTP/2 that answers what a client must, and keeps what it has read.
struct Http2<S> {
    stream: S,
    frames: Vec<(u8, u32, Vec<u8>)>,
}

impl<S: Read + Write> Http2<S> {
    fn start(mut stream: S) -> Http2<S> {
        stream.write_all(PREFACE).expect("the server takes it");
        let mut client = Http2 { stream, frames: Vec::new() };
        client.read_until(|kind, flags| kind == SETTINGS && flags & ACK != 0);
        client
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
        let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.stream.write_all(&[&head, payload].concat()).expect("the server takes it");
    }

    /// Reads a frame; `None` at the end of the connection.
    fn read(&mut self) -> Option<(u8, u8)> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.stream.read_exact(&mut payload).ok()?;
        if (kind == SETTINGS || kind == PING) && flags & ACK == 0 {
            let reply = if kind == PING { payload.clone() } else { Vec::new() };
            self.send(kind, ACK, 0, &reply);
        }
        self.frames.push((kind, u32::from_be_bytes(stream), payload));
        Some((kind, flags))
    }

    fn read_until(&mut self, is_it: impl Fn(u8, u8) -> bool) {
        loop {
            let (kind, flags) = self.read().expect("the connection goes on");
            if is_it(kind, flags) {
                return;
            }
        }
    }

    /// The error code of the last GOAWAY, at the end of the connection.
    fn end(&mut self) -> Option<u32> {
        while self.read().is_some() {}
        let (.., payload) = self.frames.iter().rfind(|(kind, ..)| *kind == GOAWAY)?;
        payload.get(4..8).map(|code| u32::from_be_bytes(code.try_into().expect("four bytes")))
    }

    fn has(&self, kind: u8, stream: u32) -> bool {
        self.frames.iter().any(|(known, of, _)| (*known, *of) == (kind, stream))
    }
}

/// A header field that is not indexed, with a literal name (RFC 7541, 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).expect("a short text"));
        bytes.extend(text.bytes());
    }
    bytes
}

fn request(method: &str, path: &str, content_type: &str) -> Vec<u8> {
    let fields = [
        (":method", method),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
        ("content-type", content_type),
    ];
    fields.into_iter().flat_map(|(name, value)| field(name, value)).collect()
}

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Without a connection that had to be cut off, the log does not have this.
const CUT_OFF: &str = "did not finish in time";

#[test]
fn idle_connections_and_stalled_handshakes_do_not_delay_a_stop() {
    let api = Api::echo();
    for kind in [Kind::Tcp, Kind::Unix] {
        let doors = Doors::open(kind, &api, "");
        let mut idle: Vec<_> = LISTENERS.map(|listener| doors.connect(listener)).into();
        for listener in ["http", "admin", "proxy"] {
            let mut kept = doors.connect_with(listener, small_request(listener));
            read_until(&mut kept, b"\r\n\r\n");
            idle.push(kept);
        }
        let mut kept = doors.connect_with("resp", b"PING\r\n");
        read_until(&mut kept, b"+PONG\r\n");
        idle.push(kept);
        for listener in ["grpc", "proxy"] {
            idle.extend(
                [10, BARE_PREFACE, PREFACE.len()].map(|end| doors.connect_with(listener, &PREFACE[..end])),
            );
        }
        let (ended, log) = doors.server.stop();
        assert_eq!(ended.code(), Some(0), "{kind:?}: {log}");
        assert!(log.contains("state saved") && !log.contains(CUT_OFF), "{kind:?}: {log}");
        idle.iter_mut().for_each(|socket| drop(socket.rest()));
    }
    let doors = Doors::open(Kind::Tls, &api, "");
    let mut idle = Vec::new();
    let mut secure = Vec::new();
    for listener in LISTENERS {
        idle.push(doors.connect(listener));
        idle.push(doors.connect_with(listener, b"PROXY TCP4 203"));
        idle.push(doors.connect_with(listener, PROXY_HEADER));
        idle.push(doors.hello_only(listener));
        secure.push(doors.secure(listener));
    }
    let (ended, log) = doors.server.stop();
    assert_eq!(ended.code(), Some(0), "{log}");
    assert!(log.contains("state saved") && !log.contains(CUT_OFF), "{log}");
    idle.iter_mut().for_each(|socket| drop(socket.rest()));
    secure.iter_mut().for_each(|stream| drop(stream.sock.rest()));
}

/// Answers each request once [`Gate::open`] was called.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock().expect("no panic") = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let is_open = self.is_open.lock().expect("no panic");
        drop(self.opened.wait_timeout_while(is_open, SOON, |is_open| !*is_open).expect("no panic"));
    }
}

#[test]
fn requests_under_way_are_answered_on_every_listener() {
    for kind in [Kind::Tcp, Kind::Unix] {
        let gate = Arc::new(Gate::default());
        let behind = Arc::clone(&gate);
        let api = Api::start(move |_, stream| {
            behind.wait();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").is_ok()
        });
        let doors = Doors::open(kind, &api, "");
        let mut http = doors.connect_with(
            "http",
            b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{",
        );
        let mut admin = doors.connect_with(
            "admin",
            b"POST /v1/explain HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{",
        );
        let mut resp = doors.connect_with("resp", b"*1\r\n$4\r\nPI");
        let mut proxy = doors.connect_with("proxy", small_request("proxy"));
        let mut proxy2 = Http2::start(doors.connect("proxy"));
        proxy2.send(HEADERS, END_STREAM | END_HEADERS, 1, &request("GET", "/", "text/plain"));
        let mut grpc = Http2::start(doors.connect("grpc"));
        let check = request("POST", "/grpc.health.v1.Health/Check", "application/grpc");
        grpc.send(HEADERS, END_HEADERS, 1, &check);
        grpc.send(PING, 0, 0, b"received");
        grpc.read_until(|kind, flags| kind == PING && flags & ACK != 0);
        eventually("both requests have reached the API", || api.received().len() == 2);
        doors.server.signal("TERM");
        doors.server.wait_for_log("stopping");
        grpc.read_until(|kind, _| kind == GOAWAY);
        proxy2.read_until(|kind, _| kind == GOAWAY);

        http.write_all(b"}").expect("the server reads");
        let answer = String::from_utf8(http.rest()).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200"), "{kind:?}: {answer}");
        admin.write_all(b"}").expect("the server reads");
        let answer = String::from_utf8(admin.rest()).expect("text");
        assert!(answer.starts_with("HTTP/1.1 "), "{kind:?}: {answer}");
        resp.write_all(b"NG\r\n").expect("the server reads");
        assert_eq!(resp.rest(), b"+PONG\r\n", "{kind:?}");
        gate.open();
        let answer = String::from_utf8(proxy.rest()).expect("text");
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{kind:?}: {answer}");
        assert_eq!(proxy2.end(), Some(0), "{kind:?}: the last GOAWAY names no error");
        assert!(proxy2.has(DATA, 1), "{kind:?}: {:?}", proxy2.frames);
        grpc.send(DATA, END_STREAM, 1, &[0; 5]);
        assert_eq!(grpc.end(), Some(0), "{kind:?}");
        let answered = grpc.frames.iter().find(|(kind, stream, _)| (*kind, *stream) == (DATA, 1));
        assert_eq!(answered.map(|(.., data)| data.len()), Some(7), "{kind:?}: {:?}", grpc.frames);
        let (ended, log) = doors.server.ended();
        assert_eq!(ended.code(), Some(0), "{kind:?}: {log}");
        assert!(log.contains("state saved") && !log.contains(CUT_OFF), "{kind:?}: {log}");
    }
}
