//! Splits a receipt: the charges of one request may be settled separately.

use smallvec::SmallVec;

use crate::algorithm::Quota;
use crate::fingerprint::Fingerprint;
use crate::store::central::{CentralReceipt, CentralReceiptItem};
use crate::store::{CentralCounter, Receipt, ReceiptItem};

impl Receipt {
    /// One receipt for each charge, in the order of the charges.
    pub fn split(self) -> impl Iterator<Item = Receipt> {
        self.items.into_iter().map(|item| Receipt { items: SmallVec::from_iter([item]) })
    }

    /// The part with charges in memory, and the part with charges in a central store.
    pub fn split_by_store(self) -> (Option<Receipt>, Option<CentralReceipt>) {
        let mut here = SmallVec::new();
        let mut there = Vec::new();
        for item in self.items {
            let ReceiptItem { unit_cost, grant, .. } = item;
            match item.central {
                None => here.push(item),
                Some(central) => {
                    let CentralCounter { counter, limit } = *central;
                    there.push(CentralReceiptItem { counter, limit, unit_cost, grant });
                }
            }
        }
        let here = (!here.is_empty()).then_some(Receipt { items: here });
        (here, (!there.is_empty()).then_some(CentralReceipt { items: there }))
    }

    /// The queue in which the receipt has a place; `None` unless it is for exactly one place in one queue.
    pub fn queue_key(&self) -> Option<Fingerprint> {
        match self.items.as_slice() {
            [item] if matches!(item.quota, Quota::Leaky(bucket) if bucket.holds()) => Some(item.fingerprint),
            _ => None,
        }
    }
}
