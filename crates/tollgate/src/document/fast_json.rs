//! A fast reader for machine-written JSON, in one pass: a database may contain a million rules, and a full YAML
//! scanner takes five times as long for each.
//!
//! It reads only one line of ASCII without escapes. All other input, and all errors, are left to the general reader;
//! the result of [`read`] equals that reader's.
//!
//! Not `serde_json`: it does not tell a visitor where a value stands, and every problem names its line and column.

use std::borrow::Cow;

use crate::document::builder::MAX_DEPTH;
use crate::document::node::{MapEntry, Node, Scalar, Value};
use crate::document::problem::TextPosition;

/// Maximum number of keys in a map; they are compared pairwise.
const FEW_KEYS: usize = 64;

/// The one value in `text`, or `None` if it needs the general reader.
pub(super) fn read(text: &str) -> Option<Node<'_>> {
    if !text.starts_with('{') || !text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
        return None;
    }
    let mut scan = JsonScanner { text, at: 0, depth: 0 };
    let node = scan.value()?;
    scan.skip_spaces();
    (scan.at == text.len()).then_some(node)
}

struct JsonScanner<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

impl<'a> JsonScanner<'a> {
    fn value(&mut self) -> Option<Node<'a>> {
        self.skip_spaces();
        let position = self.position();
        let value = match self.peek()? {
            b'{' => self.nested(JsonScanner::map)?,
            b'[' => self.nested(JsonScanner::list)?,
            b'"' => Value::Scalar(Scalar::new(Cow::Borrowed(self.string()?), false)),
            _ => match self.word()? {
                "null" => Value::Null,
                word => Value::Scalar(Scalar::new(Cow::Borrowed(word), true)),
            },
        };
        Some(Node::new(position, value))
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<Value<'a>>) -> Option<Value<'a>> {
        self.depth += 1;
        self.at += 1;
        let value = if self.depth <= MAX_DEPTH { read(self) } else { None };
        self.depth -= 1;
        value
    }

    fn map(&mut self) -> Option<Value<'a>> {
        let mut entries: Vec<MapEntry<'a>> = Vec::new();
        self.separated(b'}', |scan| {
            let position = scan.position();
            let key = scan.string()?;
            scan.skip_spaces();
            scan.take(b':')?;
            if entries.len() == FEW_KEYS || entries.iter().any(|entry| entry.key() == key) {
                return None;
            }
            entries.push(MapEntry::new(position, Cow::Borrowed(key), scan.value()?));
            Some(())
        })?;
        Some(Value::Map(entries))
    }

    fn list(&mut self) -> Option<Value<'a>> {
        let mut items = Vec::new();
        self.separated(b']', |scan| {
            items.push(scan.value()?);
            Some(())
        })?;
        Some(Value::List(items))
    }

    /// Items separated by commas, up to the end.
    fn separated(&mut self, end: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.skip_spaces();
        if self.peek()? == end {
            return self.take(end);
        }
        loop {
            self.skip_spaces();
            item(self)?;
            self.skip_spaces();
            match self.peek()? {
                b',' => self.at += 1,
                _ => return self.take(end),
            }
        }
    }

    fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let rest = &self.text[self.at..];
        let end = rest.bytes().position(|byte| byte == b'"' || byte == b'\\')?;
        self.at += end;
        self.take(b'"')?;
        Some(&rest[..end])
    }

    /// A whole number or one of the three literals; YAML reads others differently.
    fn word(&mut self) -> Option<&'a str> {
        let rest = &self.text[self.at..];
        let end = rest.bytes().position(|byte| !byte.is_ascii_alphanumeric())?;
        let word = &rest[..end];
        self.at += end;
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        (is_number || matches!(word, "true" | "false" | "null")).then_some(word)
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn position(&self) -> TextPosition {
        TextPosition { line: 1, column: u32::try_from(self.at + 1).unwrap_or(u32::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::document::builder::Builder;

    #[test]
    fn unsure_input_is_left_to_the_other_reader() {
        for text in [
            "",
            "a: 1",
            "[1]",
            "{\"a\":1",
            "{\"a\":1}}",
            "{\"a\" 1}",
            "{\"a\":1,}",
            "{\"a\":\"x\\n\"}",
            "{\"a\":1.5}",
            "{\"a\":-1}",
            "{\"a\":\"é\"}",
            "{\"a\":\n1}",
            "{\"a\":1,\"a\":2}",
            "{a:1}",
            "{\"a\":yes}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(read(&format!("{{\"a\":{}{}}}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH))).is_none());
    }

    fn json() -> impl Strategy<Value = String> {
        let string = "\"[ -!#-\\[\\]-~]{0,6}\"".prop_map(|text| text);
        let leaf = prop_oneof![string, "[0-9]{1,3}", Just("true".to_owned()), Just("null".to_owned())];
        let spaces = " {0,1}";
        let nested = leaf.prop_recursive(4, 40, 6, move |inner| {
            let entry = ("\"[a-z<:# ]{0,4}\"", spaces, inner.clone())
                .prop_map(|(key, space, value)| format!("{key}{space}:{space}{value}"));
            prop_oneof![
                (proptest::collection::vec(inner, 0..4), spaces)
                    .prop_map(|(items, space)| format!("[{}{space}]", items.join(&format!(",{space}")))),
                (proptest::collection::vec(entry, 0..4), spaces).prop_map(|(entries, space)| format!(
                    "{{{}{space}}}",
                    entries.join(&format!(",{space}"))
                )),
            ]
        });
        nested.prop_map(|value| format!("{{\"root\":{value}}}"))
    }

    proptest! {
        #[test]
        fn both_readers_read_the_same(text in json()) {
            if let Some(node) = read(&text) {
                prop_assert_eq!(Builder::build(&text).map_err(|problems| problems.to_string()), Ok(Some(node)));
            }
        }

        #[test]
        fn both_readers_agree_on_any_text(text in "\\{[-a1 :,\"{}\\[\\]tru#&*']{0,30}\\}") {
            if let Some(node) = read(&text) {
                prop_assert_eq!(Builder::build(&text).map_err(|problems| problems.to_string()), Ok(Some(node)));
            }
        }
    }

    #[test]
    fn a_rule_as_the_database_holds_it_is_read() {
        let text = r#"{"id":"r-1","uid":"42","url":"GET /a/{b}/**","time":"minute","requests":5,"limits":["5/m"],"track":true}"#;
        assert!(read(text).is_some());
    }
}
