//! The rules of a text, one by one.
//!
//! Splits a YAML block list or a JSON array into one slice per rule, so that a million rules are never held as a
//! document tree. Any other form, and any slice that does not parse, falls back to parsing the whole text. A wrong
//! split always yields a slice that does not parse, because a bracket, quote or alias is cut in half.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use tollgate::internal::document::{self, MAX_PROBLEMS, Node, Problem, Problems, TextPosition};
use tollgate::internal::rule::{Rule, RuleId, parse};

use crate::rules::{ParsedRule, RuleText};

/// White space of YAML; other characters are part of a text.
const BLANK: [char; 4] = [' ', '\t', '\r', '\n'];

/// The slice of one rule.
struct RuleSlice<'t> {
    text: &'t str,
    /// Whether the slice is a YAML list of one item, with its dash.
    in_list: bool,
    /// Where it starts in the text.
    line: u32,
    column: u32,
}

/// Collects the rules of a text: a list, or a map with a list under `rules`. Any invalid rule is an error with its
/// line. `start` creates the collection, again if the text has to be parsed as a whole.
pub fn for_each_rule<C>(
    text: &str,
    start: impl Fn() -> C,
    mut each: impl FnMut(&mut C, ParsedRule),
) -> Result<C, Problems> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let pieces = || -> Option<Box<dyn Iterator<Item = Option<RuleSlice<'_>>> + '_>> {
        match text.trim_start().as_bytes().first()? {
            b'{' | b'[' => Some(Box::new(split_json(text)?)),
            _ => Some(Box::new(split_yaml_block(text)?)),
        }
    };
    let mut rules = start();
    match pieces().map(|pieces| read_slices(pieces, |rule| each(&mut rules, rule))) {
        Some(SplitOutcome::Rules) => Ok(rules),
        Some(SplitOutcome::Invalid(problems, twice)) => {
            let first = pieces().map(|pieces| first_lines(pieces, &twice)).unwrap_or_default();
            Err(with_duplicates(problems, twice, &first))
        }
        Some(SplitOutcome::NotSplittable) | None => {
            rules = start();
            read_whole(text, |rule| each(&mut rules, rule)).map(|()| rules)
        }
    }
}

/// Rules with an id that was used before: path, id and position.
type DuplicateIds = Vec<(String, RuleId, TextPosition)>;

enum SplitOutcome {
    Rules,
    Invalid(Problems, DuplicateIds),
    /// The text has another form.
    NotSplittable,
}

fn read_slices<'t>(
    pieces: impl Iterator<Item = Option<RuleSlice<'t>>>,
    mut each: impl FnMut(ParsedRule),
) -> SplitOutcome {
    let mut problems = Problems::new();
    let mut ids = SeenIds::default();
    let mut twice = DuplicateIds::new();
    for (n, piece) in pieces.enumerate() {
        let Some(piece) = piece else { return SplitOutcome::NotSplittable };
        let Ok(node) = document::read(piece.text) else { return SplitOutcome::NotSplittable };
        let node = match (piece.in_list, node.as_list()) {
            (false, _) => &node,
            (true, Some([one])) => one,
            (true, _) => return SplitOutcome::NotSplittable,
        };
        let path = format!("rules[{n}]");
        let mut own = Problems::new();
        let rule = parse::rule(node, &path, &mut own);
        let read = rule.map(|rule| RuleText::of(&rule, node, &path).map(|text| (rule, text)));
        let position = piece.position_in_text(node.position());
        match read {
            Some(Ok((rule, text))) => {
                if !ids.insert(&rule.id) {
                    if twice.len() < MAX_PROBLEMS {
                        twice.push((path, rule.id, position));
                    }
                } else if problems.is_empty() && twice.is_empty() {
                    each(ParsedRule { position, rule, text });
                }
            }
            Some(Err(faults)) => own.merge(faults),
            None => {}
        }
        for problem in own.iter() {
            let position = problem.position().map(|position| piece.position_in_text(position));
            problems.push(Problem::new(position, problem.path(), problem.message()));
        }
    }
    if problems.is_empty() && twice.is_empty() {
        SplitOutcome::Rules
    } else {
        SplitOutcome::Invalid(problems, twice)
    }
}

