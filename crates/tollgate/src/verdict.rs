//! The verdict: whether a request is admitted, why, and what the response to the client contains.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Admission;
use crate::ban::Ban;
use crate::collections::push_in_place;
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::plan::{Exempt, denied_hits, enforcement};
use crate::rule::{DenyOptions, RuleMode, RuleOwner, RuleRef, VerdictLimit, VerdictRule};
use crate::store::{Charge, ChargeItem, ChargeRef, LimitOutcome, Predecessor};
use crate::time::{Time, calendar, format_duration};
mod refused_hold;

mod receipt;

#[derive(Debug)]
pub struct EngineVerdict {
    pub id: VerdictId,
    pub allowed: bool,
    pub reason: Reason,
    /// One for each limit that was checked, in the order of the rules. Private: their rules live as long as the owner.
    limits: SmallVec<[LimitVerdict; INLINE_LIMITS]>,
    /// Owns the rules of the limits; present if there are any.
    owner: Option<Arc<RuleOwner>>,
    /// The limit to report: on denial the one with the longest wait, else the one with the least remaining.
    reported: Option<usize>,
    /// Until the same request would be admitted; `None` if it is admitted now, or never will be.
    pub retry_after: Option<Duration>,
    /// How long a leaky bucket holds the request.
    pub delay: Duration,
    pub ban: Option<Box<(Key, Ban)>>,
}

/// Limits of a verdict that need no allocation.
const INLINE_LIMITS: usize = 3;

/// The node that decided, the generation of its policy, and a sequence number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VerdictId {
    pub node: u32,
    pub generation: u64,
    /// Unique on the node; the decisions of one thread are numbered one by one.
    pub sequence: u64,
}

impl VerdictId {
    /// The low bits of a sequence number count the decisions of a stripe of threads; the stripe is above them.
    const NUMBER_BITS: u32 = 48;

    #[inline]
    pub(crate) fn new(node: u32, generation: u64, stripe: usize, number: u64) -> VerdictId {
        VerdictId { node, generation, sequence: (stripe as u64) << Self::NUMBER_BITS | number }
    }

    /// The stripe of the thread that decided.
    #[inline]
    pub fn stripe(&self) -> usize {
        (self.sequence >> Self::NUMBER_BITS) as usize
    }

    /// The number among the decisions of its stripe.
    #[inline]
    pub(crate) fn number(&self) -> u64 {
        self.sequence & ((1 << Self::NUMBER_BITS) - 1)
    }
}

impl fmt::Display for VerdictId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}-{}-{}-{}", self.node, self.generation, self.stripe(), self.number())
    }
}

/// Why a hit is admitted or denied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[deny(missing_docs)]
#[non_exhaustive]
pub enum Reason {
    /// Every limit admits it.
    Ok,
    /// A limit denies it.
    Limit,
    /// Its sender is banned.
    Ban,
    /// Its sender is on the allow list.
    AllowList,
    /// The counters could not be read, and the rule fails open or closed.
    StoreError,
    /// No enforced rule was applied: none matches, or the panic switch is set to shadow or off.
    NoRule,
}

#[deny(missing_docs)]
impl Reason {
    /// Every reason.
    pub const ALL: &'static [Reason] =
        &[Reason::Ok, Reason::Limit, Reason::Ban, Reason::AllowList, Reason::StoreError, Reason::NoRule];

    /// Its name in logs, metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Reason::Ok => "ok",
            Reason::Limit => "limit",
            Reason::Ban => "ban",
            Reason::AllowList => "allow_list",
            Reason::StoreError => "store_error",
            Reason::NoRule => "no_rule",
        }
    }
}

