//! A receipt taken apart: the charges of one request may come to different ends.

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

    /// The part of it that is for charges in memory, and the part that is not.
    pub fn split_by_store(self) -> (Option<Receipt>, Option<CentralReceipt>) {
        let mut here = SmallVec::new();
        let mut there = Vec::new();
        for item in self.items {
            let ReceiptItem { unit_cost, grant, .. } = item;
            match item.central {
                None => here.push(item),
                Some(place) => {
                    let CentralCounter { counter, limit } = *place;
                    there.push(CentralReceiptItem { counter, limit, unit_cost, grant });
                }
            }
        }
        let here = (!here.is_empty()).then_some(Receipt { items: here });
        (here, (!there.is_empty()).then_some(CentralReceipt { items: there }))
    }

    /// The queue that it holds a place in, if it is for a place in one queue and nothing else.
    pub fn queue_key(&self) -> Option<Fingerprint> {
        match self.items.as_slice() {
            [item] if matches!(item.quota, Quota::Leaky(bucket) if bucket.holds()) => Some(item.fingerprint),
            _ => None,
        }
    }
}
