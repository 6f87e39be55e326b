//! Requests of the Redis protocol: an array of bulk strings, or an inline command.
//!
//! A parser continues where the last read ended, so the work is linear in the bytes however they arrive. It must not
//! know any command.

use std::ops::Range;

use thiserror::Error;

/// Arguments of a command, its name included.
pub const MAX_ARGS: usize = 1024;
pub const MAX_ARG_BYTES: usize = 64 << 10;
/// All bytes of a command.
pub const MAX_COMMAND_BYTES: usize = 256 << 10;
/// Before `AUTH`: that and `HELLO` are short.
const MAX_UNAUTHENTICATED_ARGS: usize = 10;
const MAX_UNAUTHENTICATED_BYTES: usize = 16 << 10;
const MAX_INLINE_BYTES: usize = 16 << 10;
/// A length with its marker: `*1024`.
const MAX_LENGTH_LINE: usize = 32;

/// The lines of an HTTP request would be inline commands: a page in a browser could run them on a local listener.
const HTTP_WORDS: [&[u8]; 6] = [b"get", b"post", b"put", b"patch", b"options", b"host:"];

/// Bounds of the commands that a client may send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommandBounds {
    args: usize,
    arg_bytes: usize,
    command_bytes: usize,
}

impl CommandBounds {
    pub const AUTHENTICATED: CommandBounds =
        CommandBounds { args: MAX_ARGS, arg_bytes: MAX_ARG_BYTES, command_bytes: MAX_COMMAND_BYTES };
    pub const UNAUTHENTICATED: CommandBounds = CommandBounds {
        args: MAX_UNAUTHENTICATED_ARGS,
        arg_bytes: MAX_UNAUTHENTICATED_BYTES,
        command_bytes: MAX_UNAUTHENTICATED_BYTES,
    };
}

impl Default for CommandBounds {
    fn default() -> CommandBounds {
        CommandBounds::AUTHENTICATED
    }
}

/// Why a request cannot be parsed; the connection is closed after it.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum ProtocolError {
    #[error("Protocol error: invalid multibulk length")]
    ArrayLength,
    #[error("Protocol error: a command has at most {0} arguments{when}", when = before_auth(*.0 < MAX_ARGS))]
    TooManyArgs(usize),
    #[error("Protocol error: expected '$', got '{}'", char::from(*.0).escape_default())]
    NotBulk(u8),
    #[error("Protocol error: invalid bulk length")]
    BulkLength,
    #[error("Protocol error: an argument has at most {0} bytes{when}", when = before_auth(*.0 < MAX_ARG_BYTES))]
    ArgTooLong(usize),
    #[error("Protocol error: a command has at most {0} bytes{when}", when = before_auth(*.0 < MAX_COMMAND_BYTES))]
    CommandTooLong(usize),
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    #[error("Protocol error: unbalanced quotes in request")]
    Quotes,
    #[error("Protocol error: this is an HTTP request, and the listener expects the Redis protocol")]
    Http,
}

fn before_auth(is_before: bool) -> &'static str {
    if is_before { " before AUTH" } else { "" }
}

/// The arguments of one command.
#[derive(Clone, Copy)]
pub struct Args<'a, 'r> {
    bytes: &'a [u8],
    ranges: &'r [Range<usize>],
}

impl<'a, 'r> Args<'a, 'r> {
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    pub fn get(&self, n: usize) -> Option<&'a [u8]> {
        self.ranges.get(n).map(|range| &self.bytes[range.clone()])
    }

    /// The bytes of an array before the `$` of an argument, that included, and those after the argument. `None` for
    /// inline commands.
    pub fn around(&self, n: usize) -> Option<(&'a [u8], &'a [u8])> {
        let before = self.ranges.get(n.checked_sub(1)?)?.end + "\r\n$".len();
        let head = self.bytes.get(..before).filter(|head| head.starts_with(b"*") && head.ends_with(b"$"))?;
        let end = self.ranges.last()?.end + "\r\n".len();
        Some((head, self.bytes.get(self.ranges.get(n)?.end..end)?))
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'a [u8]> + use<'a, 'r> {
        let bytes = self.bytes;
        self.ranges.iter().map(move |range| &bytes[range.clone()])
    }
}