/// One limit of one rule: planned, then charged where it is, then the verdict of it. Names and numbers of the limit are
/// read from the rule when they are needed.
#[derive(Debug)]
pub struct LimitVerdict {
    pub rule: VerdictRule,
    pub limit: VerdictLimit,
    /// The fingerprint of the key under the rule.
    pub(crate) key: Fingerprint,
    /// The fingerprint of the key under this limit.
    pub(crate) fingerprint: Fingerprint,
    /// The cost of the hit under the rule.
    pub(crate) cost: u64,
    /// The charge, if it has more to it than the limit: predecessors, a central counter, or a share of the limit.
    pub(crate) charge: Option<Box<Charge>>,
    pub(crate) outcome: LimitOutcome,
    /// How the rule was applied to this request.
    pub mode: RuleMode,
    /// Why the rule denies without counting.
    pub(crate) key_denial: Option<KeyDenial>,
    /// Whether the rule has other limits beside this one.
    pub of_several: bool,
    /// The first limit of a key.
    pub(crate) starts_key: bool,
    /// The limit of the same rule was already listed for another value of the key.
    pub repeated: bool,
    /// Its counter was unavailable: it does not affect the verdict.
    pub(crate) skipped: bool,
}

/// Why a rule denies without counting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyDenial {
    /// The request lacks a part of the rule's key.
    MissingKey,
    /// The request has several values for the key, and the rule accepts only one.
    AmbiguousKey,
}

impl LimitVerdict {
    pub fn is_enforced(&self) -> bool {
        self.mode == RuleMode::Enforce && !self.skipped
    }

    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.outcome.decision.is_allowed()
    }

    /// Whether it is charged if the request is admitted.
    pub fn is_charged(&self) -> bool {
        self.is_allowed() && !self.skipped
    }

    /// After this request; for a peek, at present.
    pub fn remaining(&self) -> u64 {
        self.outcome.remaining
    }

    /// The cost of the request under the rule.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The key under the rule, as redacted logs show it.
    pub fn key_mark(&self) -> Fingerprint {
        self.key
    }

    /// Until this limit would admit the request; `None` if it does now, or never will.
    pub fn retry_after(&self) -> Option<Duration> {
        self.outcome.decision.retry_after()
    }

    /// Until the whole limit is available again.
    pub fn reset_after(&self) -> Duration {
        self.outcome.reset_after
    }

    /// How long a leaky bucket holds the request.
    pub fn delay(&self) -> Duration {
        self.outcome.decision.delay()
    }

    /// Why the rule denies without counting.
    pub fn key_denial(&self) -> Option<KeyDenial> {
        self.key_denial
    }

    /// Whether its counter was unavailable, so that it does not affect the verdict.
    pub fn is_skipped(&self) -> bool {
        self.skipped
    }

    /// The fingerprint of the key under the rule.
    pub fn key(&self) -> Fingerprint {
        self.key
    }

    /// Whether the rule counts this request.
    #[inline]
    pub fn is_counted(&self) -> bool {
        self.key_denial.is_none()
    }

    /// The limit's name in headers: the rule's id, and the rate if there are several.
    pub fn policy(&self) -> PolicyName<'_> {
        PolicyName(self)
    }

    pub(crate) fn set_predecessors(&mut self, predecessors: Vec<Predecessor>) {
        if !predecessors.is_empty() {
            self.charge = Some(Box::new(Charge { predecessors, ..self.to_charge() }));
        }
    }

    /// The charge as a value of its own.
    pub(crate) fn to_charge(&self) -> Charge {
        let ChargeRef { fingerprint, quota, cost, enforcement, denied_hits, predecessors } =
            self.charge_ref();
        let quota = *quota;
        let predecessors = predecessors.to_vec();
        let unit_cost = self.rule.cost;
        Charge { fingerprint, quota, cost, unit_cost, enforcement, denied_hits, predecessors, counter: None }
    }

    #[inline(always)]
    fn charge_ref(&self) -> ChargeRef<'_> {
        if let Some(charge) = &self.charge {
            return ChargeRef::of(charge);
        }
        ChargeRef {
            fingerprint: self.fingerprint,
            quota: &self.limit.with_quota().quota,
            cost: self.cost,
            enforcement: enforcement(self.mode),
            denied_hits: denied_hits(&self.rule),
            predecessors: &[],
        }
    }
}

