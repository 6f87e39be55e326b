//! Where a rule is written: the file with its line, or the database.

use std::sync::Arc;

use tollgate::internal::document;
use tollgate::internal::rule::RuleInForce;

use crate::gate::{Gate, LiveSettings};

pub(super) struct RuleSources<'g> {
    gate: &'g Gate,
    live: Arc<LiveSettings>,
}

impl RuleSources<'_> {
    pub(super) fn new(gate: &Gate) -> RuleSources<'_> {
        RuleSources { gate, live: gate.live.load_full() }
    }

    pub(super) fn of(&self, rule: &RuleInForce) -> String {
        if rule.is_added() {
            return "database".to_owned();
        }
        let file = self.gate.config_file.get().map(|path| path.display().to_string());
        let line = line_of_rule(self.live.history.text(), rule.id.as_str());
        match (file, line) {
            (Some(file), Some(line)) => format!("file {file}:{line}"),
            (Some(file), None) => format!("file {file}"),
            (None, _) => "file".to_owned(),
        }
    }
}

/// The line on which a rule of a configuration begins.
fn line_of_rule(text: &str, id: &str) -> Option<u32> {
    let root = document::read(text).ok()?;
    let entry =
        |node: &document::Node<'_>, key: &str| node.as_map()?.iter().position(|entry| entry.key() == key);
    let rules = root.as_map()?.get(entry(&root, "rules")?)?.value();
    let rule = rules.as_list()?.iter().find(|rule| {
        let id_of = || rule.as_map()?.get(entry(rule, "id")?)?.value().as_str();
        id_of() == Some(id)
    })?;
    Some(rule.position().line)
}

#[cfg(test)]
mod tests {
    use super::line_of_rule;

    #[test]
    fn a_rule_is_found_by_its_line() {
        let text = "memory: 1GiB\nrules:\n  - id: a\n    limit: 5/m\n  - { id: b, limit: 5/m }\n";
        assert_eq!(line_of_rule(text, "a"), Some(3));
        assert_eq!(line_of_rule(text, "b"), Some(5));
        assert_eq!(line_of_rule(text, "c"), None);
        assert_eq!(line_of_rule("rules: []", "a"), None);
    }
}
