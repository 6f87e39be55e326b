//! The configuration in force and its predecessors.
//!
//! A key that was not hit since a change of its limit still has state under the former limit, so saved state must
//! contain the former rules, too. Must not know how states are stored.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tollgate::Time;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::{self, TextPosition};

use crate::config::Config;

/// The engine follows no longer chains of predecessors.
const MAX_PREVIOUS: usize = 4;

#[derive(Clone, Serialize, Deserialize)]
pub struct ConfigHistory {
    /// The text of the configuration in force.
    text: String,
    /// Oldest first.
    former: Vec<PreviousConfig>,
}

#[derive(Clone, Serialize, Deserialize)]
struct PreviousConfig {
    text: String,
    replaced_at_ns: u64,
}

impl ConfigHistory {
    pub fn new(text: String) -> ConfigHistory {
        ConfigHistory { text, former: Vec::new() }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where a rule of the configuration in force begins.
    pub fn position_of_rule(&self, id: &str) -> Option<TextPosition> {
        position_of_rule(&self.text, id)
    }

    /// Replaces the text of the configuration in force by one with the same rules.
    pub fn with_text(&self, text: String) -> ConfigHistory {
        ConfigHistory { text, former: self.former.clone() }
    }

    /// Adds a configuration with other rules, which comes into force.
    pub fn succeeded_by(&self, text: String, now: Time) -> ConfigHistory {
        let surplus = (self.former.len() + 1).saturating_sub(MAX_PREVIOUS);
        let mut former = self.former[surplus..].to_vec();
        former.push(PreviousConfig { text: self.text.clone(), replaced_at_ns: now.nanos() });
        ConfigHistory { text, former }
    }

    pub fn write(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are valid JSON")
    }

    pub fn read(saved: &str) -> Option<ConfigHistory> {
        serde_json::from_str(saved).ok()
    }

    /// The policy in force, with its predecessors.
    pub fn policy(&self) -> Option<PolicySnapshot> {
        let parse = |text: &str| Config::parse(text, Path::new("")).ok()?.take_policy().ok();
        let texts = self.former.iter().map(|former| &former.text).skip(1).chain([&self.text]);
        let Some(oldest) = self.former.first() else { return parse(&self.text) };
        self.former.iter().zip(texts).try_fold(parse(&oldest.text)?, |policy, (former, next)| {
            Some(parse(next)?.inherit(&policy, Time::from_nanos(former.replaced_at_ns)))
        })
    }
}

fn position_of_rule(text: &str, id: &str) -> Option<TextPosition> {
    let root = document::read(text).ok()?;
    let entry =
        |node: &document::Node<'_>, key: &str| node.as_map()?.iter().position(|entry| entry.key() == key);
    let rules = root.as_map()?.get(entry(&root, "rules")?)?.value();
    let rule = rules.as_list()?.iter().find(|rule| {
        let id_of = || rule.as_map()?.get(entry(rule, "id")?)?.value().as_str();
        id_of() == Some(id)
    })?;
    Some(rule.position())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_found_by_its_line() {
        let line_of_rule = |text: &str, id: &str| position_of_rule(text, id).map(|position| position.line);
        let text = "memory: 1GiB\nrules:\n  - id: a\n    limit: 5/m\n  - { id: b, limit: 5/m }\n";
        assert_eq!(line_of_rule(text, "a"), Some(3));
        assert_eq!(line_of_rule(text, "b"), Some(5));
        assert_eq!(line_of_rule(text, "c"), None);
        assert_eq!(line_of_rule("rules: []", "a"), None);
    }

    fn rules(limit: u32) -> String {
        format!("rules: [{{ id: a, limit: {limit}/m }}]")
    }

    #[test]
    fn a_history_is_bounded_and_reads_back() {
        let mut history = ConfigHistory::new(rules(0));
        for n in 1..10 {
            history = history.succeeded_by(rules(n), Time::from_nanos(u64::from(n)));
        }
        let history =
            ConfigHistory::read(&history.with_text("rules: []".to_owned()).write()).expect("it was written");
        let former: Vec<_> = history.former.iter().map(|former| former.text.clone()).collect();
        assert_eq!(former, [5, 6, 7, 8].map(rules));
        assert_eq!(history.text(), "rules: []");
        assert_eq!(history.policy().expect("valid").generation(), 5);
        assert!(ConfigHistory::read("rules: []").is_none());
    }
}
