//! Percent-decoding, exactly once, of text that a client wrote.
//!
//! Invariant: no byte is dropped or replaced. Bytes that are not UTF-8 stay as `%XX` (upper case), because a
//! replacement character would make different keys equal, and a malformed escape stays as it was written. This module
//! must not know what the text means: separators are left to its callers.

use std::{fmt::Write, iter, str::Utf8Chunk};

/// The meaning of a raw `+`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plus {
    /// Itself, as in a path.
    Literal,
    /// A space, as in `application/x-www-form-urlencoded`.
    Space,
}

/// The byte of the `%XX` at the start of `text`, if there is one.
pub fn escape(text: &[u8]) -> Option<u8> {
    match *text {
        [b'%', high, low, ..] => Some(hex(high)? << 4 | hex(low)?),
        _ => None,
    }
}

/// The decoded bytes of `raw`, without allocating.
pub fn decode(raw: &str, plus: Plus) -> impl Iterator<Item = u8> {
    let mut rest = raw.as_bytes();
    iter::from_fn(move || {
        let (&first, tail) = rest.split_first()?;
        if let Some(byte) = escape(rest) {
            rest = &rest[3..];
            return Some(byte);
        }
        rest = tail;
        Some(if first == b'+' && plus == Plus::Space { b' ' } else { first })
    })
}

/// The text of decoded bytes; those that are not UTF-8 are escaped again.
pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let bytes = error.as_bytes();
        let mut out = String::with_capacity(bytes.len() * 3);
        bytes.utf8_chunks().for_each(|chunk| push(&mut out, &chunk));
        out
    })
}

fn push(out: &mut String, chunk: &Utf8Chunk<'_>) {
    out.push_str(chunk.valid());
    for byte in chunk.invalid() {
        write!(out, "%{byte:02X}").expect("writing to a string cannot fail");
    }
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &str, plus: Plus, expected: &str) {
        assert_eq!(text(decode(raw, plus).collect()), expected, "{raw:?}");
    }

    #[test]
    fn text_is_decoded_exactly_once() {
        check("%6Cogin", Plus::Literal, "login");
        check("%6cogin", Plus::Literal, "login");
        check("%252F", Plus::Literal, "%2F");
        check("%25252F", Plus::Literal, "%252F");
        check("%2%46", Plus::Literal, "%2F");
        check("%C3%A9", Plus::Literal, "é");
        check("%00", Plus::Literal, "\0");
    }

    #[test]
    fn malformed_escapes_stay_literal() {
        for raw in ["%", "%%", "%4", "%4g", "%g4", "100%", "%-1", "%+1", "%é", "%4é"] {
            check(raw, Plus::Literal, raw);
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_stay_escaped_in_upper_case() {
        check("a%ffb", Plus::Literal, "a%FFb");
        check("%c0%af", Plus::Literal, "%C0%AF"); // an overlong slash
        check("%ed%a0%80", Plus::Literal, "%ED%A0%80"); // a surrogate
        check("%c3é", Plus::Literal, "%C3é");
        check("%e2%82", Plus::Literal, "%E2%82");
    }

    #[test]
    fn a_plus_is_a_space_only_in_forms() {
        check("a+b%2Bc", Plus::Literal, "a+b+c");
        check("a+b%2Bc", Plus::Space, "a b+c");
    }
}