/// The line of the first use of each id.
fn first_lines<'t>(
    pieces: impl Iterator<Item = Option<RuleSlice<'t>>>,
    twice: &DuplicateIds,
) -> HashMap<RuleId, u32> {
    let wanted: HashSet<&RuleId> = twice.iter().map(|(_, id, _)| id).collect();
    let mut lines = HashMap::new();
    for piece in pieces.flatten() {
        let Ok(node) = document::read(piece.text) else { continue };
        let node = node.as_list().and_then(<[Node<'_>]>::first).unwrap_or(&node);
        let entry = node.as_map().and_then(|map| map.iter().find(|entry| entry.key() == "id"));
        let id = entry.and_then(|entry| entry.value().as_str()).and_then(RuleId::new);
        if let Some(id) = id.filter(|id| wanted.contains(id)) {
            lines.entry(id).or_insert(piece.position_in_text(node.position()).line);
        }
    }
    lines
}

fn with_duplicates(mut problems: Problems, twice: DuplicateIds, first: &HashMap<RuleId, u32>) -> Problems {
    for (path, id, position) in twice {
        let line = first.get(&id).copied().unwrap_or(position.line);
        let message = format!("rule id '{id}' is used twice, first at line {line}");
        problems.push(Problem::new(Some(position), &path, message));
    }
    problems
}

impl RuleSlice<'_> {
    /// Converts a position in the slice to a position in the text.
    fn position_in_text(&self, position: TextPosition) -> TextPosition {
        let column = if position.line == 1 { position.column + self.column - 1 } else { position.column };
        TextPosition { line: position.line + self.line - 1, column }
    }
}

/// The ids seen so far, as keyed 128-bit hashes: collisions are negligible.
#[derive(Default)]
struct SeenIds {
    seen: HashSet<u128>,
    hashers: [RandomState; 2],
}

impl SeenIds {
    fn insert(&mut self, id: &RuleId) -> bool {
        let [high, low] = self.hashers.each_ref().map(|state| u128::from(state.hash_one(id.as_str())));
        self.seen.insert(high << 64 | low)
    }
}

/// Parses a text of any form.
fn read_whole(text: &str, mut each: impl FnMut(ParsedRule)) -> Result<(), Problems> {
    let root = document::read(text)?;
    let mut problems = Problems::new();
    let under = root.as_map().and_then(|map| map.iter().find(|entry| entry.key() == "rules"));
    let list = under.map_or(&root, |entry| entry.value());
    for other in root.as_map().unwrap_or_default().iter().filter(|entry| entry.key() != "rules") {
        let why = "only 'rules' is read from this file";
        problems.push(Problem::new(Some(other.position()), other.key(), why));
    }
    let rules = parse::rules(list, "rules", &mut problems);
    let rules: Vec<Rule> = problems.or(rules)?;
    let nodes: &[Node<'_>] = list.as_list().unwrap_or_default();
    for (n, (rule, node)) in rules.into_iter().zip(nodes).enumerate() {
        let text = RuleText::of(&rule, node, &format!("rules[{n}]"))?;
        each(ParsedRule { position: node.position(), rule, text });
    }
    Ok(())
}

/// Splits a block list at its dashes; `None` for any other form.
fn split_yaml_block(text: &str) -> Option<impl Iterator<Item = Option<RuleSlice<'_>>>> {
    let mut at = 0;
    let mut line = 1;
    let mut headed = false;
    // Lines that may precede the list.
    let indent = loop {
        let next = text.get(at..)?.split_inclusive('\n').next()?;
        let trimmed = next.trim_matches(BLANK);
        let indent = next.len() - next.trim_start_matches(' ').len();
        if trimmed.starts_with("- ") {
            break indent;
        }
        match trimmed {
            "rules:" if indent == 0 && !headed => headed = true,
            "---" if !headed && indent == 0 && at == 0 => {}
            comment if comment.is_empty() || comment.starts_with('#') => {}
            _ => return None,
        }
        at += next.len();
        line += 1;
    };
    if indent > 0 && !headed {
        return None;
    }
    let mut lines = text[at..].split_inclusive('\n').peekable();
    Some(std::iter::from_fn(move || {
        let first = lines.next()?;
        if !begins_item(first, indent) {
            return Some(None);
        }
        let mut length = first.len();
        let start = (at, line);
        line += 1;
        while let Some(more) = lines.peek() {
            if begins_item(more, indent) {
                break;
            }
            let own = more.len() - more.trim_start_matches(' ').len();
            let trimmed = more.trim_matches(BLANK);
            let blank = trimmed.is_empty() || (trimmed.starts_with('#') && own <= indent);
            if !blank && own <= indent {
                break; // the next call returns `Some(None)` for it
            }
            length += more.len();
            line += 1;
            lines.next();
        }
        at += length;
        Some(Some(RuleSlice::of_block(&text[start.0..at], indent, start.1)))
    }))
}

fn begins_item(line: &str, indent: usize) -> bool {
    let spaces = line.len() - line.trim_start_matches(' ').len();
    spaces == indent && line[spaces..].starts_with("- ")
}

impl<'t> RuleSlice<'t> {
    /// A rule in braces on one line is parsed without its dash, as fast as JSON.
    fn of_block(text: &'t str, indent: usize, line: u32) -> RuleSlice<'t> {
        let skipped = indent + 2;
        let rest = text.get(skipped..).unwrap_or_default().trim_end_matches(BLANK);
        match rest.starts_with('{') && !rest.contains('\n') {
            true => RuleSlice { text: rest, in_list: false, line, column: skipped as u32 + 1 },
            false => RuleSlice { text, in_list: true, line, column: 1 },
        }
    }
}

/// Splits JSON between its rules; `None` for any other form.
fn split_json(text: &str) -> Option<impl Iterator<Item = Option<RuleSlice<'_>>>> {
    let mut cut = JsonSplitter { text, at: 0, line: 1, counted: 0, column: 1 };
    cut.skip_blank();
    let in_map = cut.take("{");
    if in_map {
        cut.skip_blank();
        let named = cut.take("\"rules\"");
        cut.skip_blank();
        let valued = cut.take(":");
        cut.skip_blank();
        (named && valued).then_some(())?;
    }
    cut.take("[").then_some(())?;
    cut.skip_blank();
    let mut ended = false;
    if cut.take("]") {
        return None; // no rules: cheap to parse as a whole
    }
    Some(std::iter::from_fn(move || {
        if ended {
            return None;
        }
        let Some(piece) = cut.object() else {
            ended = true;
            return Some(None);
        };
        cut.skip_blank();
        if cut.take(",") {
            cut.skip_blank();
            return Some(Some(piece));
        }
        ended = true;
        Some(cut.end(in_map).then_some(piece))
    }))
}

struct JsonSplitter<'t> {
    text: &'t str,
    at: usize,
    line: u32,
    /// Columns are counted up to this byte; a text may be one long line.
    counted: usize,
    column: usize,
}

