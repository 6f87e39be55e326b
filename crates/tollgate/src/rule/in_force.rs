//! A rule in force: beside its text, where it stands, what is known of it, and what it has replaced.
//!
//! It is shared by all policies that hold the rule unchanged. There may be a million of them, most of
//! which nobody ever asks for, so what is known begins with the first hit or the first edit.

use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use crate::record::{Record, Tally};
use crate::rule::Rule;
use crate::time::Time;

/// Earlier versions of a rule that are remembered.
const MAX_FORMER: usize = 4;

pub struct RuleInForce {
    rule: Rule,
    place: u32,
    past: OnceLock<Box<Past>>,
}

#[derive(Default)]
struct Past {
    /// Outlives the rule's edits.
    record: Arc<Record>,
    former: Option<Arc<Former>>,
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
        RuleInForce { rule, place, past: OnceLock::new() }
    }

    /// What stands in a place of its own, in that order; then the others, by id.
    pub(crate) fn order(&self) -> (u32, &str) {
        (self.place, self.rule.id.as_str())
    }

    pub(crate) fn place(&self) -> u32 {
        self.place
    }

    /// The next version of this rule: it has the same record, and knows what it has replaced.
    pub(crate) fn followed_by(&self, rule: Rule, place: u32, now: Time) -> RuleInForce {
        let next = RuleInForce::new(rule, place);
        let former = || self.past.get().and_then(|past| past.former.as_ref());
        let past = if next.rule != self.rule {
            let until = now + self.rule.longest_span();
            let former = former().and_then(|former| former.at_most(MAX_FORMER - 1, now));
            let former = Some(Arc::new(Former { rule: self.rule.clone(), until, former }));
            Some(Past { record: Arc::clone(self.record()), former })
        } else {
            self.past.get().map(|past| Past { record: Arc::clone(&past.record), former: former().cloned() })
        };
        past.into_iter().for_each(|past| _ = next.past.set(Box::new(past)));
        next
    }

    pub fn record(&self) -> &Arc<Record> {
        &self.past.get_or_init(Box::default).record
    }

    /// How often the rule allowed and denied.
    pub fn tally(&self) -> Tally {
        self.past.get().map_or_else(Tally::default, |past| past.record.tally())
    }

    /// The earlier versions of the rule that still matter, latest first.
    pub(crate) fn formers(&self, now: Time) -> impl Iterator<Item = &Rule> {
        let live = move |former: &&Arc<Former>| former.until > now;
        let first = self.past.get().and_then(|past| past.former.as_ref()).filter(live);
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
