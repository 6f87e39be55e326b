//! A rule in force: beside its text, where it stands, what is known of it, and what it has replaced.
//!
//! It is shared by all policies that hold the rule unchanged. There may be a million of them, most of
//! which nobody ever asks for, so what is known begins with the first hit or the first edit.

use std::ops::Deref;
use std::sync::Arc;

use crate::near;
use crate::record::{Record, Tally};
use crate::rule::Rule;
use crate::rule::once::Once;
use crate::time::Time;

/// Earlier versions of a rule that are remembered.
const MAX_FORMER: usize = 4;

pub struct RuleInForce {
    rule: Rule,
    place: u32,
    /// Outlives the rule's edits.
    record: Once<Record>,
    former: Option<Arc<Former>>,
}

/// Where a rule was when somebody noted its number: worth asking for, and never looked at, for the rule may
/// have been replaced since.
#[derive(Clone, Copy)]
pub(crate) struct Whereabouts(usize);

impl Whereabouts {
    /// Of a rule that is in force.
    pub(crate) fn of(rule: &Rule) -> Whereabouts {
        Whereabouts(std::ptr::from_ref(rule).addr())
    }

    #[inline]
    pub(crate) fn fetch(self) {
        near::fetch(self.0, size_of::<RuleInForce>());
    }

    /// How far away a text is.
    pub(crate) fn lines_to(self, text: &str) -> i32 {
        let lines = |address: usize| (address / near::LINE) as isize;
        i32::try_from(lines(text.as_ptr().addr()) - lines(self.0)).unwrap_or_default()
    }

    /// Asks for the beginning of what lies there.
    #[inline]
    pub(crate) fn fetch_lines(self, lines: i32) {
        near::fetch(self.0.wrapping_add_signed(lines as isize * near::LINE as isize), 2 * near::LINE);
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
        RuleInForce { rule, place, record: Once::default(), former: None }
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
            let record = self.record.get().map_or_else(Once::default, |_| Once::of(self.record.share()));
            return RuleInForce { rule, place, record, former: self.former.clone() };
        }
        let until = now + self.rule.longest_span();
        let former = self.former.as_ref().and_then(|former| former.at_most(MAX_FORMER - 1, now));
        let former = Some(Arc::new(Former { rule: self.rule.clone(), until, former }));
        RuleInForce { rule, place, record: Once::of(self.record.share()), former }
    }

    pub fn record(&self) -> &Record {
        self.record.get_or_begin()
    }

    /// How often the rule allowed and denied.
    pub fn tally(&self) -> Tally {
        self.record.get().map_or_else(Tally::default, Record::tally)
    }

    /// The earlier versions of the rule that still matter, latest first.
    pub(crate) fn formers(&self, now: Time) -> impl Iterator<Item = &Rule> {
        let live = move |former: &&Arc<Former>| former.until > now;
        let first = self.former.as_ref().filter(live);
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
