//! The one feature of JSON that YAML cannot read: characters escaped as surrogate pairs.
//!
//! JSON writers that keep to ASCII spell `😀` as `\ud83d\ude00`; in YAML those are two
//! invalid characters. Only for texts that are known to be JSON: there a backslash is
//! always an escape inside a string.

use std::borrow::Cow;

/// `\uXXXX` twice.
const PAIR_BYTES: usize = 12;

/// The text with every escaped surrogate pair replaced by its character, so that [`crate::document::read`] accepts it.
/// Later columns of such a line count the shorter form; half a pair is left for the reader to reject.
pub fn join_surrogates(text: &str) -> Cow<'_, str> {
    let mut joined = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(offset) = text[at..].find('\\') {
        at += offset;
        if let Some(character) = surrogate_pair(&text.as_bytes()[at..]) {
            joined.push_str(&text[copied..at]);
            joined.push(character);
            at += PAIR_BYTES;
            copied = at;
        } else {
            // Skips what is escaped, which may be a backslash, but never half a character.
            at = text.ceil_char_boundary((at + 2).min(text.len()));
        }
    }
    if copied == 0 {
        return Cow::Borrowed(text);
    }
    joined.push_str(&text[copied..]);
    Cow::Owned(joined)
}

fn surrogate_pair(bytes: &[u8]) -> Option<char> {
    let units = [escaped_unit(bytes.get(..6)?)?, escaped_unit(bytes.get(6..PAIR_BYTES)?)?];
    let is_pair = matches!(units, [0xd800..=0xdbff, 0xdc00..=0xdfff]);
    char::decode_utf16(units).next()?.ok().filter(|_| is_pair)
}

fn escaped_unit(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?;
    digits.iter().try_fold(0, |unit, digit| {
        let value = char::from(*digit).to_digit(16)?;
        Some(unit << 4 | u16::try_from(value).ok()?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::read;

    #[test]
    fn a_surrogate_pair_becomes_its_character() {
        let text = join_surrogates(r#"["a\ud83d\ude00b", "\uD83D\uDE01"]"#);
        assert_eq!(text, "[\"a😀b\", \"😁\"]");
        assert_eq!(read(&text).unwrap().as_list().unwrap()[0].as_str(), Some("a😀b"));
    }

    #[test]
    fn other_escapes_are_left_alone() {
        for text in [r#""\u00e9\n\/""#, r#""\\ud83d\\ude00""#, "é\\é", "\\", "\\u", "plain"] {
            assert!(matches!(join_surrogates(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn half_a_pair_is_left_to_be_rejected() {
        for text in [r#""\ud83d""#, r#""\ude00\ud83d""#, r#""\ud83d\u0041""#, r#""\ud83d😀""#] {
            assert_eq!(join_surrogates(text), text);
            assert!(read(text).is_err(), "{text}");
        }
    }
}
