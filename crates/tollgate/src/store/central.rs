//! Counters in a central store: requests to it and their results.
//!
//! It applies all enforced charges of a request or none (I3), as the memory store does; but it is called over a
//! network, so each charge can also fail. The rule decides what a failure means for the request.

use std::future::Future;

use thiserror::Error;

use crate::algorithm::Grant;
use crate::limit::Limit;
use crate::store::{CounterKey, DeniedHits, Enforcement, LimitOutcome};
use crate::time::Time;

/// An asynchronous counter store. `now` is the node's time; a store may use its own clock.
pub trait CentralCounterStore: Sync {
    /// Decides all charges of one request and applies all or none.
    fn charge(&self, charges: &[CentralCharge], now: Time) -> impl Future<Output = CentralOutcome> + Send;

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    fn peek(&self, charges: &[CentralCharge], now: Time) -> impl Future<Output = CentralOutcome> + Send;

    /// Removes a counter; returns whether it existed.
    fn reset(
        &self,
        counter: &CounterId,
        limit: &Limit,
        now: Time,
    ) -> impl Future<Output = Result<bool, StoreError>> + Send;
}

/// One limit of one rule for one key.
#[derive(Clone, Debug)]
pub struct CentralCharge {
    pub counter: CounterId,
    pub limit: Limit,
    pub cost: u64,
    /// Cost of one unit of the hit; `cost` is this times its units.
    pub unit_cost: u64,
    pub enforcement: Enforcement,
    pub denied_hits: DeniedHits,
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
    pub limits: Vec<Result<LimitOutcome, StoreError>>,
    /// The charges that remain applied; `None` if there are none.
    pub receipt: Option<CentralReceipt>,
}

impl CentralOutcome {
    /// The outcome of charges, each with its result.
    pub fn of(
        charges: &[CentralCharge],
        admitted: bool,
        parts: Vec<Result<LimitOutcome, StoreError>>,
    ) -> CentralOutcome {
        let items: Vec<_> = charges
            .iter()
            .zip(&parts)
            .filter_map(|(charge, part)| {
                let CentralCharge { counter, limit, unit_cost, .. } = charge;
                let grant = part.as_ref().ok()?.grant?;
                Some(CentralReceiptItem {
                    counter: counter.clone(),
                    limit: *limit,
                    unit_cost: *unit_cost,
                    grant,
                })
            })
            .collect();
        let receipt = (!items.is_empty()).then_some(CentralReceipt { items });
        CentralOutcome { admitted, limits: parts, receipt }
    }
}

/// The right to refund charges, or to correct their cost. Using it consumes it.
#[derive(Debug)]
pub struct CentralReceipt {
    pub items: Vec<CentralReceiptItem>,
}

#[derive(Clone, Debug)]
pub struct CentralReceiptItem {
    pub counter: CounterId,
    pub limit: Limit,
    pub unit_cost: u64,
    pub grant: Grant,
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
    #[error("{server}: too many others charge the same key")]
    Contended { server: String },
    /// More requests are in flight than are allowed.
    #[error("{server} has too many requests under way")]
    Busy { server: String },
}
