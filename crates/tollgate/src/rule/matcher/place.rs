//! Rules on the same method, host and path: a user's own rules stand in for the general ones.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::identity::Attribute;
use crate::rule::index::{Hashed, Index, hash};
use crate::rule::set::Rules;
use crate::rule::{Mode, Rule, RuleInForce, Whereabouts};

/// The rules of one pattern, by method.
#[derive(Clone, Default)]
pub(super) struct Leaf {
    any_method: Place,
    methods: Vec<(Box<str>, Place)>,
}

#[derive(Clone, Default)]
pub(super) struct Place {
    rules: SmallVec<[u32; 4]>,
    /// Rules that a user's own one replaces.
    replaceable: SmallVec<[u32; 4]>,
    by_uid: Index<Owned>,
}

/// The number of a user's own rule, under the hash of the user.
#[derive(Clone, Copy)]
struct Owned {
    hash: u32,
    number: u32,
    whereabouts: Whereabouts,
}

impl Hashed for Owned {
    fn hash(&self) -> u32 {
        self.hash
    }
}

/// How a rule relates to others on the same place.
pub(super) enum Standing<'r> {
    Common,
    /// Counted by user: a user's own rule replaces it.
    General,
    Own {
        uid: &'r str,
    },
    /// For one user, but in shadow: the general rule still decides.
    Beside {
        uid: &'r str,
    },
}

impl<'r> Standing<'r> {
    pub(super) fn of(rule: &'r Rule) -> Standing<'r> {
        match &rule.uid {
            Some(uid) if rule.mode == Mode::Shadow => Standing::Beside { uid },
            Some(uid) => Standing::Own { uid },
            None if rule.key == [Attribute::User] => Standing::General,
            None => Standing::Common,
        }
    }
}

impl Leaf {
    pub(super) fn place(&mut self, method: Option<&str>) -> &mut Place {
        let Some(method) = method else { return &mut self.any_method };
        let at = self.methods.iter().position(|(known, _)| **known == *method).unwrap_or_else(|| {
            self.methods.push((method.into(), Place::default()));
            self.methods.len() - 1
        });
        &mut self.methods[at].1
    }

    /// The places of a request with this method.
    pub(super) fn places(&self, method: &str) -> impl Iterator<Item = &Place> {
        let named = self.methods.iter().filter(move |(known, _)| **known == *method);
        [&self.any_method].into_iter().chain(named.map(|(_, place)| place))
    }

    pub(super) fn remove(&mut self, rule: &Rule, number: u32) {
        self.place(rule.pattern.method()).remove(rule, number);
        self.methods.retain(|(_, place)| !place.is_empty());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.any_method.is_empty() && self.methods.is_empty()
    }
}

impl Place {
    /// Adds a rule; returns how many of this place one request may now meet.
    pub(super) fn insert(&mut self, rules: &Rules, rule: &Rule, number: u32) -> usize {
        let others = match Standing::of(rule) {
            Standing::Common => {
                self.rules.push(number);
                self.replaceable.len()
            }
            Standing::General => {
                self.replaceable.push(number);
                self.replaceable.len()
            }
            Standing::Own { uid } | Standing::Beside { uid } => {
                let whereabouts = Whereabouts::of(rule);
                self.by_uid.insert(Owned { hash: hash(uid), number, whereabouts });
                self.own(rules, uid).count()
            }
        };
        self.rules.len() + others
    }

    pub(super) fn remove(&mut self, rule: &Rule, number: u32) {
        match Standing::of(rule) {
            Standing::Common => self.rules.retain(|known| *known != number),
            Standing::General => self.replaceable.retain(|known| *known != number),
            Standing::Own { uid } | Standing::Beside { uid } => {
                self.by_uid.remove(hash(uid), |known| known.number == number);
            }
        }
    }

    pub(super) fn rules(&self) -> &[u32] {
        &self.rules
    }

    pub(super) fn replaceable(&self) -> &[u32] {
        &self.replaceable
    }

    /// Whether any user has rules of their own here.
    pub(super) fn has_own(&self) -> bool {
        !self.by_uid.is_empty()
    }

    /// The rules of one user.
    pub(super) fn own<'r>(&self, rules: &'r Rules, user: &str) -> impl Iterator<Item = &'r Arc<RuleInForce>> {
        let found = self.by_uid.find(hash(user)).map(|known| {
            known.whereabouts.fetch();
            &rules[known.number as usize]
        });
        found.filter(move |rule| rule.uid.as_deref() == Some(user))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.replaceable.is_empty() && self.by_uid.is_empty()
    }
}