/// The command that is being received.
#[derive(Default)]
pub struct Parser {
    pub bounds: CommandBounds,
    ranges: Vec<Range<usize>>,
    /// Arguments of the array that are still to come; `None` before its length is known.
    missing: Option<usize>,
    /// The length of the argument that is being received.
    arg_bytes: Option<usize>,
    /// Bytes of the command that are parsed.
    position: usize,
    /// Bytes without the end of the current line.
    searched: usize,
    /// The arguments of an inline command, without quotes and escapes.
    inline: Option<Vec<u8>>,
}

impl Parser {
    /// Continues with `bytes`, which begin with the command. Returns its length once it is complete: then
    /// [`args`](Self::args) has its arguments, and [`next`](Self::next) begins the next command.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        if self.missing.is_none() {
            match bytes.first() {
                None => return Ok(None),
                Some(b'*') => {}
                Some(_) => return self.parse_inline(bytes),
            }
            let Some(length) = self.length(bytes, ProtocolError::ArrayLength)? else { return Ok(None) };
            // A null array is an empty one.
            let count = usize::try_from(length.max(0)).map_err(|_| ProtocolError::ArrayLength)?;
            if count > self.bounds.args {
                return Err(ProtocolError::TooManyArgs(self.bounds.args));
            }
            self.missing = Some(count);
        }
        while self.missing.is_some_and(|missing| missing > 0) {
            if !self.parse_arg(bytes)? {
                return Ok(None);
            }
        }
        Ok(Some(self.position))
    }

    /// Whether an argument was complete.
    fn parse_arg(&mut self, bytes: &[u8]) -> Result<bool, ProtocolError> {
        let length = match self.arg_bytes {
            Some(length) => length,
            None => {
                match bytes.get(self.position) {
                    None => return Ok(false),
                    Some(b'$') => {}
                    Some(other) => return Err(ProtocolError::NotBulk(*other)),
                }
                let Some(length) = self.length(bytes, ProtocolError::BulkLength)? else { return Ok(false) };
                let length = usize::try_from(length).map_err(|_| ProtocolError::BulkLength)?;
                if length > self.bounds.arg_bytes {
                    return Err(ProtocolError::ArgTooLong(self.bounds.arg_bytes));
                }
                if self.position + length > self.bounds.command_bytes {
                    return Err(ProtocolError::CommandTooLong(self.bounds.command_bytes));
                }
                self.arg_bytes = Some(length);
                length
            }
        };
        let start = self.position;
        let Some(end) = bytes.get(start + length..start + length + 2) else { return Ok(false) };
        if end != b"\r\n" {
            return Err(ProtocolError::BulkLength);
        }
        self.ranges.push(start..start + length);
        self.position = start + length + 2;
        self.searched = self.position;
        self.arg_bytes = None;
        self.missing = self.missing.map(|missing| missing - 1);
        Ok(true)
    }

    /// The number of a line such as `*3`, once the line is complete; `invalid` if it is not such a line.
    fn length(&mut self, bytes: &[u8], invalid: ProtocolError) -> Result<Option<i64>, ProtocolError> {
        let start = self.position + 1;
        if let Some((length, taken)) = short_number(&bytes[start..]) {
            self.position = start + taken;
            self.searched = self.position;
            return Ok(Some(length as i64));
        }
        let end = self.line_end(bytes);
        if end.unwrap_or(bytes.len()) - self.position > MAX_LENGTH_LINE {
            return Err(invalid);
        }
        let Some(end) = end else { return Ok(None) };
        let line = bytes[start..end].strip_suffix(b"\r");
        self.position = end + 1;
        self.searched = self.position;
        line.and_then(parse_integer).map(Some).ok_or(invalid)
    }

    /// The index of the line's `\n`.
    fn line_end(&mut self, bytes: &[u8]) -> Option<usize> {
        let from = self.searched.max(self.position);
        let found = bytes[from..].iter().position(|byte| *byte == b'\n').map(|n| from + n);
        self.searched = found.unwrap_or(bytes.len());
        found
    }

    fn parse_inline(&mut self, bytes: &[u8]) -> Result<Option<usize>, ProtocolError> {
        let end = self.line_end(bytes);
        if end.unwrap_or(bytes.len()) > MAX_INLINE_BYTES {
            return Err(ProtocolError::InlineTooLong);
        }
        let Some(end) = end else { return Ok(None) };
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        let first = line.split(u8::is_ascii_whitespace).find(|word| !word.is_empty()).unwrap_or_default();
        if HTTP_WORDS.iter().any(|word| first.eq_ignore_ascii_case(word)) {
            return Err(ProtocolError::Http);
        }
        let mut unquoted = Vec::with_capacity(line.len());
        self.ranges.clear();
        split_inline(line, &mut unquoted, &mut self.ranges)?;
        self.inline = Some(unquoted);
        Ok(Some(end + 1))
    }

    /// The arguments of a complete array that begins at the start of `bytes`.
    pub fn args<'a>(&self, bytes: &'a [u8]) -> Args<'a, '_> {
        Args { bytes, ranges: &self.ranges }
    }

    /// The arguments of a complete inline command; `None` if the command is an array.
    pub fn inline_args(&self) -> Option<Args<'_, '_>> {
        self.inline.as_deref().map(|bytes| Args { bytes, ranges: &self.ranges })
    }

    /// Whether no byte of the next command was parsed.
    pub fn is_at_start(&self) -> bool {
        self.searched == 0 && self.missing.is_none()
    }

    /// Begins the next command.
    pub fn next(&mut self) {
        self.ranges.clear();
        self.missing = None;
        self.arg_bytes = None;
        self.position = 0;
        self.searched = 0;
        self.inline = None;
    }
}

