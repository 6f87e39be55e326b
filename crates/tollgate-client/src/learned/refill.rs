//! How the credit of a limit returns: continuously, as in a token bucket, or at its reset.
//!
//! ```text
//!              agreeing responses                 first refusal, or one after a long time
//!   Unknown ──────────────────────► Continuous ────────────────────────────────────────► Unknown
//!      │ ▲                               │ another refusal soon
//!      │ └───────────────┐               ▼
//!      └────────────► AtReset ◄──────────┘
//!   contradicting     after RECONSIDERED_AFTER statements, twice as many after each relapse
//!   responses
//! ```
//!
//! No state is final: a refusal may have another cause (another client, a delay), and a server may be reconfigured.

use std::time::Duration;

use tokio::time::Instant;

/// Observations of a continuous refill before it is relied on, or of its absence.
const DECISIVE_EVIDENCE: i32 = 3;
/// At the end of the search less is enough: with long round trips, calls leave short windows meanwhile.
const LEAST_EVIDENCE: i32 = 1;
/// Calls that are spaced to look for a continuous refill, at most.
const MAX_PROBES: u32 = 6;
/// Statements after which the search for a continuous refill begins again.
const RECONSIDERED_AFTER: u32 = 2000;
/// A continuous refill that holds for this many statements is reliable.
const RELIABLE_AFTER: u32 = 200;
const MAX_RELAPSES: u32 = 8;
/// A token that lacks only this much is there: times are rounded.
const ROUNDING: f64 = 1e-6;

/// A quota per window.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StatedRate {
    pub quota: u64,
    pub window: Duration,
}

impl StatedRate {
    pub fn tokens_in(self, elapsed: Duration) -> f64 {
        self.quota as f64 * elapsed.as_secs_f64() / self.window.as_secs_f64()
    }

    pub fn time_for(self, tokens: f64) -> Duration {
        self.window.mul_f64(tokens / self.quota as f64)
    }
}

/// What a response shows, compared with the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefillEvidence {
    Agrees,
    Contradicts,
    /// A new window, or a call that left it, would look the same.
    Inconclusive,
}

/// What remained when a call was counted: at some time between its start and its response.
#[derive(Clone, Copy, Debug)]
pub struct RefillStatement {
    pub remaining: u64,
    pub sent_at: Instant,
    /// Calls that may not be included.
    pub in_flight: u64,
    /// Whether a later statement may have arrived before: then it adds nothing.
    pub is_concurrent: bool,
}

impl RefillStatement {
    /// The number of tokens that agrees with the statement and is next to `tokens`. The rate is known, so a number within
    /// the bounds is better than one taken from each response: that would lose what was added during the response.
    fn narrow(self, tokens: f64, rate: StatedRate, now: Instant) -> f64 {
        let remaining = self.remaining as f64;
        let at_most = remaining + rate.tokens_in(now.saturating_duration_since(self.sent_at));
        let at_least = if self.is_concurrent { f64::MIN } else { remaining - self.in_flight as f64 };
        tokens.max(at_least).min(at_most)
    }
}

#[derive(Debug)]
pub struct RefillModel {
    state: RefillState,
    /// Statements since the state was entered.
    statements: u32,
    /// Refusals that came soon after a continuous refill was assumed.
    relapses: u32,
}

#[derive(Clone, Copy, Debug)]
enum RefillState {
    Unknown {
        /// Responses that agree with a continuous refill, less those that contradict it.
        evidence: i32,
        search: RefillSearch,
    },
    /// What the server's bucket contains: `tokens` at a time. Below 0 if calls in flight exceed it.
    Continuous {
        tokens: f64,
        at: Instant,
    },
    AtReset,
}

/// Calls that are spaced to look for a continuous refill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RefillSearch {
    /// It begins when half of the capacity is used.
    Pending,
    Probing {
        observed: u32,
    },
    /// Only calls that happen to be spaced are observed.
    Passive,
}

const UNKNOWN: RefillState = RefillState::Unknown { evidence: 0, search: RefillSearch::Pending };

impl Default for RefillModel {
    fn default() -> Self {
        RefillModel { state: UNKNOWN, statements: 0, relapses: 0 }
    }
}

impl RefillModel {
    fn enter(&mut self, state: RefillState) {
        self.state = state;
        self.statements = 0;
    }

