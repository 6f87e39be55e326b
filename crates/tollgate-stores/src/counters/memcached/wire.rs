//! Memcached's meta protocol: encoding of commands, decoding of replies.
//!
//! Every command has a reply, in order. Each carries an opaque number that its reply repeats, so that a reply out of
//! order is detected. Keys have no spaces and no control characters: names are escaped.

use std::io::Write;

use thiserror::Error;

/// Maximum length of a value; the server's default.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
/// Maximum length of a key.
pub const MAX_KEY_BYTES: usize = 250;
/// Maximum length of the first line of a reply.
const MAX_LINE_BYTES: usize = 2048;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemcachedCommand {
    Get {
        key: String,
    },
    /// Increments a number; a missing one is created with `amount` and `ttl`.
    Add {
        key: String,
        amount: u64,
        ttl: u32,
    },
    /// Decrements a number, down to zero; a missing one is not created.
    Subtract {
        key: String,
        amount: u64,
    },
    Store {
        key: String,
        data: Vec<u8>,
        over: StoreCondition,
        ttl: u32,
    },
    Delete {
        key: String,
    },
}

/// The condition for a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreCondition {
    Absent,
    /// The CAS number is still the one that was read.
    Unchanged(u64),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemcachedReply {
    Value {
        data: Vec<u8>,
        unique: u64,
    },
    Done,
    Missing,
    /// The condition does not hold: another writer was first.
    Conflict,
    /// The server reports an error.
    Refused(String),
}

/// The bytes are not a valid reply.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("not a memcached response: {0}")]
pub struct MemcachedProtocolError(String);

impl MemcachedCommand {
    pub fn write(&self, out: &mut Vec<u8>, opaque: u32) {
        let written = match self {
            MemcachedCommand::Get { key } => write!(out, "mg {key} v c O{opaque}\r\n"),
            MemcachedCommand::Add { key, amount, ttl } => {
                write!(out, "ma {key} N{ttl} J{amount} D{amount} v O{opaque}\r\n")
            }
            MemcachedCommand::Subtract { key, amount } => {
                write!(out, "ma {key} MD D{amount} v O{opaque}\r\n")
            }
            MemcachedCommand::Store { key, data, over, ttl } => {
                let line = write!(out, "ms {key} {} T{ttl} O{opaque} ", data.len());
                let mode = match over {
                    StoreCondition::Absent => out.write_all(b"ME\r\n"),
                    StoreCondition::Unchanged(unique) => write!(out, "C{unique}\r\n"),
                };
                line.and(mode).and_then(|()| out.write_all(data)).and_then(|()| out.write_all(b"\r\n"))
            }
            MemcachedCommand::Delete { key } => write!(out, "md {key} O{opaque}\r\n"),
        };
        written.expect("a buffer takes all that is written");
    }
}

/// One reply, the opaque that it repeats, and its length in bytes.
pub struct ParsedReply {
    pub reply: MemcachedReply,
    pub opaque: Option<u32>,
    pub len: usize,
}

/// Parses the reply at the start of `bytes`; `None` if it is incomplete.
pub fn parse_reply(bytes: &[u8]) -> Result<Option<ParsedReply>, MemcachedProtocolError> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        let looks_right = bytes.len() < MAX_LINE_BYTES && bytes.iter().take(2).all(u8::is_ascii_uppercase);
        return if looks_right { Ok(None) } else { Err(protocol_error(bytes)) };
    };
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| protocol_error(bytes))?;
    let mut words = line.split(' ');
    let after = end + 2;
    let (reply, len) = match words.next().unwrap_or_default() {
        "VA" => {
            let size = words.next().and_then(|size| size.parse().ok());
            let size: usize =
                size.filter(|size| *size <= MAX_VALUE_BYTES).ok_or_else(|| protocol_error(bytes))?;
            let len = after + size + 2;
            if bytes.len() < len {
                return Ok(None);
            }
            if &bytes[len - 2..len] != b"\r\n" {
                return Err(protocol_error(bytes));
            }
            let unique = flag(line, 'c').unwrap_or_default();
            (MemcachedReply::Value { data: bytes[after..after + size].to_vec(), unique }, len)
        }
        "HD" => (MemcachedReply::Done, after),
        "EN" | "NF" => (MemcachedReply::Missing, after),
        "EX" | "NS" => (MemcachedReply::Conflict, after),
        "SERVER_ERROR" | "CLIENT_ERROR" | "ERROR" => (MemcachedReply::Refused(line.to_owned()), after),
        _ => return Err(protocol_error(bytes)),
    };
    let opaque = flag(line, 'O').and_then(|opaque| u32::try_from(opaque).ok());
    Ok(Some(ParsedReply { reply, opaque, len }))
}

fn flag(line: &str, name: char) -> Option<u64> {
    line.split(' ').skip(1).find_map(|word| word.strip_prefix(name)?.parse().ok())
}

fn protocol_error(bytes: &[u8]) -> MemcachedProtocolError {
    MemcachedProtocolError(bytes[..bytes.len().min(40)].escape_ascii().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(bytes: &[u8]) -> (MemcachedReply, Option<u32>, usize) {
        let read = parse_reply(bytes).expect("memcached's").expect("whole");
        (read.reply, read.opaque, read.len)
    }

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let bytes = b"VA 5 c42 O7\r\nab\r\nc\r\nHD O8\r\n";
        let value = MemcachedReply::Value { data: b"ab\r\nc".to_vec(), unique: 42 };
        assert_eq!(whole(bytes), (value, Some(7), 20));
        for end in 0..20 {
            assert!(parse_reply(&bytes[..end]).expect("no garbage").is_none(), "{end} bytes");
        }
        assert_eq!(whole(&bytes[20..]), (MemcachedReply::Done, Some(8), 7));
        assert_eq!(whole(b"EN\r\n"), (MemcachedReply::Missing, None, 4));
        assert_eq!(whole(b"NS O1\r\n").0, MemcachedReply::Conflict);
        let refused = "SERVER_ERROR out of memory storing object";
        assert_eq!(whole(format!("{refused}\r\n").as_bytes()).0, MemcachedReply::Refused(refused.to_owned()));
    }

    #[test]
    fn a_server_that_is_not_memcached_is_detected_at_once() {
        for bytes in [&b"\x16\x03\x01"[..], b"HTTP/1.1 400 Bad Request\r\n", b"+OK\r\n", b"VA x\r\n", b"\r\n"]
        {
            assert!(parse_reply(bytes).is_err(), "{}", bytes.escape_ascii());
        }
        assert!(parse_reply(b"VA 99999999 O1\r\n").is_err(), "a value that would fill the memory");
        assert!(parse_reply(&[b'A'; MAX_LINE_BYTES]).is_err(), "a line without end");
        assert!(parse_reply(b"VA 2 O1\r\nabcd").is_err(), "a value longer than it says");
    }
}
