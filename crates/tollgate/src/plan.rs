//! From a hit to what must be charged, and from what came of it to the verdict.
//!
//! Two pure halves around the one effect: `plan` reads the policy, `conclude` reads the outcome.
//! Neither charges anything nor waits for anything.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::ban::{Ban, BanList};
use crate::enforce::Enforce;
use crate::fingerprint::{Digest, Fingerprint, Secret};
use crate::hit::Hit;
use crate::identity::{Attribute, Key};
use crate::key_list::KeyList;
use crate::policy::Policy;
use crate::rule::{Limits, MAX_MATCHES, MissingKey, Mode, Rule, RuleInForce, RuleLimit};
use crate::store::{Charge, DeniedHits, Outcome, Part, Predecessor, Receipt, Weight};
use crate::time::Time;
use crate::verdict::{LimitVerdict, Verdict, VerdictId};

/// Why no rule is asked.
pub(crate) enum Exempt {
    /// Nothing is enforced at all.
    SwitchedOff,
    AllowListed,
    Banned(Box<(Key, Ban)>),
}

/// What beside the policy decides what a hit comes to.
pub(crate) struct Conditions<'e> {
    pub(crate) enforce: Enforce,
    pub(crate) bans: &'e BanList,
    pub(crate) secret: &'e Secret,
    pub(crate) now: Time,
}

/// The rules of a hit, and the charges they make.
#[derive(Default)]
pub(crate) struct Plan<'p> {
    pub(crate) rules: SmallVec<[PlannedRule<'p>; 4]>,
    pub(crate) charges: SmallVec<[Charge; 4]>,
    /// Somebody who is banned, while bans are only counted.
    pub(crate) banned: bool,
    /// Rules that matched beyond the bound, and were not looked at.
    pub(crate) ignored: usize,
}

pub(crate) struct PlannedRule<'p> {
    pub(crate) rule: &'p Arc<RuleInForce>,
    /// The key under this rule.
    pub(crate) key: Fingerprint,
    /// Whether the rule decides here, or is only counted.
    mode: Mode,
    limits: &'p [RuleLimit],
    /// The rule denies without counting: its key is missing.
    refused: bool,
}