/// Splits a line at white space, with quotes and escapes as `redis-cli` writes them.
fn split_inline(
    line: &[u8],
    unquoted: &mut Vec<u8>,
    ranges: &mut Vec<Range<usize>>,
) -> Result<(), ProtocolError> {
    let mut rest = line.trim_ascii();
    while let Some(&first) = rest.first() {
        if ranges.len() == MAX_ARGS {
            return Err(ProtocolError::TooManyArgs(MAX_ARGS));
        }
        let start = unquoted.len();
        rest = match first {
            b'"' | b'\'' => unquote(&rest[1..], first, unquoted)?,
            _ => {
                let end = rest.iter().position(u8::is_ascii_whitespace).unwrap_or(rest.len());
                unquoted.extend_from_slice(&rest[..end]);
                &rest[end..]
            }
        };
        ranges.push(start..unquoted.len());
        rest = rest.trim_ascii_start();
    }
    Ok(())
}

/// Copies the text up to the closing quote; returns what follows it.
fn unquote<'a>(mut rest: &'a [u8], quote: u8, unquoted: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        let (byte, taken) = match *rest {
            [] => return Err(ProtocolError::Quotes),
            [byte, ref after @ ..] if byte == quote => {
                let ends = after.first().is_none_or(u8::is_ascii_whitespace);
                return if ends { Ok(after) } else { Err(ProtocolError::Quotes) };
            }
            [b'\\', b'\'', ..] if quote == b'\'' => (b'\'', 2),
            [b'\\', b'x', high, low, ..] if quote == b'"' && hex(high).is_some() && hex(low).is_some() => {
                (hex(high).unwrap_or(0) << 4 | hex(low).unwrap_or(0), 4)
            }
            [b'\\', escaped, ..] if quote == b'"' => (unescape(escaped), 2),
            [byte, ..] => (byte, 1),
        };
        unquoted.push(byte);
        rest = &rest[taken..];
    }
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

fn unescape(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'a' => 7,
        other => other,
    }
}

