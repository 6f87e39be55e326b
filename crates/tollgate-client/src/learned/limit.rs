//! One limit of a server, as learned from its responses.
//!
//! The *credit* is the remaining quota that the server reported, less the calls since. Nothing is added to it before the
//! stated reset, with two exceptions:
//! - a window that only this client uses: the credit is the quota less the client's own calls in the window;
//! - a limit that refills continuously ([`RefillModel`]): its rate is added as time passes.
//!
//! After a reset the credit is the capacity: the most that the server was seen to have. A refusal resets the capacity, so
//! one call is sent then, and its response states how many may follow.
//!
//! Responses arrive in another order than the server counts their calls, so not every statement is taken over (`update`).
//! First it is lowered to `lowest_since`, if that arrived after the call was sent: the server may have counted the call
//! before it. Then:
//!
//! | the call was sent | its statement less the calls in flight | |
//! |---|---|---|
//! | after the last statement taken over | anything | taken over, and compared with that one |
//! | before (`is_concurrent`) | below the credit | taken over: it adds nothing |
//! | before | at least the credit (`is_higher`) | not taken over; `lowest_since` if none was lower |
//!
//! Two statements with one call between them show how the limit refills (`compare`), if at least 2 tokens are expected in
//! that time:
//!
//! | expected, and whether own calls may have left the window | gained | evidence |
//! |---|---|---|
//! | more than a quarter of the quota, or they may have | anything | none: a new window looks the same |
//! | less, and they have not | more than 1 above what is expected | none: it may be a new window |
//! | less, and they have not | less than 1 | contradicts a continuous refill |
//! | less, and they have not | anything else | agrees with one |

use std::time::Duration;

use tokio::time::Instant;

use crate::headers::ReportedLimit;
use crate::learned::refill::{RefillEvidence, RefillModel, RefillStatement, StatedRate};
use crate::learned::{SentCall, Traffic};

/// The reset of a limit that states neither a reset nor a window.
const DEFAULT_RESET: Duration = Duration::from_secs(1);
/// The spacing of calls that look for a continuous refill, in calls at the stated rate.
const PROBE_SPACING: f64 = 2.5;
/// Limits with a shorter spacing are always probed, those with a longer one than the second never.
const ALWAYS_PROBED: Duration = Duration::from_millis(100);
const MAX_PROBE_SPACING: Duration = Duration::from_secs(5);
/// After a refusal, others are assumed to use the quota, too, for as many statements as the quota has calls; for twice as
/// many after each further refusal.
const MAX_DOUBLINGS: u32 = 8;

#[derive(Debug)]
pub struct LearnedLimit {
    name: String,
    partition: Option<String>,
    quota: Option<u64>,
    window: Option<Duration>,
    /// As stated, or assumed after a reset.
    remaining: u64,
    observed_at: Instant,
    /// Responses up to then, of all limits.
    observed_responses: u64,
    /// The lowest statement since that was not taken over.
    lowest_since: Option<OvertakingStatement>,
    reset_at: Instant,
    /// Calls that `remaining` does not include.
    spent: u64,
    origin: Origin,
    /// Own calls account for all that is used.
    is_sole_user: bool,
    /// The most that was seen to be available at once since the last refusal; at least 1.
    capacity: u64,
    refill: RefillModel,
    refused_at: Option<Instant>,
    refusals: u32,
    /// Statements until own calls may be taken for all calls again.
    shared_for: u64,
}

/// A statement that may include calls whose responses arrive later.
#[derive(Clone, Copy, Debug)]
struct OvertakingStatement {
    remaining: u64,
    /// The number of its response.
    response: u64,
}

/// Where the remaining quota is known from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Stated,
    /// A stated reset has passed.
    Reset,
    /// The server states its quota only: own calls are counted.
    OwnCalls,
}

impl LearnedLimit {
    /// `None` if too little is stated to limit anything.
    pub fn new(
        reported: &ReportedLimit,
        call: SentCall,
        traffic: &Traffic,
        now: Instant,
        max_wait: Duration,
    ) -> Option<LearnedLimit> {
        let quota = stated_quota(reported);
        let window = stated_window(reported, max_wait);
        if reported.remaining.is_none() && (quota.is_none() || window.is_none()) {
            return None;
        }
        let mut limit = LearnedLimit {
            name: reported.name.clone(),
            partition: reported.partition.clone(),
            quota,
            window,
            remaining: 0,
            observed_at: now,
            observed_responses: 0,
            lowest_since: None,
            reset_at: now,
            spent: 0,
            origin: Origin::OwnCalls,
            is_sole_user: true,
            capacity: 1,
            refill: RefillModel::default(),
            refused_at: None,
            refusals: 0,
            shared_for: 0,
        };
        match reported.remaining {
            Some(remaining) => {
                limit.capacity = remaining.saturating_add(1);
                limit.apply_statement(remaining, reported.reset, call, traffic, now, max_wait);
            }
            None => limit.assume_sole_use(traffic, now),
        }
        Some(limit)
    }

