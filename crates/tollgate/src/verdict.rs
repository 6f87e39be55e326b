//! The verdict: whether a request is admitted, why, and what its sender is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Grant;
use crate::ban::Ban;
use crate::collections::push_in_place;
use crate::identity::Key;
use crate::limit::Limit;
use crate::plan::Exempt;
use crate::rule::{RuleMode, RuleOwner, RuleRef, VerdictRule};
use crate::store::{Charge, ChargeReceipt, ReceiptItem};
use crate::time::{Time, calendar, format_duration};

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
    /// One for each limit that is counted, in the order of the limits.
    pub(crate) charges: SmallVec<[Charge; INLINE_LIMITS]>,
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

    #[inline]
    pub(crate) fn stripe(&self) -> usize {
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
    pub const ALL: [Reason; 6] =
        [Reason::Ok, Reason::Limit, Reason::Ban, Reason::AllowList, Reason::StoreError, Reason::NoRule];

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

/// The verdict of one limit of one rule.
#[derive(Debug)]
pub struct LimitVerdict {
    pub rule: VerdictRule,
    pub limit: Limit,
    /// How the rule was applied to this request.
    pub mode: RuleMode,
    /// Whether the rule has other limits beside this one.
    pub of_several: bool,
    pub allowed: bool,
    /// Denied without counting: the request lacks a part of the rule's key.
    pub unkeyed: bool,
    /// Denied without counting: the request has several values for the key, and the rule accepts only one.
    pub ambiguous: bool,
    /// The limit of the same rule was already listed for another value of the key.
    pub repeated: bool,
    /// Its counter was unavailable: it does not affect the verdict.
    pub skipped: bool,
    /// After this request; for a peek, at present.
    pub remaining: u64,
    pub retry_after: Option<Duration>,
    pub reset_after: Duration,
    pub delay: Duration,
    /// Present iff it was charged.
    pub(crate) grant: Option<Grant>,
}

impl LimitVerdict {
    pub fn is_enforced(&self) -> bool {
        self.mode == RuleMode::Enforce && !self.skipped
    }

    /// Whether it is charged if the request is admitted.
    pub fn is_charged(&self) -> bool {
        self.allowed && !self.skipped
    }

    /// The limit's name in headers: the rule's id, and the rate if there are several.
    pub fn policy(&self) -> PolicyName<'_> {
        PolicyName(self)
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

/// The decision of the enforced limits that were added so far.
#[derive(Default)]
pub(crate) struct VerdictSummary {
    least_left: Option<(usize, u64)>,
    /// Never, [`Duration::MAX`], is the longest wait; of equal waits the first is reported.
    longest_wait: Option<(usize, Duration)>,
    delay: Duration,
}

impl VerdictSummary {
    /// Adds the last of the limits.
    #[inline(always)]
    pub(crate) fn add(&mut self, limits: &[LimitVerdict]) {
        let Some((limit, before)) = limits.split_last() else { return };
        let n = before.len();
        if !limit.is_enforced() {
            return;
        }
        if !limit.allowed {
            let wait = limit.retry_after.unwrap_or(Duration::MAX);
            if self.longest_wait.is_none_or(|(_, longest)| wait > longest) {
                self.longest_wait = Some((n, wait));
            }
            return;
        }
        if self.least_left.is_none_or(|(_, left)| limit.remaining < left) {
            self.least_left = Some((n, limit.remaining));
        }
        self.delay = self.delay.max(limit.delay);
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
            charges: SmallVec::new(),
        }
    }

    /// Every limit that was checked, in the order of the rules.
    #[inline]
    pub fn limits(&self) -> &[LimitVerdict] {
        &self.limits
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

    /// Adds a limit.
    ///
    /// # Safety
    ///
    /// The rule of the limit is one of the owner's.
    #[inline(always)]
    pub(crate) unsafe fn push_limit(&mut self, limit: impl FnOnce() -> LimitVerdict) {
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

    /// Completes the verdict with the summary of its limits.
    #[inline(always)]
    pub(crate) fn summarize(&mut self, summary: &VerdictSummary) {
        if let Some((n, _)) = summary.longest_wait {
            self.allowed = false;
            self.reason = Reason::Limit;
            self.reported = Some(n);
            self.retry_after = self.limits[n].retry_after;
        } else {
            self.allowed = true;
            self.reason = if summary.least_left.is_some() { Reason::Ok } else { Reason::NoRule };
            self.reported = summary.least_left.map(|(n, _)| n);
            self.delay = summary.delay;
        }
    }

    /// The limits that were charged, each with its charge.
    pub fn charged(&self) -> impl Iterator<Item = (&LimitVerdict, ReceiptItem)> {
        let counted = self.limits.iter().filter(|limit| !limit.unkeyed);
        counted
            .zip(&self.charges)
            .filter_map(|(limit, charge)| Some((limit, ReceiptItem::of(charge, limit.grant?))))
    }

    /// For refunding or settling what was charged: `None` if nothing was, or if it was taken before.
    pub fn take_receipt(&mut self) -> Option<ChargeReceipt> {
        let receipt = ChargeReceipt::from_items(self.charged().map(|(_, item)| item));
        self.charges.clear();
        receipt
    }

    pub fn reported(&self) -> Option<&LimitVerdict> {
        self.reported.map(|n| &self.limits[n])
    }

    /// The enforced limits, as headers show them.
    pub fn enforced(&self) -> impl Iterator<Item = &LimitVerdict> {
        self.limits.iter().filter(|limit| limit.is_enforced())
    }

    /// The message for a client that was denied.
    pub fn message(&self) -> Option<String> {
        if self.allowed {
            return None;
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
        if reported.unkeyed {
            let rule = &reported.rule;
            let needed: Vec<_> = rule.attributes().map(ToString::to_string).collect();
            let needs = if reported.ambiguous { "needs one value of" } else { "needs" };
            return Some(format!("Denied: rule {} {needs} {}", rule.id, needed.join(", ")));
        }
        let limit = format!("rule {} allows {}", reported.rule.id, reported.limit);
        Some(match self.retry_after {
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
