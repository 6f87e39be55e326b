//! Requests with several values for a rule's key.

use std::borrow::Cow;
use std::sync::Arc;

use crate::ban::{Ban, BanSource};
use crate::fingerprint::Fingerprint;
use crate::hit::{AttributeValues, Hit, MAX_VALUES};
use crate::identity::{Attribute, Key};
use crate::key_list::TooManyCombinations;
use crate::plan::{KeyValues, Plan, PlanContext, PlannedKey, key_digest, mode};
use crate::policy::PolicySnapshot;
use crate::rule::{AmbiguousKey, MissingKey, RuleInForce};
use crate::time::Time;
use crate::verdict::{KeyDenial, LimitVerdict};

/// There are more combinations of values than [`MAX_VALUES`].
pub(crate) struct TooManyValues;

/// The ban of a request that has more combinations of values than are looked up, because one of them may be banned. It
/// does not end: the same request would be denied again.
#[cold]
pub(super) fn possible_ban(TooManyCombinations { first }: TooManyCombinations) -> (Key, Ban) {
    let names: Vec<_> = first.parts().iter().map(|(attribute, _)| attribute.to_string()).collect();
    let reason = format!("too many values for {}, by which others are banned", names.join("+"));
    (first, Ban { until: Time::MAX, reason, source: BanSource::Automatic, strikes: 0 })
}

impl PolicySnapshot {
    /// Plans a rule for a request with several values for its key: the rule denies it, or each combination is charged.
    #[cold]
    pub(super) fn plan_ambiguous(
        &self,
        plan: &mut Plan<'_>,
        rule: &Arc<RuleInForce>,
        hit: &Hit<'_>,
        context: &PlanContext<'_>,
        prefetch: &impl Fn(Fingerprint),
    ) {
        let each = rule.ambiguous_key == AmbiguousKey::Each && !self.has_ambiguous_limits(rule, hit);
        let keys = self.combinations(hit, &rule.key);
        if let (Ok(keys), true) = (&keys, each) {
            let first = plan.verdict.limits().len();
            for values in keys {
                let planned = plan.verdict.limits().len();
                self.plan_key(plan, rule, values, hit, context, prefetch);
                for limit in &mut plan.verdict.limits_mut()[planned..] {
                    limit.repeated = planned > first;
                }
                if let Some(LimitVerdict { key, .. }) = plan.verdict.limits().get(planned) {
                    plan.values.push((*key, values.iter().map(|value| value.to_string()).collect()));
                }
            }
            return;
        }
        let is_missing = |attribute| self.values(hit, attribute) == AttributeValues::Missing;
        if rule.missing_key == MissingKey::Skip && rule.key.iter().any(is_missing) {
            return;
        }
        let values: KeyValues<'_> =
            rule.key.iter().map(|attribute| self.value(hit, attribute).unwrap_or_default()).collect();
        let limits = rule.limits.all().next().map(std::slice::from_ref).unwrap_or_default();
        let key = PlannedKey {
            rule,
            key: key_digest(context.secret, hit.domain_name(), rule, &values).finish(),
            mode: mode(rule, context, &values),
            cost: 0,
            of_several: false,
        };
        plan.deny(&key, limits, KeyDenial::AmbiguousKey);
    }

    /// All combinations of the values that a hit has for the attributes, with empty strings for missing ones; an error
    /// if there are more than [`MAX_VALUES`].
    pub(crate) fn combinations<'h>(
        &self,
        hit: &'h Hit<'_>,
        attributes: &[Attribute],
    ) -> Result<Vec<KeyValues<'h>>, TooManyValues> {
        let mut combinations = vec![KeyValues::new()];
        for attribute in attributes {
            let values = match self.values(hit, attribute) {
                AttributeValues::Missing => vec![Cow::Borrowed("")],
                AttributeValues::One(value) => vec![value],
                AttributeValues::Several(values) => values,
                AttributeValues::TooMany => return Err(TooManyValues),
            };
            if combinations.len() * values.len() > MAX_VALUES {
                return Err(TooManyValues);
            }
            let longer = combinations.iter().flat_map(|combination| {
                values.iter().map(|value| {
                    let mut longer = combination.clone();
                    longer.push(value.clone());
                    longer
                })
            });
            combinations = longer.collect();
        }
        Ok(combinations)
    }
}
