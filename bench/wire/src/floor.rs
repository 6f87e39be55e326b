//! The floor: an epoll loop that parses requests and answers each with a constant. It is what the machine allows, not a
//! limiter.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::event::epoll;

#[derive(Clone, Copy)]
pub enum Protocol {
    Resp,
    Http,
}

const RESP_ANSWER: &[u8] = b"*5\r\n:0\r\n:1001\r\n:1000\r\n:-1\r\n:4\r\n";
const HTTP_ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 61\r\n\r\n\
    {\"allowed\":true,\"reason\":\"ok\",\"remaining\":1000,\"delay_ms\":10}";
const MAX_EVENTS: usize = 256;
const LISTENER: u64 = u64::MAX;

struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    len: usize,
}

/// Serves until the process ends.
pub fn serve(port: u16, protocol: Protocol) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
    listener.set_nonblocking(true).expect("a socket option");
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll");
    let add = |fd: &dyn std::os::fd::AsFd, data| {
        epoll::add(&poll, fd.as_fd(), epoll::EventData::new_u64(data), epoll::EventFlags::IN).expect("epoll");
    };
    add(&listener, LISTENER);
    let mut connections: Vec<Option<Connection>> = Vec::new();
    let mut events = Vec::with_capacity(MAX_EVENTS);
    let mut answers = Vec::with_capacity(64 << 10);
    loop {
        events.clear();
        epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), None).ok();
        for event in &events {
            let data = event.data.u64();
            if data == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true).expect("a socket option");
                    stream.set_nodelay(true).expect("a socket option");
                    add(&stream, connections.len() as u64);
                    connections.push(Some(Connection { stream, input: vec![0; 64 << 10], len: 0 }));
                }
                continue;
            }
            let slot = &mut connections[data as usize];
            if slot.as_mut().is_some_and(|connection| !answer(connection, protocol, &mut answers)) {
                *slot = None;
            }
        }
    }
}

/// Answers what has arrived; false at the end of the connection.
fn answer(connection: &mut Connection, protocol: Protocol, answers: &mut Vec<u8>) -> bool {
    let Connection { stream, input, len } = connection;
    match stream.read(&mut input[*len..]) {
        Ok(0) => return false,
        Ok(read) => *len += read,
        Err(error) => return error.kind() == ErrorKind::WouldBlock,
    }
    answers.clear();
    let mut used = 0;
    loop {
        let rest = &input[used..*len];
        let (length, constant) = match protocol {
            Protocol::Resp => (resp_length(rest), RESP_ANSWER),
            Protocol::Http => (http_length(rest), HTTP_ANSWER),
        };
        let Some(length) = length else { break };
        used += length;
        answers.extend_from_slice(constant);
    }
    input.copy_within(used..*len, 0);
    *len -= used;
    stream.write_all(answers).is_ok()
}

/// The length of a complete array of bulk strings.
fn resp_length(bytes: &[u8]) -> Option<usize> {
    let (count, mut position) = number(bytes, 0, b'*')?;
    for _ in 0..count {
        let (length, start) = number(bytes, position, b'$')?;
        position = start + length + 2;
        if position > bytes.len() {
            return None;
        }
    }
    Some(position)
}

/// The number of a line, and where the next one begins.
fn number(bytes: &[u8], position: usize, marker: u8) -> Option<(usize, usize)> {
    let line = bytes.get(position..)?;
    if line.first().is_some_and(|first| *first != marker) {
        panic!("not a request: {}", line.escape_ascii());
    }
    let end = line.iter().position(|byte| *byte == b'\n')?;
    let digits = &line[1..end - 1];
    let number = digits.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
    Some((number, position + end + 1))
}

/// The length of a complete request with a body.
fn http_length(bytes: &[u8]) -> Option<usize> {
    let mut position = 0;
    let mut body = 0;
    loop {
        let line = &bytes[position..];
        let end = memchr::memchr(b'\n', line)?;
        position += end + 1;
        let line = line[..end].strip_suffix(b"\r").unwrap_or_default();
        if line.is_empty() {
            return Some(position + body).filter(|length| *length <= bytes.len());
        }
        let Some(colon) = memchr::memchr(b':', line) else { continue };
        if line[..colon].eq_ignore_ascii_case(b"content-length") {
            let digits = line[colon + 1..].trim_ascii();
            body = digits.iter().fold(0, |number, digit| number * 10 + usize::from(digit - b'0'));
        }
    }
}
