//! A fast reader for the common part of YAML and JSON, in one pass: a file or a database may contain a million rules, and
//! a full YAML scanner takes many times as long for each.
//!
//! It reads printable ASCII: maps and lists in block style (`block`) and in flow style on one line (`flow`), plain text
//! on one line, and text in double quotes without escapes. All other input, and all errors, are left to the general
//! reader; the result of [`read`] equals that reader's.
//!
//! Not `serde_json`: it does not tell a visitor where a value stands, and every problem names its line and column.

use crate::document::builder::MAX_DEPTH;
use crate::document::node::{MapEntry, Node, Value};
use crate::document::problem::TextPosition;

mod block;
mod flow;

/// Maximum number of keys in a map; they are compared pairwise.
const FEW_KEYS: usize = 64;
/// Maximum length of a key; YAML has a bound of 1024 characters.
const MAX_KEY_LEN: usize = 256;

/// The one value in `text`, or `None` if it needs the general reader.
pub(super) fn read(text: &str) -> Option<Node<'_>> {
    let root = read_any(text)?;
    // Last, so that text which fails early is not read to its end. Every slice ends at an ASCII byte.
    let is_printable = |byte: u8| (b' '..0x7f).contains(&byte) || byte == b'\n';
    text.bytes().all(is_printable).then_some(root)
}

/// As [`read`], but other characters may be in the values.
fn read_any(text: &str) -> Option<Node<'_>> {
    let mut reader = FastReader { text, at: 0, line: 1, line_start: 0, indent: None, depth: 0 };
    if text.starts_with('{') {
        let root = reader.flow_value()?;
        reader.skip_spaces();
        return (reader.at == text.len()).then_some(root);
    }
    reader.find_line();
    let root = if reader.indent? == 0 { reader.block(0)? } else { return None };
    reader.indent.is_none().then_some(root)
}

struct FastReader<'a> {
    text: &'a str,
    at: usize,
    /// The number of the line that `at` is in, and where it starts.
    line: u32,
    line_start: usize,
    /// The indentation of the line whose content block style reads next; `None` at the end of the text.
    indent: Option<usize>,
    depth: usize,
}

/// The entries of a map that is read.
struct EntryList<'a>(Vec<MapEntry<'a>>);

impl<'a> EntryList<'a> {
    /// `None` if the key is repeated, or one too many.
    fn check(&self, key: &str) -> Option<()> {
        let is_new = self.0.len() < FEW_KEYS && self.0.iter().all(|entry| entry.key() != key);
        is_new.then_some(())
    }
}

impl<'a> FastReader<'a> {
    /// Reads a list or a map, one level deeper.
    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<Value<'a>>) -> Option<Node<'a>> {
        let position = self.position();
        self.depth += 1;
        let value = if self.depth <= MAX_DEPTH { read(self)? } else { return None };
        self.depth -= 1;
        Some(Node::new(position, value))
    }

    /// A key without quotes; the colon is next.
    fn plain_key(&mut self) -> Option<&'a str> {
        let rest = &self.text.as_bytes()[self.at..];
        let len = plain_key_len(rest)?;
        let key = &self.text[self.at..self.at + len];
        self.at += len;
        Some(key)
    }

    fn skip_spaces(&mut self) {
        while self.peek() == Some(b' ') {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn position(&self) -> TextPosition {
        let column = u32::try_from(self.at - self.line_start + 1).unwrap_or(u32::MAX);
        TextPosition { line: self.line, column }
    }
}

/// The length of a plain key that is followed by a colon, and that by a space or the end of the line.
fn plain_key_len(text: &[u8]) -> Option<usize> {
    let is_key = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-./".contains(byte);
    text.first().filter(|first| is_plain_start(**first))?;
    let len = text.iter().take(MAX_KEY_LEN).position(|byte| !is_key(byte))?;
    let ends = text[len] == b':' && text.get(len + 1).is_none_or(|next| matches!(next, b' ' | b'\n'));
    ends.then_some(len)
}

/// Whether text without quotes may start with a byte. YAML accepts more.
fn is_plain_start(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'_')
}

#[cfg(test)]
mod tests;