impl ChargeItem for LimitVerdict {
    #[inline(always)]
    fn charge(&self) -> Option<ChargeRef<'_>> {
        self.is_counted().then(|| self.charge_ref())
    }

    #[inline(always)]
    fn outcome(&mut self) -> &mut LimitOutcome {
        &mut self.outcome
    }
}

/// The name of a limit in headers.
pub struct PolicyName<'v>(&'v LimitVerdict);

impl fmt::Display for PolicyName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitVerdict { rule, limit, of_several, .. } = self.0;
        if *of_several { write!(f, "{}:{limit}", rule.id) } else { write!(f, "{}", rule.id) }
    }
}

/// What the enforced limits of a verdict amount to.
#[derive(Default)]
struct Summary {
    /// The first limit with the least remaining, and what remains.
    admitting: Option<(usize, u64)>,
    /// The first limit with the longest wait, and the wait.
    denying: Option<(usize, Duration)>,
    delay: Duration,
}

impl Summary {
    #[inline(always)]
    fn add(&mut self, n: usize, limit: &LimitVerdict) {
        if !limit.is_enforced() {
            return;
        }
        let wait = match limit.outcome.decision.admission {
            Admission::Allow { delay } => {
                if self.admitting.is_none_or(|(_, least)| limit.outcome.remaining < least) {
                    self.admitting = Some((n, limit.outcome.remaining));
                }
                self.delay = self.delay.max(delay);
                return;
            }
            Admission::Deny { retry_after } => retry_after,
            Admission::Never => Duration::MAX, // the longest wait
        };
        if self.denying.is_none_or(|(_, longest)| wait > longest) {
            self.denying = Some((n, wait));
        }
    }
}

impl EngineVerdict {
    /// A verdict without any limits: admitted.
    #[inline(always)]
    pub(crate) fn new(id: VerdictId) -> EngineVerdict {
        EngineVerdict {
            id,
            allowed: true,
            reason: Reason::NoRule,
            limits: SmallVec::new(),
            owner: None,
            reported: None,
            retry_after: None,
            delay: Duration::ZERO,
            ban: None,
        }
    }

    /// Every limit that was checked, in the order of the rules.
    #[inline]
    pub fn limits(&self) -> &[LimitVerdict] {
        &self.limits
    }

    /// To charge them where they are. Their rules must stay as they are.
    #[inline]
    pub(crate) fn limits_mut(&mut self) -> &mut [LimitVerdict] {
        &mut self.limits
    }

    /// The limits in groups: those of one key under one rule.
    #[inline]
    pub fn keys(&self) -> impl Iterator<Item = &[LimitVerdict]> {
        self.limits.chunk_by(|_, next| !next.starts_key)
    }

    /// The limits, each with its rule as a reference that may outlive the verdict.
    pub fn limits_with_rules(&self) -> impl Iterator<Item = (&LimitVerdict, RuleRef)> {
        // SAFETY: the owner owns the rules of all limits, see `push_limit`.
        let with_rule = |owner, limit: &LimitVerdict| unsafe { limit.rule.to_ref(owner) };
        self.owner
            .iter()
            .flat_map(move |owner| self.limits.iter().map(move |limit| (limit, with_rule(owner, limit))))
    }

    /// Sets the owner of the rules of all limits that are added later.
    #[inline(always)]
    pub(crate) fn set_owner(&mut self, owner: &Arc<RuleOwner>) {
        self.owner = Some(Arc::clone(owner));
    }

    /// Adds a limit, of a rule of the owner.
    #[inline(always)]
    pub(crate) fn push_limit(&mut self, limit: impl FnOnce() -> LimitVerdict) {
        push_in_place(&mut self.limits, limit);
    }

