//! The parts that rules have in common, stored once for as long as a rule uses them.
//!
//! Unused parts are also removed once an eighth as many rules were removed as there are parts: a server that edits
//! rules for months does not grow.

use std::sync::Arc;

use crate::collections::SharedStr;
use crate::collections::interner::{Interner, MIN_SWEEP};
use crate::rule::{Limits, Rule, RuleSettings};

#[derive(Default)]
pub(crate) struct RuleInterner {
    settings: Interner<Arc<RuleSettings>>,
    limits: Interner<Arc<Limits>>,
    /// Separate from other texts: two tables fit their contents better than one.
    paths: Interner<SharedStr>,
    /// Hosts and long user ids.
    texts: Interner<SharedStr>,
    /// Rules removed since the last sweep for them.
    removed: usize,
}

impl RuleInterner {
    /// The same rule, sharing common parts with others.
    pub(crate) fn share(&mut self, mut rule: Rule) -> Rule {
        self.settings.share(&mut rule.settings);
        self.limits.share(&mut rule.limits);
        self.paths.share(rule.pattern.text_mut());
        if let Some(host) = &mut rule.pattern.host {
            self.texts.share(host.text_mut());
        }
        if let Some(uid) = rule.uid.as_mut().and_then(|uid| uid.shared_mut()) {
            self.texts.share(uid);
        }
        rule
    }

    /// Must be called for each rule that is removed or replaced.
    pub(crate) fn on_rule_removed(&mut self) {
        self.removed += 1;
        if self.removed >= MIN_SWEEP.max(self.len() / 8) {
            self.removed = 0;
            self.settings.sweep();
            self.limits.sweep();
            self.paths.sweep();
            self.texts.sweep();
        }
    }

    pub(crate) fn len(&self) -> usize {
        let texts = self.paths.len() + self.texts.len();
        self.settings.len() + self.limits.len() + texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{self, Problems};
    use crate::rule::parse;

    fn rule(n: usize) -> Rule {
        let yaml = format!(
            "{{id: r{n}, uid: user-with-a-long-name-{n}, url: /p/{n}, host: h{n}.example.com, time: minute, requests: {n}}}"
        );
        let mut problems = Problems::new();
        parse::rule(&document::read(&yaml).expect("YAML"), "", &mut problems).expect("a rule")
    }

    #[test]
    fn equal_values_are_stored_once_however_many_there_are() {
        let mut interner = RuleInterner::default();
        let rules: Vec<_> = (1..5_000).map(|n| interner.share(rule(n))).collect();
        for known in &rules {
            let n = known.id.as_str()[1..].parse().expect("a number");
            let again = interner.share(rule(n));
            assert!(
                Arc::ptr_eq(&again.limits, &known.limits) && Arc::ptr_eq(&again.settings, &known.settings)
            );
        }
        assert_eq!(interner.len(), 1 + 4 * rules.len());
    }

    #[test]
    fn values_that_no_rule_uses_any_more_are_dropped() {
        let mut interner = RuleInterner::default();
        let kept: Vec<_> = (1..100).map(|n| interner.share(rule(n))).collect();
        for n in 100..50_000 {
            interner.share(rule(n));
        }
        // At most MIN_SWEEP in each of the three tables that grow here.
        assert!(interner.len() <= 3 * MIN_SWEEP + 1, "{}", interner.len());
        let again = interner.share(rule(7));
        assert!(Arc::ptr_eq(&again.limits, &kept[6].limits), "what is used is kept");
    }

    #[test]
    fn what_removed_rules_have_used_is_dropped_without_new_ones() {
        let mut interner = RuleInterner::default();
        let rules: Vec<_> = (1..20_000).map(|n| interner.share(rule(n))).collect();
        assert_eq!(interner.len(), 1 + 4 * rules.len());
        for rule in rules {
            drop(rule);
            interner.on_rule_removed();
        }
        assert!(interner.len() <= 2 * MIN_SWEEP * 4, "{}", interner.len());
    }
}
