//! The load generator: an epoll loop over all connections, each with one pipeline of requests under way.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::epoll;

use crate::request::{KEYS, ReplyFormat, Request};

/// How long replies may take before the run is abandoned.
const PATIENCE: Duration = Duration::from_secs(20);
const READ_BYTES: usize = 256 << 10;

pub struct Load {
    request: Request,
    pipeline: usize,
    poll: std::os::fd::OwnedFd,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    input: Vec<u8>,
    random: fastrand::Rng,
}

struct Connection {
    stream: TcpStream,
    /// Replies that are still to come.
    pending: usize,
    /// Lines of a reply that is not complete.
    lines: usize,
    /// The bytes of a response that is not complete.
    partial: Vec<u8>,
}

/// Which keys requests have.
#[derive(Clone, Copy)]
enum Keys {
    Random,
    InOrder { next: u64 },
}

impl Load {
    pub fn new(port: u16, connections: usize, pipeline: usize, request: &Request) -> Load {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
        let connect = |n| {
            let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server accepts");
            stream.set_nodelay(true).expect("a socket option");
            stream.set_nonblocking(true).expect("a socket option");
            epoll::add(&poll, &stream, epoll::EventData::new_u64(n), epoll::EventFlags::IN).expect("epoll");
            Connection { stream, pending: 0, lines: 0, partial: Vec::new() }
        };
        let connections = (0..connections as u64).map(connect).collect();
        let buffer = request.repeated(pipeline);
        let input = vec![0; READ_BYTES];
        Load {
            request: request.clone(),
            pipeline,
            poll,
            connections,
            buffer,
            input,
            random: fastrand::Rng::new(),
        }
    }

    /// Sends requests with random keys for as long, and calls `started` once they are under way. Returns how many were
    /// answered after that.
    pub fn run(&mut self, warm_up: Duration, duration: Duration, started: impl FnOnce()) -> (u64, Duration) {
        let mut keys = Keys::Random;
        self.send_all(&mut keys);
        self.exchange(Instant::now() + warm_up, &mut keys);
        started();
        let begun = Instant::now();
        let answered = self.exchange(begun + duration, &mut keys);
        let elapsed = begun.elapsed();
        self.finish();
        (answered, elapsed)
    }

    /// Sends one request for each key, or as many as fit into the time.
    pub fn fill(&mut self, at_most: Duration) {
        let mut keys = Keys::InOrder { next: 0 };
        self.send_all(&mut keys);
        let end = Instant::now() + at_most;
        while Instant::now() < end && matches!(keys, Keys::InOrder { next } if next < KEYS) {
            self.exchange(end.min(Instant::now() + Duration::from_millis(50)), &mut keys);
        }
        self.finish();
    }

    fn send_all(&mut self, keys: &mut Keys) {
        (0..self.connections.len()).for_each(|n| self.send(n, keys));
    }

    fn send(&mut self, n: usize, keys: &mut Keys) {
        let random = &mut self.random;
        self.request.set_keys(&mut self.buffer, || match keys {
            Keys::Random => random.u64(..KEYS),
            Keys::InOrder { next } => {
                *next += 1;
                (*next - 1) % KEYS
            }
        });
        let connection = &mut self.connections[n];
        connection.stream.write_all(&self.buffer).expect("the server reads");
        connection.pending += self.pipeline;
    }

    /// Answers each complete pipeline with the next one, until the deadline.
    fn exchange(&mut self, deadline: Instant, keys: &mut Keys) -> u64 {
        let mut answered = 0;
        let mut events = Vec::with_capacity(256);
        while Instant::now() < deadline {
            self.wait(&mut events);
            for event in &events {
                let n = event.data.u64() as usize;
                answered += self.receive(n);
                if self.connections[n].pending == 0 {
                    self.send(n, keys);
                }
            }
        }
        answered
    }

    /// Waits for the replies that are still to come.
    fn finish(&mut self) {
        let mut events = Vec::with_capacity(256);
        while self.connections.iter().any(|connection| connection.pending > 0) {
            self.wait(&mut events);
            for event in &events {
                self.receive(event.data.u64() as usize);
            }
        }
    }

    fn wait(&self, events: &mut Vec<epoll::Event>) {
        events.clear();
        let timeout = rustix::event::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        epoll::wait(&self.poll, rustix::buffer::spare_capacity(events), Some(&timeout)).expect("epoll");
        assert!(!events.is_empty(), "no reply for {PATIENCE:?}");
    }

    /// Reads what has arrived; returns how many replies are complete.
    fn receive(&mut self, n: usize) -> u64 {
        let connection = &mut self.connections[n];
        let read = match connection.stream.read(&mut self.input) {
            Ok(0) => panic!("the server closed a connection"),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return 0,
            Err(error) => panic!("{error}"),
        };
        let bytes = &self.input[..read];
        let replies = match self.request.replies {
            ReplyFormat::Lines(lines) => connection.count_lines(bytes, lines),
            ReplyFormat::Http => connection.count_responses(bytes),
        };
        connection.pending = connection.pending.checked_sub(replies).expect("no more replies than requests");
        replies as u64
    }
}

impl Connection {
    fn count_lines(&mut self, bytes: &[u8], lines: usize) -> usize {
        assert!(!bytes.starts_with(b"-"), "an error: {}", bytes.escape_ascii());
        self.lines += memchr::memchr_iter(b'\n', bytes).count();
        let replies = self.lines / lines;
        self.lines %= lines;
        replies
    }

    fn count_responses(&mut self, bytes: &[u8]) -> usize {
        self.partial.extend_from_slice(bytes);
        let mut replies = 0;
        while let Some(length) = response_length(&self.partial) {
            self.partial.drain(..length);
            replies += 1;
        }
        replies
    }
}

/// The length of a complete response.
fn response_length(bytes: &[u8]) -> Option<usize> {
    let head = memchr::memmem::find(bytes, b"\r\n\r\n")? + 4;
    assert!(bytes.starts_with(b"HTTP/1.1 200"), "{}", bytes.escape_ascii());
    let mut body = 0;
    for line in bytes[..head].split(|byte| *byte == b'\n') {
        if line.len() > 15 && line[..15].eq_ignore_ascii_case(b"content-length:") {
            let digits = line[15..].trim_ascii();
            body = digits.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
        }
    }
    Some(head + body).filter(|length| *length <= bytes.len())
}
