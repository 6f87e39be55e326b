//! Counters that are kept elsewhere: what a store on a server is asked, and what comes back.
//!
//! It charges all enforced charges of a request or none of them (I3), as the memory store does; but it is
//! asked over a network, so each charge can also fail. What a failure means for the request is not decided
//! there: that is the rule's business.

use std::future::Future;

use thiserror::Error;

use crate::algorithm::Grant;
use crate::limit::Limit;
use crate::store::{CounterKey, DeniedHits, Enforcement, LimitOutcome};
use crate::time::Time;

/// A store that is asked, and waited for. `now` is the node's time; a store may have its own.
pub trait CentralCounterStore: Sync {
    /// Decides all charges of one request and takes all or none.
    fn charge(&self, charges: &[CentralCharge], now: Time) -> impl Future<Output = CentralOutcome> + Send;

    /// Decides as [`charge`](Self::charge) would, and changes nothing.
    fn peek(&self, charges: &[CentralCharge], now: Time) -> impl Future<Output = CentralOutcome> + Send;

    /// Forgets a counter; says whether it was there.
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
    /// What one unit of the hit costs here: `cost` is this for each of its units.
    pub unit_cost: u64,
    pub enforcement: Enforcement,
    pub denied_hits: DeniedHits,
}

/// Whose counter, under which rule. Together with the limit's algorithm and window it is what the store
/// calls its state; a limit's number is no part of it, so a changed number finds what was used (I6).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CounterId {
    pub domain: Box<str>,
    pub rule: Box<str>,
    pub key: CounterKey,
}

/// What came of the charges of one request, in their order.
#[derive(Debug)]
pub struct CentralOutcome {
    /// Whether every enforced limit that could be asked has allowed it.
    pub admitted: bool,
    pub limits: Vec<Result<LimitOutcome, StoreError>>,
    /// For what stays charged; `None` if nothing does.
    pub receipt: Option<CentralReceipt>,
}

impl CentralOutcome {
    /// What came of charges, each with its part.
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

/// The right to give charges back, or to correct their cost. It is used up by either.
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

/// Why a charge has no answer.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StoreError {
    /// The server cannot be reached, or is known not to answer.
    #[error("{server} cannot be reached: {reason}")]
    Unreachable { server: String, reason: String },
    /// No answer came in time. Whether it was charged is not known.
    #[error("{server} did not answer within its deadline")]
    Deadline { server: String },
    /// The server answered, and refused: a wrong password, a full memory, a value of another kind.
    #[error("{server} refused: {reason}")]
    Refused { server: String, reason: String },
    /// Others changed the counter each time it was tried.
    #[error("{server}: too many others charge the same key")]
    Contended { server: String },
    /// More is under way than may be.
    #[error("{server} has too many requests under way")]
    Busy { server: String },
}
