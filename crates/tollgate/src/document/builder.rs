//! Turns the parser's events into nodes, without recursion.
//!
//! A node is added to its parent once it is complete, so an alias can only refer to a complete node and no tree can
//! contain itself. Depth and the size of expanded aliases are bounded here. Must not know the schema.

use std::borrow::Cow;
use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

use crate::document::node::{CopyCost, MapEntry, Node, Scalar, Value};
use crate::document::problem::{Problem, Problems, TextPosition};

/// Maximum nesting of lists and maps, including those in expanded aliases.
pub const MAX_DEPTH: usize = 64;

/// Maximum memory that anchors and aliases may add to a document, against "billion laughs" attacks.
pub const MAX_ALIAS_BYTES: usize = 64 << 20;

/// Up to this many keys, pairwise comparison is faster than hashing.
const FEW_KEYS: usize = 16;

/// A document under construction. An `Err` is a problem that ends the reading; others are collected.
#[derive(Default)]
pub(crate) struct Builder<'a> {
    root: Option<Node<'a>>,
    open: Vec<Frame<'a>>,
    /// Finished items of all open lists, innermost last: each list is allocated once, with its exact size.
    items: Vec<Node<'a>>,
    /// The same for the entries of open maps.
    entries: Vec<MapEntry<'a>>,
    anchored: HashMap<usize, Node<'a>>,
    alias_bytes: usize,
    problems: Problems,
}

/// A list or map that is not closed yet.
struct Frame<'a> {
    position: TextPosition,
    anchor: usize,
    content: Content<'a>,
}

/// The start of a frame's own part of the builder's items or entries.
enum Content<'a> {
    List { start: usize },
    Map { start: usize, key: Option<(TextPosition, Cow<'a, str>)> },
}

/// Finds scalars in the source, so that most of them need no memory of their own.
struct SourceText<'a> {
    text: &'a str,
    /// The same position in characters and in bytes; it only moves forward.
    chars: usize,
    bytes: usize,
}

impl<'a> SourceText<'a> {
    /// The slice that starts at this marker and equals `scalar`, if there is one.
    fn slice(&mut self, marker: &Marker, scalar: &str, style: ScalarStyle) -> Option<&'a str> {
        let quote = usize::from(style != ScalarStyle::Plain);
        let ahead = (marker.index() + quote).checked_sub(self.chars)?;
        let mut rest = self.text.get(self.bytes..)?.chars();
        if ahead > 0 {
            rest.nth(ahead - 1)?;
        }
        self.chars += ahead;
        self.bytes = self.text.len() - rest.as_str().len();
        rest.as_str().get(..scalar.len()).filter(|slice| *slice == scalar)
    }
}

impl<'a> Builder<'a> {
    /// The root of the one document in `text`; `None` if there is none.
    pub(crate) fn build(text: &'a str) -> Result<Option<Node<'a>>, Problems> {
        let mut builder = Self::default();
        if let Err(problem) = builder.run(text) {
            builder.problems.push(problem);
        }
        builder.problems.or(builder.root)
    }

    fn run(&mut self, text: &'a str) -> Result<(), Problem> {
        let mut documents = 0;
        let mut source = SourceText { text, chars: 0, bytes: 0 };
        for event in Parser::new_from_str(text) {
            let (event, span) =
                event.map_err(|error| problem_at(position_of(error.marker()), error.info()))?;
            let position = position_of(&span.start);
            match event {
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        return Err(problem_at(
                            position,
                            "a second document starts here: write one per file",
                        ));
                    }
                }
                Event::Scalar(text, style, anchor, tag) => {
                    self.reject_tag(position, tag.is_some());
                    let text = match source.slice(&span.start, &text, style) {
                        Some(slice) => Cow::Borrowed(slice),
                        None => Cow::Owned(text.into_owned()),
                    };
                    let scalar = Scalar::new(text, style == ScalarStyle::Plain);
                    let null = !self.key_is_next() && is_null(&scalar);
                    let value = if null { Value::Null } else { Value::Scalar(scalar) };
                    self.add(Node::new(position, value), anchor)?;
                }
                Event::SequenceStart(anchor, tag) => {
                    self.reject_tag(position, tag.is_some());
                    let start = self.items.len();
                    self.open(position, anchor, Content::List { start })?;
                }
                Event::MappingStart(anchor, tag) => {
                    self.reject_tag(position, tag.is_some());
                    let start = self.entries.len();
                    self.open(position, anchor, Content::Map { start, key: None })?;
                }
                Event::SequenceEnd | Event::MappingEnd => self.close()?,
                Event::Alias(anchor) => self.expand(position, anchor)?,
                Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
            }
        }
        Ok(())
    }

    fn key_is_next(&self) -> bool {
        let content = self.open.last().map(|frame| &frame.content);
        matches!(content, Some(Content::Map { key: None, .. }))
    }

    fn reject_tag(&mut self, position: TextPosition, tagged: bool) {
        if tagged {
            self.problems
                .push(problem_at(position, "tags such as '!!str' are not supported: quote text instead"));
        }
    }

    fn open(&mut self, position: TextPosition, anchor: usize, content: Content<'a>) -> Result<(), Problem> {
        if self.key_is_next() {
            return Err(problem_at(position, "a key must be text, not a list or a map"));
        }
        if self.open.len() == MAX_DEPTH {
            return Err(too_deep(position));
        }
        self.open.push(Frame { position, anchor, content });
        Ok(())
    }

    fn close(&mut self) -> Result<(), Problem> {
        let Some(Frame { position, anchor, content }) = self.open.pop() else {
            return Ok(()); // the parser pairs ends with starts
        };
        let value = match content {
            Content::List { start } => Value::List(self.items.drain(start..).collect()),
            Content::Map { start, .. } => {
                let entries: Vec<_> = self.entries.drain(start..).collect();
                report_repeated_keys(&entries, &mut self.problems);
                Value::Map(entries)
            }
        };
        self.add(Node::new(position, value), anchor)
    }

    /// Adds a finished node to its parent. The parser's number for "no anchor" is 0.
    fn add(&mut self, node: Node<'a>, anchor: usize) -> Result<(), Problem> {
        if anchor != 0 {
            charge(&mut self.alias_bytes, node.copy_cost(), node.position())?;
            self.anchored.insert(anchor, node.clone());
        }
        match self.open.last_mut().map(|frame| &mut frame.content) {
            None => self.root = Some(node),
            Some(Content::List { .. }) => self.items.push(node),
            Some(Content::Map { key, .. }) => match key.take() {
                Some((position, text)) => self.entries.push(MapEntry::new(position, text, node)),
                None => *key = Some(key_from(node, &mut self.problems)?),
            },
        }
        Ok(())
    }

    /// Adds a copy of the anchored node in place of the alias; its positions stay those of the anchor.
    fn expand(&mut self, position: TextPosition, anchor: usize) -> Result<(), Problem> {
        let Some(node) = self.anchored.get(&anchor) else {
            return Err(problem_at(position, "an alias cannot refer to the value that contains it"));
        };
        let extent = node.copy_cost();
        if self.open.len() + extent.depth > MAX_DEPTH {
            return Err(too_deep(position));
        }
        charge(&mut self.alias_bytes, extent, position)?;
        let copy = node.clone();
        self.add(copy, 0)
    }
}

