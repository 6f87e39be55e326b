//! Single rules and allowed keys changed: the policy after is made from the one before, at the cost of the change.

use crate::identity::Key;
use crate::policy::{Policy, group_overrides};
use crate::rule::{Rule, RuleId, RuleSetError};
use crate::time::Time;

/// One rule that comes, changes or goes, or one key of the allow list. Made twice it is the same as made once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new rule comes after those that the policy was made with, in the order of the ids; a changed one
    /// stays where it is.
    Put(Rule),
    Remove(RuleId),
    /// Puts a key on the allow list, beside what the file says of it.
    Allow(Key),
    /// Takes a key off the allow list, unless the file has it.
    Disallow(Key),
}

impl Policy {
    /// This policy with some things changed, in the order given: all of the changes or, where one of them is
    /// not possible, none. Everything else is shared; a changed rule keeps its record, and what its keys have
    /// used.
    pub fn changed(
        &self,
        changes: impl IntoIterator<Item = Change>,
        now: Time,
    ) -> Result<Policy, RuleSetError> {
        let (mut rules, mut allow) = (self.rules.clone(), self.allow.clone());
        let grouped = |key: Key| key.grouped_in_combination(self.settings.ipv6_prefix);
        for change in changes {
            match change {
                Change::Put(mut rule) => {
                    group_overrides(&mut rule, self.settings.ipv6_prefix)?;
                    rules.put(rule, now)?;
                }
                Change::Remove(id) => rules.remove(id.as_str())?,
                Change::Allow(key) => allow.insert(grouped(key), ()),
                Change::Disallow(key) => _ = allow.remove(&grouped(key)),
            }
        }
        Ok(Policy {
            rules,
            file_allow: self.file_allow.clone(),
            allow,
            file_bans: self.file_bans.clone(),
            settings: self.settings.clone(),
            generation: self.generation + 1,
        })
    }
}
