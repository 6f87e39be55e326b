//! Reads a map field by field and rejects unknown keys.
//!
//! Every name that is requested is known from then on; [`MapReader::finish`] reports all other keys. An invalid field
//! is added to the list of problems and counts as absent, so that reading continues and all problems are reported at
//! once. A null counts as absent too. Must not know any schema.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt::Display;

use crate::document::problem::{Problem, Problems, did_you_mean};
use crate::document::{MapEntry, Node, TextPosition};

/// One map of a document while it is being read.
#[must_use = "unknown keys are only reported by `finish`"]
pub struct MapReader<'n, 'p> {
    position: TextPosition,
    path: Cow<'n, str>,
    entries: &'n [MapEntry<'n>],
    known: Vec<&'static str>,
    problems: &'p mut Problems,
}

impl<'n, 'p> MapReader<'n, 'p> {
    /// Starts on a node that must be a map; anything else is reported and not read.
    pub fn new(
        node: &'n Node<'n>,
        path: impl Into<Cow<'n, str>>,
        problems: &'p mut Problems,
    ) -> Option<Self> {
        let position = node.position();
        let path = path.into();
        let Some(entries) = node.as_map() else {
            problems.push(Problem::new(Some(position), &path, expected("a map", node)));
            return None;
        };
        let known = Vec::with_capacity(KNOWN_NAMES);
        Some(Self { position, path, entries, known, problems })
    }

    pub fn position(&self) -> TextPosition {
        self.position
    }

    /// The path of a field of this map, such as `rules[3].limits`.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    /// The field's value of any kind.
    pub fn optional(&mut self, name: &'static str) -> Option<&'n Node<'n>> {
        self.known.push(name);
        let entry = self.entries.iter().find(|entry| entry.key() == name)?;
        Some(entry.value()).filter(|value| !value.is_null())
    }

    /// The field's value of any kind; reports if it is missing.
    pub fn required(&mut self, name: &'static str) -> Option<&'n Node<'n>> {
        let value = self.optional(name);
        if value.is_none() {
            self.report(self.position, &self.path.clone(), format!("'{name}' is missing"));
        }
        value
    }

