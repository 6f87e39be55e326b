//! Counters on a server: what is asked of it, and what comes back.
//!
//! A store charges all enforced charges of a request or none of them (I3), as the memory store does; but
//! it is asked over a network, so each charge can also fail. What a failure means for the request is not
//! decided here: that is the rule's business. A charge whose fate is unknown is never sent again.

use thiserror::Error;
use tollgate::Limit;
use tollgate::algorithm::Grant;
use tollgate::store::{DeniedHits, Part, Weight};

pub mod breaker;
#[cfg(feature = "cassandra")]
pub mod cassandra;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod cells;
#[cfg(any(feature = "redis", feature = "memcached", feature = "cassandra"))]
pub mod central;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod demand;
#[cfg(feature = "memcached")]
pub mod memcached;
pub mod name;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
pub mod place;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod request;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod state;
#[cfg(any(feature = "memcached", feature = "cassandra"))]
mod told;

/// One limit of one rule for one key.
#[derive(Clone, Debug)]
pub struct CentralCharge {
    pub counter: Counter,
    pub limit: Limit,
    pub cost: u64,
    /// What one unit of the hit costs here: `cost` is this for each of its units.
    pub unit_cost: u64,
    pub weight: Weight,
    pub denied: DeniedHits,
}

/// Whose counter, under which rule. Together with the limit's algorithm and window it is what the store
/// calls its state; a limit's number is no part of it, so a changed number finds what was used (I6).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Counter {
    pub domain: Box<str>,
    pub rule: Box<str>,
    /// The key as operators write it: `ip:1.2.3.4+user:42`; empty for everybody together.
    pub key: Box<str>,
    /// What keeps the counters of one user together where the store is divided; `None` for a counter
    /// that many users share.
    pub owner: Option<Box<str>>,
}

/// What came of the charges of one request, in their order.
#[derive(Debug)]
pub struct CentralOutcome {
    /// Whether every enforced limit that could be asked has allowed it.
    pub admitted: bool,
    pub parts: Vec<Result<Part, StoreError>>,
    /// For what stays charged; `None` if nothing does.
    pub receipt: Option<CentralReceipt>,
}

impl CentralOutcome {
    /// What came of charges, each with its part.
    pub fn of(
        charges: &[CentralCharge],
        admitted: bool,
        parts: Vec<Result<Part, StoreError>>,
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
        CentralOutcome { admitted, parts, receipt }
    }
}

/// The right to give charges back, or to correct their cost. It is used up by either.
#[derive(Debug)]
pub struct CentralReceipt {
    pub items: Vec<CentralReceiptItem>,
}

#[derive(Clone, Debug)]
pub struct CentralReceiptItem {
    pub counter: Counter,
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
