//! What many rules have in common is kept once.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

use crate::rule::{HostPattern, Rule, Terms};

/// Things that were seen lately; to forget one costs a copy, no more.
#[derive(Default)]
pub(crate) struct Pool {
    terms: HashSet<Arc<Terms>>,
    patterns: HashSet<Arc<str>>,
    hosts: HashSet<Arc<HostPattern>>,
}

impl Pool {
    const MAX: usize = 1024;

    /// The same rule, sharing what it has in common with others.
    pub(crate) fn sharing(&mut self, mut rule: Rule) -> Rule {
        shared(&mut self.terms, &mut rule.terms);
        shared(&mut self.patterns, rule.pattern.text_mut());
        if let Some(host) = &mut rule.pattern.host {
            shared(&mut self.hosts, host);
        }
        rule
    }
}

fn shared<T: Eq + Hash + ?Sized>(known: &mut HashSet<Arc<T>>, item: &mut Arc<T>) {
    if let Some(known) = known.get(item) {
        *item = Arc::clone(known);
        return;
    }
    if known.len() == Pool::MAX {
        known.clear();
    }
    known.insert(Arc::clone(item));
}
