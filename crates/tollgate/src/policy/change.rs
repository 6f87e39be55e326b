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

/// A policy in the making: another one, changed step by step. What is not changed is shared with it.
pub struct Draft(Policy);

impl Draft {
    /// Makes one change; an error leaves the draft as it was. A changed rule keeps its record, and what its
    /// keys have used.
    pub fn make(&mut self, change: Change, now: Time) -> Result<(), RuleSetError> {
        match change {
            Change::Put(mut rule) => {
                group_overrides(&mut rule, self.0.settings.ipv6_prefix)?;
                self.0.rules.put(rule, now)
            }
            Change::Remove(id) => self.0.rules.remove(id.as_str()),
        }
    }

    pub fn policy(&self) -> &Policy {
        &self.0
    }

    pub fn finish(self) -> Policy {
        self.0
    }
}

impl Policy {
    /// The next policy, as yet the same as this one.
    pub fn draft(&self) -> Draft {
        Draft(Policy {
            rules: self.rules.clone(),
            allow: Arc::clone(&self.allow),
            file_bans: Arc::clone(&self.file_bans),
            settings: self.settings.clone(),
            generation: self.generation + 1,
        })
    }

    /// This policy with some rules changed, in the order given: all of the changes or, where one of them is
    /// not possible, none.
    pub fn changed(
        &self,
        changes: impl IntoIterator<Item = Change>,
        now: Time,
    ) -> Result<Policy, RuleSetError> {
        let mut draft = self.draft();
        changes.into_iter().try_for_each(|change| draft.make(change, now))?;
        Ok(draft.finish())
    }

    /// This policy with the rules that were added to another one.
    pub(crate) fn with_added(self, other: &Policy, now: Time) -> Result<Policy, RuleSetError> {
        let mut draft = Draft(self);
        for rule in other.rules().iter().filter(|rule| rule.is_added()) {
            if draft.policy().rule(rule.id.as_str()).is_some() {
                return Err(RuleSetError::Duplicate(rule.id.clone()));
            }
            draft.make(Change::Put(Rule::clone(rule)), now)?;
        }
        Ok(draft.finish())
    }
}
