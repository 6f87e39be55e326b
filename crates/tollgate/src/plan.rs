//! From a hit to the limits of its verdict, which are charged where they are.
//!
//! Planning reads the policy; it neither charges nor waits.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::Admission;
use crate::ban::{Ban, BanList};
use crate::collections::push_in_place;
use crate::enforce::Enforce;
use crate::fingerprint::{Digest, Fingerprint, Secret};
use crate::hit::{AttributeValues, Hit};
use crate::identity::{Attribute, Key, abridged};
use crate::policy::{AllowSource, PolicySnapshot};
use crate::rule::{
    EnforcedShare, Limits, MAX_MATCHES, Matches, MissingKey, Rule, RuleInForce, RuleLimit, RuleMode,
    VerdictLimit, VerdictRule,
};
use crate::store::{Charge, DeniedHits, Enforcement, LimitOutcome, Predecessor};
use crate::time::Time;
use crate::verdict::{EngineVerdict, KeyDenial, LimitVerdict};

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

/// The plan of a hit: the limits of its verdict, which are charged where they are.
pub(crate) struct Plan<'v> {
    pub(crate) verdict: &'v mut EngineVerdict,
    /// The hit is banned, but bans are only counted.
    pub(crate) banned: bool,
    /// Whether counters are prefetched when they are planned: there is other work before they are charged.
    pub(crate) prefetches: bool,
    /// A rule denies without counting, so that nothing is charged.
    pub(crate) is_denied_by_key: bool,
    /// Matching rules beyond the bound, which were ignored.
    pub(crate) ignored: usize,
    /// The values of keys of which the request has several, each with the key's fingerprint.
    values: Vec<(Fingerprint, Box<[String]>)>,
}

/// The values of a key, in the order of its attributes.
pub(crate) type KeyValues<'h> = SmallVec<[Cow<'h, str>; 2]>;

/// How many keys a request has under a rule.
enum KeyMultiplicity {
    One,
    Several,
}

impl PolicySnapshot {
    /// Plans a hit: allow list, then bans, then rules. The plan is built in place, and `prefetch` is called with each
    /// counter as soon as it is known.
    #[inline(always)]
    pub(crate) fn plan(
        &self,
        plan: &mut Plan<'_>,
        hit: &Hit<'_>,
        context: &PlanContext<'_>,
        prefetch: impl Fn(Fingerprint),
    ) -> Result<(), Exempt> {
        if context.enforce == Enforce::Off {
            return Err(Exempt::SwitchedOff);
        }
        if !self.has_empty_lists(context.bans) {
            plan.banned = self.check_lists(hit, context)?;
        }
        let mut matches = Matches::new();
        self.find_matching(hit, &mut matches);
        if matches.is_empty() {
            return Ok(());
        }
        plan.verdict.set_owner(self.rules.owner(plan.verdict.id.stripe()));
        plan.ignored = matches.len().saturating_sub(MAX_MATCHES);
        plan.prefetches |= matches.len() > 1;
        for rule in matches.iter().copied().take(MAX_MATCHES) {
            self.plan_rule(plan, rule, hit, context, &prefetch);
        }
        Ok(())
    }

    #[inline]
    fn has_empty_lists(&self, bans: &BanList) -> bool {
        self.file_allow.is_empty() && self.allow.is_empty() && self.file_bans.is_empty() && bans.is_empty()
    }

    /// Looks a hit up in the lists of keys; `true` if it is banned but bans are only counted.
    #[inline(never)]
    fn check_lists(&self, hit: &Hit<'_>, context: &PlanContext<'_>) -> Result<bool, Exempt> {
        if self.allow_entry(hit).is_some() {
            return Err(Exempt::AllowListed);
        }
        match self.banned(hit, context) {
            Some(banned) if context.enforce == Enforce::On => Err(Exempt::Banned(Box::new(banned))),
            banned => Ok(banned.is_some()),
        }
    }

    /// Whether a hit is exempt by the allow list.
    pub fn is_hit_allow_listed(&self, hit: &Hit<'_>) -> bool {
        let is_empty = self.file_allow.is_empty() && self.allow.is_empty();
        !is_empty && self.allow_entry(hit).is_some()
    }

