//! One limit of a server, as far as its responses have shown it.
//!
//! The *credit* is what the server said remains, less the calls since. Nothing is added to it before the stated reset,
//! with two exceptions:
//! - a window that only this client uses: the credit is the quota less the client's own calls in the window;
//! - a limit that was seen to refill continuously: its rate is added as time passes.
//!
//! To see whether a limit refills continuously, a few calls are spaced while there is credit left: of fast limits, where
//! waiting for a window costs a part of the rate, and of buckets that state less than their quota when they are full.

use std::time::Duration;

use tokio::time::Instant;

use crate::headers::ReportedLimit;
use crate::learned::{SentCall, Traffic};

/// The reset of a limit that states neither a reset nor a window.
const DEFAULT_RESET: Duration = Duration::from_secs(1);
/// Observations of a continuous refill before it is relied on.
const REFILL_OBSERVATIONS: i32 = 3;
/// The spacing of calls that look for a continuous refill, in calls at the stated rate.
const PROBE_SPACING: f64 = 2.5;
/// Limits with a shorter spacing are always probed, those with a longer one than the second never.
const ALWAYS_PROBED: Duration = Duration::from_millis(100);
const MAX_PROBE_SPACING: Duration = Duration::from_secs(5);
const MAX_PROBES: u32 = 6;
/// After this many refusals, others are assumed to use the quota, too.
const MAX_SOLE_REFUSALS: u32 = 3;
/// Observations of a continuous refill that one refusal cancels.
const REFUSAL_WEIGHT: i32 = 8;

