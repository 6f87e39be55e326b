//! From a hit to its charges, and from their outcome to the verdict.
//!
//! Two pure halves around the one effect: `plan` reads the policy, `conclude` reads the outcome. Neither charges or
//! waits.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ban::{Ban, BanList};
use crate::collections::push_in_place;
use crate::enforce::Enforce;
use crate::fingerprint::{Digest, Fingerprint, Secret};
use crate::hit::{AttributeValues, Hit};
use crate::identity::{Attribute, Key, abridged};
use crate::key_list::KeyList;
use crate::policy::PolicySnapshot;
use crate::rule::{
    EnforcedShare, Limits, MAX_MATCHES, Matches, MissingKey, Rule, RuleInForce, RuleLimit, RuleMode,
    VerdictRule,
};
use crate::store::{Charge, DeniedHits, Enforcement, LimitOutcome, Predecessor};
use crate::time::Time;
use crate::verdict::{EngineVerdict, LimitVerdict, VerdictSummary};

mod ambiguous;

/// Why no rule applies.
pub(crate) enum Exempt {
    /// Nothing is enforced at all.
    SwitchedOff,
    AllowListed,
    Banned(Box<(Key, Ban)>),
}

/// The inputs of a plan other than policy and hit.
pub(crate) struct PlanContext<'e> {
    pub(crate) enforce: Enforce,
    pub(crate) bans: &'e BanList,
    pub(crate) secret: &'e Secret,
    pub(crate) now: Time,
}

/// The rules of a hit. Their charges and the verdict are written in place: both are large.
pub(crate) struct Plan<'p, 'v> {
    pub(crate) rules: SmallVec<[PlannedRule<'p>; 4]>,
    pub(crate) verdict: &'v mut EngineVerdict,
    /// The hit is banned, but bans are only counted.
    pub(crate) banned: bool,
    /// A rule denies without counting, so that nothing is charged.
    pub(crate) is_denied_by_key: bool,
    /// Matching rules beyond the bound, which were ignored.
    pub(crate) ignored: usize,
    /// The values of keys of which the request has several.
    values: Vec<Box<[String]>>,
}

#[derive(Clone, Copy)]
pub(crate) struct PlannedRule<'p> {
    pub(crate) rule: &'p Arc<RuleInForce>,
    /// The fingerprint of the key under this rule.
    pub(crate) key: Fingerprint,
    /// Whether the rule decides here, or is only counted.
    mode: RuleMode,
    limits: &'p [RuleLimit],
    /// Why the rule denies without counting.
    key_denial: Option<KeyDenial>,
    /// The index of this key's values in the plan, if the request has several keys: each is planned separately.
    values: Option<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyDenial {
    MissingKey,
    AmbiguousKey,
}

/// The values of a key, in the order of its attributes.
pub(crate) type KeyValues<'h> = SmallVec<[Cow<'h, str>; 2]>;

/// How many keys a request has under a rule.
enum KeyCount {
    One,
    Several,
}