    /// The entry of the allow list that exempts a hit.
    pub(crate) fn allow_entry(&self, hit: &Hit<'_>) -> Option<(&Key, AllowSource)> {
        // Any one of several values can ban a request; only a single value can exempt it.
        let value = |attribute: &Attribute| self.values(hit, attribute).single();
        let lists = [(&self.file_allow, AllowSource::File), (&self.allow, AllowSource::Change)];
        lists.into_iter().find_map(|(list, source)| {
            let (key, ()) = list.find(hit.address(), value, |()| true).ok()??;
            Some((key, source))
        })
    }

    /// The ban in force: of a ban by the file and another one, the more specific for this address. A request with more
    /// combinations of values than are looked up is denied as if it were banned, because one of them may be.
    pub(crate) fn banned(&self, hit: &Hit<'_>, context: &PlanContext<'_>) -> Option<(Key, Ban)> {
        let values = |attribute: &Attribute| self.all_values(hit, attribute).into_iter().map(abridged);
        let listed = context.bans.check(hit.address(), values, context.now);
        let file = self.file_bans.find(hit.address(), values, |ban| ban.until > context.now);
        let precision =
            |(key, ban): &(Key, Ban)| (key.network().map(|network| network.prefix_len()), ban.until);
        match (listed, file) {
            (Ok(Some(listed)), Ok(Some(file))) if precision(file) > precision(&listed) => Some(file.clone()),
            (Ok(Some(listed)), _) => Some(listed),
            (_, Ok(Some(file))) => Some(file.clone()),
            (Err(unknown), _) | (_, Err(unknown)) => Some(ambiguous::possible_ban(unknown)),
            (Ok(None), Ok(None)) => None,
        }
    }

    /// Not inlined: the compiler would hoist what is the same for all rules, which costs requests with one rule more.
    #[inline(never)]
    fn plan_rule(
        &self,
        plan: &mut Plan<'_>,
        rule: &Arc<RuleInForce>,
        hit: &Hit<'_>,
        context: &PlanContext<'_>,
        prefetch: &impl Fn(Fingerprint),
    ) {
        let settings = &*rule.settings;
        if let [attribute] = &*settings.key
            && let Some(text) = hit.plain_bytes(attribute, &mut Default::default())
            && let Some(limits) = rule.only_limits()
            && settings.enforced == EnforcedShare::ALL
            && !rule.has_predecessors()
        {
            let digest = rule.id_digest(context.secret).part(text);
            let digest = domain_digest(digest, hit.domain_name());
            let key = PlannedKey {
                rule,
                key: digest.clone().finish(),
                mode: if context.enforce == Enforce::On { settings.mode } else { RuleMode::Shadow },
                cost: settings.cost.saturating_mul(hit.units()),
                of_several: limits.len() > 1,
            };
            return plan.charge(&key, limits, &digest, prefetch);
        }
        self.plan_other_rule(plan, rule, hit, context, prefetch);
    }

    /// Plans a rule with more than one attribute, overrides, or other settings that most rules do not have.
    #[inline(never)]
    fn plan_other_rule(
        &self,
        plan: &mut Plan<'_>,
        rule: &Arc<RuleInForce>,
        hit: &Hit<'_>,
        context: &PlanContext<'_>,
        prefetch: &impl Fn(Fingerprint),
    ) {
        let mut values = KeyValues::new();
        match self.read_key(rule, hit, &mut values) {
            KeyMultiplicity::One => self.plan_key(plan, rule, &values, hit, context, prefetch),
            KeyMultiplicity::Several => self.plan_ambiguous(plan, rule, hit, context, prefetch),
        }
    }

