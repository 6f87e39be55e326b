//! Flow style on one line: `{a: 1, b: [x, "y"]}`, and single values.

use std::borrow::Cow;

use super::{EntryList, FastReader, MAX_KEY_LEN, is_plain_start};
use crate::document::node::{MapEntry, Node, Scalar, Value};

/// Where a text without quotes ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PlainContext {
    /// At the end of the line.
    Block,
    /// There, or before a comma or the end of the list or map.
    Flow,
}

impl<'a> FastReader<'a> {
    pub(super) fn flow_value(&mut self) -> Option<Node<'a>> {
        self.skip_spaces();
        self.value(PlainContext::Flow)
    }

    /// A value on one line; spaces before it were skipped.
    pub(super) fn value(&mut self, context: PlainContext) -> Option<Node<'a>> {
        let position = self.position();
        let value = match self.peek()? {
            b'{' => return self.nested(FastReader::flow_map),
            b'[' => return self.nested(FastReader::flow_list),
            b'"' => Value::Scalar(Scalar::new(Cow::Borrowed(self.string()?), false)),
            _ => match self.plain(context)? {
                "null" | "Null" | "NULL" => Value::Null,
                text => Value::Scalar(Scalar::new(Cow::Borrowed(text), true)),
            },
        };
        Some(Node::new(position, value))
    }

    fn flow_map(&mut self) -> Option<Value<'a>> {
        let mut entries = EntryList(Vec::new());
        self.separated(b'}', |reader| {
            let position = reader.position();
            let key = reader.flow_key()?;
            entries.check(key)?;
            let value = reader.flow_value()?;
            entries.0.push(MapEntry::new(position, Cow::Borrowed(key), value));
            Some(())
        })?;
        Some(Value::Map(entries.0))
    }

    /// A key and its colon.
    fn flow_key(&mut self) -> Option<&'a str> {
        let key = if self.peek()? == b'"' {
            let key = self.string().filter(|key| key.len() <= MAX_KEY_LEN)?;
            self.skip_spaces();
            key
        } else {
            self.plain_key()?
        };
        self.take(b':')?;
        Some(key)
    }

    fn flow_list(&mut self) -> Option<Value<'a>> {
        let mut items = Vec::new();
        self.separated(b']', |reader| {
            items.push(reader.value(PlainContext::Flow)?);
            Some(())
        })?;
        Some(Value::List(items))
    }

    /// Items separated by commas, from the opening bracket to the end.
    fn separated(&mut self, end: u8, mut item: impl FnMut(&mut Self) -> Option<()>) -> Option<()> {
        self.at += 1;
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
        let end = rest.bytes().position(|byte| matches!(byte, b'"' | b'\\' | b'\n'))?;
        self.at += end;
        self.take(b'"')?;
        Some(&rest[..end])
    }

    /// Text without quotes, and without anything that could have another meaning in YAML.
    fn plain(&mut self, context: PlainContext) -> Option<&'a str> {
        let rest = &self.text.as_bytes()[self.at..];
        rest.first().filter(|first| is_plain_start(**first))?;
        let mut len = 0;
        while let Some(byte) = rest.get(len) {
            match byte {
                b'\n' => break,
                b',' | b']' | b'}' if context == PlainContext::Flow => break,
                b'[' | b'{' if context == PlainContext::Flow => return None,
                // After a space some characters have a meaning of their own.
                _ if rest[..len].ends_with(b" ") && *byte != b' ' && !is_plain_start(*byte) => return None,
                b'#' | b'"' | b'\'' => return None,
                b':' => {
                    // A key, or one in the eyes of some parser.
                    rest.get(len + 1).filter(|next| next.is_ascii_alphanumeric() || **next == b'/')?;
                }
                _ => {}
            }
            len += 1;
        }
        let text = self.text[self.at..self.at + len].trim_end_matches(' ');
        self.at += text.len();
        Some(text)
    }
}
