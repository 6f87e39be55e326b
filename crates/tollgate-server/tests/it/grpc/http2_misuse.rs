//! Frames that HTTP/2 does not allow, and floods of frames that it does: the error has the code of RFC 9113 (section 7), the
//! connection ends, and others are served.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use tollgate_testkit::{SOON, Server};

use super::client::{GrpcClient, OK};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const FRAME_SIZE_ERROR: u32 = 6;
const COMPRESSION_ERROR: u32 = 9;
const ENHANCE_YOUR_CALM: u32 = 11;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block of a call of the health service, without dynamic entries (RFC 7541).
fn health_call() -> Vec<u8> {
    let mut block = vec![0x83, 0x86]; // POST, http
    for (name, value) in [
        (&b"\x04"[..], &b"/grpc.health.v1.Health/Check"[..]),
        (b"\x01", b"localhost"),
        (b"\0\x0ccontent-type", b"application/grpc"),
    ] {
        block.extend(name);
        block.push(value.len() as u8);
        block.extend(value);
    }
    block
}

fn open(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &health_call())
}

/// The error codes of GOAWAY and RST_STREAM that the server sends until it closes the connection.
fn codes(server: &Server, bytes: &[u8]) -> Vec<(u8, u32)> {
    let mut stream = TcpStream::connect(server.grpc).expect("the listener accepts");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream.write_all(&[PREFACE, bytes].concat()).ok(); // the server may have closed it
    stream.shutdown(Shutdown::Write).ok();
    let mut sent = Vec::new();
    if let Err(error) = stream.read_to_end(&mut sent) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection ends");
    }
    let mut codes = Vec::new();
    let mut rest = &sent[..];
    while let [a, b, c, kind, _, _, _, _, _, after @ ..] = rest {
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        let Some((payload, after)) = after.split_at_checked(length) else { break };
        let code = match *kind {
            GOAWAY => payload.get(4..8),
            RST_STREAM => payload.get(..4),
            _ => None,
        };
        codes.extend(code.map(|code| (*kind, u32::from_be_bytes(code.try_into().expect("four bytes")))));
        rest = after;
    }
    codes
}

#[test]
fn what_http2_does_not_allow_ends_the_connection_with_its_code() {
    let server = Server::start("rules: []");
    let client = GrpcClient::to(server.grpc);
    let increment = |by: u32| by.to_be_bytes();
    for (what, bytes, code) in [
        ("data on stream 0", frame(DATA, 0, 0, b"x"), PROTOCOL_ERROR),
        ("data on an idle stream", frame(DATA, 0, 1, b"x"), PROTOCOL_ERROR),
        ("headers on stream 0", frame(HEADERS, END_HEADERS, 0, &health_call()), PROTOCOL_ERROR),
        ("headers on a stream of the server", open(2), PROTOCOL_ERROR),
        ("a header block that is no HPACK", frame(HEADERS, END_HEADERS, 1, &[0xff; 5]), COMPRESSION_ERROR),
        ("a push", frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), PROTOCOL_ERROR),
        ("a frame of 1 MiB", frame(DATA, 0, 1, &vec![0; 1 << 20]), FRAME_SIZE_ERROR),
        ("settings of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5]), FRAME_SIZE_ERROR),
        ("a ping of 7 bytes", frame(PING, 0, 0, &[0; 7]), FRAME_SIZE_ERROR),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, b""), PROTOCOL_ERROR),
        (
            "another frame inside headers",
            [frame(HEADERS, 0, 1, &health_call()), frame(PING, 0, 0, &[0; 8])].concat(),
            PROTOCOL_ERROR,
        ),
        ("an empty window update", frame(WINDOW_UPDATE, 0, 0, &increment(0)), PROTOCOL_ERROR),
        (
            "a window of more than 2^31 - 1",
            frame(WINDOW_UPDATE, 0, 0, &increment(0x7fff_ffff)).repeat(2),
            FLOW_CONTROL_ERROR,
        ),
    ] {
        let found = codes(&server, &bytes);
        // The crate h2 has the general code for frames that it cannot parse.
        let is_named = [code, PROTOCOL_ERROR].iter().any(|code| found.contains(&(GOAWAY, *code)));
        assert!(is_named, "{what}: {found:?}");
        assert_eq!(client.single("shop", &[("a", "b")]).code, OK, "others are served");
    }
}

#[test]
fn what_one_stream_does_wrong_ends_that_stream() {
    let server = Server::start("rules: []");
    let beyond = frame(WINDOW_UPDATE, 0, 1, &0x7fff_ffff_u32.to_be_bytes());
    let found = codes(&server, &[open(1), beyond].concat());
    assert!(found.contains(&(RST_STREAM, FLOW_CONTROL_ERROR)), "{found:?}");
}

/// Streams that are reset as soon as they are opened (CVE-2023-44487), and header blocks without an end.
#[test]
fn floods_of_resets_and_continuations_end_the_connection() {
    let server = Server::start("rules: []");
    let client = GrpcClient::to(server.grpc);
    let cancel = 8_u32.to_be_bytes();
    let reset = |n: u32| [open(2 * n + 1), frame(RST_STREAM, 0, 2 * n + 1, &cancel)].concat();
    let resets: Vec<u8> = (0..2_000).flat_map(reset).collect();
    let endless =
        [frame(HEADERS, 0, 1, &health_call()), frame(CONTINUATION, 0, 1, b"").repeat(2_000)].concat();
    for (what, bytes) in [("resets", resets), ("continuations", endless)] {
        let found = codes(&server, &bytes);
        assert!(found.contains(&(GOAWAY, ENHANCE_YOUR_CALM)), "{what}: {found:?}");
        assert_eq!(client.single("shop", &[("a", "b")]).code, OK, "others are served");
    }
}

/// The server acknowledges what it reads. While a client reads nothing, it stops reading, so the answers that it keeps are
/// bounded by the buffers of the two sockets.
#[test]
fn floods_of_pings_and_settings_stop_being_read_while_nothing_is_read() {
    let server = Server::start("rules: []");
    let client = GrpcClient::to(server.grpc);
    for flood in [frame(PING, 0, 0, &[7; 8]), frame(SETTINGS, 0, 0, &[])] {
        let mut stream = TcpStream::connect(server.grpc).expect("the listener accepts");
        stream.write_all(PREFACE).expect("sent");
        stream.set_write_timeout(Some(Duration::from_millis(500))).expect("a timeout");
        let chunk = flood.repeat(4_096);
        let chunks = (0..4_096).take_while(|_| stream.write_all(&chunk).is_ok()).count();
        assert!(chunks < 4_096, "all {} MiB were read", (chunks * chunk.len()) >> 20);
        assert_eq!(client.single("shop", &[("a", "b")]).code, OK, "others are served");
    }
    // A client that reads is answered.
    let mut stream = TcpStream::connect(server.grpc).expect("the listener accepts");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream.write_all(&[PREFACE, &frame(PING, 0, 0, b"12345678").repeat(100)].concat()).expect("sent");
    let pong = frame(PING, ACK, 0, b"12345678");
    let mut sent = Vec::new();
    let mut buffer = [0; 4_096];
    while sent.windows(pong.len()).filter(|window| *window == pong).count() < 100 {
        let count = stream.read(&mut buffer).expect("an answer");
        assert!(count > 0, "the connection goes on");
        sent.extend_from_slice(&buffer[..count]);
    }
}
