//! The tree of a document: values with their positions.
//!
//! A node is plain data and always finite: aliases are already expanded. Must not know how it was written, nor what
//! its values are for.

use std::borrow::Cow;

use crate::document::problem::TextPosition;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    position: TextPosition,
    value: Value<'a>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    Null,
    Scalar(Scalar<'a>),
    List(Vec<Node<'a>>),
    Map(Vec<MapEntry<'a>>),
}

/// A text; if it is plain it may also be read as a number or a boolean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scalar<'a> {
    text: Cow<'a, str>,
    plain: bool,
}

/// A key with its value. Keys are always text: `5:` and `on:` are the texts `5` and `on`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapEntry<'a> {
    position: TextPosition,
    key: Cow<'a, str>,
    value: Node<'a>,
}

/// The cost of a copy of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyCost {
    pub(crate) bytes: usize,
    /// Levels of lists and maps.
    pub(crate) depth: usize,
}

impl<'a> Node<'a> {
    pub(crate) fn new(position: TextPosition, value: Value<'a>) -> Self {
        Self { position, value }
    }

    pub fn position(&self) -> TextPosition {
        self.position
    }

    pub fn value(&self) -> &Value<'a> {
        &self.value
    }

    pub fn into_value(self) -> Value<'a> {
        self.value
    }

    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The text of any scalar, quoted or not.
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) => Some(&scalar.text),
            _ => None,
        }
    }

    /// A plain run of decimal digits; `"5"` in quotes is text.
    pub fn as_u64(&self) -> Option<u64> {
        let text = self.plain_text()?;
        // `parse` alone would accept a leading plus.
        text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
    }

    /// A plain `true`, `on`, `yes`, `false`, `off` or `no`.
    pub fn as_bool(&self) -> Option<bool> {
        let text = self.plain_text()?;
        let is_one_of = |words: [&str; 3]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        if is_one_of(["true", "on", "yes"]) {
            return Some(true);
        }
        is_one_of(["false", "off", "no"]).then_some(false)
    }

    pub fn as_list(&self) -> Option<&[Node<'a>]> {
        match &self.value {
            Value::List(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&[MapEntry<'a>]> {
        match &self.value {
            Value::Map(entries) => Some(entries),
            _ => None,
        }
    }

    /// A map without some of its keys.
    #[must_use]
    pub fn without(mut self, keys: &[&str]) -> Node<'a> {
        if let Value::Map(entries) = &mut self.value {
            entries.retain(|entry| !keys.contains(&entry.key()));
        }
        self
    }

    /// A map with a text added under a key that it does not have.
    #[must_use]
    pub fn with(mut self, key: &'a str, text: &'a str) -> Node<'a> {
        let position = self.position;
        if let Value::Map(entries) = &mut self.value {
            let text = Node::new(position, Value::Scalar(Scalar::new(text.into(), false)));
            entries.insert(0, MapEntry::new(position, key.into(), text));
        }
        self
    }

    /// Replaces the texts of all scalars; keys stay.
    pub(crate) fn map_texts(&mut self, replace: &mut impl FnMut(&str, TextPosition) -> Option<String>) {
        match &mut self.value {
            Value::Null => {}
            Value::Scalar(scalar) => {
                if let Some(text) = replace(&scalar.text, self.position) {
                    scalar.text = Cow::Owned(text);
                }
            }
            Value::List(items) => items.iter_mut().for_each(|item| item.map_texts(replace)),
            Value::Map(entries) => entries.iter_mut().for_each(|entry| entry.value.map_texts(replace)),
        }
    }

    /// The kind of the value, for messages.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Scalar(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    fn plain_text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar(scalar) if scalar.plain => Some(&scalar.text),
            _ => None,
        }
    }

    pub(crate) fn copy_cost(&self) -> CopyCost {
        let mut whole = CopyCost { bytes: size_of::<Node>(), depth: 0 };
        let mut add = |child: CopyCost, more_bytes: usize| {
            whole.bytes += child.bytes + more_bytes;
            whole.depth = whole.depth.max(child.depth);
        };
        match &self.value {
            Value::Null => {}
            Value::Scalar(scalar) => whole.bytes += scalar.text.len(),
            Value::List(items) => {
                items.iter().for_each(|item| add(item.copy_cost(), 0));
                whole.depth += 1;
            }
            Value::Map(entries) => {
                let key_bytes = |entry: &MapEntry| size_of::<MapEntry>() + entry.key.len();
                entries.iter().for_each(|entry| add(entry.value.copy_cost(), key_bytes(entry)));
                whole.depth += 1;
            }
        }
        whole
    }
}

impl<'a> Scalar<'a> {
    pub(crate) fn new(text: Cow<'a, str>, plain: bool) -> Self {
        Self { text, plain }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn into_text(self) -> Cow<'a, str> {
        self.text
    }

    /// Whether it was written as a plain scalar: not quoted, not as a block.
    pub fn is_plain(&self) -> bool {
        self.plain
    }
}

impl<'a> MapEntry<'a> {
    pub(crate) fn new(position: TextPosition, key: Cow<'a, str>, value: Node<'a>) -> Self {
        Self { position, key, value }
    }

    pub fn position(&self) -> TextPosition {
        self.position
    }

    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn value(&self) -> &Node<'a> {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: TextPosition = TextPosition { line: 1, column: 1 };

    fn plain(text: &str) -> Node<'_> {
        Node::new(HERE, Value::Scalar(Scalar::new(text.into(), true)))
    }

    fn quoted(text: &str) -> Node<'_> {
        Node::new(HERE, Value::Scalar(Scalar::new(text.into(), false)))
    }

    #[test]
    fn only_plain_digits_are_a_number() {
        assert_eq!(plain("5").as_u64(), Some(5));
        assert_eq!(plain("18446744073709551615").as_u64(), Some(u64::MAX));
        for text in ["18446744073709551616", "+5", "-5", "5.0", "1e3", "0x10", "5/m", "", "٥"] {
            assert_eq!(plain(text).as_u64(), None, "{text}");
        }
        assert_eq!(quoted("5").as_u64(), None);
    }

    #[test]
    fn only_plain_words_are_truth_values() {
        for (text, truth) in [("true", true), ("on", true), ("Yes", true), ("off", false)] {
            assert_eq!(plain(text).as_bool(), Some(truth), "{text}");
            assert_eq!(quoted(text).as_bool(), None, "{text}");
        }
        assert_eq!(plain("y").as_bool(), None);
        assert_eq!(plain("1").as_bool(), None);
    }

    #[test]
    fn every_value_has_a_kind_for_messages() {
        let kind = |value| Node::new(HERE, value).kind();
        assert_eq!(kind(Value::Null), "nothing");
        assert_eq!(kind(Value::List(Vec::new())), "a list");
        assert_eq!(kind(Value::Map(Vec::new())), "a map");
        assert_eq!(plain("5").kind(), "text");
    }

    #[test]
    fn the_extent_counts_levels_and_text() {
        assert_eq!(plain("abc").copy_cost().depth, 0);
        let list = Node::new(HERE, Value::List(vec![plain("abc"), plain("de")]));
        assert_eq!(list.copy_cost(), CopyCost { bytes: 3 * size_of::<Node>() + 5, depth: 1 });
        let map = Node::new(HERE, Value::Map(vec![MapEntry::new(HERE, "k".into(), list)]));
        assert_eq!(map.copy_cost().depth, 2);
    }

    #[test]
    fn a_node_stays_small() {
        assert!(size_of::<Node>() <= 40, "{}", size_of::<Node>());
        assert!(size_of::<MapEntry>() <= 72, "{}", size_of::<MapEntry>());
    }
}
