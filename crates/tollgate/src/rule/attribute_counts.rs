//! The attributes that rules name, each once.
//!
//! A request is resolved by these at a cost that does not depend on the number of rules. A clone shares everything, and
//! a change to it costs only what has changed.

use std::sync::Arc;

use crate::collections::PersistentVec;
use crate::collections::hamt::{Hamt, hash};
use crate::identity::Attribute;
use crate::rule::{IndexEntry, Rule};

#[derive(Clone, Default)]
pub(crate) struct AttributeCounts {
    entries: PersistentVec<CountedAttribute>,
    numbers: Hamt<IndexEntry>,
}

#[derive(Clone)]
struct CountedAttribute {
    attribute: Arc<Attribute>,
    /// How often rules name it.
    count: usize,
}

impl AttributeCounts {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Attribute> {
        self.entries.iter().map(|entry| &*entry.attribute)
    }

    pub(crate) fn add_rule(&mut self, rule: &Rule) {
        rule.all_attributes().for_each(|attribute| self.add(attribute));
    }

    pub(crate) fn remove_rule(&mut self, rule: &Rule) {
        rule.all_attributes().for_each(|attribute| self.remove(attribute));
    }

    fn add(&mut self, attribute: &Attribute) {
        match self.number(attribute) {
            Some(number) => {
                let entry = &self.entries[number];
                let attribute = Arc::clone(&entry.attribute);
                let count = entry.count + 1;
                self.entries.replace(number, CountedAttribute { attribute, count });
            }
            None => {
                let number = self.entries.len() as u32;
                self.numbers.insert(IndexEntry { hash: hash_of(attribute), number });
                self.entries.push(CountedAttribute { attribute: Arc::new(attribute.clone()), count: 1 });
            }
        }
    }

    fn remove(&mut self, attribute: &Attribute) {
        let Some(number) = self.number(attribute) else { return };
        let entry = self.entries[number].clone();
        if entry.count > 1 {
            self.entries.replace(number, CountedAttribute { count: entry.count - 1, ..entry });
            return;
        }
        self.numbers.remove(hash_of(attribute), |each| each.number == number as u32);
        // The last entry gets its number, so that numbers have no gaps.
        let last = self.entries.len() - 1;
        if number != last {
            let moved = self.entries[last].clone();
            let is_last = |each: &IndexEntry| each.number == last as u32;
            if let Some(found) = self.numbers.find_mut(hash_of(&moved.attribute), is_last) {
                found.number = number as u32;
            }
            self.entries.replace(number, moved);
        }
        self.entries.pop();
    }

    fn number(&self, attribute: &Attribute) -> Option<usize> {
        let mut found = self.numbers.find(hash_of(attribute)).map(|entry| entry.number as usize);
        found.find(|number| *self.entries[*number].attribute == *attribute)
    }
}

/// Fields are told apart by their names; the few of one name share a hash.
fn hash_of(attribute: &Attribute) -> u32 {
    match attribute {
        Attribute::Field(_, name) => hash(name),
        plain => hash(plain.plain_name()),
    }
}