impl Policy {
    /// What a hit comes to: allow list, then bans, then rules. The plan is made where it will be used, and
    /// `known` is told of each counter as soon as it is known: its memory may be far.
    pub(crate) fn plan<'p>(
        &'p self,
        plan: &mut Plan<'p>,
        hit: &Hit<'_>,
        under: &Conditions<'_>,
        known: impl Fn(Fingerprint),
    ) -> Result<(), Exempt> {
        if under.enforce == Enforce::Off {
            return Err(Exempt::SwitchedOff);
        }
        if !self.has_empty_lists(under.bans) {
            plan.banned = self.look_up(hit, under)?;
        }
        let matches = self.matching(hit);
        plan.ignored = matches.len().saturating_sub(MAX_MATCHES);
        plan.rules.reserve(matches.len() - plan.ignored);
        plan.charges.reserve(matches.len() - plan.ignored);
        for rule in matches.take(MAX_MATCHES) {
            self.plan_rule(plan, rule, hit, under, &known);
        }
        Ok(())
    }

    fn has_empty_lists(&self, bans: &BanList) -> bool {
        self.file_allow.is_empty() && self.allow.is_empty() && self.file_bans.is_empty() && bans.is_empty()
    }

    /// Looks a hit up in the lists of keys; `true` if it is by somebody whose ban is only counted.
    #[inline(never)]
    fn look_up(&self, hit: &Hit<'_>, under: &Conditions<'_>) -> Result<bool, Exempt> {
        let value = |attribute: &Attribute| self.value(hit, attribute);
        let is_on = |list: &KeyList<()>| list.find(hit.address(), value, |()| true).is_some();
        if is_on(&self.file_allow) || is_on(&self.allow) {
            return Err(Exempt::AllowListed);
        }
        match self.banned(hit, under) {
            Some(banned) if under.enforce == Enforce::On => Err(Exempt::Banned(Box::new(banned))),
            banned => Ok(banned.is_some()),
        }
    }

    /// The ban in force: of one in the file and another the one that is more about this address.
    fn banned(&self, hit: &Hit<'_>, under: &Conditions<'_>) -> Option<(Key, Ban)> {
        let value = |attribute: &Attribute| self.value(hit, attribute);
        let listed = under.bans.check(hit.address(), value, under.now);
        let file = self.file_bans.find(hit.address(), value, |ban| ban.until > under.now);
        let precision =
            |(key, ban): &(Key, Ban)| (key.network().map(|network| network.prefix_len()), ban.until);
        match (listed, file) {
            (Some(listed), Some(file)) if precision(file) > precision(&listed) => Some(file.clone()),
            (listed, file) => listed.or_else(|| file.cloned()),
        }
    }

    fn plan_rule<'p>(
        &'p self,
        plan: &mut Plan<'p>,
        rule: &'p Arc<RuleInForce>,
        hit: &Hit<'_>,
        under: &Conditions<'_>,
        known: impl Fn(Fingerprint),
    ) {
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
        let digest = key_digest(under.secret, hit.domain_name(), rule, &values);
        let enforced =
            under.enforce == Enforce::On && rule.enforced.has(&rule.id, values.iter().map(AsRef::as_ref));
        let mode = if enforced { rule.mode } else { Mode::Shadow };
        if !refused {
            for each in limits {
                let fingerprint = digest.clone().short(each.mark).finish();
                known(fingerprint);
                let previous = predecessors(rule, each, &values, attribute_value, &digest, under.now);
                plan.charges.push(charge(rule, mode, each, fingerprint, hit.units(), previous));
            }
        }
        plan.rules.push(PlannedRule { rule, key: digest.finish(), mode, limits, refused });
    }

    /// The counters of one key of a rule, as [`Policy::plan`] would charge them.
    pub(crate) fn counters_of<'p>(
        &self,
        rule: &'p RuleInForce,
        domain: &str,
        key: &Key,
        secret: &Secret,
        now: Time,
    ) -> (Fingerprint, Vec<(&'p RuleLimit, Charge)>) {
        let value_of = |attribute: &Attribute| {
            key.parts().iter().find(|(name, _)| name == attribute).map(|(_, value)| value.clone())
        };
        let values: Vec<Cow<'_, str>> =
            rule.key.iter().map(|attribute| value_of(attribute).unwrap_or_default().into()).collect();
        let digest = key_digest(secret, domain, rule, &values);
        let limits: Vec<&RuleLimit> = match (rule.overrides.find(&values), &*rule.limits) {
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
                let fingerprint = digest.clone().short(each.mark).finish();
                let previous = predecessors(rule, each, &values, value_of, &digest, now);
                (each, charge(rule, rule.mode, each, fingerprint, 1, previous))
            })
            .collect();
        (digest.finish(), charges)
    }
}

/// Where a key's state was before its limit changed, as far as it is to be carried over.
fn predecessors(
    rule: &RuleInForce,
    each: &RuleLimit,
    values: &[Cow<'_, str>],
    value: impl Fn(&Attribute) -> Option<String>,
    digest: &Digest<'_>,
    now: Time,
) -> Vec<Predecessor> {
    let was = |former: &'_ Rule| {
        let limits = limits_for(former, values, &value).unwrap_or_default();
        let changed = |was: &&RuleLimit| was.mark != each.mark && was.limit.counts_like(&each.limit);
        let was = limits.iter().find(changed).filter(|_| former.key == rule.key)?;
        let fingerprint = digest.clone().short(was.mark).finish();
        Some(Predecessor { fingerprint, quota: was.quota })
    };
    rule.formers(now).filter_map(was).collect()
}

