//! The load generator for gRPC: calls of Envoy's rate limit service over HTTP/2, with several streams per connection.
//!
//! Only as much of HTTP/2 (RFC 9113) as the contestants need: heads are in the dynamic table after the first call of a
//! connection, and windows are so large that they never fill.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::request::KEYS;

/// How long replies may take before the run is abandoned.
const PATIENCE: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 256 << 10;
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const FRAME_HEAD: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;
const LARGE_WINDOW: u32 = 1 << 30;
/// The heads of later calls: indexes of the static table, and of the entries that the first head has added.
const LATER_HEAD: [u8; 6] = [0x83, 0x86, 0x80 | 65, 0x80 | 64, 0x80 | 63, 0x80 | 62];

pub struct GrpcLoad {
    streams: usize,
    poll: std::os::fd::OwnedFd,
    connections: Vec<Connection>,
    input: Vec<u8>,
    random: fastrand::Rng,
}

struct Connection {
    stream: TcpStream,
    next_stream: u32,
    pending: usize,
    /// Messages since the last count: a call that fails has none.
    messages: usize,
    partial: Vec<u8>,
    output: Vec<u8>,
}

impl GrpcLoad {
    pub fn new(port: u16, connections: usize, streams: usize) -> GrpcLoad {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let connect = |n| {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server accepts");
            stream.set_nodelay(true).expect("a socket option");
            stream.set_nonblocking(true).expect("a socket option");
            epoll::add(&poll, &stream, epoll::EventData::new_u64(n), epoll::EventFlags::IN).expect("epoll");
            let mut output = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
            let mut window = vec![0, 4];
            window.extend_from_slice(&LARGE_WINDOW.to_be_bytes());
            push_frame(&mut output, SETTINGS, 0, 0, &window);
            push_frame(&mut output, WINDOW_UPDATE, 0, 0, &LARGE_WINDOW.to_be_bytes());
            Connection { stream, next_stream: 1, pending: 0, messages: 0, partial: Vec::new(), output }
        };
        let connections = (0..connections as u64).map(connect).collect();
        GrpcLoad { streams, poll, connections, input: vec![0; READ_BYTES], random: fastrand::Rng::new() }
    }

    /// Sends calls with random keys for as long, and calls `started` once they are under way. Returns how many were
    /// answered after that.
    pub fn run(&mut self, warm_up: Duration, duration: Duration, started: impl FnOnce()) -> (u64, Duration) {
        for connection in &mut self.connections {
            connection.send(self.streams, &mut self.random);
        }
        self.exchange(Instant::now() + warm_up);
        started();
        let begun = Instant::now();
        let answered = self.exchange(begun + duration);
        (answered, begun.elapsed())
    }

    /// Answers each response with the next call, until the deadline.
    fn exchange(&mut self, deadline: Instant) -> u64 {
        let mut answered = 0;
        let mut events = Vec::with_capacity(256);
        while Instant::now() < deadline {
            events.clear();
            let timeout = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), Some(&timeout))
                .expect("epoll");
            assert!(!events.is_empty(), "no reply for {PATIENCE:?}");
            for event in &events {
                let connection = &mut self.connections[event.data.u64() as usize];
                let replies = connection.receive(&mut self.input);
                answered += replies as u64;
                connection.send(replies, &mut self.random);
            }
        }
        answered
    }
}

impl Connection {
    fn send(&mut self, calls: usize, random: &mut fastrand::Rng) {
        for _ in 0..calls {
            let first = (self.next_stream == 1).then(first_head);
            push_frame(
                &mut self.output,
                HEADERS,
                END_HEADERS,
                self.next_stream,
                first.as_deref().unwrap_or(&LATER_HEAD),
            );
            push_frame(&mut self.output, DATA, END_STREAM, self.next_stream, &message(random.u64(..KEYS)));
            self.next_stream += 2;
        }
        self.pending += calls;
        if !self.output.is_empty() {
            self.stream.write_all(&self.output).expect("the server reads");
            self.output.clear();
        }
    }

    /// Reads what has arrived; returns how many calls have ended.
    fn receive(&mut self, input: &mut [u8]) -> usize {
        let read = match self.stream.read(input) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return 0,
            Err(error) => panic!("{error}"),
        };
        self.partial.extend_from_slice(&input[..read]);
        let mut used = 0;
        let mut ended = 0;
        while let Some((head, rest)) = self.partial[used..].split_first_chunk::<FRAME_HEAD>() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let Some(payload) = rest.get(..length) else { break };
            match (head[3], head[4]) {
                (RST_STREAM | GOAWAY, _) => panic!("the server ended a stream: {}", payload.escape_ascii()),
                (SETTINGS, flags) if flags & ACK == 0 => push_frame(&mut self.output, SETTINGS, ACK, 0, &[]),
                (PING, flags) if flags & ACK == 0 => push_frame(&mut self.output, PING, ACK, 0, payload),
                (DATA, flags) => {
                    self.messages += 1;
                    ended += usize::from(flags & END_STREAM);
                }
                (HEADERS, flags) => ended += usize::from(flags & END_STREAM),
                _ => {}
            }
            used += FRAME_HEAD + length;
        }
        self.partial.drain(..used);
        self.pending = self.pending.checked_sub(ended).expect("no more responses than calls");
        self.messages = self.messages.checked_sub(ended).expect("a message in each response");
        ended
    }
}

fn push_frame(output: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    output.extend_from_slice(&length);
    output.extend_from_slice(&[kind, flags]);
    output.extend_from_slice(&stream.to_be_bytes());
    output.extend_from_slice(payload);
}

/// The head of a connection's first call (RFC 7541), whose fields enter the dynamic table.
fn first_head() -> Vec<u8> {
    let mut head = vec![0x83, 0x86];
    let mut push = |name: &[u8], value: &str| {
        head.extend_from_slice(name);
        head.push(value.len() as u8);
        head.extend_from_slice(value.as_bytes());
    };
    push(&[0x40 | 4], PATH);
    push(&[0x40 | 1], "localhost");
    push(&[0x40 | 31], "application/grpc");
    push(&[0x40, 2, b't', b'e'], "trailers");
    head
}

/// Domain `shop`, one descriptor `user=NUMBER`, with the prefix of gRPC.
fn message(key: u64) -> Vec<u8> {
    let mut message = b"\0\0\0\0\x19\x0a\x04shop\x12\x11\x0a\x0f\x0a\x04user\x12\x07".to_vec();
    message.extend_from_slice(format!("{key:07}").as_bytes());
    message
}