    pub fn is_about(&self, reported: &ReportedLimit) -> bool {
        self.name == reported.name && self.partition == reported.partition
    }

    pub fn update(
        &mut self,
        reported: &ReportedLimit,
        call: SentCall,
        traffic: &Traffic,
        now: Instant,
        max_wait: Duration,
    ) {
        let quota = stated_quota(reported).or(self.quota);
        let window = stated_window(reported, max_wait).or(self.window);
        if (quota, window) != (self.quota, self.window) {
            self.quota = quota;
            self.window = window;
            self.capacity = 1;
            self.refill = RefillModel::default();
        }
        let Some(remaining) = reported.remaining else { return };
        // A call that was sent before the last statement arrived may have been counted before it: it adds no credit.
        let is_concurrent = call.responses_before < self.observed_responses;
        let overtaken_by = self.lowest_since.filter(|lowest| lowest.response > call.responses_before);
        let remaining = overtaken_by.map_or(remaining, |lowest| lowest.remaining.min(remaining));
        let is_higher = remaining.saturating_sub(traffic.in_flight) >= self.credit(traffic, now);
        if !is_concurrent && self.origin == Origin::Stated {
            self.compare(remaining, traffic, now);
        }
        let in_flight = traffic.in_flight;
        let statement = RefillStatement { remaining, sent_at: call.at, in_flight, is_concurrent };
        self.refill.apply_statement(statement, self.rate(), now);
        self.capacity = self.capacity.max(remaining.saturating_add(1));
        self.shared_for = self.shared_for.saturating_sub(1);
        if !is_concurrent || !is_higher {
            self.apply_statement(remaining, reported.reset, call, traffic, now, max_wait);
        } else if self.lowest_since.is_none_or(|lowest| remaining <= lowest.remaining) {
            self.lowest_since = Some(OvertakingStatement { remaining, response: traffic.responses });
        }
    }

    /// Takes over what a response states.
    fn apply_statement(
        &mut self,
        remaining: u64,
        reset: Option<Duration>,
        call: SentCall,
        traffic: &Traffic,
        now: Instant,
        max_wait: Duration,
    ) {
        self.remaining = remaining;
        self.observe(traffic, now);
        self.origin = Origin::Stated;
        self.reset_at = now + reset.or(self.window).unwrap_or(DEFAULT_RESET).min(max_wait);
        self.is_sole_user = self.shared_for == 0
            && self.rate().is_some_and(|rate| {
                traffic.in_window(rate.window, call.at) >= rate.quota.saturating_sub(remaining)
            });
    }

    /// What remains was learned or assumed now; the calls in flight may not be included.
    fn observe(&mut self, traffic: &Traffic, now: Instant) {
        self.observed_at = now;
        self.observed_responses = traffic.responses;
        self.lowest_since = None;
        self.spent = traffic.in_flight;
    }

    /// Assumes that only own calls use the quota.
    fn assume_sole_use(&mut self, traffic: &Traffic, now: Instant) {
        let Some(rate) = self.rate() else { return };
        let used = traffic.in_window(rate.window, now) - traffic.in_flight;
        self.remaining = rate.quota.saturating_sub(used);
        self.observe(traffic, now);
        self.origin = Origin::OwnCalls;
        self.is_sole_user = true;
        self.reset_at = now + rate.window;
    }

    /// At the stated reset the quota is full again. Returns `false` if nothing is known then.
    pub fn reset_if_due(&mut self, traffic: &Traffic, now: Instant) -> bool {
        if self.reset_at > now || self.refill.is_continuous() {
            return true;
        }
        match (self.origin, self.quota) {
            (_, None) => return false,
            (Origin::OwnCalls, Some(_)) => self.assume_sole_use(traffic, now),
            (Origin::Stated | Origin::Reset, Some(_)) => {
                self.origin = Origin::Reset;
                self.remaining = self.capacity;
                self.observe(traffic, now);
                self.is_sole_user = false;
                self.reset_at = now + self.window.unwrap_or(DEFAULT_RESET);
            }
        }
        true
    }

    pub fn spend(&mut self, now: Instant) {
        self.spent += 1;
        if self.remaining.saturating_sub(self.spent) <= self.capacity / 2 {
            self.refill.begin_probing();
        }
        if let Some(rate) = self.rate() {
            self.refill.spend(rate, self.capacity, now);
        }
    }

    pub fn unspend(&mut self) {
        self.spent = self.spent.saturating_sub(1);
        self.refill.unspend();
    }

