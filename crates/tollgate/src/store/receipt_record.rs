//! A receipt in serialisable form, for callers that store it and use it later.

use smallvec::SmallVec;

use crate::algorithm::{Grant, Quota};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::central::CounterId;
use crate::store::{CentralCounter, Receipt, ReceiptItem};

/// One charge of a receipt; the limit is stored elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiptRecord {
    /// The key's fingerprint: meaningful only on the node that charged.
    pub fingerprint: u64,
    pub unit_cost: u64,
    pub grant: Grant,
    /// The counter's name, if it is in a central store.
    pub counter: Option<CounterId>,
    /// The quota that was charged; a node's share of a limit is another quota than the limit's.
    pub quota: Quota,
}

impl Receipt {
    pub fn records(&self) -> impl Iterator<Item = ReceiptRecord> + '_ {
        self.items.iter().map(|item| {
            let ReceiptItem { fingerprint, unit_cost, grant, quota, .. } = *item;
            let counter = item.central.as_ref().map(|central| central.counter.clone());
            ReceiptRecord { fingerprint: fingerprint.0, unit_cost, grant, counter, quota }
        })
    }

    /// A receipt from its record. The caller guarantees that each record is used only once.
    pub fn from_record(part: ReceiptRecord, limit: Limit) -> Receipt {
        let ReceiptRecord { fingerprint, unit_cost, grant, counter, quota } = part;
        let fingerprint = Fingerprint(fingerprint);
        let elsewhere = counter.map(|counter| Box::new(CentralCounter { counter, limit }));
        Receipt {
            items: SmallVec::from_iter([ReceiptItem {
                fingerprint,
                quota,
                unit_cost,
                grant,
                central: elsewhere,
            }]),
        }
    }
}