impl PolicySnapshot {
    /// Plans a hit: allow list, then bans, then rules. The plan is built in place, and `known` is called with each
    /// counter as soon as it is known, to prefetch it.
    pub(crate) fn plan<'p>(
        &'p self,
        plan: &mut Plan<'p, '_>,
        hit: &Hit<'_>,
        under: &PlanContext<'_>,
        known: impl Fn(Fingerprint),
    ) -> Result<(), Exempt> {
        if under.enforce == Enforce::Off {
            return Err(Exempt::SwitchedOff);
        }
        if !self.has_empty_lists(under.bans) {
            plan.banned = self.check_lists(hit, under)?;
        }
        let mut matches = Matches::new();
        self.find_matching(hit, &mut matches);
        plan.ignored = matches.len().saturating_sub(MAX_MATCHES);
        for rule in matches.iter().copied().take(MAX_MATCHES) {
            self.plan_rule(plan, rule, hit, under, &known);
        }
        Ok(())
    }

    #[inline]
    fn has_empty_lists(&self, bans: &BanList) -> bool {
        self.file_allow.is_empty() && self.allow.is_empty() && self.file_bans.is_empty() && bans.is_empty()
    }

    /// Looks a hit up in the lists of keys; `true` if it is banned but bans are only counted.
    #[inline(never)]
    fn check_lists(&self, hit: &Hit<'_>, under: &PlanContext<'_>) -> Result<bool, Exempt> {
        // Any one of several values can ban a request; only a single value can exempt it.
        let value = |attribute: &Attribute| self.values(hit, attribute).single();
        let is_on = |list: &KeyList<()>| list.find(hit.address(), value, |()| true).is_some();
        if is_on(&self.file_allow) || is_on(&self.allow) {
            return Err(Exempt::AllowListed);
        }
        match self.banned(hit, under) {
            Some(banned) if under.enforce == Enforce::On => Err(Exempt::Banned(Box::new(banned))),
            banned => Ok(banned.is_some()),
        }
    }

    /// The ban in force: of a ban by the file and another one, the more specific for this address.
    fn banned(&self, hit: &Hit<'_>, under: &PlanContext<'_>) -> Option<(Key, Ban)> {
        let values = |attribute: &Attribute| self.all_values(hit, attribute).into_iter().map(abridged);
        let listed = under.bans.check(hit.address(), values, under.now);
        let file = self.file_bans.find(hit.address(), values, |ban| ban.until > under.now);
        let precision =
            |(key, ban): &(Key, Ban)| (key.network().map(|network| network.prefix_len()), ban.until);
        match (listed, file) {
            (Some(listed), Some(file)) if precision(file) > precision(&listed) => Some(file.clone()),
            (listed, file) => listed.or_else(|| file.cloned()),
        }
    }

    /// Not inlined: the compiler would hoist what is the same for all rules, which costs requests with one rule more.
    #[inline(never)]
    fn plan_rule<'p>(
        &'p self,
        plan: &mut Plan<'p, '_>,
        rule: &'p Arc<RuleInForce>,
        hit: &Hit<'_>,
        under: &PlanContext<'_>,
        known: &impl Fn(Fingerprint),
    ) {
        let mut values = KeyValues::new();
        match self.read_key(rule, hit, &mut values) {
            KeyCount::One => self.plan_key(plan, rule, &values, hit, under, known),
            KeyCount::Several => self.plan_ambiguous(plan, rule, hit, under, known),
        }
    }

    /// Reads the values of a rule's key; those of missing parts are empty.
    #[inline(always)]
    fn read_key<'h>(&self, rule: &Rule, hit: &'h Hit<'_>, values: &mut KeyValues<'h>) -> KeyCount {
        if self.has_ambiguous_limits(rule, hit) {
            return KeyCount::Several;
        }
        for attribute in &rule.key {
            let value = match hit.plain_text(attribute) {
                Some(text) => Cow::Borrowed(text),
                None => match self.values(hit, attribute) {
                    AttributeValues::One(value) => value,
                    AttributeValues::Missing => Cow::Borrowed(""), // no value is ever empty
                    AttributeValues::Several(_) | AttributeValues::TooMany => return KeyCount::Several,
                },
            };
            push_in_place(values, || value);
        }
        KeyCount::One
    }

    /// Whether a request has several values for the attribute that chooses a rule's limits and is not part of its key.
    #[inline(always)]
    fn has_ambiguous_limits(&self, rule: &Rule, hit: &Hit<'_>) -> bool {
        match &*rule.limits {
            Limits::By { attribute, .. } if !rule.key.contains(attribute) => {
                self.values(hit, attribute).is_ambiguous()
            }
            _ => false,
        }
    }

    /// Plans a rule for one key; an empty value means missing.
    #[inline(always)]
    fn plan_key<'p>(
        &'p self,
        plan: &mut Plan<'p, '_>,
        rule: &'p Arc<RuleInForce>,
        values: &[Cow<'_, str>],
        hit: &Hit<'_>,
        under: &PlanContext<'_>,
        known: &impl Fn(Fingerprint),
    ) {
        let missing = values.iter().any(|value| value.is_empty());
        let attribute_value = |attribute: &Attribute| {
            let in_key = rule.key.iter().zip(values).find(|(name, _)| *name == attribute);
            let value = match in_key {
                Some((_, value)) => Some(value.to_string()),
                None => self.value(hit, attribute).map(Cow::into_owned),
            };
            value.filter(|value| !value.is_empty())
        };
        let limits = limits_for(rule, values, attribute_value);
        if (missing || limits.is_none()) && rule.missing_key == MissingKey::Skip {
            return;
        }
        let refused = limits.is_none() || (missing && rule.missing_key == MissingKey::Deny);
        let any_limit = || rule.limits.all().next().map(std::slice::from_ref).unwrap_or_default();
        let limits = limits.unwrap_or_else(any_limit);
        let digest = key_digest(under.secret, hit.domain_name(), rule, values);
        let mode = mode(rule, under, values);
        if !refused {
            for each in limits {
                let fingerprint = digest.clone().short_part(each.counter_hash).finish();
                known(fingerprint);
                let previous = match rule.has_previous_versions() {
                    true => predecessors(rule, each, values, attribute_value, &digest, under.now),
                    false => Vec::new(),
                };
                let charge = || charge(rule, mode, each, fingerprint, hit.units(), previous);
                push_in_place(&mut plan.verdict.charges, charge);
            }
        }
        let key_denial = refused.then_some(KeyDenial::MissingKey);
        let key = digest.finish();
        plan.push(PlannedRule { rule, key, mode, limits, key_denial, values: None });
    }

    /// The counters of one key of a rule, as [`PolicySnapshot::plan`] would charge them.
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
            // The limits are chosen by an attribute outside the key: the key may have been charged under any of them.
            (None, Limits::By { attribute, .. }) if !rule.key.contains(attribute) => {
                distinct(rule.limits.all())
            }
            (None, limits) => limits.resolve(value_of).unwrap_or_default().iter().collect(),
        };
        let charges = limits
            .into_iter()
            .map(|each| {
                let fingerprint = digest.clone().short_part(each.counter_hash).finish();
                let previous = predecessors(rule, each, &values, value_of, &digest, now);
                (each, charge(rule, rule.mode, each, fingerprint, 1, previous))
            })
            .collect();
        (digest.finish(), charges)
    }
}

