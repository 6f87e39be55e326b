//! A rule in force: beside its text, where it stands, what is known of it, and what it has replaced.
//!
//! It is shared by all policies that hold the rule unchanged. There may be a million of them, most of
//! which nobody ever asks for, so what is known begins with the first hit or the first edit.

use std::ops::Deref;
use std::sync::Arc;

use crate::record::{Record, Tally};
use crate::rule::Rule;
use crate::rule::once::Once;
use crate::time::Time;

/// Earlier versions of a rule that are remembered.
const MAX_FORMER: usize = 4;

pub struct RuleInForce {
    rule: Rule,
    place: u32,
    /// One word, as most rules have none.
    history: Once<History>,
}

/// What a rule that was hit or edited carries on.
#[derive(Default)]
struct History {
    record: Shared,
    former: Option<Arc<Former>>,
}

/// The record outlives the rule's edits: the first version owns it, and later ones refer to that.
enum Shared {
    Own(Record),
    Of(Arc<History>),
}

impl Default for Shared {
    fn default() -> Self {
        Shared::Own(Record::default())
    }
}

impl History {
    #[inline]
    fn record(&self) -> &Record {
        match &self.record {
            Shared::Own(record) => record,
            Shared::Of(first) => first.record(),
        }
    }

    /// The history of the next version.
    fn followed_by(self: Arc<History>, former: Former) -> History {
        let first = match &self.record {
            Shared::Own(_) => self,
            Shared::Of(first) => Arc::clone(first),
        };
        History { record: Shared::Of(first), former: Some(Arc::new(former)) }
    }
}

/// An earlier version of a rule, while counters made under it may still matter (I6).
struct Former {
    rule: Rule,
    until: Time,
    former: Option<Arc<Former>>,
}

impl RuleInForce {
    /// The place of rules that come after all that have one, in the order of their ids.
    pub(crate) const LAST: u32 = u32::MAX;

    pub(crate) fn new(rule: Rule, place: u32) -> RuleInForce {
        RuleInForce { rule, place, history: Once::default() }
    }

    /// What stands in a place of its own, in that order; then the others, by id.
    pub(crate) fn order(&self) -> (u32, &str) {
        (self.place, self.rule.id.as_str())
    }

    pub(crate) fn place(&self) -> u32 {
        self.place
    }

    /// Whether it came by a change, not with the list that the policy was made with.
    pub fn is_added(&self) -> bool {
        self.place == Self::LAST
    }

    /// The next version of this rule: it has the same record, and knows what it has replaced.
    pub(crate) fn followed_by(&self, rule: Rule, place: u32, now: Time) -> RuleInForce {
        if rule == self.rule {
            let history = self.history.get().map_or_else(Once::default, |_| Once::of(self.history.share()));
            return RuleInForce { rule, place, history };
        }
        let history = self.history.share();
        let until = now + self.rule.longest_span();
        let former = history.former.as_ref().and_then(|former| former.at_most(MAX_FORMER - 1, now));
        let former = Former { rule: self.rule.clone(), until, former };
        RuleInForce { rule, place, history: Once::of(Arc::new(history.followed_by(former))) }
    }

    pub fn record(&self) -> &Record {
        self.history.get_or_begin().record()
    }

    /// How often the rule allowed and denied.
    pub fn tally(&self) -> Tally {
        self.history.get().map_or_else(Tally::default, |history| history.record().tally())
    }

    /// The earlier versions of the rule that still matter, latest first.
    pub(crate) fn formers(&self, now: Time) -> impl Iterator<Item = &Rule> {
        let live = move |former: &&Arc<Former>| former.until > now;
        let first = self.history.get().and_then(|history| history.former.as_ref()).filter(live);
        std::iter::successors(first, move |former| former.former.as_ref().filter(live))
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

impl Former {
    /// A copy of the chain cut to `depth` versions that still matter.
    fn at_most(&self, depth: usize, now: Time) -> Option<Arc<Former>> {
        if depth == 0 || self.until <= now {
            return None;
        }
        let former = self.former.as_ref().and_then(|former| former.at_most(depth - 1, now));
        Some(Arc::new(Former { rule: self.rule.clone(), until: self.until, former }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_in_force_and_its_counts_fit_88_bytes() {
        // With the allocator's word these are 96; one more word would be 112 for each of a million.
        assert!(size_of::<RuleInForce>() + 2 * size_of::<usize>() <= 88, "{}", size_of::<RuleInForce>());
    }
}
