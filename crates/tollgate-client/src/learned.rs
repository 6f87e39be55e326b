//! The limits of one key as learned from responses, and when the next call may be sent.
//!
//! A call is *in flight* from its start to its response. The server may have counted it at any time between the two, so
//! it is counted as sent from its start, and as leaving the server's window a window after its response. Time is passed
//! in. A server cannot stop the calls for longer than [`LearnSettings::max_wait`] at a time.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::headers::ServerLimits;

mod limit;
mod pacing;
mod refill;

use limit::LearnedLimit;
use pacing::Pacing;
pub use pacing::SpacedRate;

/// Limits that are remembered for one key; further ones replace the oldest.
const MAX_LEARNED: usize = 16;
/// Responses that are remembered, for quotas up to this number.
const MAX_ANSWERED: usize = 4096;
/// A response that overtakes more others than this is not looked for.
const MAX_OVERTAKEN: usize = 64;
/// How long other calls wait for the response to the first one.
const FIRST_RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The wait after a first refusal without any header; it doubles with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// How much is learned from a server.
#[derive(Clone, Copy, Debug)]
pub struct LearnSettings {
    /// Whether the first call is sent alone, so that a limit is known from its response before others can exceed it.
    pub first_call: FirstCall,
    /// The longest wait that a response can cause.
    pub max_wait: Duration,
    /// The rate of the budget, for a server that refuses its calls without a word about limits.
    pub spaced: Option<SpacedRate>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FirstCall {
    Alone,
    WithOthers,
}

/// When a call may be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Readiness {
    Now,
    At(Instant),
    /// A response may allow it earlier.
    OnResponseOrAt(Instant),
}

/// What a response means for the calls that follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResponseKind {
    /// The server has processed and counted the request.
    Served,
    /// The server has refused it for its rate, and has not counted it.
    Refused,
}

/// A call that was sent.
#[derive(Clone, Copy, Debug)]
pub struct SentCall {
    at: Instant,
    /// The responses that had arrived before: what they state does not include it.
    responses_before: u64,
}

/// What is known about the limits of one key.
#[derive(Debug)]
pub struct Learned {
    settings: LearnSettings,
    limits: Vec<LearnedLimit>,
    pacing: Pacing,
    refused_until: Option<Instant>,
    /// Consecutive refusals.
    refusals: u32,
    is_first_answered: bool,
    first_sent: Option<Instant>,
    traffic: Traffic,
}

/// The calls of one key.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    in_flight: u64,
    /// Responses so far.
    responses: u64,
    /// The latest calls, by the time of their response.
    answered: VecDeque<AnsweredCall>,
}

#[derive(Clone, Copy, Debug)]
struct AnsweredCall {
    sent: Instant,
    answered: Instant,
}

impl Traffic {
    /// Own calls that a window which ends at `now` may contain.
    fn in_window(&self, window: Duration, now: Instant) -> u64 {
        (self.answered.len() - self.expired_before(window, now)) as u64 + self.in_flight
    }

    /// When the `count`-th response after `since` leaves the window.
    fn expires_at(&self, window: Duration, since: Instant, count: u64) -> Option<Instant> {
        let index = usize::try_from(count.checked_sub(1)?).ok()?;
        let index = self.expired_before(window, since).checked_add(index)?;
        self.answered.get(index).map(|call| call.answered + window)
    }

    /// Whether the server may have seen a call leave its window between two times.
    fn may_have_expired(&self, window: Duration, since: Instant, now: Instant) -> bool {
        let candidates = self.answered.range(self.expired_before(window, since)..);
        candidates.take(MAX_OVERTAKEN).any(|call| call.sent + window <= now)
    }

    fn expired_before(&self, window: Duration, time: Instant) -> usize {
        self.answered.partition_point(|call| call.answered + window <= time)
    }

    fn answer(&mut self, sent: Instant, now: Instant) {
        if self.answered.len() == MAX_ANSWERED {
            self.answered.pop_front();
        }
        self.answered.push_back(AnsweredCall { sent, answered: now });
    }
}

impl Learned {
    pub fn new(settings: LearnSettings) -> Learned {
        Learned {
            settings,
            limits: Vec::new(),
            pacing: Pacing::new(settings.spaced),
            refused_until: None,
            refusals: 0,
            is_first_answered: settings.first_call == FirstCall::WithOthers,
            first_sent: None,
            traffic: Traffic::default(),
        }
    }

