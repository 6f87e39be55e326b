//! The rules in force, indexed by target and by id.
//!
//! A clone shares everything, and a change to it costs only what has changed.

use std::sync::Arc;

use thiserror::Error;

use crate::collections::PersistentVec;
use crate::collections::hamt::{Hamt, Hashed, hash};
use crate::identity::Attribute;
use crate::request::Target;
use crate::request::target::OtherReadings;
use crate::rule::attribute_counts::AttributeCounts;
use crate::rule::matcher::{Matcher, Matches};
use crate::rule::rule_interner::RuleInterner;
use crate::rule::rule_ref::{RuleOwner, RuleOwners};
use crate::rule::{PathCase, Rule, RuleId, RuleInForce, RuleMode};
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// The maximum number of rules that one request is charged under.
pub const MAX_MATCHES: usize = 64;

/// Rules by their number in a set. Numbers are unrelated to the order of the rules.
pub type Rules = PersistentVec<Arc<RuleInForce>>;

#[derive(Clone, Default)]
pub struct RuleSet {
    rules: Rules,
    by_id: Hamt<IndexEntry>,
    matcher: Matcher,
    interner: Arc<Mutex<RuleInterner>>,
    owners: RuleOwners,
    attributes: AttributeCounts,
}

/// A number, under the hash of a name.
#[derive(Clone, Copy)]
pub(crate) struct IndexEntry {
    pub(crate) hash: u32,
    pub(crate) number: u32,
}

impl Hashed for IndexEntry {
    fn hash(&self) -> u32 {
        self.hash
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum RuleSetError {
    #[error("rule id '{0}' is used twice")]
    Duplicate(RuleId),
    #[error("{count} rules on '{pattern}': at most {MAX_MATCHES} may match one request")]
    TooManyMatches { pattern: String, count: usize },
    #[error(
        "rule {rule} has an override for {range}: write one address, or an IPv6 network of /{ipv6_prefix}"
    )]
    Range { rule: RuleId, range: String, ipv6_prefix: u8 },
    #[error("more than {} rules", Matcher::MAX_RULES)]
    TooMany,
}

impl RuleSet {
    pub fn new(rules: Vec<Rule>) -> Result<RuleSet, RuleSetError> {
        RuleSet::with_case(rules, PathCase::Sensitive)
    }

    /// A set whose paths are case-sensitive, or not.
    pub fn with_case(rules: Vec<Rule>, case: PathCase) -> Result<RuleSet, RuleSetError> {
        let mut set = RuleSet { matcher: Matcher::new(case), ..RuleSet::default() };
        for (position, rule) in rules.into_iter().enumerate() {
            if set.number(rule.id.as_str()).is_some() {
                return Err(RuleSetError::Duplicate(rule.id));
            }
            let position = u32::try_from(position).map_err(|_| RuleSetError::TooMany)?;
            set.add(rule, position)?;
        }
        Ok(set)
    }

    /// Adds a rule, or replaces the one with its id. An error leaves the set unchanged.
    pub(crate) fn put(&mut self, rule: Rule, now: Time) -> Result<(), RuleSetError> {
        let Some(number) = self.number(rule.id.as_str()) else {
            let id = rule.id.clone();
            return self
                .add(rule, RuleInForce::AFTER_LIST)
                .or_else(|error| self.remove(id.as_str()).and(Err(error)));
        };
        let was = Arc::clone(&self.rules[number]);
        if **was == rule {
            return Ok(());
        }
        let next = was.next_version(lock(&self.interner).share(rule), was.position(), now);
        lock(&self.interner).on_rule_removed();
        let put = self.replace_rule(number, Arc::new(next));
        put.or_else(|error| self.replace_rule(number, was).and(Err(error)))
    }

    fn replace_rule(&mut self, number: usize, rule: Arc<RuleInForce>) -> Result<(), RuleSetError> {
        let was = Arc::clone(&self.rules[number]);
        self.matcher.remove(&was, number as u32);
        self.attributes.remove_rule(&was);
        self.attributes.add_rule(&rule);
        self.rules_mut().replace(number, rule);
        self.insert_match(number)
    }

    /// Removes a rule. The last rule gets its number, so that numbers have no gaps.
    pub(crate) fn remove(&mut self, id: &str) -> Result<(), RuleSetError> {
        let Some(number) = self.number(id) else { return Ok(()) };
        let last = self.rules.len() - 1;
        let removed = self.unindex_rule(number);
        self.attributes.remove_rule(&removed);
        if number != last {
            let moved = self.unindex_rule(last);
            self.rules_mut().replace(number, moved);
        }
        self.rules_mut().pop();
        lock(&self.interner).on_rule_removed();
        if number != last { self.index_rule(number) } else { Ok(()) }
    }