#[derive(Debug)]
pub struct LearnedLimit {
    name: String,
    partition: Option<String>,
    quota: Option<u64>,
    window: Option<Duration>,
    /// As stated, or assumed after a reset.
    remaining: u64,
    observed_at: Instant,
    reset_at: Instant,
    /// Calls that `remaining` does not include.
    spent: u64,
    /// Whether the server has stated `remaining`; otherwise it is assumed.
    is_stated: bool,
    /// Own calls account for all that is used.
    is_sole_user: bool,
    /// What was available after the last reset, as far as statements since show.
    full: u64,
    /// Calls since the last reset.
    sent: u64,
    /// Responses that agree with a continuous refill, less those that contradict it.
    refill_observations: i32,
    /// Calls that were spaced to look for a continuous refill.
    probes: u32,
    refusals: u32,
    /// After a refusal, a reset is not taken for a full quota.
    is_trusted: bool,
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
        let quota = reported.quota.filter(|quota| *quota > 0);
        let window = reported.window.map(|window| window.min(max_wait));
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
            reset_at: now,
            spent: 0,
            is_stated: false,
            is_sole_user: true,
            full: 0,
            sent: traffic.in_flight + 1,
            refill_observations: 0,
            probes: 0,
            refusals: 0,
            is_trusted: true,
        };
        match reported.remaining {
            Some(remaining) => limit.state(remaining, reported.reset, call, traffic, now, max_wait),
            None => limit.assume(traffic, now),
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
        let quota = reported.quota.filter(|quota| *quota > 0).or(self.quota);
        let window = reported.window.map(|window| window.min(max_wait)).or(self.window);
        if (quota, window) != (self.quota, self.window) {
            self.quota = quota;
            self.window = window;
            self.refill_observations = self.refill_observations.min(0);
        }
        let Some(remaining) = reported.remaining else { return };
        // A call that was sent before the last statement arrived may have been counted before it: it adds no credit.
        let is_concurrent = call.at <= self.observed_at;
        if is_concurrent && remaining.saturating_sub(traffic.in_flight) >= self.credit(traffic, now) {
            return;
        }
        if !is_concurrent && self.is_stated {
            self.observe_refill(remaining, traffic, now);
        }
        self.state(remaining, reported.reset, call, traffic, now, max_wait);
    }

    /// Takes over what a response states.
    fn state(
        &mut self,
        remaining: u64,
        reset: Option<Duration>,
        call: SentCall,
        traffic: &Traffic,
        now: Instant,
        max_wait: Duration,
    ) {
        self.full = self.full.max(remaining.saturating_add(self.sent));
        self.remaining = remaining;
        self.observed_at = now;
        self.spent = traffic.in_flight;
        self.is_stated = true;
        self.reset_at = now + reset.or(self.window).unwrap_or(DEFAULT_RESET).min(max_wait);
        self.is_sole_user = self.window().is_some_and(|(quota, window)| {
            traffic.in_window(window, call.at) >= quota.saturating_sub(remaining)
        }) && self.refusals < MAX_SOLE_REFUSALS;
    }

    /// Assumes that only own calls use the quota.
    fn assume(&mut self, traffic: &Traffic, now: Instant) {
        let Some((quota, window)) = self.window() else { return };
        let used = traffic.in_window(window, now) - traffic.in_flight;
        self.remaining = quota.saturating_sub(used);
        self.observed_at = now;
        self.spent = traffic.in_flight;
        self.is_stated = false;
        self.is_sole_user = true;
        self.reset_at = now + window;
    }

    /// At the stated reset the quota is full again. Returns `false` if nothing is known then.
    pub fn reset_if_due(&mut self, traffic: &Traffic, now: Instant) -> bool {
        if self.reset_at > now {
            return true;
        }
        let was_stated = std::mem::take(&mut self.is_stated);
        self.full = 0;
        self.sent = traffic.in_flight;
        match (self.quota, self.window) {
            (Some(_), Some(_)) if !was_stated => self.assume(traffic, now),
            (Some(quota), window) if was_stated => {
                self.remaining = if self.is_trusted { quota } else { 1 };
                self.observed_at = now;
                self.spent = traffic.in_flight;
                self.is_sole_user = false;
                self.reset_at = now + window.unwrap_or(DEFAULT_RESET);
            }
            _ => return false,
        }
        true
    }

    pub fn spend(&mut self) {
        self.spent += 1;
        self.sent += 1;
    }

    pub fn unspend(&mut self) {
        self.spent = self.spent.saturating_sub(1);
        self.sent = self.sent.saturating_sub(1);
    }

    /// A call was refused although there was credit.
    pub fn distrust(&mut self) {
        self.refusals = self.refusals.saturating_add(1);
        self.is_sole_user &= self.refusals < MAX_SOLE_REFUSALS;
        self.refill_observations = self.refill_observations.min(0) - REFUSAL_WEIGHT;
        self.is_trusted &= self.is_stated;
    }

    pub fn is_reset(&self, now: Instant) -> bool {
        self.reset_at <= now
    }

    /// When there is credit for a call; `None` if there is now.
    pub fn ready_at(&self, traffic: &Traffic, now: Instant) -> Option<Instant> {
        let credit = self.credit(traffic, now);
        if credit > 0 {
            return self.probe_at(credit, traffic).filter(|at| *at > now);
        }
        let earlier = match self.window() {
            Some((quota, window)) if self.refills_continuously() => {
                let missing = (self.spent + 1).saturating_sub(self.remaining);
                Some(self.observed_at + window.mul_f64(missing as f64 / quota as f64))
            }
            Some((quota, window)) if self.is_sole_user => {
                let excess = (traffic.in_window(window, now) + 1).saturating_sub(quota);
                traffic.expires_at(window, now, excess)
            }
            _ => None,
        };
        Some(earlier.map_or(self.reset_at, |earlier| earlier.min(self.reset_at)))
    }

    /// When the next call is sent that looks for a continuous refill; `None` if there is no reason to look for one.
    fn probe_at(&self, credit: u64, traffic: &Traffic) -> Option<Instant> {
        let (quota, window) = self.window()?;
        let spacing = window.mul_f64(PROBE_SPACING / quota as f64);
        let is_smaller = self.full.saturating_add(quota / 20) < quota && spacing <= MAX_PROBE_SPACING;
        let is_undecided = self.refill_observations.abs() < REFILL_OBSERVATIONS && self.probes < MAX_PROBES;
        let is_probed = is_undecided && self.is_stated && (is_smaller || spacing <= ALWAYS_PROBED);
        if !is_probed || credit > self.full / 2 {
            return None;
        }
        // Only a call that is alone tells what has come back.
        let alone_at = self.observed_at + spacing;
        Some(if traffic.in_flight > 0 { self.reset_at } else { alone_at.min(self.reset_at) })
    }

    /// Calls that may be sent now.
    fn credit(&self, traffic: &Traffic, now: Instant) -> u64 {
        let stated = self.remaining.saturating_sub(self.spent);
        match self.window() {
            Some((quota, window)) if self.refills_continuously() => {
                let refilled = self.remaining.saturating_add(self.refill(quota, window, now) as u64);
                refilled.min(quota).saturating_sub(self.spent)
            }
            Some((quota, window)) if self.is_sole_user => {
                stated.max(quota.saturating_sub(traffic.in_window(window, now)))
            }
            _ => stated,
        }
    }

    /// What a continuous refill has added since the last statement.
    fn refill(&self, quota: u64, window: Duration, now: Instant) -> f64 {
        let elapsed = now.saturating_duration_since(self.observed_at);
        quota as f64 * elapsed.as_secs_f64() / window.as_secs_f64()
    }

    fn window(&self) -> Option<(u64, Duration)> {
        self.quota.zip(self.window)
    }

    fn refills_continuously(&self) -> bool {
        self.refill_observations >= REFILL_OBSERVATIONS
    }

    /// Compares a statement with the one before it, if this call alone lies between them: a continuous refill adds a
    /// little in that time, a new window restores the whole quota.
    fn observe_refill(&mut self, remaining: u64, traffic: &Traffic, now: Instant) {
        let Some((quota, window)) = self.window() else { return };
        let expected = self.refill(quota, window, now);
        let is_undecided = self.refill_observations.abs() < REFILL_OBSERVATIONS;
        self.probes += u32::from(self.spent == 1 && expected >= 2.0);
        let is_alone = self.spent == 1 && !traffic.may_have_expired(window, self.observed_at, now);
        // After a longer time a new window looks the same.
        if !is_undecided || !is_alone || expected < 2.0 || expected > quota as f64 / 4.0 {
            return;
        }
        let gained = remaining.saturating_add(1).saturating_sub(self.remaining) as f64;
        if gained < 1.0 {
            self.refill_observations -= 1;
        } else if gained <= expected + 1.0 {
            self.refill_observations += 1;
        }
    }
}