    pub fn optional_text(&mut self, name: &'static str) -> Option<&'n str> {
        let value = self.optional(name)?;
        self.typed(name, value, "text", Node::as_str)
    }

    pub fn required_text(&mut self, name: &'static str) -> Option<&'n str> {
        let value = self.required(name)?;
        self.typed(name, value, "text", Node::as_str)
    }

    pub fn optional_u64(&mut self, name: &'static str) -> Option<u64> {
        let value = self.optional(name)?;
        self.typed(name, value, "a whole number", Node::as_u64)
    }

    pub fn optional_bool(&mut self, name: &'static str) -> Option<bool> {
        let value = self.optional(name)?;
        self.typed(name, value, "true or false", Node::as_bool)
    }

    pub fn optional_list(&mut self, name: &'static str) -> Option<&'n [Node<'n>]> {
        let value = self.optional(name)?;
        self.typed(name, value, "a list", Node::as_list)
    }

    /// A field that is one value or a list of them, such as `key: ip` and `key: [ip, user]`.
    pub fn one_or_many(&mut self, name: &'static str) -> Option<&'n [Node<'n>]> {
        let value = self.optional(name)?;
        Some(value.as_list().unwrap_or(std::slice::from_ref(value)))
    }

    /// A field that is a map itself, to be read and finished before continuing with this one.
    pub fn optional_map(&mut self, name: &'static str) -> Option<MapReader<'n, '_>> {
        let value = self.optional(name)?;
        MapReader::new(value, self.path_of(name), self.problems)
    }

    /// A field that is one of a few words.
    pub fn optional_choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&'static str, T)],
    ) -> Option<T> {
        let value = self.optional(name)?;
        let word = self.typed(name, value, "text", Node::as_str)?;
        let chosen = choices.iter().find(|(choice, _)| *choice == word);
        if chosen.is_none() {
            let words: Vec<_> = choices.iter().map(|(choice, _)| *choice).collect();
            self.reject(name, value, format!("unknown value '{word}'{}", suggestion(word, &words)));
        }
        chosen.map(|(_, choice)| *choice)
    }

    /// Reports a value of this map that is well-formed but not valid.
    pub fn reject(&mut self, name: &str, value: &Node<'_>, message: impl Display) {
        self.report(value.position(), &self.path_of(name), message);
    }

    /// Reports a problem of the map as a whole.
    pub fn reject_map(&mut self, message: impl Display) {
        self.report(self.position, &self.path.clone(), message);
    }

    /// For reading the contents of a field by other means.
    pub fn problems(&mut self) -> &mut Problems {
        self.problems
    }

    /// The names that were requested, in their order; some more than once.
    pub fn known(&self) -> &[&'static str] {
        &self.known
    }

    /// Reports the keys that were not requested.
    pub fn finish(mut self) {
        for entry in self.entries {
            let key = entry.key();
            if !self.known.contains(&key) {
                let mut named = HashSet::new();
                self.known.retain(|name| named.insert(*name));
                // The search for a suggestion is expensive: skipped for problems that are only counted.
                let is_kept = self.problems.keeps(entry.position());
                let meant = if is_kept { suggestion(key, &self.known) } else { String::new() };
                let message = format!("unknown key '{key}'{meant}");
                self.problems.push(Problem::new(Some(entry.position()), &self.path, message));
            }
        }
    }

    fn typed<T>(
        &mut self,
        name: &str,
        value: &'n Node<'n>,
        wanted: &str,
        read: impl FnOnce(&'n Node<'n>) -> Option<T>,
    ) -> Option<T> {
        let typed = read(value);
        if typed.is_none() {
            self.reject(name, value, expected(wanted, value));
        }
        typed
    }

    fn report(&mut self, position: TextPosition, path: &str, message: impl Display) {
        self.problems.push(Problem::new(Some(position), path, message));
    }
}

/// Capacity for the names of a usual map, so that requesting one does not allocate.
const KNOWN_NAMES: usize = 32;

/// `expected a list, found text 'abc'`.
pub fn expected(wanted: &str, found: &Node<'_>) -> String {
    match found.as_str() {
        Some(text) => format!("expected {wanted}, found text '{text}'"),
        None => format!("expected {wanted}, found {}", found.kind()),
    }
}

/// The end of a message about a word that is not one of `known`.
pub fn suggestion(word: &str, known: &[&'static str]) -> String {
    match did_you_mean(word, known) {
        Some(meant) => format!(": did you mean '{meant}'?"),
        None => format!(": use {}", known.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::read;

    /// The problems that `take` reports about `text`, one per line.
    fn check(text: &str, take: impl FnOnce(&mut MapReader<'_, '_>)) -> String {
        let root = read(text).unwrap();
        let mut problems = Problems::new();
        if let Some(mut map) = MapReader::new(&root, "rules[0]", &mut problems) {
            take(&mut map);
            map.finish();
        }
        problems.to_string()
    }

    #[test]
    fn fields_are_handed_out_by_name_and_type() {
        let text = "{id: r1, cost: 2, track: on, key: ip, limits: [5/m], mode: shadow, tick: ~}";
        let problems = check(text, |map| {
            assert_eq!(map.required_text("id"), Some("r1"));
            assert_eq!(map.optional_u64("cost"), Some(2));
            assert_eq!(map.optional_bool("track"), Some(true));
            assert_eq!(map.one_or_many("key").unwrap()[0].as_str(), Some("ip"));
            assert_eq!(map.one_or_many("limits").unwrap()[0].as_str(), Some("5/m"));
            assert_eq!(map.optional_choice("mode", &[("enforce", 1), ("shadow", 2)]), Some(2));
            assert_eq!(map.optional_text("tick"), None);
        });
        assert_eq!(problems, "");
    }

    #[test]
    fn an_unknown_key_is_reported_with_its_column() {
        let read_keys = |map: &mut MapReader<'_, '_>| {
            map.optional("limits");
            map.optional("key");
        };
        let near = "1:5: rules[0]: unknown key 'limts': did you mean 'limits'?";
        assert_eq!(check("{   limts: [5/m]}", read_keys), near);
        let far = "1:2: rules[0]: unknown key 'zebra': use limits, key";
        assert_eq!(check("{zebra: 1}", read_keys), far);
    }

    #[test]
    fn a_wrong_type_is_reported_with_what_was_found() {
        let text = "{limits: abc, cost: \"2\", id: [a], track: 1}";
        let problems = check(text, |map| {
            assert_eq!(map.optional_list("limits"), None);
            assert_eq!(map.optional_u64("cost"), None);
            assert_eq!(map.required_text("id"), None);
            assert_eq!(map.optional_bool("track"), None);
        });
        let expected = "1:10: rules[0].limits: expected a list, found text 'abc'\n\
                        1:21: rules[0].cost: expected a whole number, found text '2'\n\
                        1:30: rules[0].id: expected text, found a list\n\
                        1:42: rules[0].track: expected true or false, found text '1'";
        assert_eq!(problems, expected);
        assert_eq!(check("[a]", |_| ()), "1:1: rules[0]: expected a map, found a list");
    }

    #[test]
    fn a_missing_field_is_reported_where_its_map_starts() {
        let problems = check("\nid:\n", |map| assert_eq!(map.required_text("id"), None));
        assert_eq!(problems, "2:1: rules[0]: 'id' is missing");
    }

    #[test]
    fn an_unknown_word_is_reported_with_the_words_there_are() {
        let choices = [("open", true), ("closed", false)];
        let problems = check("{a: opne, b: x}", |map| {
            assert_eq!(map.optional_choice("a", &choices), None);
            assert_eq!(map.optional_choice("b", &choices), None);
        });
        let expected = "1:5: rules[0].a: unknown value 'opne': did you mean 'open'?\n\
                        1:14: rules[0].b: unknown value 'x': use open, closed";
        assert_eq!(problems, expected);
    }

    #[test]
    fn a_map_in_a_map_has_a_longer_path() {
        let problems = check("{ban: {after: x, four: 1h}, id: a}", |map| {
            if let Some(mut ban) = map.optional_map("ban") {
                assert_eq!(ban.optional_u64("after"), None);
                assert_eq!(ban.optional_text("for"), None);
                ban.finish();
            }
            assert_eq!(map.path_of("id"), "rules[0].id");
            let id = map.optional("id").unwrap();
            map.reject("id", id, "is taken");
        });
        let expected = "1:15: rules[0].ban.after: expected a whole number, found text 'x'\n\
                        1:18: rules[0].ban: unknown key 'four': did you mean 'for'?\n\
                        1:33: rules[0].id: is taken";
        assert_eq!(problems, expected);
    }
}
