//! Block style: maps and lists by indentation, one key or item a line.

use std::borrow::Cow;

use super::flow::PlainContext;
use super::{EntryList, FastReader, plain_key_len};
use crate::document::node::{MapEntry, Node, Value};
use crate::document::problem::TextPosition;

impl<'a> FastReader<'a> {
    /// A list or a map whose first line is next, with its content at `indent`.
    pub(super) fn block(&mut self, indent: usize) -> Option<Node<'a>> {
        match self.is_at_item() {
            true => self.block_list(indent),
            false => self.block_map(indent),
        }
    }

    fn block_map(&mut self, indent: usize) -> Option<Node<'a>> {
        self.nested(|reader| {
            let mut entries = EntryList(Vec::new());
            loop {
                let position = reader.position();
                let key = reader.plain_key()?;
                reader.take(b':')?;
                entries.check(key)?;
                let value = reader.block_value(indent)?;
                entries.0.push(MapEntry::new(position, Cow::Borrowed(key), value));
                if !reader.continues(indent)? {
                    return Some(Value::Map(entries.0));
                }
            }
        })
    }

    /// The value of a key: on its line, or below it.
    fn block_value(&mut self, indent: usize) -> Option<Node<'a>> {
        self.skip_spaces();
        if self.peek()? != b'\n' {
            return self.value_in_line(indent);
        }
        self.end_line()?;
        match self.indent? {
            below if below > indent => self.block(below),
            below if below == indent && self.is_at_item() => self.unindented_list(indent),
            _ => None, // no value
        }
    }

    /// A list with the indentation of its key. The general reader takes the first item for its position.
    fn unindented_list(&mut self, indent: usize) -> Option<Node<'a>> {
        let dash = self.position();
        let list = self.block_list(indent)?;
        let position = TextPosition { column: dash.column.saturating_add(2), ..dash };
        Some(Node::new(position, list.into_value()))
    }

    fn block_list(&mut self, indent: usize) -> Option<Node<'a>> {
        self.nested(|reader| {
            let mut items = Vec::new();
            loop {
                reader.at += "- ".len();
                let is_map = plain_key_len(&reader.text.as_bytes()[reader.at..]).is_some();
                let item = match is_map {
                    true => reader.block_map(indent + "- ".len())?,
                    false => reader.value_in_line(indent)?,
                };
                items.push(item);
                if !reader.continues(indent)? || !reader.is_at_item() {
                    return Some(Value::List(items));
                }
            }
        })
    }

    /// A value up to the end of its line, which does not continue on the next one.
    fn value_in_line(&mut self, indent: usize) -> Option<Node<'a>> {
        let value = self.value(PlainContext::Block)?;
        self.end_line()?;
        self.indent.is_none_or(|next| next <= indent).then_some(value)
    }

    /// Whether the next line has this indentation; `None` if it has more.
    fn continues(&self, indent: usize) -> Option<bool> {
        match self.indent {
            Some(next) if next > indent => None,
            next => Some(next == Some(indent)),
        }
    }

    fn is_at_item(&self) -> bool {
        self.text.as_bytes()[self.at..].starts_with(b"- ")
    }

    /// Goes to the content of the next line; the rest of this one must be empty.
    fn end_line(&mut self) -> Option<()> {
        self.skip_spaces();
        match self.peek() {
            None => self.indent = None,
            Some(b'\n') => {
                self.start_line();
                self.find_line();
            }
            Some(_) => return None,
        }
        Some(())
    }

    /// Goes to the content of the line that starts here, or of the first one after it that is not empty or a comment.
    pub(super) fn find_line(&mut self) {
        loop {
            self.skip_spaces();
            self.indent = Some(self.at - self.line_start);
            match self.peek() {
                None => return self.indent = None,
                Some(b'\n') => self.start_line(),
                Some(b'#') => {
                    let rest = &self.text[self.at..];
                    self.at += rest.bytes().position(|byte| byte == b'\n').unwrap_or(rest.len());
                }
                Some(_) => return,
            }
        }
    }

    /// Steps over the end of a line.
    fn start_line(&mut self) {
        self.at += 1;
        self.line_start = self.at;
        self.line = self.line.saturating_add(1);
    }
}
