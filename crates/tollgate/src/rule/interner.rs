//! Interning: values that several rules share are stored once, for as long as a rule uses them.
//!
//! An interner holds one reference to each value. A value that only the interner refers to is unused. Unused values
//! are removed by a sweep once as many values were added as were in use at the last sweep, or an eighth as many rules
//! removed: sweeps cost O(1) a change, amortised, and a server that edits rules for months does not grow.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use crate::collections::SharedStr;
use crate::collections::hamt::fold;
use crate::rule::{Limits, Rule, RuleTerms};

/// Fewer changes than this cause no sweep.
const MIN_SWEEP: usize = 1_024;

#[derive(Default)]
pub(crate) struct Interner {
    terms: InternTable<Arc<RuleTerms>>,
    limits: InternTable<Arc<Limits>>,
    /// Separate from other texts: two tables fit their contents better than one.
    paths: InternTable<SharedStr>,
    /// Hosts and long user ids.
    texts: InternTable<SharedStr>,
    /// Rules removed since the last sweep for them.
    removed: usize,
}

impl Interner {
    /// The same rule, sharing common parts with others.
    pub(crate) fn share(&mut self, mut rule: Rule) -> Rule {
        self.terms.share(&mut rule.terms);
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
            self.terms.sweep();
            self.limits.sweep();
            self.paths.sweep();
            self.texts.sweep();
        }
    }

    pub(crate) fn len(&self) -> usize {
        let texts = self.paths.values.len() + self.texts.values.len();
        self.terms.values.len() + self.limits.values.len() + texts
    }
}

struct InternTable<T> {
    values: HashSet<T, BuildHasherDefault<FoldHasher>>,
    /// The length at which the next sweep runs.
    sweep_at: usize,
}

impl<T> Default for InternTable<T> {
    fn default() -> Self {
        InternTable { values: HashSet::default(), sweep_at: MIN_SWEEP }
    }
}

/// Rules come from the operator, so the hash needs no secret: one multiplication per word.
#[derive(Default)]
struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        self.write_u64(rest.iter().fold(bytes.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = fold(self.0, word);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A reference-counted value.
trait RefCounted: Clone + Eq + Hash {
    /// Whether there are references other than this one.
    fn is_used(&self) -> bool;
}

impl<T: Eq + Hash> RefCounted for Arc<T> {
    fn is_used(&self) -> bool {
        Arc::strong_count(self) > 1
    }
}

impl RefCounted for SharedStr {
    fn is_used(&self) -> bool {
        self.is_shared()
    }
}

impl<T: RefCounted> InternTable<T> {
    fn share(&mut self, value: &mut T) {
        if let Some(known) = self.values.get(value) {
            *value = known.clone();
            return;
        }
        if self.values.len() >= self.sweep_at {
            self.sweep();
        }
        self.values.insert(value.clone());
    }

    /// Sound, because a value is cloned only by an owner of a reference, or under the lock that guards this table.
    fn sweep(&mut self) {
        self.values.retain(RefCounted::is_used);
        self.sweep_at = MIN_SWEEP.max(2 * self.values.len());
        if self.values.capacity() > 4 * self.sweep_at {
            self.values.shrink_to(self.sweep_at);
        }
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
        let mut interner = Interner::default();
        let rules: Vec<_> = (1..5_000).map(|n| interner.share(rule(n))).collect();
        for known in &rules {
            let n = known.id.as_str()[1..].parse().expect("a number");
            let again = interner.share(rule(n));
            assert!(Arc::ptr_eq(&again.limits, &known.limits) && Arc::ptr_eq(&again.terms, &known.terms));
        }
        assert_eq!(interner.len(), 1 + 4 * rules.len());
    }

    #[test]
    fn values_that_no_rule_uses_any_more_are_dropped() {
        let mut interner = Interner::default();
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
        let mut interner = Interner::default();
        let rules: Vec<_> = (1..20_000).map(|n| interner.share(rule(n))).collect();
        assert_eq!(interner.len(), 1 + 4 * rules.len());
        for rule in rules {
            drop(rule);
            interner.on_rule_removed();
        }
        assert!(interner.len() <= 2 * MIN_SWEEP * 4, "{}", interner.len());
    }
}