    /// A call was refused although there was credit. Calls that were sent before an earlier refusal arrived add nothing
    /// to it.
    pub fn on_refusal(&mut self, call: SentCall, now: Instant) {
        if self.refused_at.is_some_and(|refused_at| call.at <= refused_at) {
            return;
        }
        self.refused_at = Some(now);
        self.shared_for = self.quota.unwrap_or(1).saturating_mul(1 << self.refusals);
        self.refusals = (self.refusals + 1).min(MAX_DOUBLINGS);
        self.is_sole_user = false;
        self.capacity = 1;
        self.refill.refuse(now);
    }

    pub fn is_reset(&self, now: Instant) -> bool {
        self.reset_at <= now
    }

    /// When there is credit for a call; `None` if there is now.
    pub fn ready_at(&self, traffic: &Traffic, now: Instant) -> Option<Instant> {
        let credit = self.credit(traffic, now);
        if credit > 0 {
            return self.probe_at(traffic).filter(|at| *at > now);
        }
        let Some(rate) = self.rate() else { return Some(self.reset_at) };
        if self.is_smaller(rate)
            && let Some(probe_at) = self.probe_at(traffic)
        {
            return Some(probe_at).filter(|at| *at > now);
        }
        if let Some(refilled_at) = self.refill.next_token_at(rate) {
            return Some(refilled_at);
        }
        let expires_at = self.is_sole_user.then(|| {
            let excess = (traffic.in_window(rate.window, now) + 1).saturating_sub(rate.quota);
            traffic.expires_at(rate.window, now, excess)
        });
        Some(expires_at.flatten().map_or(self.reset_at, |earlier| earlier.min(self.reset_at)))
    }

    /// Whether it seems to be a bucket that states less than its quota when it is full.
    fn is_smaller(&self, rate: StatedRate) -> bool {
        self.capacity.saturating_add(rate.quota / 20) < rate.quota
            && rate.time_for(PROBE_SPACING) <= MAX_PROBE_SPACING
    }

    /// When the next call is sent that looks for a continuous refill; `None` if there is no reason to look for one: waiting
    /// for a window costs a part of the rate of fast limits only, and of smaller buckets.
    fn probe_at(&self, traffic: &Traffic) -> Option<Instant> {
        let rate = self.rate()?;
        let spacing = rate.time_for(PROBE_SPACING);
        let is_probed = self.refill.is_probing()
            && self.origin == Origin::Stated
            && (self.is_smaller(rate) || spacing <= ALWAYS_PROBED);
        if !is_probed {
            return None;
        }
        // Only a call that is alone tells what has come back.
        let alone_at = self.observed_at + spacing;
        Some(if traffic.in_flight > 0 { self.reset_at } else { alone_at.min(self.reset_at) })
    }

    /// Calls that may be sent now.
    fn credit(&self, traffic: &Traffic, now: Instant) -> u64 {
        let stated = self.remaining.saturating_sub(self.spent);
        let Some(rate) = self.rate() else { return stated };
        if let Some(refilled) = self.refill.available(rate, self.capacity, now) {
            return refilled;
        }
        if !self.is_sole_user {
            return stated;
        }
        stated.max(rate.quota.saturating_sub(traffic.in_window(rate.window, now)))
    }

    fn rate(&self) -> Option<StatedRate> {
        Some(StatedRate { quota: self.quota?, window: self.window? })
    }

    /// Compares a statement with the one before it, if this call alone lies between them: a continuous refill adds a
    /// little in that time, a new window restores the whole quota.
    fn compare(&mut self, remaining: u64, traffic: &Traffic, now: Instant) {
        let Some(rate) = self.rate() else { return };
        let expected = rate.tokens_in(now.saturating_duration_since(self.observed_at));
        if self.spent != 1 || expected < 2.0 {
            return;
        }
        let gained = remaining.saturating_add(1).saturating_sub(self.remaining) as f64;
        // After a longer time a new window looks the same.
        let is_clear = (expected <= rate.quota as f64 / 4.0 || remaining < rate.quota / 2)
            && !traffic.may_have_expired(rate.window, self.observed_at, now);
        let shown = if !is_clear || gained > expected + 1.0 {
            RefillEvidence::Inconclusive
        } else if gained < 1.0 {
            RefillEvidence::Contradicts
        } else {
            RefillEvidence::Agrees
        };
        self.refill.observe(shown, now);
    }
}

fn stated_quota(reported: &ReportedLimit) -> Option<u64> {
    reported.quota.filter(|quota| *quota > 0)
}

fn stated_window(reported: &ReportedLimit, max_wait: Duration) -> Option<Duration> {
    reported.window.map(|window| window.min(max_wait)).filter(|window| !window.is_zero())
}