    pub fn begin_probing(&mut self) {
        if let RefillState::Unknown { search: search @ RefillSearch::Pending, .. } = &mut self.state {
            *search = RefillSearch::Probing { observed: 0 };
        }
    }

    /// Whether calls should be spaced to look for a continuous refill.
    pub fn is_probing(&self) -> bool {
        matches!(self.state, RefillState::Unknown { search: RefillSearch::Probing { .. }, .. })
    }

    pub fn is_continuous(&self) -> bool {
        matches!(self.state, RefillState::Continuous { .. })
    }

    /// A response to a call that was alone, long enough after the one before.
    pub fn observe(&mut self, shown: RefillEvidence, now: Instant) {
        let RefillState::Unknown { evidence, search } = &mut self.state else { return };
        let mut decisive = DECISIVE_EVIDENCE;
        if let RefillSearch::Probing { observed } = search {
            *observed += 1;
            if *observed >= MAX_PROBES {
                *search = RefillSearch::Passive;
                decisive = LEAST_EVIDENCE;
            }
        }
        *evidence += match shown {
            RefillEvidence::Agrees => 1,
            RefillEvidence::Contradicts => -1,
            RefillEvidence::Inconclusive => 0,
        };
        if *evidence >= decisive {
            // The statement that decided it follows, and raises the number.
            self.enter(RefillState::Continuous { tokens: 0.0, at: now });
        } else if *evidence <= -decisive {
            self.enter(RefillState::AtReset);
        }
    }

    /// The server has stated what remains.
    pub fn apply_statement(&mut self, statement: RefillStatement, rate: Option<StatedRate>, now: Instant) {
        self.statements = self.statements.saturating_add(1);
        match (&mut self.state, rate) {
            (RefillState::Continuous { tokens, at }, Some(rate)) => {
                let elapsed = rate.tokens_in(now.saturating_duration_since(*at));
                *tokens = statement.narrow(*tokens + elapsed, rate, now);
                *at = now;
            }
            (RefillState::Continuous { .. }, None) => {}
            (RefillState::Unknown { .. } | RefillState::AtReset, _) => {
                if self.statements >= RECONSIDERED_AFTER << self.relapses {
                    self.enter(UNKNOWN);
                }
            }
        }
    }

    pub fn refuse(&mut self, now: Instant) {
        if self.is_probing() {
            return self.observe(RefillEvidence::Contradicts, now);
        }
        if !self.is_continuous() {
            return;
        }
        if self.statements >= RELIABLE_AFTER {
            self.relapses = 0;
        }
        let is_first = self.relapses == 0;
        self.relapses = (self.relapses + 1).min(MAX_RELAPSES);
        self.enter(if is_first { UNKNOWN } else { RefillState::AtReset });
    }

    pub fn spend(&mut self, rate: StatedRate, capacity: u64, now: Instant) {
        let Some(refilled) = self.tokens(rate, capacity, now) else { return };
        self.state = RefillState::Continuous { tokens: refilled - 1.0, at: now };
    }

    pub fn unspend(&mut self) {
        if let RefillState::Continuous { tokens, .. } = &mut self.state {
            *tokens += 1.0;
        }
    }

    /// The calls that a continuous refill allows now; `None` if there is none.
    pub fn available(&self, rate: StatedRate, capacity: u64, now: Instant) -> Option<u64> {
        self.tokens(rate, capacity, now).map(|tokens| (tokens + ROUNDING) as u64)
    }

    /// When a continuous refill allows the next call.
    pub fn next_token_at(&self, rate: StatedRate) -> Option<Instant> {
        match self.state {
            RefillState::Continuous { tokens, at } => Some(at + rate.time_for((1.0 - tokens).max(0.0))),
            RefillState::Unknown { .. } | RefillState::AtReset => None,
        }
    }

    fn tokens(&self, rate: StatedRate, capacity: u64, now: Instant) -> Option<f64> {
        match self.state {
            RefillState::Continuous { tokens, at } => {
                let refilled = tokens + rate.tokens_in(now.saturating_duration_since(at));
                Some(refilled.min(capacity as f64))
            }
            RefillState::Unknown { .. } | RefillState::AtReset => None,
        }
    }
}