/// How a rule is applied to a key.
#[inline(always)]
fn mode(rule: &Rule, under: &PlanContext<'_>, values: &[Cow<'_, str>]) -> RuleMode {
    let has_key = || rule.enforced.has(&rule.id, values.iter().map(AsRef::as_ref));
    let enforced = under.enforce == Enforce::On && (rule.enforced == EnforcedShare::ALL || has_key());
    if enforced { rule.mode } else { RuleMode::Shadow }
}

/// The fingerprints of a key's state under former limits, as far as it is carried over.
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
        let changed =
            |was: &&RuleLimit| was.counter_hash != each.counter_hash && was.limit.counts_like(&each.limit);
        let was = limits.iter().find(changed).filter(|_| former.key == rule.key)?;
        let fingerprint = digest.clone().short_part(was.counter_hash).finish();
        Some(Predecessor { fingerprint, quota: was.quota })
    };
    rule.previous_versions(now).filter_map(was).collect()
}

/// The limits without those that share a counter with an earlier one.
fn distinct<'r>(limits: impl Iterator<Item = &'r RuleLimit>) -> Vec<&'r RuleLimit> {
    let mut distinct: Vec<&RuleLimit> = Vec::new();
    for limit in limits {
        if distinct.iter().all(|known| known.counter_hash != limit.counter_hash) {
            distinct.push(limit);
        }
    }
    distinct
}

#[inline(always)]
fn limits_for<'r>(
    rule: &'r Rule,
    values: &[Cow<'_, str>],
    value: impl FnOnce(&Attribute) -> Option<String>,
) -> Option<&'r [RuleLimit]> {
    if let (true, Limits::Same(limits)) = (rule.overrides.is_empty(), &*rule.limits) {
        return Some(limits); // the common case
    }
    rule.overrides.find(values).or_else(|| rule.limits.resolve(value))
}

/// Whether a key names exactly the attributes that a rule counts by; if not, those it should.
pub(crate) fn check_key_parts(rule: &Rule, key: &Key) -> Result<(), Vec<Attribute>> {
    let fits = key.parts().iter().map(|(attribute, _)| attribute).eq(&rule.key);
    if fits { Ok(()) } else { Err(rule.key.clone()) }
}

#[inline(always)]
fn key_digest<'s>(secret: &'s Secret, domain: &str, rule: &Rule, values: &[Cow<'_, str>]) -> Digest<'s> {
    let mut digest = secret.digest().part(rule.id.as_str().as_bytes());
    for value in values {
        digest = digest.part(value.as_bytes());
    }
    if domain == Hit::DEFAULT_DOMAIN { digest } else { digest.part(domain.as_bytes()) }
}

#[inline(always)]
fn charge(
    rule: &Rule,
    mode: RuleMode,
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
        enforcement: if mode == RuleMode::Enforce { Enforcement::Enforced } else { Enforcement::Shadow },
        denied_hits: if rule.count_denied { DeniedHits::Counted } else { DeniedHits::Free },
        predecessors: previous,
        counter: None,
    }
}

impl<'p, 'v> Plan<'p, 'v> {
    /// An empty plan for a verdict without limits.
    #[inline]
    pub(crate) fn new(verdict: &'v mut EngineVerdict) -> Plan<'p, 'v> {
        Plan {
            rules: SmallVec::new(),
            verdict,
            banned: false,
            is_denied_by_key: false,
            ignored: 0,
            values: Vec::new(),
        }
    }

    #[inline(always)]
    fn push(&mut self, planned: PlannedRule<'p>) {
        self.is_denied_by_key |= planned.key_denial.is_some() && planned.mode == RuleMode::Enforce;
        push_in_place(&mut self.rules, || planned);
    }

