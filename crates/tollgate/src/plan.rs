//! From a hit to what must be charged, and from what came of it to the verdict.
//!
//! Two pure halves around the one effect: `plan` reads the policy, `conclude` reads the outcome.
//! Neither charges anything nor waits for anything.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Admission;
use crate::ban::{Ban, BanList};
use crate::fingerprint::{Digest, Fingerprint, Secret};
use crate::hit::Hit;
use crate::identity::{Attribute, Key};
use crate::policy::Policy;
use crate::rule::{Limits, MAX_MATCHES, MissingKey, Mode, Rule, RuleLimit};
use crate::store::{Charge, DeniedHits, Outcome, Part, Predecessor, Receipt, Weight};
use crate::time::Time;
use crate::verdict::{LimitVerdict, Verdict, VerdictId};

/// What a hit comes to, before anything is charged.
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request, and rules are the usual case"
)]
pub(crate) enum Plan<'p> {
    AllowListed,
    Banned(Key, Ban),
    Rules(RulePlan<'p>),
}

/// The rules of a hit, and the charges they make.
pub(crate) struct RulePlan<'p> {
    pub(crate) rules: SmallVec<[PlannedRule<'p>; 2]>,
    pub(crate) charges: SmallVec<[Charge; 2]>,
    /// Rules that matched beyond the bound, and were not looked at.
    pub(crate) ignored: usize,
}

pub(crate) struct PlannedRule<'p> {
    pub(crate) number: usize,
    pub(crate) rule: &'p Arc<Rule>,
    /// The key under this rule.
    pub(crate) key: Fingerprint,
    limits: &'p [RuleLimit],
    charges: Range<usize>,
    /// The rule denies without counting: its key is missing.
    refused: bool,
}

impl Policy {
    /// What a hit comes to: allow list, then bans, then rules.
    pub(crate) fn plan<'p>(&'p self, hit: &Hit<'_>, bans: &BanList, secret: &Secret, now: Time) -> Plan<'p> {
        let value = |attribute: &Attribute| self.value(hit, attribute);
        if self.allow.find(hit.address(), value, |()| true).is_some() {
            return Plan::AllowListed;
        }
        if let Some((key, ban)) = bans.check(hit.address(), value, now) {
            return Plan::Banned(key, ban);
        }
        let user = value(&Attribute::User);
        let matches = self.rules.matching(hit.target(), user.as_deref());
        let mut plan = RulePlan {
            rules: SmallVec::new(),
            charges: SmallVec::new(),
            ignored: matches.len().saturating_sub(MAX_MATCHES),
        };
        for number in matches.into_iter().take(MAX_MATCHES) {
            self.plan_rule(&mut plan, number as usize, hit, secret, now);
        }
        Plan::Rules(plan)
    }

    fn plan_rule<'p>(
        &'p self,
        plan: &mut RulePlan<'p>,
        number: usize,
        hit: &Hit<'_>,
        secret: &Secret,
        now: Time,
    ) {
        let rule = &self.rules.rules()[number];
        let mut values: SmallVec<[Cow<'_, str>; 2]> = SmallVec::new();
        let mut missing = false;
        for attribute in &rule.key {
            let value = self.value(hit, attribute);
            missing |= value.is_none();
            values.push(value.unwrap_or_default()); // no value is ever empty
        }
        let attribute_value = |attribute: &Attribute| self.value(hit, attribute).map(Cow::into_owned);
        let limits = limits_for(rule, &values, attribute_value);
        if (missing || limits.is_none()) && rule.missing_key == MissingKey::Skip {
            return;
        }
        let refused = limits.is_none() || (missing && rule.missing_key == MissingKey::Deny);
        let any_limit = || rule.limits.all().next().map(std::slice::from_ref).unwrap_or_default();
        let limits = limits.unwrap_or_else(any_limit);
        let digest = key_digest(secret, hit.domain_name(), rule, &values);
        let start = plan.charges.len();
        if !refused {
            for each in limits {
                let previous = self.predecessors(number, each, &values, attribute_value, &digest, now);
                plan.charges.push(Charge { previous, ..charge(rule, each, &digest, hit.units()) });
            }
        }
        let (key, charges) = (digest.finish(), start..plan.charges.len());
        plan.rules.push(PlannedRule { number, rule, key, limits, charges, refused });
    }

    /// Where a key's state was before its limit changed, as far as it is to be carried over.
    fn predecessors(
        &self,
        number: usize,
        each: &RuleLimit,
        values: &[Cow<'_, str>],
        value: impl Fn(&Attribute) -> Option<String>,
        digest: &Digest<'_>,
        now: Time,
    ) -> Vec<Predecessor> {
        let rule = &self.rules.rules()[number];
        let was = |former: &'_ Arc<Rule>| {
            let limits = limits_for(former, values, &value).unwrap_or_default();
            let changed =
                |was: &&RuleLimit| was.counter != each.counter && was.limit.counts_like(&each.limit);
            let was = limits.iter().find(changed).filter(|_| former.key == rule.key)?;
            let fingerprint = digest.clone().part(was.counter.as_bytes()).finish();
            Some(Predecessor { fingerprint, quota: was.quota })
        };
        self.formers_at(number, now).filter_map(was).collect()
    }

    /// The counters of one key of a rule, as [`Policy::plan`] would charge them.
    pub(crate) fn counters_of<'p>(
        &'p self,
        number: usize,
        domain: &str,
        key: &Key,
        secret: &Secret,
        now: Time,
    ) -> (Fingerprint, Vec<(&'p RuleLimit, Charge)>) {
        let rule = &self.rules.rules()[number];
        let value_of = |attribute: &Attribute| {
            key.parts().iter().find(|(name, _)| name == attribute).map(|(_, value)| value.clone())
        };
        let values: Vec<Cow<'_, str>> =
            rule.key.iter().map(|attribute| value_of(attribute).unwrap_or_default().into()).collect();
        let digest = key_digest(secret, domain, rule, &values);
        let limits: Vec<&RuleLimit> = match (rule.overrides.find(&values), &rule.limits) {
            (Some(limits), _) => limits.iter().collect(),
            // Chosen by an attribute that is no part of the key: it may have met any of them.
            (None, Limits::By { attribute, .. }) if !rule.key.contains(attribute) => {
                distinct(rule.limits.all())
            }
            (None, limits) => limits.resolve(value_of).unwrap_or_default().iter().collect(),
        };
        let charges = limits
            .into_iter()
            .map(|each| {
                let previous = self.predecessors(number, each, &values, value_of, &digest, now);
                (each, Charge { previous, ..charge(rule, each, &digest, 1) })
            })
            .collect();
        (digest.finish(), charges)
    }
}

