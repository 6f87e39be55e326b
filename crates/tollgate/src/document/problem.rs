//! Diagnostics of a configuration, collected so that one run shows all of them.
//!
//! A list of problems is always in the order of the file and never longer than [`MAX_PROBLEMS`]; further ones are only
//! counted. Texts are safe to print: control characters are escaped and long texts are truncated when a problem is
//! made. This module must not know what is being read.

use std::fmt;
use std::sync::Arc;

/// Maximum number of problems that are kept; the rest are counted.
pub const MAX_PROBLEMS: usize = 100;

/// Maximum number of characters of a message, a path or a file's name: enough for the list of all settings.
pub(crate) const MAX_TEXT_CHARS: usize = 800;

/// Maximum length of a word for [`did_you_mean`].
const MAX_WORD_CHARS: usize = 64;

/// Where something starts in a text: both count from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextPosition {
    pub line: u32,
    pub column: u32,
}

/// One problem, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    file: Option<Arc<str>>,
    position: Option<TextPosition>,
    path: String,
    message: String,
}

/// All problems, in the order of the files and of the positions in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Problems {
    list: Vec<Problem>,
    more: usize,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl Problem {
    /// `path` leads to the invalid value, such as `rules[3].limits[0]`; it may be empty.
    pub fn new(position: Option<TextPosition>, path: &str, message: impl fmt::Display) -> Self {
        Self { file: None, position, path: printable(path), message: printable(&message.to_string()) }
    }

    pub fn file(&self) -> Option<&str> {
        self.file.as_deref()
    }

    pub fn position(&self) -> Option<TextPosition> {
        self.position
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn message(&self) -> &str {
        &self.message
    }

    fn sort_key(&self) -> (Option<&str>, Option<TextPosition>) {
        (self.file(), self.position)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.position) {
            (Some(file), Some(position)) => write!(f, "{file}:{position}: ")?,
            (Some(file), None) => write!(f, "{file}: ")?,
            (None, Some(position)) => write!(f, "{position}: ")?,
            (None, None) => {}
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl Problems {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The number of problems, including those that were not kept.
    pub fn count(&self) -> usize {
        self.list.len() + self.more
    }

    /// Whether a problem at this position would be kept, and not only counted.
    pub(crate) fn keeps(&self, position: TextPosition) -> bool {
        let last = self.list.last().filter(|_| self.list.len() == MAX_PROBLEMS);
        last.is_none_or(|last| last.position > Some(position))
    }

    /// Inserts a problem in order; with equal positions the first stays first.
    pub fn push(&mut self, problem: Problem) {
        let at = self.list.partition_point(|held| held.sort_key() <= problem.sort_key());
        if at < MAX_PROBLEMS {
            self.list.insert(at, problem);
        } else {
            self.more += 1;
        }
        if self.list.len() > MAX_PROBLEMS {
            self.list.pop();
            self.more += 1;
        }
    }

    pub fn merge(&mut self, other: Problems) {
        self.more += other.more;
        for problem in other.list {
            self.push(problem);
        }
    }

    /// Sets the file of the problems; those that already have one keep it.
    pub fn in_file(self, name: &str) -> Self {
        let name: Arc<str> = printable(name).into();
        let mut placed = Self { list: Vec::new(), more: self.more };
        for mut problem in self.list {
            problem.file.get_or_insert_with(|| Arc::clone(&name));
            placed.push(problem);
        }
        placed
    }

    /// Removes what follows from `causes`: other problems at their positions.
    pub fn remove_consequences_of(&mut self, causes: &Problems) {
        let is_cause_there = |problem: &Problem| {
            problem.position.is_some() && causes.list.iter().any(|cause| cause.position == problem.position)
        };
        self.list.retain(|problem| causes.list.contains(problem) || !is_cause_there(problem));
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Problem> {
        self.list.iter()
    }

    /// `value` if there are no problems, else the problems.
    pub fn or<T>(self, value: T) -> Result<T, Self> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self { list: vec![problem], more: 0 }
    }
}

impl<'a> IntoIterator for &'a Problems {
    type Item = &'a Problem;
    type IntoIter = std::slice::Iter<'a, Problem>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.list.iter().enumerate() {
            let break_before = if index == 0 { "" } else { "\n" };
            write!(f, "{break_before}{problem}")?;
        }
        if self.more > 0 {
            write!(f, "\n… and {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// The known word that `word` was most likely meant to be, if one is close enough.
pub fn did_you_mean<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let typed = folded(word)?;
    let near = known.iter().filter_map(|candidate| {
        let meant = folded(candidate)?;
        let distance = edits_between(&typed, &meant);
        // One edit per three letters: nothing is suggested for words of one or two letters.
        (distance <= typed.len().max(meant.len()) / 3).then_some((distance, *candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

fn folded(word: &str) -> Option<Vec<char>> {
    let folded: Vec<char> = word.chars().take(MAX_WORD_CHARS + 1).map(|c| c.to_ascii_lowercase()).collect();
    (folded.len() <= MAX_WORD_CHARS).then_some(folded)
}

/// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
fn edits_between(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut fewest = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                fewest = fewest.min(before_last[j - 2] + 1);
            }
            row.push(fewest);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// Truncates long text and escapes characters that could move a terminal's cursor or reorder its line.
fn printable(text: &str) -> String {
    let mut printed = String::with_capacity(text.len().min(MAX_TEXT_CHARS));
    let mut chars = text.chars();
    for c in chars.by_ref().take(MAX_TEXT_CHARS) {
        if c.is_control() || reorders_text(c) {
            printed.extend(c.escape_default());
        } else {
            printed.push(c);
        }
    }
    if chars.next().is_some() {
        printed.push('…');
    }
    printed
}

/// Line separators and the marks of bidirectional text.
fn reorders_text(c: char) -> bool {
    let marks = '\u{200e}'..='\u{200f}';
    let breaks_and_overrides = '\u{2028}'..='\u{202e}';
    let isolates = '\u{2066}'..='\u{2069}';
    marks.contains(&c) || breaks_and_overrides.contains(&c) || isolates.contains(&c)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(line: u32, column: u32, message: &str) -> Problem {
        Problem::new(Some(TextPosition { line, column }), "", message)
    }

    #[test]
    fn a_problem_is_one_line_with_file_position_and_path() {
        let position = Some(TextPosition { line: 12, column: 14 });
        let problem = Problem::new(position, "rules[3].limits[0]", "unknown unit 'fortnight'");
        let problems = Problems::from(problem).in_file("rules.yaml");
        let line = "rules.yaml:12:14: rules[3].limits[0]: unknown unit 'fortnight'";
        assert_eq!(problems.to_string(), line);
        assert_eq!(Problem::new(None, "", "empty").to_string(), "empty");
    }

    #[test]
    fn problems_are_in_the_order_of_the_file_however_they_came() {
        let mut problems = Problems::new();
        problems.push(at(9, 1, "last"));
        problems.push(at(2, 7, "second"));
        problems.merge(at(2, 3, "first").into());
        assert_eq!(problems.to_string(), "2:3: first\n2:7: second\n9:1: last");
    }

    #[test]
    fn only_the_first_hundred_are_kept_and_the_rest_are_counted() {
        let mut problems = Problems::new();
        for line in (1..=412).rev() {
            problems.push(at(line, 1, "wrong"));
        }
        assert_eq!((problems.iter().count(), problems.count()), (MAX_PROBLEMS, 412));
        let text = problems.in_file("a.yaml").to_string();
        assert!(text.starts_with("a.yaml:1:1: wrong\na.yaml:2:1"));
        assert!(text.ends_with("a.yaml:100:1: wrong\n… and 312 more"), "{text}");
    }

    #[test]
    fn problems_of_several_files_keep_their_file() {
        let mut all = Problems::from(at(5, 1, "two")).in_file("b.yaml");
        all.merge(Problems::from(at(7, 1, "one")).in_file("a.yaml"));
        let all = all.in_file("c.yaml");
        assert_eq!(all.to_string(), "a.yaml:7:1: one\nb.yaml:5:1: two");
    }

    #[test]
    fn control_characters_are_escaped_and_long_texts_are_cut() {
        let problem = Problem::new(None, "a\nb", "\u{1b}[2Jé\u{202e}");
        assert_eq!(problem.to_string(), "a\\nb: \\u{1b}[2Jé\\u{202e}");
        let long = Problem::new(None, "", "x".repeat(10_000));
        assert_eq!(long.message().chars().count(), MAX_TEXT_CHARS + 1);
    }

    #[test]
    fn a_typo_suggests_the_intended_word() {
        let known = ["id", "match", "key", "limits", "limit", "max_wait", "on_store_error"];
        assert_eq!(did_you_mean("limts", &known), Some("limits"));
        assert_eq!(did_you_mean("lmiit", &known), Some("limit"));
        assert_eq!(did_you_mean("max-wait", &known), Some("max_wait"));
        assert_eq!(did_you_mean("Key", &known), Some("key"));
        assert_eq!(did_you_mean("on_stroe_eror", &known), Some("on_store_error"));
    }

    #[test]
    fn a_word_unlike_all_others_has_no_suggestion() {
        assert_eq!(did_you_mean("burst", &["id", "key"]), None);
        assert_eq!(did_you_mean("m", &["s", "h"]), None);
        assert_eq!(did_you_mean("", &["s", "h"]), None);
        assert_eq!(did_you_mean(&"k".repeat(1_000_000), &["key"]), None);
    }
}
