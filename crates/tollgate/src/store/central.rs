//! Counters in a central store: requests to it and their results.
//!
//! It applies all enforced charges of a request or none (I3), as the memory store does; but it is called over a
//! network, so each charge can also fail. The rule decides what a failure means for the request.

use std::future::Future;

use thiserror::Error;

use crate::limit::Limit;
use crate::store::{Charge, ChargeReceipt, CounterKey, LimitOutcome};
use crate::time::Time;

/// An asynchronous counter store. Every charge has a [`counter`](Charge::counter). `now` is the node's time; a store
/// may use its own clock.
pub trait CentralCounterStore: Sync {
    /// Decides all charges of one request and applies all or none.
    fn charge(&self, charges: &[Charge], now: Time) -> impl Future<Output = CentralOutcome> + Send;

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    fn peek(&self, charges: &[Charge], now: Time) -> impl Future<Output = CentralOutcome> + Send;

    /// Removes a counter; returns whether it existed.
    fn reset(
        &self,
        counter: &CentralCounter,
        now: Time,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// A counter in a central store, and the limit on it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CentralCounter {
    pub id: CounterId,
    pub limit: Limit,
}

/// A counter: a key under a rule. With the limit's algorithm and window it is the name of the state in the store; the
/// limit's number is not part of it, so a changed number finds the existing state (I6).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CounterId {
    pub domain: Box<str>,
    pub rule: Box<str>,
    pub key: CounterKey,
}

/// The outcome of the charges of one request, in their order.
#[derive(Debug)]
pub struct CentralOutcome {
    /// Whether every enforced limit that answered allows the request.
    pub admitted: bool,
    pub limits: Vec<LimitResult>,
}

/// The result of one charge.
#[derive(Clone, Debug)]
pub enum LimitResult {
    Answered(LimitOutcome),
    /// It was not sent, because another limit is known to deny the request.
    Skipped,
    Failed(StoreError),
}

impl CentralOutcome {
    /// The receipt for the charges that remain applied; `None` if there are none.
    pub fn receipt(&self, charges: &[Charge]) -> Option<ChargeReceipt> {
        ChargeReceipt::of_outcomes(charges, self.limits.iter().map(LimitResult::outcome))
    }
}

impl LimitResult {
    pub fn outcome(&self) -> Option<&LimitOutcome> {
        match self {
            LimitResult::Answered(outcome) => Some(outcome),
            LimitResult::Skipped | LimitResult::Failed(_) => None,
        }
    }

    pub fn error(&self) -> Option<&StoreError> {
        match self {
            LimitResult::Failed(error) => Some(error),
            LimitResult::Answered(_) | LimitResult::Skipped => None,
        }
    }
}

impl From<Result<LimitOutcome, StoreError>> for LimitResult {
    fn from(result: Result<LimitOutcome, StoreError>) -> LimitResult {
        match result {
            Ok(outcome) => LimitResult::Answered(outcome),
            Err(error) => LimitResult::Failed(error),
        }
    }
}

/// Why a charge has no result.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StoreError {
    /// The server cannot be reached, or is known to be down.
    #[error("{server} cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    /// No reply within the deadline. Whether the charge was applied is unknown.
    #[error("{server} did not answer within its deadline")]
    Deadline { server: String },
    /// The server replied with an error: a wrong password, full memory, a value of another type.
    #[error("{server} refused: {reason}")]
    Refused { server: String, reason: String },
    /// Other clients changed the counter at each attempt.
    #[error("{server}: too many concurrent charges of the same key")]
    Contended { server: String },
    /// More requests are in flight than are allowed.
    #[error("{server} has too many requests in flight")]
    Busy { server: String },
}
