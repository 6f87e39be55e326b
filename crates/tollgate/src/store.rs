//! The interface of counter stores: charges, outcomes, receipts.
//!
//! A store applies all enforced charges of a request or none (I3). A shadow charge is applied iff the request is
//! admitted and the charge's own limit allows it; it never affects the verdict.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Admission, Decision, Grant, Quota};
use crate::fingerprint::Fingerprint;
use crate::store::central::CentralCounter;

pub mod central;
mod counter_key;
pub mod memory;
mod receipt;

pub use counter_key::{CounterKey, KeyPart, Sensitivity};
pub use memory::MemoryStore;
pub use receipt::{ChargeReceipt, ReceiptItem};

/// One limit of one rule for one key.
#[derive(Clone, Debug)]
pub struct Charge {
    pub fingerprint: Fingerprint,
    pub quota: Quota,
    pub cost: u64,
    /// Cost of one unit of the hit; `cost` is this times its units.
    pub unit_cost: u64,
    pub enforcement: Enforcement,
    pub denied_hits: DeniedHits,
    /// The limits that this one has replaced, latest first: a key that is not found is looked up under them.
    pub predecessors: Vec<Predecessor>,
    /// The counter in a central store; `None` if it is charged in memory.
    pub counter: Option<Arc<CentralCounter>>,
}

impl Charge {
    /// An enforced charge without predecessors, whose denials cost nothing.
    pub fn enforced(fingerprint: Fingerprint, quota: Quota, cost: u64) -> Charge {
        Charge {
            fingerprint,
            quota,
            cost,
            unit_cost: 1,
            enforcement: Enforcement::Enforced,
            denied_hits: DeniedHits::Free,
            predecessors: Vec::new(),
            counter: None,
        }
    }

    /// An enforced charge of one to a counter in a central store, whose denials cost nothing.
    pub fn central(counter: CentralCounter) -> Charge {
        let quota = Quota::new(&counter.limit);
        Charge { counter: Some(Arc::new(counter)), ..Charge::enforced(Fingerprint(0), quota, 1) }
    }

    /// The counter in a central store.
    ///
    /// # Panics
    ///
    /// If the charge is for the memory store.
    pub fn counter(&self) -> &CentralCounter {
        self.counter.as_ref().expect("charges of a central store name their counter")
    }
}

/// Whether a charge affects the verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Enforcement {
    Enforced,
    Shadow,
}

/// What a denied hit costs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeniedHits {
    Free,
    Counted,
}

/// A limit that another has replaced, and the fingerprint of the key's state under it.
#[derive(Clone, Copy, Debug)]
pub struct Predecessor {
    pub fingerprint: Fingerprint,
    pub quota: Quota,
}

/// The outcome of the charges of one request, in their order.
#[derive(Clone, Debug)]
pub struct ChargeOutcome {
    pub admitted: bool,
    pub limits: SmallVec<[LimitOutcome; 4]>,
}

impl ChargeOutcome {
    /// The outcome of no charges.
    #[inline]
    pub(crate) fn new() -> ChargeOutcome {
        ChargeOutcome { admitted: true, limits: SmallVec::new() }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LimitOutcome {
    pub decision: Decision,
    /// What is left after this request.
    pub remaining: u64,
    /// Until the key's state is equivalent to a fresh one.
    pub reset_after: Duration,
    /// Present iff this limit was charged.
    pub grant: Option<Grant>,
}

impl LimitOutcome {
    /// A placeholder for an outcome that will be filled in.
    pub(crate) const PENDING: LimitOutcome = LimitOutcome {
        decision: Decision { admission: Admission::NOW, left: 0 },
        remaining: 0,
        reset_after: Duration::ZERO,
        grant: None,
    };

    /// Whether it denies for longer than the given duration.
    #[inline]
    pub(crate) fn waits_longer_than(&self, longest: Duration) -> bool {
        matches!(self.decision.admission, Admission::Deny { retry_after } if retry_after > longest)
    }
}
