//! Receipts for the charges of a verdict.

use crate::algorithm::Grant;
use crate::store::{ChargeReceipt, ReceiptItem};
use crate::time::Time;
use crate::verdict::{EngineVerdict, LimitVerdict};

impl EngineVerdict {
    /// The limits that were charged, each with its charge.
    pub fn charged(&self) -> impl Iterator<Item = (&LimitVerdict, ReceiptItem)> {
        self.limits.iter().filter_map(|limit| Some((limit, limit.receipt_item()?)))
    }

    /// For refunding or settling what was charged: `None` if nothing was, or if it was taken before.
    pub fn take_receipt(&mut self) -> Option<ChargeReceipt> {
        let receipt = ChargeReceipt::from_items(self.charged().map(|(_, item)| item));
        self.limits.iter_mut().for_each(|limit| limit.outcome.grant = None);
        receipt
    }

    /// A receipt for the cost of this verdict as if it had been charged at `at`: for refunds by callers that have no
    /// receipt. `None` if no limit applies.
    pub fn uncharged_receipt(&self, at: Time) -> Option<ChargeReceipt> {
        let counted = self.limits.iter().filter(|limit| limit.is_counted() && !limit.is_skipped());
        let grant = |limit: &LimitVerdict| Grant { at, cost: limit.cost, mark: 0 };
        ChargeReceipt::from_items(counted.map(|limit| limit.receipt_item_of(grant(limit))))
    }
}

impl LimitVerdict {
    /// What was charged.
    fn receipt_item(&self) -> Option<ReceiptItem> {
        self.outcome.grant.map(|grant| self.receipt_item_of(grant))
    }

    fn receipt_item_of(&self, grant: Grant) -> ReceiptItem {
        match &self.charge {
            Some(charge) => ReceiptItem::of(charge, grant),
            None => ReceiptItem {
                fingerprint: self.fingerprint,
                quota: self.limit.with_quota().quota,
                unit_cost: self.rule.cost,
                grant,
                counter: None,
            },
        }
    }
}