    /// Reads the values of a rule's key; those of missing parts are empty.
    fn read_key<'h>(&self, rule: &Rule, hit: &'h Hit<'_>, values: &mut KeyValues<'h>) -> KeyMultiplicity {
        if self.has_ambiguous_limits(rule, hit) {
            return KeyMultiplicity::Several;
        }
        for attribute in &rule.key {
            let value = match hit.plain_text(attribute) {
                Some(text) => Cow::Borrowed(text),
                None => match self.values(hit, attribute) {
                    AttributeValues::One(value) => value,
                    AttributeValues::Missing => Cow::Borrowed(""), // no value is ever empty
                    AttributeValues::Several(_) | AttributeValues::TooMany => {
                        return KeyMultiplicity::Several;
                    }
                },
            };
            push_in_place(values, || value);
        }
        KeyMultiplicity::One
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
    fn plan_key(
        &self,
        plan: &mut Plan<'_>,
        rule: &Arc<RuleInForce>,
        values: &[Cow<'_, str>],
        hit: &Hit<'_>,
        context: &PlanContext<'_>,
        prefetch: &impl Fn(Fingerprint),
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
        let is_denied = limits.is_none() || (missing && rule.missing_key == MissingKey::Deny);
        let any_limit = || rule.limits.all().next().map(std::slice::from_ref).unwrap_or_default();
        let limits = limits.unwrap_or_else(any_limit);
        let digest = key_digest(context.secret, hit.domain_name(), rule, values);
        let key = PlannedKey {
            rule,
            key: digest.clone().finish(),
            mode: mode(rule, context, values),
            cost: rule.cost.saturating_mul(hit.units()),
            of_several: limits.len() > 1,
        };
        let first = plan.verdict.limits().len();
        if is_denied {
            return plan.deny(&key, limits, KeyDenial::MissingKey);
        }
        plan.charge(&key, limits, &digest, prefetch);
        if rule.has_predecessors() {
            let now = context.now;
            for (each, limit) in limits.iter().zip(&mut plan.verdict.limits_mut()[first..]) {
                limit.set_predecessors(predecessors(rule, each, values, attribute_value, &digest, now));
            }
        }
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
                let predecessors = predecessors(rule, each, &values, value_of, &digest, now);
                (each, charge(rule, each, fingerprint, predecessors))
            })
            .collect();
        (digest.finish(), charges)
    }
}

/// How a rule is applied to a key.
#[inline(always)]
fn mode(rule: &Rule, context: &PlanContext<'_>, values: &[Cow<'_, str>]) -> RuleMode {
    let has_key = || rule.enforced.has(&rule.id, values.iter().map(AsRef::as_ref));
    let enforced = context.enforce == Enforce::On && (rule.enforced == EnforcedShare::ALL || has_key());
    if enforced { rule.mode } else { RuleMode::Shadow }
}

/// The counters of a key under the limits that `limit` has replaced, as far as their states are carried over.
fn predecessors(
    rule: &RuleInForce,
    limit: &RuleLimit,
    values: &[Cow<'_, str>],
    value: impl Fn(&Attribute) -> Option<String>,
    digest: &Digest<'_>,
    now: Time,
) -> Vec<Predecessor> {
    let is_replaced =
        |old: &&RuleLimit| old.counter_hash != limit.counter_hash && old.limit.counts_like(&limit.limit);
    let predecessor_under = |old_rule: &Rule| {
        if old_rule.key != rule.key {
            return None;
        }
        let old_limits = limits_for(old_rule, values, &value).unwrap_or_default();
        let old_limit = old_limits.iter().find(is_replaced)?;
        let fingerprint = digest.clone().short_part(old_limit.counter_hash).finish();
        Some(Predecessor { fingerprint, quota: old_limit.quota })
    };
    rule.predecessors(now).filter_map(predecessor_under).collect()
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
    rule.only_limits().or_else(|| rule.overrides.find(values)).or_else(|| rule.limits.resolve(value))
}

/// Whether a key names exactly the attributes that a rule counts by; if not, those it should.
pub(crate) fn check_key_parts(rule: &Rule, key: &Key) -> Result<(), Vec<Attribute>> {
    let fits = key.parts().iter().map(|(attribute, _)| attribute).eq(&rule.key);
    if fits { Ok(()) } else { Err(rule.key.clone()) }
}

fn key_digest<'s>(
    secret: &'s Secret,
    domain: &str,
    rule: &RuleInForce,
    values: &[Cow<'_, str>],
) -> Digest<'s> {
    let key = rule.id_digest(secret);
    domain_digest(values.iter().fold(key, |digest, value| digest.part(value.as_bytes())), domain)
}

/// Adds the domain of a hit, if it is not the default one.
#[inline(always)]
fn domain_digest<'s>(key: Digest<'s>, domain: &str) -> Digest<'s> {
    if domain == Hit::DEFAULT_DOMAIN { key } else { key.part(domain.as_bytes()) }
}

