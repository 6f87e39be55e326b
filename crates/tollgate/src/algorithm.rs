//! How hits are counted: eight algorithms and a limit on what happens at once, each a pure function of limit, state, now and cost.
//!
//! The contract is written once, here. An algorithm knows neither keys nor rules nor where its state
//! is kept, and it reads no clock.

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
pub mod tiered_window;
pub mod token_bucket;
mod unit;

pub use clamp::MAX_SKEW;
pub use quota::{Quota, QuotaState};

/// An algorithm with its limit.
///
/// - `decide` asks and changes nothing; `charge` is called only for what `decide` has allowed, with
///   the same state and instant.
/// - A denial's `retry_after` is exact: the same cost, alone, passes then and fails a nanosecond earlier.
/// - A state is worth keeping until [`expires_at`](Algorithm::expires_at); from then on it equals `fresh`.
/// - Instants given for one state do not go back, except by as much as threads race for it.
pub trait Algorithm {
    type State;

    /// The state of a key that was never seen.
    fn fresh(&self) -> Self::State;

    fn decide(&self, state: &Self::State, now: Time, cost: u64) -> Decision;

    /// Takes `cost`.
    fn charge(&self, state: &mut Self::State, now: Time, cost: u64);

    /// Counts a denied hit (`count_denied`): takes its cost, down to empty and no further.
    fn drain(&self, state: &mut Self::State, now: Time, cost: u64);

    /// Takes a cost that became known too late to deny it; the debt is at most one capacity.
    fn add_debt(&self, state: &mut Self::State, now: Time, cost: u64);

    /// When a charge that was made at `now` counts as made, given the state after it. That is later than `now` where
    /// the state was ahead of the caller's clock: the charge went to a window or a step that had not begun for it.
    fn counted_at(&self, _state: &Self::State, now: Time) -> Time {
        now
    }

    /// Gives `amount` of a charge back, as far as time has not.
    fn refund(&self, state: &mut Self::State, grant: &Grant, amount: u64, now: Time);

    /// Takes over a state of the same algorithm under another number: what was used stays used.
    fn adopt(&self, old: &Self, state: Self::State, now: Time) -> Self::State;

    /// When the state will equal `fresh`, if nothing more is charged.
    fn expires_at(&self, state: &Self::State) -> Time;

    /// What counts against the limit at `now`, rounded up.
    fn used(&self, state: &Self::State, now: Time) -> u64;
}

/// The answer to "may this cost pass now?".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Decision {
    pub admission: Admission,
    /// What could still pass at this instant, this request not counted.
    pub left: u64,
}

impl Decision {
    pub const fn is_allowed(&self) -> bool {
        matches!(self.admission, Admission::Allow { .. })
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// It passes after `delay`, which is zero but for a leaky bucket that holds.
    Allow {
        delay: Duration,
    },
    Deny {
        retry_after: Duration,
    },
    /// The cost is above the capacity: no wait would help.
    Never,
}

impl Admission {
    pub const NOW: Admission = Admission::Allow { delay: Duration::ZERO };
}

/// What a charge leaves behind for its refund.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// When it [counts as made](Algorithm::counted_at).
    pub at: Time,
    pub cost: u64,
    /// The state right after the charge, where it is a single number; the step charged; zero elsewhere.
    pub mark: u64,
}
