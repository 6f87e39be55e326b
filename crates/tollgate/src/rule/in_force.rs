//! A rule in force: the rule with its position, its statistics, and the versions that it has replaced.
//!
//! It is shared by all policies that have the rule unchanged. There may be a million of them, most of which are never
//! hit, so statistics and history are allocated by the first hit or edit.

use std::ops::Deref;
use std::sync::Arc;

use crate::collections::LazyArc;
use crate::rule::Rule;
use crate::rule_stats::{RuleCounts, RuleStats};
use crate::time::Time;

/// Earlier versions of a rule that are kept.
const MAX_PREVIOUS: usize = 4;

pub struct RuleInForce {
    rule: Rule,
    position: u32,
    /// One word, because most rules have no history.
    history: LazyArc<VersionHistory>,
}

/// Statistics and earlier versions of a rule that was hit or edited.
#[derive(Default)]
struct VersionHistory {
    stats: StatsOwner,
    previous: Option<Arc<PreviousVersion>>,
}

/// The statistics outlive edits of the rule: the first version owns them, and later ones refer to it.
enum StatsOwner {
    Own(RuleStats),
    Of(Arc<VersionHistory>),
}

impl Default for StatsOwner {
    fn default() -> Self {
        StatsOwner::Own(RuleStats::default())
    }
}

impl VersionHistory {
    #[inline]
    fn stats(&self) -> &RuleStats {
        match &self.stats {
            StatsOwner::Own(record) => record,
            StatsOwner::Of(first) => first.stats(),
        }
    }

    /// The history of the next version.
    fn next_version(self: Arc<VersionHistory>, former: PreviousVersion) -> VersionHistory {
        let first = match &self.stats {
            StatsOwner::Own(_) => self,
            StatsOwner::Of(first) => Arc::clone(first),
        };
        VersionHistory { stats: StatsOwner::Of(first), previous: Some(Arc::new(former)) }
    }
}

/// An earlier version of a rule, while counters created under it may still matter (I6).
struct PreviousVersion {
    rule: Rule,
    until: Time,
    previous: Option<Arc<PreviousVersion>>,
}

impl RuleInForce {
    /// The position of rules that follow the listed ones, in the order of their ids.
    pub(crate) const AFTER_LIST: u32 = u32::MAX;

    pub(crate) fn new(rule: Rule, position: u32) -> RuleInForce {
        RuleInForce { rule, position, history: LazyArc::default() }
    }

    /// The sort key: position, then id.
    pub(crate) fn order(&self) -> (u32, &str) {
        (self.position, self.rule.id.as_str())
    }

    pub(crate) fn position(&self) -> u32 {
        self.position
    }

    /// Whether it was added by a change, not with the list that the policy was made from.
    pub fn is_added(&self) -> bool {
        self.position == Self::AFTER_LIST
    }

    /// The next version of this rule: it has the same statistics, and a link to this version.
    pub(crate) fn next_version(&self, rule: Rule, position: u32, now: Time) -> RuleInForce {
        if rule == self.rule {
            let history = self
                .history
                .get()
                .map_or_else(LazyArc::default, |_| LazyArc::from_arc(self.history.to_arc()));
            return RuleInForce { rule, position, history };
        }
        let history = self.history.to_arc();
        let until = now + self.rule.max_state_lifetime();
        let former = history.previous.as_ref().and_then(|former| former.truncated(MAX_PREVIOUS - 1, now));
        let former = PreviousVersion { rule: self.rule.clone(), until, previous: former };
        RuleInForce { rule, position, history: LazyArc::from_arc(Arc::new(history.next_version(former))) }
    }

    #[inline]
    pub fn stats(&self) -> &RuleStats {
        self.history.get_or_init().stats()
    }

    /// The number of admissions and denials.
    pub fn counts(&self) -> RuleCounts {
        self.history.get().map_or_else(RuleCounts::default, |history| history.stats().counts())
    }

    /// Whether there is an earlier version of the rule, whether or not it still matters.
    #[inline]
    pub(crate) fn has_previous_versions(&self) -> bool {
        self.history.get().is_some_and(|history| history.previous.is_some())
    }

    /// The earlier versions of the rule that still matter, latest first.
    pub(crate) fn previous_versions(&self, now: Time) -> impl Iterator<Item = &Rule> {
        let live = move |former: &&Arc<PreviousVersion>| former.until > now;
        let first = self.history.get().and_then(|history| history.previous.as_ref()).filter(live);
        std::iter::successors(first, move |former| former.previous.as_ref().filter(live))
            .map(|former| &former.rule)
    }
}

impl Deref for RuleInForce {
    type Target = Rule;

    fn deref(&self) -> &Rule {
        &self.rule
    }
}

impl PartialEq for RuleInForce {
    fn eq(&self, other: &RuleInForce) -> bool {
        self.rule == other.rule
    }
}

impl Eq for RuleInForce {}

impl std::fmt::Debug for RuleInForce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.rule.fmt(f)
    }
}

impl PreviousVersion {
    /// A copy of the chain cut to `depth` versions that still matter.
    fn truncated(&self, depth: usize, now: Time) -> Option<Arc<PreviousVersion>> {
        if depth == 0 || self.until <= now {
            return None;
        }
        let former = self.previous.as_ref().and_then(|former| former.truncated(depth - 1, now));
        Some(Arc::new(PreviousVersion { rule: self.rule.clone(), until: self.until, previous: former }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_in_force_and_its_counts_fit_88_bytes() {
        // With the allocator's word this is 96; one more word would make it 112, for each of a million.
        assert!(size_of::<RuleInForce>() + 2 * size_of::<usize>() <= 88, "{}", size_of::<RuleInForce>());
    }
}
