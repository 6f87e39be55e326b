//! Streams of Redis clients: many commands, long ones, and ones that arrive byte by byte.

use tollgate_server::testing::resp::commands;

use super::{Case, Work, case, fill};

const THROTTLE: &str = "*5\r\n$11\r\nCL.THROTTLE\r\n$3\r\nann\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n";

pub(super) const CASES: &[Case] = &[
    case("resp: pipeline", 64 << 10, |size| stream(fill("*1\r\n$4\r\nPING\r\n", size), usize::MAX >> 1)),
    case("resp: pipeline, byte by byte", 16 << 10, |size| stream(fill("*1\r\n$4\r\nPING\r\n", size), 1)),
    case("resp: similar calls", 64 << 10, |size| stream(fill(THROTTLE, size), usize::MAX >> 1)),
    case("resp: similar calls, byte by byte", 16 << 10, |size| stream(fill(THROTTLE, size), 1)),
    case("resp: arguments, byte by byte", 3 << 10, |size| {
        // A name and pairs: one that lacks its value would end the work early.
        let args = size / "$1\r\na\r\n$1\r\na\r\n".len() * 2 + 1;
        stream(format!("*{args}\r\n{}", "$1\r\na\r\n".repeat(args)), 1)
    }),
    case("resp: argument, byte by byte", 16 << 10, |size| {
        stream(format!("*1\r\n${size}\r\n{}\r\n", "x".repeat(size)), 1)
    }),
    case("resp: inline, byte by byte", 4 << 10, |size| stream(format!("{}\r\n", fill("abcdefgh ", size)), 1)),
    case("resp: inline quotes", 4 << 10, |size| stream(format!("ping \"{}\"\r\n", fill("\\x41", size)), 1)),
];

fn stream(bytes: String, piece: usize) -> Work {
    Box::new(move || {
        let (_, is_broken) = commands(bytes.as_bytes(), piece);
        assert!(!is_broken);
    })
}
