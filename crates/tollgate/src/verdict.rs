//! The verdict: whether a request is admitted, why, and what its sender is told.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::Admission;
use crate::ban::Ban;
use crate::identity::Key;
use crate::limit::Limit;
use crate::plan::Exempt;
use crate::rule::{RuleMode, RuleRef};
use crate::store::{ChargeReceipt, LimitOutcome};
use crate::time::{Time, calendar, format_duration};

#[derive(Debug)]
pub struct EngineVerdict {
    pub id: VerdictId,
    pub allowed: bool,
    pub reason: Reason,
    /// One for each limit that was checked, in the order of the rules.
    pub limits: SmallVec<[LimitVerdict; 2]>,
    /// The limit to report: on denial the one with the longest wait, else the one with the least remaining.
    reported: Option<usize>,
    /// Until the same request would be admitted; `None` if it is admitted now, or never will be.
    pub retry_after: Option<Duration>,
    /// How long a leaky bucket holds the request.
    pub delay: Duration,
    pub ban: Option<Box<(Key, Ban)>>,
    /// For refunding or settling the charges.
    pub receipt: Option<ChargeReceipt>,
}

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
#[derive(Clone, Debug)]
pub struct LimitVerdict {
    pub rule: RuleRef,
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
}

impl LimitVerdict {
    pub fn is_enforced(&self) -> bool {
        self.mode == RuleMode::Enforce && !self.skipped
    }

    /// Whether it is charged if the request is admitted.
    pub fn is_charged(&self) -> bool {
        self.allowed && !self.skipped
    }

    /// Completes it with the outcome of its charge.
    #[inline]
    pub(crate) fn conclude(&mut self, part: &LimitOutcome) {
        self.allowed = part.decision.is_allowed();
        self.remaining = part.remaining;
        self.reset_after = part.reset_after;
        match part.decision.admission {
            Admission::Allow { delay } => self.delay = delay,
            Admission::Deny { retry_after } => self.retry_after = Some(retry_after),
            Admission::Never => {}
        }
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

impl EngineVerdict {
    /// A verdict without any limits: admitted.
    #[inline]
    pub(crate) fn new(id: VerdictId) -> EngineVerdict {
        EngineVerdict {
            id,
            allowed: true,
            reason: Reason::NoRule,
            limits: SmallVec::new(),
            reported: None,
            retry_after: None,
            delay: Duration::ZERO,
            ban: None,
            receipt: None,
        }
    }

    pub(crate) fn exempt(id: VerdictId, exempt: Exempt, now: Time) -> EngineVerdict {
        let verdict = EngineVerdict::new(id);
        match exempt {
            Exempt::SwitchedOff => verdict,
            Exempt::AllowListed => EngineVerdict { reason: Reason::AllowList, ..verdict },
            Exempt::Banned(ban) => {
                let until = ban.1.until;
                let retry_after = (until != Time::MAX).then(|| until.since(now));
                EngineVerdict { allowed: false, reason: Reason::Ban, retry_after, ban: Some(ban), ..verdict }
            }
        }
    }

    /// Derives the verdict from its limits, of which some, all or none are enforced.
    #[inline]
    pub(crate) fn summarize(&mut self) {
        let mut least_left: Option<(usize, u64)> = None;
        // `None`, never, is the longest wait; of equal waits the first is reported.
        let mut longest_wait: Option<(usize, Duration)> = None;
        let mut delay = Duration::ZERO;
        for (n, limit) in self.limits.iter().enumerate().filter(|(_, limit)| limit.is_enforced()) {
            if limit.allowed {
                if least_left.is_none_or(|(_, left)| limit.remaining < left) {
                    least_left = Some((n, limit.remaining));
                }
                delay = delay.max(limit.delay);
            } else {
                let wait = limit.retry_after.unwrap_or(Duration::MAX);
                if longest_wait.is_none_or(|(_, longest)| wait > longest) {
                    longest_wait = Some((n, wait));
                }
            }
        }
        if let Some((n, _)) = longest_wait {
            self.allowed = false;
            self.reason = Reason::Limit;
            self.reported = Some(n);
            self.retry_after = self.limits[n].retry_after;
        } else {
            self.allowed = true;
            self.reason = if least_left.is_some() { Reason::Ok } else { Reason::NoRule };
            self.reported = least_left.map(|(n, _)| n);
            self.delay = delay;
        }
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