    /// Completes the verdict with the outcomes of the charges, in their order. A charge without one does not affect it.
    #[inline(always)]
    pub(crate) fn conclude<'o>(
        &mut self,
        policy: &PolicySnapshot,
        mut outcomes: impl Iterator<Item = Option<&'o LimitOutcome>>,
    ) {
        if self.rules.is_empty() {
            return self.verdict.summarize(&VerdictSummary::default());
        }
        self.verdict.set_owner(policy.rules.owner(self.verdict.id.stripe()));
        let mut summary = VerdictSummary::default();
        let mut before: Option<&Arc<RuleInForce>> = None;
        for planned in &self.rules {
            let repeated = before.is_some_and(|before| Arc::ptr_eq(before, planned.rule));
            before = Some(planned.rule);
            for limit in planned.reported_limits() {
                let result = match planned.key_denial {
                    Some(_) => PlannedResult::Denied,
                    None => outcomes.next().flatten().map_or(PlannedResult::Skipped, PlannedResult::Outcome),
                };
                // SAFETY: `PolicySnapshot::plan` plans rules of its own policy, and the verdict has an owner of them.
                unsafe { self.verdict.push_limit(|| planned.verdict(limit, repeated, result)) };
                summary.add(self.verdict.limits());
            }
        }
        self.verdict.summarize(&summary);
    }

    /// The values of a planned key, if the request has several keys of the rule.
    pub(crate) fn values_of(&self, planned: &PlannedRule<'_>) -> Option<&[String]> {
        planned.values.map(|index| &*self.values[index as usize])
    }

    #[inline]
    pub(crate) fn charges(&self) -> &[Charge] {
        &self.verdict.charges
    }

    /// Every charge with its rule and its limit.
    pub(crate) fn charged(&self) -> impl Iterator<Item = (&'_ Arc<RuleInForce>, &'_ RuleLimit, &'_ Charge)> {
        self.charged_keys().map(|(planned, limit, charge)| (planned.rule, limit, charge))
    }

    /// Every charge with the planned rule that it is for.
    pub(crate) fn charged_keys(
        &self,
    ) -> impl Iterator<Item = (&'_ PlannedRule<'_>, &'_ RuleLimit, &'_ Charge)> {
        let counted = self.rules.iter().filter(|planned| planned.key_denial.is_none());
        let limits = counted.flat_map(|planned| planned.limits.iter().map(move |limit| (planned, limit)));
        limits.zip(self.charges()).map(|((planned, limit), charge)| (planned, limit, charge))
    }

    /// The planned rules, each with its limits in the verdict.
    pub(crate) fn with_verdicts(&self) -> impl Iterator<Item = (&PlannedRule<'p>, &[LimitVerdict])> {
        let mut rest = self.verdict.limits();
        self.rules.iter().map(move |planned| {
            let (own, others) = rest.split_at(planned.reported_limits().len());
            rest = others;
            (planned, own)
        })
    }
}

/// The result of a planned limit.
enum PlannedResult<'o> {
    /// The rule denies without counting.
    Denied,
    /// The counter was unavailable.
    Skipped,
    Outcome(&'o LimitOutcome),
}

impl<'p> PlannedRule<'p> {
    /// The verdict of one of its limits.
    ///
    /// # Safety
    ///
    /// It is added to a verdict that has an owner of the rule.
    #[inline(always)]
    unsafe fn verdict(&self, limit: &RuleLimit, repeated: bool, result: PlannedResult<'_>) -> LimitVerdict {
        let outcome = match result {
            PlannedResult::Outcome(outcome) => outcome,
            PlannedResult::Denied | PlannedResult::Skipped => &LimitOutcome::PENDING,
        };
        LimitVerdict {
            // SAFETY: as above.
            rule: unsafe { VerdictRule::new(self.rule) },
            limit: limit.limit,
            mode: self.mode,
            of_several: self.limits.len() > 1,
            allowed: outcome.decision.is_allowed() && !matches!(result, PlannedResult::Denied),
            unkeyed: self.key_denial.is_some(),
            ambiguous: self.key_denial == Some(KeyDenial::AmbiguousKey),
            repeated,
            skipped: matches!(result, PlannedResult::Skipped),
            remaining: outcome.remaining,
            retry_after: outcome.decision.retry_after(),
            reset_after: outcome.reset_after,
            delay: outcome.decision.delay(),
            grant: outcome.grant,
        }
    }

    /// The limits that a verdict shows: only the first if nothing was counted.
    #[inline]
    fn reported_limits(&self) -> &'p [RuleLimit] {
        if self.key_denial.is_some() { &self.limits[..self.limits.len().min(1)] } else { self.limits }
    }
}
