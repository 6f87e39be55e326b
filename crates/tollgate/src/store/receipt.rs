//! Receipts: the right to refund charges, or to correct their cost.
//!
//! An item says where its counter is, so one receipt can have charges in memory and in a central store.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::algorithm::{Grant, Quota};
use crate::fingerprint::Fingerprint;
use crate::store::central::CentralCounter;
use crate::store::{Charge, ChargeOutcome, LimitOutcome};
use crate::time::Time;

/// The right to refund charges, or to correct their cost. Using it consumes it.
#[derive(Debug)]
pub struct ChargeReceipt {
    pub(crate) items: SmallVec<[ReceiptItem; 2]>,
}

/// One charge that was applied.
#[derive(Clone, Debug)]
pub struct ReceiptItem {
    /// The counter in memory: meaningful only on the node that charged.
    pub fingerprint: Fingerprint,
    /// The quota that was charged; a node's share of a limit is another quota than the limit's.
    pub quota: Quota,
    /// Cost of one unit of the hit.
    pub unit_cost: u64,
    pub grant: Grant,
    /// The counter in a central store; `None` if it was charged in memory.
    pub counter: Option<Arc<CentralCounter>>,
}

impl ReceiptItem {
    pub fn of(charge: &Charge, grant: Grant) -> ReceiptItem {
        let Charge { fingerprint, quota, unit_cost, .. } = *charge;
        ReceiptItem { fingerprint, quota, unit_cost, grant, counter: charge.counter.clone() }
    }

    /// The counter in a central store.
    ///
    /// # Panics
    ///
    /// If it was charged in memory.
    pub fn counter(&self) -> &CentralCounter {
        self.counter.as_ref().expect("a central store settles charges that it has applied")
    }
}

impl ChargeReceipt {
    /// The receipt for what was charged in memory; `None` if nothing was.
    pub fn of(charges: &[Charge], outcome: &ChargeOutcome) -> Option<ChargeReceipt> {
        ChargeReceipt::of_outcomes(charges, outcome.limits.iter().map(Some))
    }

    /// The receipt for these items; `None` if there are none.
    pub fn from_items(items: impl IntoIterator<Item = ReceiptItem>) -> Option<ChargeReceipt> {
        let items: SmallVec<_> = items.into_iter().collect();
        (!items.is_empty()).then_some(ChargeReceipt { items })
    }

    /// The receipt for what was charged; `None` if nothing was.
    pub(crate) fn of_outcomes<'o>(
        charges: &[Charge],
        outcomes: impl Iterator<Item = Option<&'o LimitOutcome>>,
    ) -> Option<ChargeReceipt> {
        let granted = |(charge, outcome): (&Charge, Option<&LimitOutcome>)| {
            Some(ReceiptItem::of(charge, outcome?.grant?))
        };
        ChargeReceipt::from_items(charges.iter().zip(outcomes).filter_map(granted))
    }

    /// In the order of the charges.
    pub fn items(&self) -> &[ReceiptItem] {
        &self.items
    }

    /// When it was charged.
    pub fn at(&self) -> Time {
        self.items.first().map_or(Time::EPOCH, |item| item.grant.at)
    }

    /// One receipt for each charge, in the order of the charges: they may be settled separately.
    pub fn split(self) -> impl Iterator<Item = ChargeReceipt> {
        self.items.into_iter().map(|item| ChargeReceipt { items: SmallVec::from_iter([item]) })
    }

    /// The part with charges in memory, and the part with charges in a central store.
    pub fn split_by_store(self) -> (Option<ChargeReceipt>, Option<ChargeReceipt>) {
        let (central, memory): (SmallVec<_>, SmallVec<_>) =
            self.items.into_iter().partition(|item| item.counter.is_some());
        let receipt = |items: SmallVec<_>| (!items.is_empty()).then_some(ChargeReceipt { items });
        (receipt(memory), receipt(central))
    }

    /// The queue in which the receipt has a place; `None` unless it is for exactly one place in one queue.
    pub fn queue_key(&self) -> Option<Fingerprint> {
        match self.items.as_slice() {
            [item] if matches!(item.quota, Quota::Leaky(bucket) if bucket.holds()) => Some(item.fingerprint),
            _ => None,
        }
    }
}
