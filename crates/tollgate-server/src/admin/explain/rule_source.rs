//! Where a rule is written: the file with its line, or the database.

use std::sync::Arc;

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
        let line = self.live.history.position_of_rule(rule.id.as_str()).map(|position| position.line);
        match (file, line) {
            (Some(file), Some(line)) => format!("file {file}:{line}"),
            (Some(file), None) => format!("file {file}"),
            (None, _) => "file".to_owned(),
        }
    }
}
