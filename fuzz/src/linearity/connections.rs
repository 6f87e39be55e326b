//! Whole connections to the proxy, in memory; upstreams are on another thread, which is not counted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::thread;

use tollgate_server::testing::connection::proxy_header;
use tollgate_server::testing::proxy::{AfterSending, Connections};

use super::{Case, Work, bounded, case, work};

pub(super) const CASES: &[Case] = &[
    case("connection: bodies that look like heads", 120 << 10, |size| {
        let (bytes, count) = looks_like_heads(size);
        converse(&PASSING, bytes, 200, count)
    }),
    case("connection: a denied JSON body in one-byte chunks", 8_000, |size| {
        converse(&DENYING, one_byte_chunks(size), 429, 1)
    }),
    case("connection: a form in one-byte chunks", 8_000, |size| {
        converse(&PASSING, one_byte_chunks(size), 200, 1)
    }),
    case("connection: a queued body in one-byte chunks", 8_000, |size| {
        converse(&QUEUEING, one_byte_chunks(size), 202, 1)
    }),
    case("connection: pipelined requests that are denied", 20_000, |size| {
        const REQUEST: &str = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let count = size / REQUEST.len();
        let bytes = REQUEST.repeat(count) + "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        converse(&DENYING, bytes, 429, count + 1)
    }),
    case("connection: a head of many headers", 20_000, |size| {
        // Hyper takes at most 100 lines.
        let line = |n: usize| format!("x_{n}: {}\r\n", "y".repeat(size / 80));
        let head: String = (0..80).map(line).collect();
        converse(&DENYING, format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{head}\r\n"), 429, 1)
    }),
    case("connection: a response in one-byte chunks", 8_000, |size| get(&format!("/chunks/{size}"))),
    case("connection: a response after informational ones", 20_000, |size| get(&format!("/hints/{size}"))),
    case("connection: a response of many headers", 20_000, |size| get(&format!("/headers/{size}"))),
    bounded("connection: a PROXY line that does not end", "a line has 107 bytes", 4 << 10, |size| {
        work(format!("PROXY TCP4 {}", "1".repeat(size)), |line| proxy_header(line.as_bytes()))
    }),
    case("connection: extensions of a PROXY header", 500, |size| {
        let length = u16::try_from(12 + size).expect("a short header").to_be_bytes();
        let start = [b"\r\n\r\n\0\r\nQUIT\n\x21\x11", &length[..]].concat();
        work([start, vec![4; 12 + size]].concat(), |header| proxy_header(header))
    }),
];

pub(super) static PASSING: LazyLock<Connections> =
    LazyLock::new(|| proxy("{ id: all, key: 'form:email', missing_key: shared, limit: 1000000/s }"));
pub(super) static DENYING: LazyLock<Connections> =
    LazyLock::new(|| proxy("{ id: none, key: 'json:email', missing_key: shared, limit: 0/h }"));
static QUEUEING: LazyLock<Connections> = LazyLock::new(|| {
    let proxy = proxy("{ id: jobs, limit: 1/y, on_exceed: queue }");
    proxy.converse(b"GET /jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n", AfterSending::Waits);
    proxy
});

fn proxy(rule: &str) -> Connections {
    let folder = std::env::temp_dir().join(format!("tollgate-linearity-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the queue");
    Connections::new(&format!("upstreams: ['http://{}']\nrules: [{rule}]\n", upstream()), &folder)
}

/// A plain request, and one that ends the connection.
fn get(path: &str) -> Work {
    let last = "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    converse(&PASSING, format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n{last}"), 200, 2)
}

/// An API that answers every request with 200.
fn upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || serve(stream));
        }
    });
    address
}

/// Answers when a body has ended. A request is only sent when the one before it was answered.
fn serve(mut stream: TcpStream) {
    let mut seen = Vec::new();
    let mut piece = [0; 64 << 10];
    while let Ok(count @ 1..) = stream.read(&mut piece) {
        seen.extend_from_slice(&piece[..count]);
        if !is_whole(&seen) {
            continue;
        }
        if stream.write_all(response(&seen).as_bytes()).is_err() {
            return;
        }
        seen.clear();
    }
}

/// The response to a request for `/kind/size`.
fn response(request: &[u8]) -> String {
    const EMPTY: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n";
    let line = String::from_utf8_lossy(request);
    let mut path = line.split(' ').nth(1).unwrap_or_default().split('/').skip(1);
    let kind = path.next().unwrap_or_default();
    let size: usize = path.next().and_then(|size| size.parse().ok()).unwrap_or(0);
    match kind {
        "chunks" => {
            let chunks = "1\r\nx\r\n".repeat(size);
            format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunks}0\r\n\r\n")
        }
        "hints" => super::fill("HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", size) + EMPTY + "\r\n",
        "headers" => {
            let line = |n: usize| format!("x-{n}: {}\r\n", "y".repeat(size / 80));
            let lines: String = (0..80).map(line).collect();
            format!("{EMPTY}{lines}\r\n")
        }
        _ => format!("{EMPTY}\r\n"),
    }
}

/// Whether a request has ended.
fn is_whole(request: &[u8]) -> bool {
    let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&request[..end]).to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let length = length.unwrap_or(0usize);
    let is_chunked = head.contains("transfer-encoding: chunked");
    if is_chunked { request.ends_with(b"\r\n0\r\n\r\n") } else { request.len() >= end + 4 + length }
}

/// Sends bytes on a connection, which must be answered so many times with this status.
fn converse(proxy: &'static LazyLock<Connections>, bytes: String, status: u16, count: usize) -> Work {
    let proxy: &Connections = proxy;
    Box::new(move || {
        let answer = proxy.converse(bytes.as_bytes(), AfterSending::Waits);
        let expected = format!("HTTP/1.1 {status} ");
        let answers = answer.windows(expected.len()).filter(|text| *text == expected.as_bytes()).count();
        let start = String::from_utf8_lossy(&answer[..answer.len().min(300)]);
        assert_eq!(answers, count, "not all are answered with {status}: {start}");
    })
}

fn chunked(connection: &str, chunks: &str) -> String {
    let head = "POST /jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked";
    format!("{head}\r\nconnection: {connection}\r\n\r\n{chunks}0\r\n\r\n")
}

/// A body full of what could begin a request, and chunked requests behind it; how many there are.
fn looks_like_heads(size: usize) -> (String, usize) {
    let text = "POST / ".repeat(size / 7);
    let count = size / 4_000;
    let filled = chunked("keep-alive", &format!("{:x}\r\n{text}\r\n", text.len()));
    let short = chunked("keep-alive", "1\r\nx\r\n").repeat(count);
    (filled + &short + &chunked("close", ""), count + 2)
}

/// A POST of which every byte is a chunk.
fn one_byte_chunks(size: usize) -> String {
    let body = format!(r#"{{"email":"ann","text":"{}"}}"#, "x".repeat(size));
    let chunks: String = body.chars().map(|byte| format!("1\r\n{byte}\r\n")).collect();
    chunked("close", &chunks)
}