    /// From now on interns values separately from other sets, for a set that is dropped soon.
    pub(crate) fn intern_apart(&mut self) {
        self.interner = Arc::default();
    }

    /// Replaces a rule by itself with another history or position.
    pub(crate) fn set_version(&mut self, number: usize, rule: Arc<RuleInForce>) {
        debug_assert!(self.rules[number] == rule);
        self.rules_mut().replace(number, rule);
    }

    fn add(&mut self, rule: Rule, position: u32) -> Result<(), RuleSetError> {
        let number = self.rules.len();
        if number == Matcher::MAX_RULES {
            return Err(RuleSetError::TooMany);
        }
        let rule = RuleInForce::new(lock(&self.interner).share(rule), position);
        self.attributes.add_rule(&rule);
        self.rules_mut().push(Arc::new(rule));
        self.index_rule(number)
    }

    /// Adds a rule to the indexes by id and by target.
    fn index_rule(&mut self, number: usize) -> Result<(), RuleSetError> {
        let hash = hash(self.rules[number].id.as_str());
        self.by_id.insert(IndexEntry { hash, number: number as u32 });
        self.insert_match(number)
    }

    /// Removes a rule from the indexes; it keeps its number.
    fn unindex_rule(&mut self, number: usize) -> Arc<RuleInForce> {
        let rule = Arc::clone(&self.rules[number]);
        self.by_id.remove(hash(rule.id.as_str()), |known| known.number == number as u32);
        self.matcher.remove(&rule, number as u32);
        rule
    }

    fn insert_match(&mut self, number: usize) -> Result<(), RuleSetError> {
        let rule = &self.rules[number];
        if rule.mode == RuleMode::Off {
            return Ok(());
        }
        let count = self.matcher.insert(&self.rules, rule, number as u32);
        if count <= MAX_MATCHES {
            return Ok(());
        }
        let pattern = match rule.match_text() {
            pattern if pattern.is_empty() => "every request".to_owned(),
            pattern => pattern,
        };
        Err(RuleSetError::TooManyMatches { pattern, count })
    }

    /// Writes the rules that apply to a target, in their order, into an empty list. There may be more than
    /// [`MAX_MATCHES`], because the bound holds per pattern only.
    #[inline(always)]
    pub(crate) fn find_matching<'r, U: AsRef<str>>(
        &'r self,
        target: &Target<'_>,
        user: impl Fn() -> Option<U>,
        matches: &mut Matches<'r>,
    ) {
        self.matcher.find(&self.rules, target, &user, matches);
        if let Some(readings) = target.other_readings() {
            self.add_matching_readings(target, readings, &user, matches);
        }
    }

    /// Adds the rules that match other readings of the path, while there is room: a client chooses the readings, and must not
    /// displace a rule by them.
    #[cold]
    fn add_matching_readings<'r, U: AsRef<str>>(
        &'r self,
        target: &Target<'_>,
        readings: &OtherReadings,
        user: &impl Fn() -> Option<U>,
        matches: &mut Matches<'r>,
    ) {
        for path in readings.paths() {
            let mut more = Matches::new();
            self.matcher.find(&self.rules, &target.read_as(path), user, &mut more);
            for rule in more.iter().copied() {
                if matches.len() < MAX_MATCHES && !matches.iter().any(|known| Arc::ptr_eq(known, rule)) {
                    matches.push(rule);
                }
            }
        }
        matches.sort_unstable_by_key(|rule| rule.order());
    }

    /// The rules that apply to a target, in their order.
    pub(crate) fn matching<U: AsRef<str>>(
        &self,
        target: &Target<'_>,
        user: impl Fn() -> Option<U>,
    ) -> Matches<'_> {
        let mut matches = Matches::new();
        self.find_matching(target, user, &mut matches);
        matches
    }

    /// Whether any rule is for some hosts only.
    pub fn names_hosts(&self) -> bool {
        self.matcher.names_hosts()
    }

    /// The attributes that the rules name, each once.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.attributes.iter()
    }

    fn number(&self, id: &str) -> Option<usize> {
        let mut found = self.by_id.find(hash(id)).map(|known| known.number as usize);
        found.find(|number| self.rules[*number].id.as_str() == id)
    }

    pub fn get(&self, id: &str) -> Option<&Arc<RuleInForce>> {
        self.number(id).map(|number| &self.rules[number])
    }

    /// All rules: in the order in which they were given, until some are changed.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The owner of these rules for the verdicts of a stripe of threads.
    #[inline]
    pub(crate) fn owner(&self, stripe: usize) -> &Arc<RuleOwner> {
        self.owners.get(stripe, &self.rules)
    }

    fn rules_mut(&mut self) -> &mut Rules {
        self.owners.clear();
        &mut self.rules
    }
}

#[cfg(test)]
mod tests;
