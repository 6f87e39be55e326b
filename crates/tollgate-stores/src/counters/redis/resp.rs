//! The Redis protocol (RESP2). Replies are untrusted, so all sizes are bounded.

/// A reply of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RedisReply {
    Simple(String),
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<RedisReply>),
}

/// The bytes violate the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RespProtocolError;

const MAX_LINE: usize = 64 * 1024;
/// Digits of a number, with its sign.
const MAX_NUMBER: usize = 20;
/// Digits of a `u64`.
const MAX_DIGITS: usize = 20;
/// The largest request body that may be stored.
const MAX_BULK: usize = 64 << 20;
const MAX_ELEMENTS: usize = 64 * 1024;
const MAX_DEPTH: usize = 8;

impl RedisReply {
    /// Decodes one reply from the front of `bytes`; `None` if it is incomplete.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<(RedisReply, usize)>, RespProtocolError> {
        let mut decoder = RespDecoder::default();
        Ok(decoder.next(bytes)?.map(|reply| (reply, decoder.at)))
    }

    pub fn text(&self) -> Option<&str> {
        match self {
            RedisReply::Simple(text) => Some(text),
            RedisReply::Bulk(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// An unsigned integer, as an integer or as text.
    pub fn number(&self) -> Option<u64> {
        match self {
            RedisReply::Int(number) => u64::try_from(*number).ok(),
            other => other.text()?.parse().ok(),
        }
    }

    pub fn elements(&self) -> Option<&[RedisReply]> {
        match self {
            RedisReply::Array(elements) => Some(elements),
            _ => None,
        }
    }
}

/// Incremental decoder of replies from a buffer that grows. It keeps its position, so the work is linear in the number
/// of bytes, for pieces of any size.
#[derive(Default)]
pub(crate) struct RespDecoder {
    /// Bytes of the buffer that are decoded.
    at: usize,
    /// How far the end of the line at `at` has been searched.
    searched: usize,
    /// Incomplete arrays, the outermost first.
    open: Vec<OpenArray>,
}

struct OpenArray {
    elements: Vec<RedisReply>,
    missing: usize,
}

/// What one line starts.
enum ParsedLine {
    Reply(RedisReply),
    /// The header of an array of this many items.
    Array(usize),
}

impl RespDecoder {
    /// The next complete reply; `None` if more bytes are needed.
    pub(crate) fn next(&mut self, bytes: &[u8]) -> Result<Option<RedisReply>, RespProtocolError> {
        while let Some(item) = self.item(bytes)? {
            if let Some(reply) = self.complete(item)? {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Drops the decoded bytes from the buffer.
    pub(crate) fn trim(&mut self, bytes: &mut Vec<u8>) {
        bytes.drain(..self.at);
        self.searched = self.searched.saturating_sub(self.at);
        self.at = 0;
    }

    /// Adds an item to the innermost open array; returns the reply that it completes.
    fn complete(&mut self, item: ParsedLine) -> Result<Option<RedisReply>, RespProtocolError> {
        let mut reply = match item {
            ParsedLine::Reply(reply) => reply,
            ParsedLine::Array(0) => RedisReply::Array(Vec::new()),
            ParsedLine::Array(_) if self.open.len() == MAX_DEPTH => return Err(RespProtocolError),
            ParsedLine::Array(missing) => {
                self.open.push(OpenArray { elements: Vec::with_capacity(missing.min(64)), missing });
                return Ok(None);
            }
        };
        while let Some(mut array) = self.open.pop() {
            array.elements.push(reply);
            array.missing -= 1;
            if array.missing > 0 {
                self.open.push(array);
                return Ok(None);
            }
            reply = RedisReply::Array(array.elements);
        }
        Ok(Some(reply))
    }

    fn item(&mut self, bytes: &[u8]) -> Result<Option<ParsedLine>, RespProtocolError> {
        let Some(end) = self.line_end(bytes)? else { return Ok(None) };
        let line = bytes[self.at + 1..end].strip_suffix(b"\r").ok_or(RespProtocolError)?;
        let text = || String::from_utf8_lossy(line).into_owned();
        let mut next = end + 1;
        let item = match bytes[self.at] {
            b'+' => ParsedLine::Reply(RedisReply::Simple(text())),
            b'-' => ParsedLine::Reply(RedisReply::Error(text())),
            b':' => ParsedLine::Reply(RedisReply::Int(number(line)?)),
            b'*' => length(line, MAX_ELEMENTS)?.map_or(ParsedLine::Reply(RedisReply::Nil), ParsedLine::Array),
            _ => match length(line, MAX_BULK)? {
                None => ParsedLine::Reply(RedisReply::Nil),
                Some(length) => {
                    let start = next;
                    next = start + length + 2;
                    match bytes.get(start + length..next) {
                        None => return Ok(None),
                        Some(b"\r\n") => {
                            ParsedLine::Reply(RedisReply::Bulk(bytes[start..start + length].to_vec()))
                        }
                        Some(_) => return Err(RespProtocolError),
                    }
                }
            },
        };
        self.at = next;
        Ok(Some(item))
    }

    /// The end of the line at `at`.
    fn line_end(&mut self, bytes: &[u8]) -> Result<Option<usize>, RespProtocolError> {
        let Some(kind) = bytes.get(self.at) else { return Ok(None) };
        if !b"+-:$*".contains(kind) {
            return Err(RespProtocolError);
        }
        let longest = self.at + MAX_LINE;
        let from = self.searched.max(self.at);
        let unseen = &bytes[from..bytes.len().min(longest)];
        let found = unseen.iter().position(|byte| *byte == b'\n');
        self.searched = from + found.unwrap_or(unseen.len());
        match found {
            Some(_) => Ok(Some(self.searched)),
            None if bytes.len() < longest => Ok(None),
            None => Err(RespProtocolError),
        }
    }
}

fn number(line: &[u8]) -> Result<i64, RespProtocolError> {
    let text = std::str::from_utf8(line).ok().filter(|text| text.len() <= MAX_NUMBER);
    text.and_then(|text| text.parse().ok()).ok_or(RespProtocolError)
}

/// The length of a string or an array; `None` for a null.
fn length(line: &[u8], max: usize) -> Result<Option<usize>, RespProtocolError> {
    match number(line)? {
        -1 => Ok(None),
        length => {
            usize::try_from(length).ok().filter(|length| *length <= max).map(Some).ok_or(RespProtocolError)
        }
    }
}

/// Encoder of commands.
pub(super) struct CommandWriter<'b>(&'b mut Vec<u8>);

impl<'b> CommandWriter<'b> {
    /// Starts a command of `words` words; exactly this many must follow.
    pub(super) fn begin(out: &'b mut Vec<u8>, words: usize) -> CommandWriter<'b> {
        out.push(b'*');
        write_number(out, words as u64);
        out.extend_from_slice(b"\r\n");
        CommandWriter(out)
    }

    pub(super) fn arg(&mut self, word: impl AsRef<[u8]>) -> &mut Self {
        let word = word.as_ref();
        self.0.push(b'$');
        write_number(self.0, word.len() as u64);
        self.0.extend_from_slice(b"\r\n");
        self.0.extend_from_slice(word);
        self.0.extend_from_slice(b"\r\n");
        self
    }

    pub(super) fn number(&mut self, number: u64) -> &mut Self {
        let mut digits = [0; MAX_DIGITS];
        self.arg(decimal(number, &mut digits))
    }

    /// Words that are encoded already.
    pub(super) fn encoded(&mut self, words: &[u8]) -> &mut Self {
        self.0.extend_from_slice(words);
        self
    }

    /// Continues after words that are encoded already.
    pub(super) fn append(out: &'b mut Vec<u8>) -> CommandWriter<'b> {
        CommandWriter(out)
    }
}

/// Encodes one command.
pub(super) fn encode_command(words: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    write_command(&mut out, words);
    out
}

pub(super) fn write_command(out: &mut Vec<u8>, words: &[impl AsRef<[u8]>]) {
    let mut command = CommandWriter::begin(out, words.len());
    for word in words {
        command.arg(word);
    }
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(decimal(number, &mut [0; MAX_DIGITS]));
}

fn decimal(mut number: u64, digits: &mut [u8; MAX_DIGITS]) -> &[u8] {
    let mut start = MAX_DIGITS;
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[start..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_when_it_is_whole() {
        let bytes = b"*4\r\n:1\r\n$3\r\na\r\n\r\n$-1\r\n*1\r\n+OK\r\n-ERR no\r\n";
        let whole = bytes.len() - b"-ERR no\r\n".len();
        for cut in 0..whole {
            assert_eq!(RedisReply::parse(&bytes[..cut]), Ok(None), "cut at {cut}");
        }
        let nested = RedisReply::Array(vec![RedisReply::Simple("OK".into())]);
        let array = RedisReply::Array(vec![
            RedisReply::Int(1),
            RedisReply::Bulk(b"a\r\n".to_vec()),
            RedisReply::Nil,
            nested,
        ]);
        assert_eq!(RedisReply::parse(bytes), Ok(Some((array, whole))));
        assert_eq!(RedisReply::parse(&bytes[whole..]), Ok(Some((RedisReply::Error("ERR no".into()), 9))));
    }

    /// Regression: a reply in small pieces was decoded from its start for every piece.
    #[test]
    fn replies_are_the_same_in_pieces_of_any_size() {
        let bytes = b"*3\r\n*2\r\n:1\r\n$2\r\n\r\n\r\n*0\r\n$-1\r\n+OK\r\n*-1\r\n";
        let in_pieces = |size| {
            let mut decoder = RespDecoder::default();
            let mut buffer = Vec::new();
            let mut replies = Vec::new();
            for piece in bytes.chunks(size) {
                buffer.extend_from_slice(piece);
                while let Some(reply) = decoder.next(&buffer).expect("the protocol") {
                    replies.push(reply);
                }
                decoder.trim(&mut buffer);
            }
            replies
        };
        let whole = in_pieces(bytes.len());
        assert_eq!(whole.len(), 3);
        for size in 1..bytes.len() {
            assert_eq!(in_pieces(size), whole, "in pieces of {size}");
        }
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
                RedisReply::parse(case),
                Err(RespProtocolError),
                "{:?}",
                String::from_utf8_lossy(&case[..case.len().min(20)])
            );
        }
    }

    #[test]
    fn commands_are_written_with_their_lengths() {
        let mut out = Vec::new();
        CommandWriter::begin(&mut out, 2).arg("GET").number(42);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$2\r\n42\r\n");
        out.clear();
        CommandWriter::append(&mut out).number(0).number(u64::MAX);
        assert_eq!(out, b"$1\r\n0\r\n$20\r\n18446744073709551615\r\n");
        assert_eq!(encode_command(&["PING"]), b"*1\r\n$4\r\nPING\r\n");
    }
}
