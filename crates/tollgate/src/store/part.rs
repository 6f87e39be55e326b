//! A receipt in numbers, for those who write it down and bring it back later.

use smallvec::SmallVec;

use crate::algorithm::{Grant, Quota};
use crate::fingerprint::Fingerprint;
use crate::limit::Limit;
use crate::store::central::Counter;
use crate::store::{Elsewhere, Receipt, ReceiptItem};

/// One charge of a receipt; under which limit is known from elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceiptPart {
    /// The key's fingerprint: it means something to the node that charged.
    pub fingerprint: u64,
    pub unit_cost: u64,
    pub grant: Grant,
    /// The counter's name, if it is kept elsewhere.
    pub counter: Option<Counter>,
    /// What was charged; a node's share of a limit is another quota than the limit's.
    pub quota: Quota,
}

impl Receipt {
    pub fn parts(&self) -> impl Iterator<Item = ReceiptPart> + '_ {
        self.items.iter().map(|item| {
            let ReceiptItem { fingerprint, unit_cost, grant, quota, .. } = *item;
            let counter = item.elsewhere.as_ref().map(|place| place.counter.clone());
            ReceiptPart { fingerprint: fingerprint.0, unit_cost, grant, counter, quota }
        })
    }

    /// A receipt that was written down. Whoever calls this vouches for it: it can be used once only.
    pub fn from_part(part: ReceiptPart, limit: Limit) -> Receipt {
        let ReceiptPart { fingerprint, unit_cost, grant, counter, quota } = part;
        let fingerprint = Fingerprint(fingerprint);
        let elsewhere = counter.map(|counter| Box::new(Elsewhere { counter, limit }));
        Receipt {
            items: SmallVec::from_iter([ReceiptItem { fingerprint, quota, unit_cost, grant, elsewhere }]),
        }
    }
}
