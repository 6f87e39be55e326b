//! The normal form of a cookie's value: its escapes and quotes resolved.
//!
//! `abc`, `%61bc`, `"abc"` and `"\141bc"` are one session for servers that decode cookies, and other sessions for those
//! that do not. Here they are one key: a client that changes the spelling gets no fresh counter. Values are merged that
//! some server keeps apart (`a"b` and `ab`), which is stricter, never looser; session ids differ in more than that.
//!
//! Invariant: the result has no quote, no backslash and no space, and no `%XX` except for bytes that are not UTF-8. So
//! normalising is idempotent, and `%2561` is `a`. One pass: each resolved escape shortens the text.

use std::borrow::Cow;

use crate::request::percent;

/// The form of values that consist of quotes and backslashes only. They are not missing: an API may see a value.
const ONLY_QUOTES: &str = "\"";

/// `None` if the value is blank or an empty quoted string.
pub(crate) fn normal(value: &str) -> Option<Cow<'_, str>> {
    let value = value.trim_ascii();
    if value.is_empty() || value == "\"\"" {
        return None;
    }
    if !value.bytes().any(|byte| matches!(byte, b'%' | b'"' | b'\\' | b' ')) {
        return Some(Cow::Borrowed(value)); // the common case
    }
    let mut unescaped = Unescaped::default();
    value.bytes().for_each(|byte| unescaped.push(byte));
    let text = percent::text(unescaped.finish());
    // PHP reads a plus in a cookie as a space.
    let text = match text.trim_ascii() {
        "" => ONLY_QUOTES.to_owned(),
        text => text.replace(' ', "+"),
    };
    Some(if text == value { Cow::Borrowed(value) } else { Cow::Owned(text) })
}

/// The bytes so far without escapes and quotes. A backslash in them is the start of an escape that is not complete.
#[derive(Default)]
struct Unescaped {
    bytes: Vec<u8>,
}

impl Unescaped {
    fn push(&mut self, byte: u8) {
        let mut next = Some(byte);
        while let Some(byte) = next {
            if let Some(at) = self.backslash() {
                let is_first_digit = at + 1 == self.bytes.len();
                let digits = if is_first_digit { b'0'..=b'3' } else { b'0'..=b'7' };
                if !digits.contains(&byte) {
                    self.remove_backslash(at); // `\c` is `c`
                }
            }
            if byte == b'"' {
                return;
            }
            self.bytes.push(byte);
            next = self.take_escape();
        }
    }

    /// Takes a complete escape off the end; returns its byte.
    fn take_escape(&mut self) -> Option<u8> {
        let length = self.bytes.len();
        let (escape, byte) = match self.bytes[..] {
            [.., b'\\', a, b, c] => (4, (a & 3) << 6 | (b & 7) << 3 | c & 7),
            [.., b'%', high, low] => {
                let digit = |digit: u8| char::from(digit).to_digit(16);
                (3, (digit(high)? << 4 | digit(low)?) as u8)
            }
            _ => return None,
        };
        self.bytes.truncate(length - escape);
        Some(byte)
    }

    fn backslash(&self) -> Option<usize> {
        let longest = self.bytes.len().min(3);
        let from = self.bytes.len() - longest;
        self.bytes[from..].iter().position(|byte| *byte == b'\\').map(|at| from + at)
    }

    /// Removes a backslash. The octal digits behind it may complete a `%` before it.
    fn remove_backslash(&mut self, at: usize) {
        let digits = self.bytes.split_off(at);
        digits[1..].iter().for_each(|digit| self.push(*digit));
    }

    fn finish(mut self) -> Vec<u8> {
        while let Some(at) = self.backslash() {
            self.remove_backslash(at);
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(value: &str, expected: Option<&str>) {
        let found = normal(value);
        assert_eq!(found.as_deref(), expected, "{value:?}");
        if let Some(found) = found {
            assert_eq!(normal(&found), Some(Cow::Borrowed(&*found)), "its own normal form");
        }
    }

    #[test]
    fn every_spelling_of_a_session_is_one_session() {
        for value in [
            "abc",
            " abc\t",
            "%61bc",
            "%61%62%63",
            "\"abc\"",
            "\"abc",
            "\"\\141bc\"",
            "\"\\141\\142\\143\"",
            "\"a\\bc\"",
            "%22abc%22",
            "%2561bc",
            "%%361bc",
            "%5C141bc",
            "\\%61bc",
            "%\\61bc",
            "%\"61bc",
        ] {
            check(value, Some("abc"));
        }
        check("a%20b", Some("a+b"));
        check("a b", Some("a+b"));
        check("a+b", Some("a+b"));
    }

    #[test]
    fn what_has_no_escapes_is_borrowed() {
        for value in ["abc", "a=b==", "s:abc.d-e_f~+/", "a,b", "é", "100%", "%zz", "{a:1}"] {
            assert!(matches!(normal(value), Some(Cow::Borrowed(found)) if found == value), "{value}");
        }
    }

    #[test]
    fn blank_values_are_missing_and_quotes_are_not() {
        for value in ["", " ", "\"\""] {
            check(value, None);
        }
        for value in ["\"", "\\", "\"\"\"", "%22", "\"\\\"\"", "\\\\"] {
            check(value, Some("\""));
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_stay_escaped() {
        check("a%ff", Some("a%FF"));
        check("%C3%A9", Some("é"));
        check("\"\\303\\251\"", Some("é"));
        check("%F%ff", Some("%F%FF"));
    }

    proptest! {
        #[test]
        fn normalising_is_idempotent(value in "[%\"\\\\ 0-7a-fé+ ]{0,24}") {
            if let Some(found) = normal(&value) {
                let again = normal(&found);
                prop_assert_eq!(again.as_deref(), Some(&*found), "{:?}", value);
            }
        }
    }
}