impl<'t> JsonSplitter<'t> {
    fn skip_blank(&mut self) {
        while let Some(byte @ (b' ' | b'\t' | b'\r' | b'\n')) = self.text.as_bytes().get(self.at) {
            self.at += 1;
            if *byte == b'\n' {
                self.next_line();
            }
        }
    }

    fn next_line(&mut self) {
        self.line += 1;
        self.counted = self.at;
        self.column = 1;
    }

    /// The column of the next byte, in characters.
    fn column(&mut self) -> u32 {
        self.column += self.text.get(self.counted..self.at).unwrap_or_default().chars().count();
        self.counted = self.at;
        u32::try_from(self.column).unwrap_or(u32::MAX)
    }

    fn take(&mut self, token: &str) -> bool {
        let there = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(token));
        self.at += if there { token.len() } else { 0 };
        there
    }

    /// Consumes the end of the list, and of the map around it.
    fn end(&mut self, in_map: bool) -> bool {
        let listed = self.take("]");
        self.skip_blank();
        let mapped = !in_map || self.take("}");
        self.skip_blank();
        listed && mapped && self.at == self.text.len()
    }

    /// One object; outside of strings it may contain only JSON's characters.
    fn object(&mut self) -> Option<RuleSlice<'t>> {
        let start = self.at;
        let line = self.line;
        let column = self.column();
        let bytes = self.text.as_bytes();
        let mut depth = 0usize;
        loop {
            let byte = *bytes.get(self.at)?;
            self.at += 1;
            match byte {
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth = depth.checked_sub(1)?,
                b'"' => self.skip_string()?,
                b'\n' => self.next_line(),
                b',' | b':' | b' ' | b'\t' | b'\r' | b'+' | b'-' | b'.' => {}
                byte if byte.is_ascii_alphanumeric() => {}
                _ => return None,
            }
            if depth == 0 {
                break;
            }
        }
        let text = self.text.get(start..self.at).filter(|text| text.starts_with('{'))?;
        Some(RuleSlice { text, in_list: false, line, column })
    }

    /// A JSON string contains no line break.
    fn skip_string(&mut self) -> Option<()> {
        let bytes = self.text.as_bytes();
        loop {
            match *bytes.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                b'\n' => return None,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(read: &ParsedRule) -> String {
        format!("{} {}\n", read.position, read.text.as_str())
    }

    fn check(text: &str) {
        let pieces = for_each_rule(text, String::new, |all, read| *all += &shown(&read));
        let mut all = String::new();
        let together = read_whole(text, |read| all += &shown(&read)).map(|()| all);
        let shown = |read: Result<String, Problems>| read.unwrap_or_else(|problems| problems.to_string());
        assert_eq!(shown(pieces), shown(together), "{text}");
    }

    #[test]
    fn rules_are_read_one_by_one_as_they_are_together() {
        for text in [
            "rules:\n- {id: a, limit: 5/m}\n- {\"id\":\"b\",\"limit\":\"6/m\"}\n",
            "# rules\n---\n- id: a\n  limit: 5/m\n",
            "---\n# rules\n\nrules:\n\n  - id: a\n    limit: 5/m # five\n\n  # the other\n  - id: b\n    limit: 6/m",
            "rules: [{id: a, limit: 5/m}]",
            "{\"rules\": [{\"id\":\"a\",\"limit\":\"5/m\"},\n {\"id\":\"b\",\"limit\":\"6/m\"}]}",
            "[\n{\"id\":\"a\",\"limit\":\"5/m\"}\n]\n",
            "[]",
            "{}",
            "",
            "rules: []",
            "rules:\n- {id: a, limit: 5/m}\nallow: []\n",
            "rules:\n- {id: a, limit: 5/m}\n- {id: a, limit: 6/m}\n",
            "rules:\n- {id: a, limit: five}\n- {id: b, limit: 5/m, colour: red}\n- {id: c, limit: 5/m}\n",
            "[{\"id\":\"a\",\"limit\":\"five\"},\n  {\"id\":\"b\", \"limit\":\n \"six\"}]",
            "- &a {id: a, limit: 5/m}\n- *a\n",
            "- {id: a, key: &k [ip, user], limit: 5/m}\n- {id: b, key: *k, limit: 6/m}\n",
            "- {id: a,\n   limit: 5/m}\n- {id: b, limit: 6/m\n",
            "- id: 'a\n- b'\n  limit: 5/m\n",
            "-\n  id: a\n  limit: 5/m\n",
            "- - id: a\n",
            "- {id: a, limit: 5/m}\n---\n- {id: b, limit: 5/m}\n",
            "  - {id: a, limit: 5/m}\n",
            "rules:\n\t- {id: a, limit: 5/m}\n",
            "[{id: a, limit: 5/m, host: '}, {'}]",
            "{\"rules\":[{\"id\":\"a\",\"limit\":\"5/m\"}],\"rules\":[]}",
            "[{\"id\":\"a\",\"limit\":\"5/m\"},]",
            "- {\"id\":\"b\",\"limit\":\"6/m\"}\u{b}",
            "- {id: b, limit: 6/m}\n\u{85}\n- {id: c, limit: 6/m}\n",
            "[{\"id\":\"ü\",\"limit\":\"5/m\"}, {\"id\":\"\\\"}\"}]",
        ] {
            check(text);
        }
    }
}
