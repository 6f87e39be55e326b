//! The violations of a request that is decided as several hits: one per rule and ban key, whatever their number.

use std::collections::HashSet;

use crate::ban::BanConditions;
use crate::engine::EngineCore;
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::rule::RuleId;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// Collects the violations of one request, and records them when it is dropped: also if the request ends before all
/// of its hits are decided. Until then no ban results, so the hits are decided alike in any order.
pub struct RequestViolations<'e> {
    engine: &'e EngineCore,
    at: Time,
    collected: Mutex<Collected>,
}

#[derive(Default)]
struct Collected {
    known: HashSet<(Fingerprint, RuleId)>,
    /// In the order of the denials.
    violations: Vec<(Key, RuleId, BanConditions)>,
}

impl EngineCore {
    /// Collects the violations of a request that is decided at `at`.
    pub fn request_violations(&self, at: Time) -> RequestViolations<'_> {
        RequestViolations { engine: self, at, collected: Mutex::default() }
    }
}

impl RequestViolations<'_> {
    /// Adds a violation, unless the request has violated the rule with this key before.
    pub(super) fn add(&self, key: Key, rule: &RuleId, conditions: BanConditions) {
        let fingerprint = self.engine.bans.fingerprint(&key);
        let collected = &mut *lock(&self.collected);
        if collected.known.insert((fingerprint, rule.clone())) {
            collected.violations.push((key, rule.clone(), conditions));
        }
    }
}

impl Drop for RequestViolations<'_> {
    fn drop(&mut self) {
        for (key, rule, conditions) in std::mem::take(&mut lock(&self.collected).violations) {
            if self.engine.bans.record_violation(&key, &rule, conditions, self.at) {
                self.engine.count_ban(rule.as_str());
            }
        }
    }
}