/// One of the limits that share a counter.
fn distinct<'r>(limits: impl Iterator<Item = &'r RuleLimit>) -> Vec<&'r RuleLimit> {
    let mut distinct: Vec<&RuleLimit> = Vec::new();
    for limit in limits {
        if distinct.iter().all(|known| known.mark != limit.mark) {
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
    let digest = secret.digest().part(rule.id.as_str().as_bytes());
    let digest = values.iter().fold(digest, |digest, value| digest.part(value.as_bytes()));
    if domain == Hit::DEFAULT_DOMAIN { digest } else { digest.part(domain.as_bytes()) }
}

fn charge(
    rule: &Rule,
    mode: Mode,
    each: &RuleLimit,
    fingerprint: Fingerprint,
    units: u64,
    previous: Vec<Predecessor>,
) -> Charge {
    Charge {
        fingerprint,
        quota: each.quota,
        cost: rule.cost.saturating_mul(units),
        unit_cost: rule.cost,
        weight: if mode == Mode::Enforce { Weight::Enforced } else { Weight::Shadow },
        denied: if rule.count_denied { DeniedHits::Counted } else { DeniedHits::Free },
        previous,
    }
}

impl Plan<'_> {
    /// Whether the charges may be made at all: a rule may have refused already.
    pub(crate) fn is_refused(&self) -> bool {
        self.rules.iter().any(|rule| rule.refused && rule.mode == Mode::Enforce)
    }

    /// The verdict as far as it is known before anything is charged.
    pub(crate) fn draft(&self, id: VerdictId) -> Verdict {
        let mut verdict = Verdict::new(id);
        verdict.limits.reserve(self.charges.len());
        for planned in &self.rules {
            for limit in planned.shown() {
                verdict.limits.push(LimitVerdict {
                    rule: Arc::clone(planned.rule),
                    limit: limit.limit,
                    mode: planned.mode,
                    of_several: planned.limits.len() > 1,
                    allowed: false,
                    unkeyed: planned.refused,
                    skipped: false,
                    remaining: 0,
                    retry_after: None,
                    reset_after: Duration::ZERO,
                    delay: Duration::ZERO,
                });
            }
        }
        verdict
    }

    /// Completes the draft by what came of the charges.
    pub(crate) fn conclude(&self, verdict: &mut Verdict, outcome: &Outcome) {
        let counted = verdict.limits.iter_mut().filter(|limit| !limit.unkeyed);
        for (limit, part) in counted.zip(&outcome.parts) {
            limit.conclude(part);
        }
        verdict.weigh();
        Receipt::write(&mut verdict.receipt, &self.charges, outcome);
    }

    /// The same where some charges were not asked, and decide nothing.
    pub(crate) fn conclude_asked(&self, verdict: &mut Verdict, parts: &[Option<Part>]) {
        let counted = verdict.limits.iter_mut().filter(|limit| !limit.unkeyed);
        for (limit, part) in counted.zip(parts) {
            match part {
                Some(part) => limit.conclude(part),
                None => (limit.allowed, limit.skipped) = (true, true),
            }
        }
        verdict.weigh();
    }

    /// Every charge with its rule and its limit.
    pub(crate) fn charged(&self) -> impl Iterator<Item = (&'_ Arc<RuleInForce>, &'_ RuleLimit, &'_ Charge)> {
        let counted = self.rules.iter().filter(|planned| !planned.refused);
        let limits = counted.flat_map(|planned| planned.limits.iter().map(|limit| (planned.rule, limit)));
        limits.zip(&self.charges).map(|((rule, limit), charge)| (rule, limit, charge))
    }

    /// The planned rules, each with its limits in the verdict.
    pub(crate) fn judged<'v>(
        &'v self,
        verdict: &'v Verdict,
    ) -> impl Iterator<Item = (&'v PlannedRule<'v>, &'v [LimitVerdict])> {
        let mut rest = verdict.limits.as_slice();
        self.rules.iter().map(move |planned| {
            let (own, others) = rest.split_at(planned.shown().len());
            rest = others;
            (planned, own)
        })
    }
}

impl<'p> PlannedRule<'p> {
    /// The limits that a verdict shows: of those that were not counted, one.
    fn shown(&self) -> &'p [RuleLimit] {
        if self.refused { &self.limits[..self.limits.len().min(1)] } else { self.limits }
    }
}
