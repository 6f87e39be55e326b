//! Single rules changed: the policy after is made from the one before, at the cost of the change.

use std::sync::Arc;

use crate::policy::{Policy, group_overrides};
use crate::rule::{Rule, RuleId, RuleSetError};
use crate::time::Time;

/// One rule that comes, changes or goes. Made twice it is the same as made once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// A new rule comes after those that the policy was made with, in the order of the ids; a changed one
    /// stays where it is.
    Put(Rule),
    Remove(RuleId),
}

impl Policy {
    /// This policy with some rules changed, in the order given: all of the changes or, where one of them is
    /// not possible, none. Everything else is shared; a changed rule keeps its record, and what its keys have
    /// used.
    pub fn changed(
        &self,
        changes: impl IntoIterator<Item = Change>,
        now: Time,
    ) -> Result<Policy, RuleSetError> {
        let mut rules = self.rules.clone();
        for change in changes {
            match change {
                Change::Put(mut rule) => {
                    group_overrides(&mut rule, self.settings.ipv6_prefix)?;
                    rules.put(rule, now)?;
                }
                Change::Remove(id) => rules.remove(id.as_str())?,
            }
        }
        Ok(Policy {
            rules,
            allow: Arc::clone(&self.allow),
            file_bans: Arc::clone(&self.file_bans),
            settings: self.settings.clone(),
            generation: self.generation + 1,
        })
    }
}
