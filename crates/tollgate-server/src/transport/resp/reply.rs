//! Replies of the Redis protocol, version 2 or 3.

use std::fmt::Display;
use std::io::Write;

/// The version of the protocol that a client has chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RespVersion {
    #[default]
    V2,
    V3,
}

/// Replies that are not sent yet.
#[derive(Default)]
pub struct Replies {
    pub bytes: Vec<u8>,
    pub version: RespVersion,
    /// Replies since they were last counted: errors, and denials by a limit.
    pub errors: u64,
    pub limited: u64,
}

impl Replies {
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// An error; its first word is its code. Line breaks would end the reply, so they are replaced.
    pub fn error(&mut self, error: impl Display) {
        self.errors += 1;
        let start = self.bytes.len();
        self.bytes.push(b'-');
        write!(self.bytes, "{error}").expect("writing to a vector cannot fail");
        for byte in &mut self.bytes[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn integer(&mut self, number: i64) {
        self.number(b':', number);
    }

    /// An array of five integers, made in one piece.
    pub fn integers(&mut self, numbers: [i64; 5]) {
        const MAX_INTEGER: usize = ":-9223372036854775808\r\n".len();
        const HEAD: &[u8] = b"*5\r\n";
        let mut text = [0; HEAD.len() + 5 * MAX_INTEGER];
        text[..HEAD.len()].copy_from_slice(HEAD);
        let mut end = HEAD.len();
        let mut append = |bytes: &[u8]| {
            text[end..end + bytes.len()].copy_from_slice(bytes);
            end += bytes.len();
        };
        for number in numbers {
            append(b":");
            match u8::try_from(number) {
                Ok(digit @ 0..10) => append(&[b'0' + digit]),
                _ => append(itoa::Buffer::new().format(number).as_bytes()),
            }
            append(b"\r\n");
        }
        self.bytes.extend_from_slice(&text[..end]);
    }

    pub fn boolean(&mut self, value: bool) {
        match self.version {
            RespVersion::V2 => self.integer(value.into()),
            RespVersion::V3 => self.line(b'#', if value { b"t" } else { b"f" }),
        }
    }

    pub fn bulk(&mut self, bytes: &[u8]) {
        self.number(b'$', bytes.len() as i64);
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub fn null(&mut self) {
        match self.version {
            RespVersion::V2 => self.bytes.extend_from_slice(b"$-1\r\n"),
            RespVersion::V3 => self.bytes.extend_from_slice(b"_\r\n"),
        }
    }

    /// The head of an array; its elements follow.
    pub fn array(&mut self, len: usize) {
        self.number(b'*', len as i64);
    }

    /// The head of a map; its keys and values follow in turn. In version 2 it is an array of both.
    pub fn map(&mut self, len: usize) {
        match self.version {
            RespVersion::V2 => self.array(2 * len),
            RespVersion::V3 => self.number(b'%', len as i64),
        }
    }

    fn line(&mut self, marker: u8, text: &[u8]) {
        self.bytes.push(marker);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn number(&mut self, marker: u8, number: i64) {
        self.line(marker, itoa::Buffer::new().format(number).as_bytes());
    }
}