fn charge(alias_bytes: &mut usize, extent: CopyCost, position: TextPosition) -> Result<(), Problem> {
    *alias_bytes += extent.bytes;
    if *alias_bytes > MAX_ALIAS_BYTES {
        let bound = MAX_ALIAS_BYTES >> 20;
        return Err(problem_at(position, format!("aliases expand to more than {bound} MiB: use fewer")));
    }
    Ok(())
}

fn is_null(scalar: &Scalar) -> bool {
    scalar.is_plain() && matches!(scalar.text(), "" | "~" | "null" | "Null" | "NULL")
}

fn key_from<'a>(node: Node<'a>, problems: &mut Problems) -> Result<(TextPosition, Cow<'a, str>), Problem> {
    let position = node.position();
    let Value::Scalar(scalar) = node.into_value() else {
        return Err(problem_at(position, "a key must be text"));
    };
    match scalar.text() {
        "<<" if scalar.is_plain() => {
            problems.push(problem_at(position, "merge keys '<<' are not supported: write the keys out"));
        }
        "" if scalar.is_plain() => problems.push(problem_at(position, "a key is missing here")),
        _ => {}
    }
    Ok((position, scalar.into_text()))
}

fn report_repeated_keys(entries: &[MapEntry], problems: &mut Problems) {
    let mut report = |first: &MapEntry, again: &MapEntry| {
        let key = first.key();
        let line = first.position().line;
        let line_again = again.position().line;
        let message = format!("key '{key}' is given twice, on lines {line} and {line_again}");
        problems.push(problem_at(again.position(), message));
    };
    if entries.len() <= FEW_KEYS {
        for (index, entry) in entries.iter().enumerate() {
            if let Some(first) = entries[..index].iter().find(|held| held.key() == entry.key()) {
                report(first, entry);
            }
        }
        return;
    }
    let mut seen = HashMap::with_capacity(entries.len());
    for entry in entries {
        let first: &MapEntry = seen.entry(entry.key()).or_insert(entry);
        if !std::ptr::eq(first, entry) {
            report(first, entry);
        }
    }
}

fn problem_at(position: TextPosition, message: impl std::fmt::Display) -> Problem {
    Problem::new(Some(position), "", message)
}

fn too_deep(position: TextPosition) -> Problem {
    problem_at(position, format!("lists and maps are nested deeper than {MAX_DEPTH} levels"))
}

fn position_of(marker: &Marker) -> TextPosition {
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    TextPosition { line: number(marker.line()), column: number(marker.col()).saturating_add(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(text: &'static str, index: usize, scalar: &str, style: ScalarStyle) -> Option<&'static str> {
        let mut source = SourceText { text, chars: 0, bytes: 0 };
        source.slice(&Marker::new(index, 1, index), scalar, style)
    }

    #[test]
    fn a_scalar_is_found_in_the_source_by_its_character() {
        assert_eq!(slice("é: üx", 3, "üx", ScalarStyle::Plain), Some("üx"));
        assert_eq!(slice("é: 'x'", 3, "x", ScalarStyle::SingleQuoted), Some("x"));
    }

    #[test]
    fn a_scalar_that_reads_differently_is_not_borrowed() {
        assert_eq!(slice("\"a\\tb\"", 0, "a\tb", ScalarStyle::DoubleQuoted), None);
        assert_eq!(slice("ab", 1, "bc", ScalarStyle::Plain), None);
        assert_eq!(slice("é", 0, "a", ScalarStyle::Plain), None);
        assert_eq!(slice("ab", 7, "", ScalarStyle::Plain), None);
    }

    #[test]
    fn plain_words_of_emptiness_are_null() {
        let null = |text: &'static str, plain| is_null(&Scalar::new(text.into(), plain));
        assert!(["", "~", "null", "NULL"].into_iter().all(|text| null(text, true)));
        assert!(!null("", false) && !null("nil", true));
    }
}
