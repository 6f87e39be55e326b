//! A rule in force: the rule with its position, its statistics, and the versions that it has replaced.
//!
//! It is shared by all policies that have the rule unchanged. There may be a million of them, most of which are never
//! hit, so statistics and history are allocated by the first hit or edit.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::collections::LazyArc;
use crate::fingerprint::{Digest, SavedDigest, Secret};
use crate::rule::Rule;
use crate::rule_stats::{RuleCounts, RuleStats};
use crate::time::Time;

/// Earlier versions of a rule that are kept.
const MAX_PREDECESSORS: usize = 4;

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
    predecessor: Option<Arc<RulePredecessor>>,
    /// The digest of the rule's id, which begins the fingerprint of every key.
    id_digest: OnceLock<SavedDigest>,
    /// The rule in `RateLimit-Policy`.
    policy_item: OnceLock<Box<str>>,
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
    fn next_version(self: Arc<VersionHistory>, predecessor: RulePredecessor) -> VersionHistory {
        let first = match &self.stats {
            StatsOwner::Own(_) => self,
            StatsOwner::Of(first) => Arc::clone(first),
        };
        let predecessor = Some(Arc::new(predecessor));
        VersionHistory { stats: StatsOwner::Of(first), predecessor, ..VersionHistory::default() }
    }
}

/// An earlier version of a rule, while counters created under it may still matter (I6).
struct RulePredecessor {
    rule: Rule,
    until: Time,
    predecessor: Option<Arc<RulePredecessor>>,
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
        let predecessor =
            history.predecessor.as_ref().and_then(|version| version.truncated(MAX_PREDECESSORS - 1, now));
        let predecessor = RulePredecessor { rule: self.rule.clone(), until, predecessor };
        let history = LazyArc::from_arc(Arc::new(history.next_version(predecessor)));
        RuleInForce { rule, position, history }
    }

    /// The digest that the fingerprints of the rule's keys begin with.
    #[inline(always)]
    pub(crate) fn id_digest<'s>(&self, secret: &'s Secret) -> Digest<'s> {
        let saved = self.history.get().and_then(|history| history.id_digest.get());
        saved.and_then(|saved| saved.resume(secret)).unwrap_or_else(|| self.make_id_digest(secret))
    }

    /// Saved once the rule has been hit.
    #[cold]
    #[inline(never)]
    fn make_id_digest<'s>(&self, secret: &'s Secret) -> Digest<'s> {
        let digest = secret.digest().part(self.rule.id.as_str().as_bytes());
        if let Some(history) = self.history.get() {
            // A policy of two engines has the digest of the first.
            let _ = history.id_digest.set(digest.to_saved());
        }
        digest
    }

    /// The rule in `RateLimit-Policy`, which `make` returns, if it has one limit for all keys. Saved once the rule has
    /// been hit.
    pub(crate) fn policy_item(&self, make: impl FnOnce() -> String) -> Option<&str> {
        let [_] = self.rule.only_limits()? else { return None };
        Some(self.history.get()?.policy_item.get_or_init(|| make().into_boxed_str()))
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
    pub(crate) fn has_predecessors(&self) -> bool {
        self.history.get().is_some_and(|history| history.predecessor.is_some())
    }

    /// The earlier versions of the rule that still matter, latest first.
    pub(crate) fn predecessors(&self, now: Time) -> impl Iterator<Item = &Rule> {
        let live = move |version: &&Arc<RulePredecessor>| version.until > now;
        let first = self.history.get().and_then(|history| history.predecessor.as_ref()).filter(live);
        std::iter::successors(first, move |version| version.predecessor.as_ref().filter(live))
            .map(|version| &version.rule)
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

impl RulePredecessor {
    /// A copy of the chain cut to `depth` versions that still matter.
    fn truncated(&self, depth: usize, now: Time) -> Option<Arc<RulePredecessor>> {
        if depth == 0 || self.until <= now {
            return None;
        }
        let predecessor = self.predecessor.as_ref().and_then(|version| version.truncated(depth - 1, now));
        Some(Arc::new(RulePredecessor { rule: self.rule.clone(), until: self.until, predecessor }))
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
