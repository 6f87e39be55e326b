//! The interface of counter stores: charges, outcomes, receipts.
//!
//! A store applies all enforced charges of a request or none (I3). A shadow charge is applied iff the request is
//! admitted and the charge's own limit allows it; it never affects the verdict.

use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::{Admission, Decision, Grant, Quota};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::central::CounterId;
use crate::time::Time;

pub mod central;
mod counter_key;
pub mod memory;
mod receipt_record;
mod split;

pub use counter_key::{CounterKey, KeyPart, Sensitivity};
pub use memory::MemoryStore;
pub use receipt_record::ReceiptRecord;

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
}

impl Charge {
    /// An enforced charge without predecessors, whose denials cost nothing.
    pub fn enforced(fingerprint: Fingerprint, quota: Quota, cost: u64) -> Charge {
        let weight = Enforcement::Enforced;
        let denied = DeniedHits::Free;
        let previous = Vec::new();
        Charge {
            fingerprint,
            quota,
            cost,
            unit_cost: 1,
            enforcement: weight,
            denied_hits: denied,
            predecessors: previous,
        }
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

/// The right to refund a charge, or to correct its cost. Using it consumes it.
#[derive(Debug)]
pub struct Receipt {
    pub(crate) items: SmallVec<[ReceiptItem; 2]>,
}

#[derive(Debug)]
pub(crate) struct ReceiptItem {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) quota: Quota,
    pub(crate) unit_cost: u64,
    pub(crate) grant: Grant,
    /// The counter in a central store; `None` if it was charged in memory.
    pub(crate) central: Option<Box<CentralCounter>>,
}

/// A counter in a central store, and the limit on it.
#[derive(Clone, Debug)]
pub(crate) struct CentralCounter {
    pub(crate) counter: CounterId,
    pub(crate) limit: Limit,
}

impl Receipt {
    /// The receipt for what was charged; `None` if nothing was.
    pub fn of(charges: &[Charge], outcome: &ChargeOutcome) -> Option<Receipt> {
        let mut receipt = None;
        Receipt::write(&mut receipt, charges, outcome);
        receipt
    }

    /// As above, written in place.
    #[inline]
    pub(crate) fn write(receipt: &mut Option<Receipt>, charges: &[Charge], outcome: &ChargeOutcome) {
        for (charge, part) in charges.iter().zip(&outcome.limits) {
            if let Some(grant) = part.grant {
                let Charge { fingerprint, quota, unit_cost, .. } = *charge;
                let receipt = receipt.get_or_insert_with(|| Receipt { items: SmallVec::new() });
                receipt.items.push(ReceiptItem { fingerprint, quota, unit_cost, grant, central: None });
            }
        }
    }

    /// When it was charged.
    pub fn at(&self) -> Time {
        self.items.first().map_or(Time::EPOCH, |item| item.grant.at)
    }
}
