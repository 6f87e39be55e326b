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

mod apply;
pub mod central;
mod counter_key;
pub mod memory;
mod receipt;

pub use apply::{ChargeOpKind, apply};
pub use counter_key::{CounterKey, KeyPart, KeyVisibility, Sensitivity};
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

/// A charge as the memory store reads it: what is large is borrowed.
#[derive(Clone, Copy)]
pub(crate) struct ChargeRef<'c> {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) quota: &'c Quota,
    pub(crate) cost: u64,
    pub(crate) enforcement: Enforcement,
    pub(crate) denied_hits: DeniedHits,
    pub(crate) predecessors: &'c [Predecessor],
}

impl<'c> ChargeRef<'c> {
    /// An enforced charge without predecessors, whose denials cost nothing.
    pub(crate) fn enforced(fingerprint: Fingerprint, quota: &'c Quota, cost: u64) -> ChargeRef<'c> {
        let enforcement = Enforcement::Enforced;
        let denied_hits = DeniedHits::Free;
        ChargeRef { fingerprint, quota, cost, enforcement, denied_hits, predecessors: &[] }
    }

    #[inline(always)]
    pub(crate) fn is_shadow(&self) -> bool {
        self.enforcement == Enforcement::Shadow
    }

    pub(crate) fn of(charge: &'c Charge) -> ChargeRef<'c> {
        let Charge { fingerprint, quota, cost, enforcement, denied_hits, predecessors, .. } = charge;
        ChargeRef {
            fingerprint: *fingerprint,
            quota,
            cost: *cost,
            enforcement: *enforcement,
            denied_hits: *denied_hits,
            predecessors,
        }
    }
}

/// What the memory store charges, with room for its outcome.
pub(crate) trait ChargeItem {
    /// `None` if it is not counted: the store skips it.
    fn charge(&self) -> Option<ChargeRef<'_>>;

    fn outcome(&mut self) -> &mut LimitOutcome;
}

/// A charge of its own, with its outcome.
pub(crate) struct ChargeSlot<'c> {
    charge: ChargeRef<'c>,
    outcome: LimitOutcome,
}

impl ChargeItem for ChargeSlot<'_> {
    fn charge(&self) -> Option<ChargeRef<'_>> {
        Some(self.charge)
    }

    fn outcome(&mut self) -> &mut LimitOutcome {
        &mut self.outcome
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
    /// The outcome that `charge` writes; it returns whether the request is admitted.
    pub(crate) fn written_by(
        charges: &[Charge],
        charge: impl FnOnce(&mut [ChargeSlot<'_>]) -> bool,
    ) -> ChargeOutcome {
        let slot = |charge| ChargeSlot { charge: ChargeRef::of(charge), outcome: LimitOutcome::PENDING };
        let mut slots: SmallVec<[ChargeSlot<'_>; 4]> = charges.iter().map(slot).collect();
        let admitted = charge(&mut slots);
        ChargeOutcome { admitted, limits: slots.into_iter().map(|slot| slot.outcome).collect() }
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
