//! A receipt taken apart: the charges of one request may come to different ends.

use smallvec::SmallVec;

use crate::algorithm::Quota;
use crate::fingerprint::Fingerprint;
use crate::store::Receipt;

impl Receipt {
    /// One receipt for each charge, in the order of the charges.
    pub fn split(self) -> impl Iterator<Item = Receipt> {
        self.items.into_iter().map(|item| Receipt { items: SmallVec::from_iter([item]) })
    }

    /// The queue that it holds a place in, if it is for a place in one queue and nothing else.
    pub fn queue(&self) -> Option<Fingerprint> {
        match self.items.as_slice() {
            [item] if matches!(item.quota, Quota::Leaky(bucket) if bucket.holds()) => Some(item.fingerprint),
            _ => None,
        }
    }
}