    /// When the next call may be sent.
    pub fn readiness(&mut self, now: Instant) -> Readiness {
        if let Some(until) = self.refused_until.filter(|until| *until > now) {
            return Readiness::At(until);
        }
        self.refused_until = None;
        let traffic = &self.traffic;
        self.limits.retain_mut(|limit| limit.reset_if_due(traffic, now));
        if let Some(sent) = self.first_sent.filter(|_| !self.is_first_answered && traffic.in_flight > 0) {
            let at_latest = sent + FIRST_RESPONSE_TIMEOUT;
            if at_latest > now {
                return Readiness::OnResponseOrAt(at_latest);
            }
        }
        let spaced_at = self.pacing.ready_at(now);
        let ready_at = self.limits.iter().filter_map(|limit| limit.ready_at(traffic, now)).max();
        match ready_at {
            None => spaced_at.map_or(Readiness::Now, Readiness::At),
            Some(at) if spaced_at.is_some_and(|spaced_at| spaced_at > at) => Readiness::At(at),
            Some(at) if traffic.in_flight > 0 => Readiness::OnResponseOrAt(at),
            Some(at) => Readiness::At(at),
        }
    }

    /// Records that a call is sent, if one may be sent now.
    pub fn try_send(&mut self, now: Instant) -> Result<SentCall, Readiness> {
        match self.readiness(now) {
            Readiness::Now => Ok(self.send(now)),
            later => Err(later),
        }
    }

    /// Records that a call is sent.
    fn send(&mut self, now: Instant) -> SentCall {
        self.traffic.in_flight += 1;
        self.first_sent.get_or_insert(now);
        self.pacing.spend(now);
        self.limits.iter_mut().for_each(|limit| limit.spend(now));
        SentCall { at: now, responses_before: self.traffic.responses }
    }

    /// Records that a call was not sent after all.
    pub fn revert(&mut self) {
        self.end_without_response();
        self.limits.iter_mut().for_each(LearnedLimit::unspend);
        self.pacing.unspend();
    }

    /// Records that a call ended without a response: the server may have counted it.
    pub fn fail(&mut self, call: SentCall, now: Instant) {
        self.end_without_response();
        self.traffic.answer(call.at, now);
    }

    /// Nothing was learned: if no response has ever arrived, the next call is the first one.
    fn end_without_response(&mut self) {
        self.traffic.in_flight = self.traffic.in_flight.saturating_sub(1);
        if self.traffic.in_flight == 0 {
            self.first_sent = None;
        }
    }

    /// Records a response. Returns how long calls wait if it is a refusal.
    pub fn observe(
        &mut self,
        call: SentCall,
        kind: ResponseKind,
        stated: &ServerLimits,
        now: Instant,
    ) -> Option<Duration> {
        self.traffic.in_flight = self.traffic.in_flight.saturating_sub(1);
        self.traffic.responses += 1;
        self.is_first_answered = true;
        if kind == ResponseKind::Served {
            self.traffic.answer(call.at, now);
        }
        for reported in &stated.limits {
            let known = self.limits.iter_mut().find(|limit| limit.is_about(reported));
            match known {
                Some(limit) => {
                    limit.update(reported, call, &self.traffic, now, self.settings.max_wait);
                }
                None => {
                    if self.limits.len() == MAX_LEARNED {
                        self.limits.remove(0);
                    }
                    let learned =
                        LearnedLimit::new(reported, call, &self.traffic, now, self.settings.max_wait);
                    self.limits.extend(learned);
                }
            }
        }
        match kind {
            ResponseKind::Served => {
                self.refusals = 0;
                None
            }
            ResponseKind::Refused => Some(self.refuse(call, stated, now)),
        }
    }

    fn refuse(&mut self, call: SentCall, stated: &ServerLimits, now: Instant) -> Duration {
        if stated.limits.is_empty() {
            self.pacing.refuse(call.at, now);
        }
        let exhausted: Vec<_> = stated.limits.iter().filter(|limit| limit.remaining == Some(0)).collect();
        for limit in &mut self.limits {
            if exhausted.is_empty() || exhausted.iter().any(|reported| limit.is_about(reported)) {
                limit.on_refusal(call, now);
            }
        }
        let reset = exhausted.iter().filter_map(|limit| limit.reset).max();
        // Zero is no answer to the question when: the same call was refused just now.
        let [retry_after, reset] =
            [stated.retry_after, reset].map(|wait| wait.filter(|wait| !wait.is_zero()));
        let backoff = FIRST_BACKOFF.saturating_mul(1 << self.refusals.min(16)).min(MAX_BACKOFF);
        let wait = retry_after.or(reset).unwrap_or(backoff).min(self.settings.max_wait);
        self.refusals = self.refusals.saturating_add(1);
        self.refused_until = self.refused_until.max(Some(now + wait));
        wait
    }

    /// Whether a fresh state would decide the same.
    pub fn is_idle(&self, now: Instant) -> bool {
        self.traffic.in_flight == 0
            && self.refused_until.is_none_or(|until| until <= now)
            && self.limits.iter().all(|limit| limit.is_reset(now))
            && self.pacing.is_idle(now)
    }
}

#[cfg(test)]
mod tests;