/// The charge of one unit of a hit under a rule, as its settings demand.
fn charge(rule: &Rule, each: &RuleLimit, fingerprint: Fingerprint, predecessors: Vec<Predecessor>) -> Charge {
    Charge {
        fingerprint,
        quota: each.quota,
        cost: rule.cost,
        unit_cost: rule.cost,
        enforcement: enforcement(rule.mode),
        denied_hits: denied_hits(rule),
        predecessors,
        counter: None,
    }
}

pub(crate) const fn enforcement(mode: RuleMode) -> Enforcement {
    match mode {
        RuleMode::Enforce => Enforcement::Enforced,
        RuleMode::Shadow | RuleMode::Off => Enforcement::Shadow,
    }
}

pub(crate) fn denied_hits(rule: &Rule) -> DeniedHits {
    if rule.count_denied { DeniedHits::Counted } else { DeniedHits::Free }
}

/// One key of a hit under a rule.
struct PlannedKey<'p> {
    rule: &'p Arc<RuleInForce>,
    /// The fingerprint of the key under this rule.
    key: Fingerprint,
    /// Whether the rule decides here, or is only counted.
    mode: RuleMode,
    cost: u64,
    of_several: bool,
}

impl PlannedKey<'_> {
    /// A limit of the rule, which is to be charged.
    #[inline(always)]
    fn limit(&self, limit: &RuleLimit, fingerprint: Fingerprint, starts_key: bool) -> LimitVerdict {
        LimitVerdict {
            // SAFETY: rules are planned for verdicts that have an owner of the rules, see `PolicySnapshot::plan`.
            rule: unsafe { VerdictRule::new(self.rule) },
            // SAFETY: as above; limits are planned together with their rule.
            limit: unsafe { VerdictLimit::new(limit) },
            key: self.key,
            fingerprint,
            cost: self.cost,
            charge: None,
            outcome: LimitOutcome::PENDING,
            mode: self.mode,
            key_denial: None,
            of_several: self.of_several,
            starts_key,
            repeated: false,
            skipped: false,
        }
    }
}

impl<'v> Plan<'v> {
    /// An empty plan for a verdict without limits.
    #[inline]
    pub(crate) fn new(verdict: &'v mut EngineVerdict) -> Plan<'v> {
        let values = Vec::new();
        Plan { verdict, banned: false, prefetches: false, is_denied_by_key: false, ignored: 0, values }
    }

    /// As [`new`](Self::new), for a hit that is decided after others.
    #[inline]
    pub(crate) fn ahead(verdict: &'v mut EngineVerdict) -> Plan<'v> {
        Plan { prefetches: true, ..Plan::new(verdict) }
    }

    /// Plans to charge a key under the limits.
    #[inline(always)]
    fn charge(
        &mut self,
        key: &PlannedKey<'_>,
        limits: &[RuleLimit],
        digest: &Digest<'_>,
        prefetch: &impl Fn(Fingerprint),
    ) {
        let prefetches = self.prefetches || limits.len() > 1;
        let mut starts_key = true;
        for each in limits {
            let fingerprint = digest.clone().short_part(each.counter_hash).finish();
            if prefetches {
                prefetch(fingerprint);
            }
            self.verdict.push_limit(|| key.limit(each, fingerprint, starts_key));
            starts_key = false;
        }
    }

    /// Plans a key that its rule denies without counting. The verdict shows the first limit only.
    #[cold]
    fn deny(&mut self, key: &PlannedKey<'_>, limits: &[RuleLimit], denial: KeyDenial) {
        self.is_denied_by_key |= key.mode == RuleMode::Enforce;
        let Some(first) = limits.first() else { return };
        let mut limit = key.limit(first, key.key, true);
        limit.key_denial = Some(denial);
        limit.outcome.decision.admission = Admission::Never;
        self.verdict.push_limit(|| limit);
    }

    /// The values of a key, if the request has several keys of the rule.
    pub(crate) fn values_of(&self, key: Fingerprint) -> Option<&[String]> {
        self.values.iter().find(|(known, _)| *known == key).map(|(_, values)| &**values)
    }

    /// The limits that are charged.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.verdict.limits().iter().filter(|limit| limit.is_counted())
    }
}
