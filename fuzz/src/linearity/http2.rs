//! Frames and streams of HTTP/2, through the proxy's own connections.
//!
//! The library h2 ends a connection whose client resets many streams at once, sends a header block in very many
//! CONTINUATION frames, or sends many DATA frames of less than 256 bytes. So those stay below its bounds, and the number
//! of bursts or frames is doubled.

use tollgate_server::testing::proxy::{Burst, Connections, Http2Answers};

use super::connections::{DENYING, PASSING};
use super::{Case, Work, case};

pub(super) const CASES: &[Case] = &[
    case("http2: a denied JSON body in small frames", 24 << 10, |size| {
        let body = format!(r#"{{"email":"ann","text":"{}"}}"#, "x".repeat(size));
        exchange(&DENYING, vec![upload(1, body.as_bytes())], 1)
    }),
    // Its fields are read from the first 64 KiB, and all of it is forwarded.
    case("http2: a forwarded form in small frames", 192 << 10, |size| {
        let body = format!("email=ann&text={}", "x".repeat(size));
        exchange(&PASSING, vec![upload(1, body.as_bytes())], 1)
    }),
    case("http2: requests that are denied", 1_000, |size| {
        let bursts = streams(size, |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get()));
        exchange(&DENYING, bursts, size)
    }),
    case("http2: requests that are forwarded", 300, |size| {
        let bursts = streams(size, |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get()));
        exchange(&PASSING, bursts, size)
    }),
    case("http2: heads in several CONTINUATION frames", 500, |size| {
        let bursts = streams(size, |stream| {
            let mut frames = frame(HEADERS, END_STREAM, stream, &get());
            for n in 0..4 {
                frames.extend(frame(CONTINUATION, 0, stream, &header(&format!("x-{n}"), "1")));
            }
            frames.extend(frame(CONTINUATION, END_HEADERS, stream, &[]));
            frames
        });
        exchange(&DENYING, bursts, size)
    }),
    case("http2: heads of many headers", 500, |size| {
        let fields: Vec<u8> = (0..80).flat_map(|n| header(&format!("x-{n}"), "1")).collect();
        let bursts = streams(size, |stream| {
            frame(HEADERS, END_HEADERS | END_STREAM, stream, &[get(), fields.clone()].concat())
        });
        exchange(&DENYING, bursts, size)
    }),
    case("http2: streams that are opened and reset", 1_000, |size| {
        control(size, |n| {
            let stream = 2 * n as u32 + 1;
            let opened = frame(HEADERS, END_HEADERS, stream, &get());
            [opened, frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        })
    }),
    case("http2: PRIORITY frames of idle streams", 2_000, |size| {
        control(size, |n| frame(PRIORITY, 0, 2 * n as u32 + 1, &[0, 0, 0, 0, 7]))
    }),
    case("http2: PRIORITY frames that depend on each other", 2_000, |size| {
        control(size, |n| {
            let parent = (2 * n as u32 + 1).to_be_bytes();
            frame(PRIORITY, 0, 2 * n as u32 + 3, &[&parent[..], &[7]].concat())
        })
    }),
    case("http2: WINDOW_UPDATE frames", 2_000, |size| {
        control(size, |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))
    }),
    case("http2: SETTINGS frames", 2_000, |size| {
        let settings = frame(SETTINGS, 0, 0, &[0, 4, 0, 1, 0, 0]).repeat(BURST);
        acknowledged(size, settings)
    }),
    case("http2: PING frames", 2_000, |size| acknowledged(size, ping().repeat(BURST))),
    case("http2: frames of an unknown type", 2_000, |size| {
        control(size, |_| frame(0x2a, 0, 0, b"what is it"))
    }),
];

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// Frames or streams that are sent at once: fewer than h2 takes for an attack.
const BURST: usize = 10;

/// RFC 9113, section 4.1.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short payload").to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// A header block: `GET / http` of the static table, and an authority.
fn get() -> Vec<u8> {
    vec![0x82, 0x84, 0x86, 0x01, 1, b'x']
}

fn post() -> Vec<u8> {
    vec![0x83, 0x84, 0x86, 0x01, 1, b'x']
}

/// A literal field that is not indexed.
fn header(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).expect("a short text")], text.as_bytes()].concat();
    [vec![0], text(name), text(value)].concat()
}

fn ping() -> Vec<u8> {
    frame(PING, 0, 0, &[0; 8])
}

/// A POST whose body is in the smallest frames of which h2 takes any number.
fn upload(stream: u32, body: &[u8]) -> Burst {
    let mut frames = frame(HEADERS, END_HEADERS, stream, &post());
    for piece in body.chunks(256) {
        frames.extend(frame(DATA, 0, stream, piece));
    }
    frames.extend(frame(DATA, END_STREAM, stream, &[]));
    Burst { frames, answers: 1 }
}

/// A stream for each request, some at once; each is answered.
fn streams(count: usize, request: impl Fn(u32) -> Vec<u8>) -> Vec<Burst> {
    let numbers: Vec<u32> = (0..count as u32).map(|n| 2 * n + 1).collect();
    let bursts = numbers.chunks(BURST);
    bursts
        .map(|some| Burst { frames: some.iter().flat_map(|n| request(*n)).collect(), answers: some.len() })
        .collect()
}

/// Frames that have no answer, some at once, each time with a ping behind them.
fn control(count: usize, frames: impl Fn(usize) -> Vec<u8>) -> Work {
    let bursts = (0..count / BURST).map(|burst| {
        let mut some: Vec<u8> = (0..BURST).flat_map(|n| frames(burst * BURST + n)).collect();
        some.extend(ping());
        Burst { frames: some, answers: 1 }
    });
    let bursts: Vec<Burst> = bursts.collect();
    let count = bursts.len();
    Box::new(move || {
        let answers = DENYING.converse_http2(&bursts);
        assert!(answers.acknowledged > count && answers.goaway == 0, "not all are read: {answers:?}");
    })
}

/// Bursts of which every frame is acknowledged.
fn acknowledged(count: usize, frames: Vec<u8>) -> Work {
    let bursts: Vec<Burst> =
        (0..count / BURST).map(|_| Burst { frames: frames.clone(), answers: BURST }).collect();
    Box::new(move || {
        let answers = DENYING.converse_http2(&bursts);
        assert!(answers.acknowledged > count && answers.goaway == 0, "not all are read: {answers:?}");
    })
}

/// Sends bursts of which so many requests are answered.
fn exchange(proxy: &'static std::sync::LazyLock<Connections>, bursts: Vec<Burst>, count: usize) -> Work {
    let proxy: &Connections = proxy;
    Box::new(move || {
        let answers: Http2Answers = proxy.converse_http2(&bursts);
        assert!(answers.ended == count && answers.goaway == 0, "not all are answered: {answers:?}");
    })
}
