//! The Redis protocol (RESP2): commands out, replies in. A server may send anything, so everything is bounded.

use std::io::Write;

/// What a server answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Reply>),
}

/// Not the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Garbage;

const MAX_LINE: usize = 64 * 1024;
/// The longest body of a request that may be kept there.
const MAX_BULK: usize = 64 << 20;
const MAX_ELEMENTS: usize = 64 * 1024;
const MAX_DEPTH: usize = 8;

impl Reply {
    /// Reads one reply from the front of `bytes`; `None` if it is not whole yet.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>, Garbage> {
        parse(bytes, 0)
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            Reply::Simple(text) => Some(text),
            Reply::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// A whole number, however it is written.
    pub fn number(&self) -> Option<u64> {
        match self {
            Reply::Int(number) => u64::try_from(*number).ok(),
            other => other.text()?.parse().ok(),
        }
    }

    pub fn elements(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(elements) => Some(elements),
            _ => None,
        }
    }
}

fn parse(bytes: &[u8], depth: usize) -> Result<Option<(Reply, usize)>, Garbage> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    if !b"+-:$*".contains(kind) || depth > MAX_DEPTH {
        return Err(Garbage);
    }
    let Some(end) = bytes.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
        return if bytes.len() < MAX_LINE { Ok(None) } else { Err(Garbage) };
    };
    let line = bytes[1..end].strip_suffix(b"\r").ok_or(Garbage)?;
    let rest = end + 1;
    let text = || String::from_utf8_lossy(line).into_owned();
    let number = || std::str::from_utf8(line).ok().and_then(|text| text.parse::<i64>().ok()).ok_or(Garbage);
    Ok(Some(match kind {
        b'+' => (Reply::Simple(text()), rest),
        b'-' => (Reply::Error(text()), rest),
        b':' => (Reply::Int(number()?), rest),
        b'$' => return bulk(bytes, rest, number()?),
        _ => return array(bytes, rest, number()?, depth),
    }))
}

fn bulk(bytes: &[u8], start: usize, length: i64) -> Result<Option<(Reply, usize)>, Garbage> {
    if length == -1 {
        return Ok(Some((Reply::Nil, start)));
    }
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_BULK).ok_or(Garbage)?;
    let end = start + length;
    match bytes.get(end..end + 2) {
        None => Ok(None),
        Some(b"\r\n") => Ok(Some((Reply::Bulk(bytes[start..end].to_vec()), end + 2))),
        Some(_) => Err(Garbage),
    }
}

fn array(bytes: &[u8], start: usize, length: i64, depth: usize) -> Result<Option<(Reply, usize)>, Garbage> {
    if length == -1 {
        return Ok(Some((Reply::Nil, start)));
    }
    let length = usize::try_from(length).ok().filter(|length| *length <= MAX_ELEMENTS).ok_or(Garbage)?;
    let mut elements = Vec::with_capacity(length.min(64));
    let mut at = start;
    for _ in 0..length {
        let Some((element, used)) = parse(&bytes[at..], depth + 1)? else { return Ok(None) };
        elements.push(element);
        at += used;
    }
    Ok(Some((Reply::Array(elements), at)))
}

/// Commands on their way out.
pub(super) struct Command<'b>(&'b mut Vec<u8>);

impl<'b> Command<'b> {
    /// Begins a command of `words` words; exactly as many follow.
    pub(super) fn begin(out: &'b mut Vec<u8>, words: usize) -> Command<'b> {
        out.push(b'*');
        write_number(out, words as u64);
        out.extend_from_slice(b"\r\n");
        Command(out)
    }

    pub(super) fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        let word = word.as_ref();
        self.0.push(b'$');
        write_number(self.0, word.len() as u64);
        self.0.extend_from_slice(b"\r\n");
        self.0.extend_from_slice(word);
        self.0.extend_from_slice(b"\r\n");
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; 20];
        let mut rest = &mut digits[..];
        write!(rest, "{number}").expect("twenty digits hold any number");
        let length = 20 - rest.len();
        self.word(&digits[..length])
    }
}

/// One whole command.
pub(super) fn command(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    write_command(&mut out, words);
    out
}

pub(super) fn write_command(out: &mut Vec<u8>, words: &[impl AsRef<[u8]>]) {
    let mut command = Command::begin(out, words.len());
    for word in words {
        command.word(word);
    }
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    write!(out, "{number}").expect("a vector takes all that is written");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_when_it_is_whole() {
        let bytes = b"*4\r\n:1\r\n$3\r\na\r\n\r\n$-1\r\n*1\r\n+OK\r\n-ERR no\r\n";
        let whole = bytes.len() - b"-ERR no\r\n".len();
        for cut in 0..whole {
            assert_eq!(Reply::parse(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let nested = Reply::Array(vec![Reply::Simple("OK".into())]);
        let array = Reply::Array(vec![Reply::Int(1), Reply::Bulk(b"a\r\n".to_vec()), Reply::Nil, nested]);
        assert_eq!(Reply::parse(bytes), Ok(Some((array, whole))));
        assert_eq!(Reply::parse(&bytes[whole..]), Ok(Some((Reply::Error("ERR no".into()), 9))));
    }

    #[test]
    fn what_is_not_the_protocol_is_garbage() {
        let deep = b"*1\r\n".repeat(20);
        let long = vec![b'+'; MAX_LINE + 1];
        let cases: [&[u8]; 9] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b":one\r\n",
            b"$-7\r\n",
            b"$99999999999\r\n",
            b"*99999999\r\n",
            b"$1\r\nabc",
            b":1\n",
            &deep,
            &long,
        ];
        for case in cases {
            assert_eq!(
                Reply::parse(case),
                Err(Garbage),
                "{:?}",
                String::from_utf8_lossy(&case[..case.len().min(20)])
            );
        }
    }

    #[test]
    fn commands_are_written_with_their_lengths() {
        let mut out = Vec::new();
        Command::begin(&mut out, 2).word("GET").number(42);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$2\r\n42\r\n");
        assert_eq!(command(&["PING"]), b"*1\r\n$4\r\nPING\r\n");
    }
}