    /// Completes a verdict without any limits.
    pub(crate) fn exempt(&mut self, exempt: Exempt, now: Time) {
        match exempt {
            Exempt::SwitchedOff => {}
            Exempt::AllowListed => self.reason = Reason::AllowList,
            Exempt::Banned(ban) => {
                let until = ban.1.until;
                self.allowed = false;
                self.reason = Reason::Ban;
                self.retry_after = (until != Time::MAX).then(|| until.since(now));
                self.ban = Some(ban);
            }
        }
    }

    /// Completes the verdict with the outcomes of its limits.
    #[inline(always)]
    pub(crate) fn summarize(&mut self) {
        let mut summary = Summary::default();
        match &*self.limits {
            [only] => summary.add(0, only),
            limits => limits.iter().enumerate().for_each(|(n, limit)| summary.add(n, limit)),
        }
        if let Some((n, _)) = summary.denying {
            self.allowed = false;
            self.reason = Reason::Limit;
            self.retry_after = self.limits[n].retry_after();
            self.reported = Some(n);
        } else {
            self.allowed = true;
            self.reason = if summary.admitting.is_some() { Reason::Ok } else { Reason::NoRule };
            self.reported = summary.admitting.map(|(n, _)| n);
            self.delay = summary.delay;
        }
    }

    pub fn reported(&self) -> Option<&LimitVerdict> {
        self.reported.map(|n| &self.limits[n])
    }

    /// The enforced limits, as headers show them.
    pub fn enforced(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.limits.iter().filter(|limit| limit.is_enforced())
    }

    /// The response that the denying rule sets; `None` if no limit denies, or its rule sets none. Of several denying rules
    /// it is the reported one.
    pub fn deny_options(&self) -> Option<&DenyOptions> {
        let denies = !self.allowed && self.reason == Reason::Limit;
        self.reported().filter(|_| denies)?.rule.deny.as_deref()
    }

    /// The wait that a client is told: `retry_after`, with the wait of each denying rule capped as the rule says.
    pub fn client_wait(&self) -> Option<Duration> {
        let exact = self.retry_after?;
        let denying = self.enforced().filter(|limit| !limit.is_allowed());
        let waits = denying.filter_map(|limit| {
            let wait = limit.retry_after()?;
            let longest = limit.rule.deny.as_deref().and_then(DenyOptions::retry_after_max);
            Some(longest.map_or(wait, |longest| wait.min(longest)))
        });
        Some(waits.max().unwrap_or(exact))
    }

    /// The message for a client that was denied.
    pub fn message(&self) -> Option<String> {
        if self.allowed {
            return None;
        }
        if let Some(message) = self.deny_options().and_then(|deny| deny.message.as_deref()) {
            return Some(message.to_owned());
        }
        if let Some((_, ban)) = self.ban.as_deref() {
            let until = match ban.until {
                Time::MAX => "until further notice".to_owned(),
                until => format!("until {}", calendar::rfc3339(until)),
            };
            let reason = if ban.reason.is_empty() { String::new() } else { format!(": {}", ban.reason) };
            return Some(format!("Banned {until}{reason}"));
        }
        let Some(reported) = self.reported() else {
            return Some("Denied: the counters cannot be read at the moment".to_owned());
        };
        if let Some(denial) = reported.key_denial {
            let rule = &reported.rule;
            let needed: Vec<_> = rule.attributes().map(ToString::to_string).collect();
            let needs = match denial {
                KeyDenial::MissingKey => "needs",
                KeyDenial::AmbiguousKey => "needs one value of",
            };
            return Some(format!("Denied: rule {} {needs} {}", rule.id, needed.join(", ")));
        }
        let limit = format!("rule {} allows {}", reported.rule.id, reported.limit);
        Some(match self.client_wait() {
            Some(wait) => {
                format!("Too many requests: {limit}, try again in {}", format_duration(whole_seconds(wait)))
            }
            None => format!("Too many requests: {limit}, and this request can never pass"),
        })
    }
}

/// Rounded up to whole seconds, at least one: the wait that clients are told.
pub fn whole_seconds(wait: Duration) -> Duration {
    Duration::from_secs((wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1))
}
