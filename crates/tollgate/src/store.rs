//! Where counters are kept, seen from outside: what is charged, and what came of it.
//!
//! A store charges all enforced charges of a request or none of them (I3). Shadow charges ride along:
//! each is charged iff the request passes and it would allow it, and it never decides anything.

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
    /// What one unit of the hit costs here: `cost` is this for each of its units.
    pub unit_cost: u64,
    pub enforcement: Enforcement,
    pub denied_hits: DeniedHits,
    /// The limits that this one has replaced, latest first: a key not found is looked up under them.
    pub predecessors: Vec<Predecessor>,
}

impl Charge {
    /// A charge that decides, whose denials cost nothing, under a limit that has replaced none.
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

/// Whether a charge decides.
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

/// A limit that another has replaced, and where the key's state was under it.
#[derive(Clone, Copy, Debug)]
pub struct Predecessor {
    pub fingerprint: Fingerprint,
    pub quota: Quota,
}

/// What came of the charges of one request, in their order.
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
    /// Until the key is as good as never seen.
    pub reset_after: Duration,
    /// Present iff this limit was charged.
    pub grant: Option<Grant>,
}

impl LimitOutcome {
    /// Stands for a part that will be filled in.
    pub(crate) const PENDING: LimitOutcome = LimitOutcome {
        decision: Decision { admission: Admission::NOW, left: 0 },
        remaining: 0,
        reset_after: Duration::ZERO,
        grant: None,
    };

    /// Whether it denies for longer than so long.
    #[inline]
    pub(crate) fn waits_longer_than(&self, longest: Duration) -> bool {
        matches!(self.decision.admission, Admission::Deny { retry_after } if retry_after > longest)
    }
}

/// The right to give a charge back, or to correct its cost. It is used up by either.
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
    /// Where it was charged, if not in memory.
    pub(crate) central: Option<Box<CentralCounter>>,
}

/// A counter that is kept elsewhere, and the limit on it.
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

    /// The same, written where it will be kept.
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