/// A decimal number as Redis reads one: no sign but `-`, no leading zeros, no spaces.
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (digits, negative) = match text.strip_prefix(b"-") {
        Some(digits) => (digits, true),
        None => (text, false),
    };
    let plain = match digits {
        [b'0'] => !negative,
        [b'1'..=b'9', ..] => digits.len() <= 19 && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    // 19 digits fit.
    let magnitude = digits.iter().fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// A complete line of one or two digits, which nearly all lengths are: the number, and the bytes of the line.
#[inline]
pub fn short_number(bytes: &[u8]) -> Option<(usize, usize)> {
    match *bytes {
        [digit @ b'0'..=b'9', b'\r', b'\n', ..] => Some((usize::from(digit - b'0'), 3)),
        [ten @ b'1'..=b'9', one @ b'0'..=b'9', b'\r', b'\n', ..] => {
            Some((usize::from(ten - b'0') * 10 + usize::from(one - b'0'), 4))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands of a stream that arrives in pieces, and how it ends.
    fn read(pieces: &[&[u8]]) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
        let mut parser = Parser::default();
        let mut input = Vec::new();
        let mut commands = Vec::new();
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match parser.parse(&input) {
                    Ok(Some(length)) => {
                        let args = parser.inline_args().unwrap_or_else(|| parser.args(&input));
                        commands.push(args.iter().map(<[u8]>::to_vec).collect());
                        parser.next();
                        input.drain(..length);
                    }
                    Ok(None) => break,
                    Err(error) => return (commands, Some(error)),
                }
            }
        }
        (commands, None)
    }

    fn command(args: &[&str]) -> Vec<Vec<u8>> {
        args.iter().map(|arg| arg.as_bytes().to_vec()).collect()
    }

    #[test]
    fn commands_do_not_depend_on_where_the_stream_is_cut() {
        let stream: &[u8] =
            b"*2\r\n$4\r\nECHO\r\n$4\r\n\r\n*1\r\nping \"a b\\x41\\n\" 'it\\'s'\r\n\r\n*0\r\n*-1\r\n*1\r\n$0\r\n\r\nQUIT\n";
        let expected = [
            command(&["ECHO", "\r\n*1"]),
            command(&["ping", "a bA\n", "it's"]),
            command(&[]),
            command(&[]),
            command(&[]),
            command(&[""]),
            command(&["QUIT"]),
        ];
        for cut in 0..=stream.len() {
            let (first, second) = stream.split_at(cut);
            assert_eq!(read(&[first, second]), (expected.to_vec(), None), "cut at {cut}");
        }
        let bytes: Vec<_> = stream.chunks(1).collect();
        assert_eq!(read(&bytes), (expected.to_vec(), None), "byte by byte");
    }

    #[test]
    fn a_broken_frame_is_named() {
        for (stream, error) in [
            (&b"*x\r\n"[..], ProtocolError::ArrayLength),
            (b"*1\n$4\r\nPING\r\n", ProtocolError::ArrayLength),
            (b"*99999999999999999999\r\n", ProtocolError::ArrayLength),
            (b"*1025\r\n", ProtocolError::TooManyArgs(MAX_ARGS)),
            (b"*2147483647\r\n", ProtocolError::TooManyArgs(MAX_ARGS)),
            (b"*1\r\n*1\r\n", ProtocolError::NotBulk(b'*')),
            (b"*1\r\n:1\r\n", ProtocolError::NotBulk(b':')),
            (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$+4\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$04\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$3\r\nPING\r\n", ProtocolError::BulkLength),
            (b"*1\r\n$1073741824\r\n", ProtocolError::ArgTooLong(MAX_ARG_BYTES)),
            (b"*1\r\n$00000000000000000000000000000000000", ProtocolError::BulkLength),
            (b"ping \"a\r\n", ProtocolError::Quotes),
            (b"ping 'a'b\r\n", ProtocolError::Quotes),
            (b"POST / HTTP/1.1\r\n", ProtocolError::Http),
            (b"  Host: localhost\r\n", ProtocolError::Http),
        ] {
            let shown = stream.escape_ascii().to_string();
            assert_eq!(read(&[stream]), (Vec::new(), Some(error)), "{shown}");
        }
        assert_eq!(read(&[&[b'a'; MAX_INLINE_BYTES + 1]]).1, Some(ProtocolError::InlineTooLong));
        let large = format!("${MAX_ARG_BYTES}\r\n{}\r\n", "x".repeat(MAX_ARG_BYTES));
        let whole = format!("*5\r\n{}", large.repeat(5));
        assert_eq!(read(&[whole.as_bytes()]).1, Some(ProtocolError::CommandTooLong(MAX_COMMAND_BYTES)));
    }

    #[test]
    fn integers_are_read_as_redis_reads_them() {
        for (text, number) in
            [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(parse_integer(text.as_bytes()), Some(number), "{text}");
        }
        for text in ["", "-", "-0", "+1", "01", " 1", "1 ", "9223372036854775808", "1e3", "x"] {
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
    }
}
