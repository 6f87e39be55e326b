//! One limit of a server, as far as its responses have shown it.
//!
//! The *credit* is what the server said remains, less the calls since, plus what has come back since:
//! - of a window that only this client uses, its own calls that have left the window;
//! - of a limit that was seen to refill continuously, its rate;
//! - otherwise nothing until the stated reset.
//!
//! A bucket whose burst is smaller than its quota states less than its quota when it is full. Then a few calls are spaced
//! while there is credit left, to see whether it refills continuously.

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
/// A refusal outweighs this many of them.
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
    /// The latest call whose response stated `remaining`; `None` if it is assumed.
    stated_by: Option<u64>,
    /// Own calls account for all that is used.
    is_sole_user: bool,
    /// What was available when the limit was last known to be full.
    full: Option<u64>,
    /// Responses that agree with a continuous refill, less those that contradict it.
    refill_observations: i32,
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
            stated_by: None,
            is_sole_user: true,
            full: None,
            refill_observations: 0,
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
        let is_stale = self.stated_by.is_some_and(|latest| call.number < latest);
        if is_stale && remaining >= self.credit(traffic, now) {
            return;
        }
        if !is_stale && call.at >= self.observed_at && self.stated_by.is_some() {
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
        if self.stated_by.is_none() {
            self.full = Some(remaining.saturating_add(1));
        }
        self.remaining = remaining;
        self.observed_at = now;
        self.spent = traffic.in_flight;
        self.stated_by = Some(call.number);
        self.reset_at = now + reset.or(self.window).unwrap_or(DEFAULT_RESET).min(max_wait);
        self.is_sole_user = self
            .window()
            .is_some_and(|(quota, window)| traffic.in_window(window, now) >= quota.saturating_sub(remaining));
    }

    /// Assumes that only own calls use the quota.
    fn assume(&mut self, traffic: &Traffic, now: Instant) {
        let Some((quota, window)) = self.window() else { return };
        let used = traffic.in_window(window, now) - traffic.in_flight;
        self.remaining = quota.saturating_sub(used);
        self.observed_at = now;
        self.spent = traffic.in_flight;
        self.stated_by = None;
        self.is_sole_user = true;
        self.reset_at = now + window;
    }

    /// At the stated reset the quota is full again. Returns `false` if nothing is known then.
    pub fn reset_if_due(&mut self, traffic: &Traffic, now: Instant) -> bool {
        if self.reset_at > now {
            return true;
        }
        let was_stated = self.stated_by.take().is_some();
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
    }

    pub fn unspend(&mut self) {
        self.spent = self.spent.saturating_sub(1);
    }

    /// A call was refused although there was credit.
    pub fn distrust(&mut self) {
        self.refill_observations = self.refill_observations.min(0) - REFUSAL_WEIGHT;
        self.is_trusted &= self.stated_by.is_some();
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
        let missing = (self.spent + 1).saturating_sub(self.remaining);
        let earlier = match self.window() {
            Some((quota, window)) if self.refills_continuously() => {
                Some(self.observed_at + window.mul_f64(missing as f64 / quota as f64))
            }
            Some((_, window)) if self.is_sole_user => traffic.expires_at(window, self.observed_at, missing),
            _ => None,
        };
        Some(earlier.map_or(self.reset_at, |earlier| earlier.min(self.reset_at)))
    }

    /// When the next call is sent that looks for a continuous refill; `None` if there is no reason to look for one.
    fn probe_at(&self, credit: u64, traffic: &Traffic) -> Option<Instant> {
        let (quota, window) = self.window()?;
        let full = self.full.filter(|full| full.saturating_add(quota / 20) < quota)?;
        let is_undecided = self.refill_observations.abs() < REFILL_OBSERVATIONS;
        if !is_undecided || self.stated_by.is_none() || credit > full / 2 {
            return None;
        }
        // Only a call that is alone tells what has come back.
        let alone_at = self.observed_at + window.mul_f64(PROBE_SPACING / quota as f64);
        Some(if traffic.in_flight > 0 { self.reset_at } else { alone_at.min(self.reset_at) })
    }

    /// Calls that may be sent now.
    fn credit(&self, traffic: &Traffic, now: Instant) -> u64 {
        let gained = match self.window() {
            Some((quota, window)) if self.refills_continuously() => self.refill(quota, window, now) as u64,
            Some((_, window)) if self.is_sole_user => traffic.expired(window, self.observed_at, now),
            _ => 0,
        };
        let total = self.remaining.saturating_add(gained);
        total.min(self.quota.unwrap_or(u64::MAX)).saturating_sub(self.spent)
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

    /// Compares a statement with the one before it. The call was sent after that one, so at least one call lies between
    /// them. More than that less remaining is what came back: a little at a time by a continuous refill, everything at
    /// once by a new window.
    fn observe_refill(&mut self, remaining: u64, traffic: &Traffic, now: Instant) {
        let Some((quota, window)) = self.window() else { return };
        let expected = self.refill(quota, window, now);
        let gained = (remaining + 1).saturating_sub(self.remaining) as f64;
        let is_nearly_full = remaining.saturating_add(2) >= quota;
        if is_nearly_full || traffic.expired(window, self.observed_at, now) > 0 {
            return;
        }
        if gained >= 1.0 && gained <= expected + 1.0 {
            self.refill_observations = (self.refill_observations + 1).min(REFILL_OBSERVATIONS);
        } else if expected >= 2.0 {
            self.refill_observations = self.refill_observations.min(1) - 1;
        }
    }
}
