//! The counting algorithms: eight rate algorithms and a concurrency limit, each a pure function of limit, state, now
//! and cost.
//!
//! The contract is documented here, once. An algorithm knows neither keys nor rules nor where its state is stored, and
//! it reads no clock.

use std::time::Duration;

use crate::time::Time;

mod clamp;
pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
mod quota;
pub mod sliding_compact;
pub mod sliding_counter;
pub mod sliding_log;
mod steps;
pub mod tiered_window;
pub mod token_bucket;
mod unit;
mod wide;

pub use clamp::MAX_SKEW;
pub use quota::{Quota, QuotaState};
pub use steps::Steps;
pub(crate) use wide::WideAlgorithm;

/// An algorithm with its limit.
///
/// - `decide` changes nothing; `charge` is called only after `decide` has allowed it, with the same state and timestamp.
/// - A denial's `retry_after` is exact: the same cost, alone, is allowed then and denied a nanosecond earlier.
/// - A state is kept until [`expires_at`](Algorithm::expires_at); from then on it equals `fresh`.
/// - Timestamps passed for one state do not go back, except by the races between threads.
pub trait Algorithm {
    type State;

    /// The state of a new key.
    fn fresh(&self) -> Self::State;

    fn decide(&self, state: &Self::State, now: Time, cost: u64) -> Decision;

    /// Charges `cost`.
    fn charge(&self, state: &mut Self::State, now: Time, cost: u64);

    /// Counts a denied hit (`count_denied`): charges its cost, down to empty and no further.
    fn drain(&self, state: &mut Self::State, now: Time, cost: u64);

    /// Charges a cost that became known too late to deny it; the debt is at most one capacity.
    fn add_debt(&self, state: &mut Self::State, now: Time, cost: u64);

    /// The timestamp under which a charge made at `now` counts, given the state after it. It is later than `now` if
    /// the state was ahead of the caller's clock: the charge went to a window or a step that had not begun for the
    /// caller.
    fn counted_at(&self, _state: &Self::State, now: Time) -> Time {
        now
    }

    /// Refunds `amount` of a charge, as far as it has not leaked or expired since.
    fn refund(&self, state: &mut Self::State, grant: &Grant, amount: u64, now: Time);

    /// Converts a state of the same algorithm under another number: what was used stays used.
    fn adopt(&self, old: &Self, state: Self::State, now: Time) -> Self::State;

    /// When the state will equal `fresh`, if nothing more is charged.
    fn expires_at(&self, state: &Self::State) -> Time;

    /// What counts against the limit at `now`, rounded up.
    fn used(&self, state: &Self::State, now: Time) -> u64;
}

/// Decision on one cost at one timestamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[deny(missing_docs)]
pub struct Decision {
    /// Whether it is allowed, and when.
    pub admission: Admission,
    /// What could still be allowed at this timestamp, not counting this request.
    pub left: u64,
}

#[deny(missing_docs)]
impl Decision {
    /// A decision, for code that is tested without a limiter.
    pub const fn new(admission: Admission, left: u64) -> Decision {
        Decision { admission, left }
    }

    /// Whether the cost is allowed, and was charged unless this is a peek.
    pub const fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Allow { .. })
    }

    /// How long an allowed request is held.
    pub(crate) const fn delay(&self) -> Duration {
        match self.admission {
            Admission::Allow { delay } => delay,
            Admission::Deny { .. } | Admission::Never => Duration::ZERO,
        }
    }

    /// Until the same cost would be allowed; `None` if it is allowed now, or never will be.
    pub const fn retry_after(&self) -> Option<Duration> {
        match self.admission {
            Admission::Deny { retry_after } => Some(retry_after),
            Admission::Allow { .. } | Admission::Never => None,
        }
    }
}

/// Whether a cost is allowed. The cases are all that there are, so a program may match them exhaustively.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[deny(missing_docs)]
pub enum Admission {
    /// Allowed after `delay`, which is zero except for a leaky bucket that holds.
    Allow {
        /// How long to hold the request.
        delay: Duration,
    },
    /// Denied, and nothing was charged.
    Deny {
        /// Until the same cost would be allowed.
        retry_after: Duration,
    },
    /// The cost is above the capacity: no wait would help.
    Never,
}

impl Admission {
    pub(crate) const NOW: Admission = Admission::Allow { delay: Duration::ZERO };
}

/// What a charge leaves behind for its refund.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// When it [counts as made](Algorithm::counted_at).
    pub at: Time,
    pub cost: u64,
    /// The state right after the charge, if it is a single number; the step charged; otherwise zero.
    pub mark: u64,
}

/// How a charge differs from the cost that became known later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Correction {
    /// The cost was right.
    None,
    /// So much more is owed.
    Debt(u64),
    /// So much is given back.
    Refund(u64),
}

impl Grant {
    /// What makes the charge one of `real_cost`.
    pub fn correction(&self, real_cost: u64) -> Correction {
        match real_cost.checked_sub(self.cost) {
            Some(0) => Correction::None,
            Some(more) => Correction::Debt(more),
            None => Correction::Refund(self.cost - real_cost),
        }
    }
}

/// Numbers below a bound that look random and are the same in every run.
#[cfg(test)]
fn repeatable_draws() -> impl FnMut(u64) -> u64 {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    move |bound| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    }
}
