//! Changes of single rules and allowed keys: the next policy is derived from the present one, at the cost of the
//! change.

use crate::identity::Key;
use crate::policy::{PolicySnapshot, group_overrides};
use crate::rule::{Rule, RuleId, RuleSetError};
use crate::time::Time;

/// A change of one rule, or of one key of the allow list. Idempotent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PolicyChange {
    /// A new rule follows those that the policy was made from, in the order of ids; a changed one keeps its position.
    Put(Rule),
    Remove(RuleId),
    /// Adds a key to the allow list, beside those of the file.
    Allow(Key),
    /// Removes a key from the allow list, unless it is from the file.
    Disallow(Key),
}

/// A copy of a policy that is being changed step by step. Unchanged parts are shared.
pub struct PolicyDraft(PolicySnapshot);

impl PolicyDraft {
    /// Applies one change; an error leaves the draft unchanged. A changed rule keeps its statistics, and the state of
    /// its keys.
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

    pub fn policy(&self) -> &PolicySnapshot {
        &self.0
    }

    pub fn finish(self) -> PolicySnapshot {
        self.0
    }
}

impl PolicySnapshot {
    /// A draft of the next policy, initially equal to this one.
    pub fn draft(&self) -> PolicyDraft {
        PolicyDraft(PolicySnapshot {
            rules: self.rules.clone(),
            file_allow: self.file_allow.clone(),
            allow: self.allow.clone(),
            file_bans: self.file_bans.clone(),
            settings: self.settings.clone(),
            generation: self.generation + 1,
        })
    }

    /// A draft for validating changes, which never comes into force. It interns values separately from this policy, so
    /// that all of its memory is freed with it.
    pub fn trial(&self) -> PolicyDraft {
        let mut draft = self.draft();
        draft.0.rules.intern_apart();
        draft
    }

    /// This policy with changes applied in order: all of them or, if one fails, none.
    pub fn changed(
        &self,
        changes: impl IntoIterator<Item = PolicyChange>,
        now: Time,
    ) -> Result<PolicySnapshot, RuleSetError> {
        let mut draft = self.draft();
        changes.into_iter().try_for_each(|change| draft.apply(change, now))?;
        Ok(draft.finish())
    }

    /// This policy with the rules that were added to another one.
    pub(crate) fn with_added(
        self,
        other: &PolicySnapshot,
        now: Time,
    ) -> Result<PolicySnapshot, RuleSetError> {
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
