//! Single rules and allowed keys changed: the policy after is made from the one before, at the cost of the change.

use crate::identity::Key;
use crate::policy::{Policy, group_overrides};
use crate::rule::{Rule, RuleId, RuleSetError};
use crate::time::Time;

/// One rule that comes, changes or goes, or one key of the allow list. Made twice it is the same as made once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicyChange {
    /// A new rule comes after those that the policy was made with, in the order of the ids; a changed one
    /// stays where it is.
    Put(Rule),
    Remove(RuleId),
    /// Puts a key on the allow list, beside what the file says of it.
    Allow(Key),
    /// Takes a key off the allow list, unless the file has it.
    Disallow(Key),
}

/// A policy in the making: another one, changed step by step. What is not changed is shared with it.
pub struct PolicyDraft(Policy);

impl PolicyDraft {
    /// Makes one change; an error leaves the draft as it was. A changed rule keeps its record, and what its
    /// keys have used.
    pub fn apply(&mut self, change: PolicyChange, now: Time) -> Result<(), RuleSetError> {
        let PolicyDraft(policy) = self;
        let ipv6_prefix = policy.settings.ipv6_prefix;
        match change {
            PolicyChange::Put(mut rule) => {
                group_overrides(&mut rule, ipv6_prefix)?;
                policy.rules.put(rule, now)?;
            }
            PolicyChange::Remove(id) => policy.rules.remove(id.as_str())?,
            PolicyChange::Allow(key) => policy.allow.insert(key.grouped_in_combination(ipv6_prefix), ()),
            PolicyChange::Disallow(key) => _ = policy.allow.remove(&key.grouped_in_combination(ipv6_prefix)),
        }
        Ok(())
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
    pub fn draft(&self) -> PolicyDraft {
        PolicyDraft(Policy {
            rules: self.rules.clone(),
            file_allow: self.file_allow.clone(),
            allow: self.allow.clone(),
            file_bans: self.file_bans.clone(),
            settings: self.settings.clone(),
            generation: self.generation + 1,
        })
    }

    /// A draft to try changes on, which never comes into force. It interns values apart from this policy, so that
    /// all of its memory is free once it is dropped.
    pub fn trial(&self) -> PolicyDraft {
        let mut draft = self.draft();
        draft.0.rules.intern_apart();
        draft
    }

    /// This policy with some things changed, in the order given: all of the changes or, where one of them is
    /// not possible, none.
    pub fn changed(
        &self,
        changes: impl IntoIterator<Item = PolicyChange>,
        now: Time,
    ) -> Result<Policy, RuleSetError> {
        let mut draft = self.draft();
        changes.into_iter().try_for_each(|change| draft.apply(change, now))?;
        Ok(draft.finish())
    }

    /// This policy with the rules that were added to another one.
    pub(crate) fn with_added(self, other: &Policy, now: Time) -> Result<Policy, RuleSetError> {
        let mut draft = PolicyDraft(self);
        for rule in other.rules().iter().filter(|rule| rule.is_added()) {
            if draft.policy().rule(rule.id.as_str()).is_some() {
                return Err(RuleSetError::Duplicate(rule.id.clone()));
            }
            draft.apply(PolicyChange::Put(Rule::clone(rule)), now)?;
        }
        Ok(draft.finish())
    }
}