/// One of the limits that share a counter.
fn distinct<'r>(limits: impl Iterator<Item = &'r RuleLimit>) -> Vec<&'r RuleLimit> {
    let mut distinct: Vec<&RuleLimit> = Vec::new();
    for limit in limits {
        if distinct.iter().all(|known| known.counter != limit.counter) {
            distinct.push(limit);
        }
    }
    distinct
}

fn limits_for<'r>(
    rule: &'r Rule,
    values: &[Cow<'_, str>],
    value: impl FnOnce(&Attribute) -> Option<String>,
) -> Option<&'r [RuleLimit]> {
    rule.overrides.find(values).or_else(|| rule.limits.resolve(value))
}

/// Whether a key names just the attributes that a rule counts by; if not, those it should.
pub(crate) fn key_parts_fit(rule: &Rule, key: &Key) -> Result<(), Vec<Attribute>> {
    let fits = key.parts().iter().map(|(attribute, _)| attribute).eq(&rule.key);
    if fits { Ok(()) } else { Err(rule.key.clone()) }
}

fn key_digest<'s>(secret: &'s Secret, domain: &str, rule: &Rule, values: &[Cow<'_, str>]) -> Digest<'s> {
    let digest = secret.digest().part(domain.as_bytes()).part(rule.id.as_str().as_bytes());
    values.iter().fold(digest, |digest, value| digest.part(value.as_bytes()))
}

fn charge(rule: &Rule, each: &RuleLimit, digest: &Digest<'_>, units: u64) -> Charge {
    Charge {
        fingerprint: digest.clone().part(each.counter.as_bytes()).finish(),
        quota: each.quota,
        cost: rule.cost.saturating_mul(units),
        unit_cost: rule.cost,
        weight: if rule.mode == Mode::Enforce { Weight::Enforced } else { Weight::Shadow },
        denied: if rule.count_denied { DeniedHits::Counted } else { DeniedHits::Free },
        previous: Vec::new(),
    }
}

impl RulePlan<'_> {
    /// Whether the charges may be made at all: a rule may have refused already.
    pub(crate) fn is_refused(&self) -> bool {
        self.rules.iter().any(|rule| rule.refused && rule.rule.mode == Mode::Enforce)
    }

    /// The verdict that an outcome comes to.
    pub(crate) fn conclude(&self, id: VerdictId, outcome: &Outcome) -> Verdict {
        let mut limits = SmallVec::new();
        for planned in &self.rules {
            if planned.refused {
                limits.extend(planned.limits.iter().take(1).map(|limit| refusal(planned, limit)));
                continue;
            }
            let parts = &outcome.parts[planned.charges.clone()];
            limits.extend(
                planned.limits.iter().zip(parts).map(|(limit, part)| limit_verdict(planned, limit, part)),
            );
        }
        let mut verdict = Verdict::of_limits(id, limits);
        verdict.receipt = Receipt::of(&self.charges, outcome);
        verdict
    }
}

fn refusal(planned: &PlannedRule<'_>, limit: &RuleLimit) -> LimitVerdict {
    LimitVerdict {
        rule: Arc::clone(planned.rule),
        limit: limit.limit,
        of_several: planned.limits.len() > 1,
        allowed: false,
        unkeyed: true,
        remaining: 0,
        retry_after: None,
        reset_after: Duration::ZERO,
        delay: Duration::ZERO,
    }
}

fn limit_verdict(planned: &PlannedRule<'_>, limit: &RuleLimit, part: &Part) -> LimitVerdict {
    let (retry_after, delay) = match part.decision.admission {
        Admission::Allow { delay } => (None, delay),
        Admission::Deny { retry_after } => (Some(retry_after), Duration::ZERO),
        Admission::Never => (None, Duration::ZERO),
    };
    LimitVerdict {
        rule: Arc::clone(planned.rule),
        limit: limit.limit,
        of_several: planned.limits.len() > 1,
        allowed: part.decision.is_allowed(),
        unkeyed: false,
        remaining: part.remaining,
        retry_after,
        reset_after: part.reset_after,
        delay,
    }
}
