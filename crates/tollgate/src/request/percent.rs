//! Percent-decoding, exactly once, of text that a client wrote.
//!
//! Invariant: no byte is dropped or replaced. Bytes that are not UTF-8 stay as `%XX` (upper case), because a
//! replacement character would make different keys equal, and a malformed escape stays as it was written. This module
//! must not know what the text means: separators are left to its callers.

use std::str::Utf8Chunk;

use percent_encoding::{percent_decode, percent_encode_byte};

/// The meaning of a raw `+`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plus {
    /// Itself, as in a path.
    Literal,
    /// A space, as in `application/x-www-form-urlencoded`.
    Space,
}

/// Whether `text` starts with `%XX`.
pub fn starts_with_escape(text: &[u8]) -> bool {
    matches!(text, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

/// The decoded bytes of `raw`, without allocating.
pub fn decode(raw: &str, plus: Plus) -> impl Iterator<Item = u8> {
    let is_space = move |byte: &u8| *byte == b'+' && plus == Plus::Space;
    // Each piece but the first follows a plus.
    let pieces = raw.as_bytes().split(is_space).enumerate();
    pieces.flat_map(|(index, piece)| (index > 0).then_some(b' ').into_iter().chain(percent_decode(piece)))
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
    chunk.invalid().iter().for_each(|byte| out.push_str(percent_encode_byte(*byte)));
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
