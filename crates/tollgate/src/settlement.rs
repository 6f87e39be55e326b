//! Settles the charges of a request after its response: refunds, corrected costs, released concurrency permits.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use crate::fingerprint::Fingerprint;
use crate::limit::{Release, Shape};
use crate::rule::{Rule, RuleRef};
use crate::store::ChargeReceipt;
use crate::verdict::EngineVerdict;

/// Where charges are corrected: in memory, or in the background in a central store.
pub trait Settle {
    /// Corrects the cost of a charge.
    fn settle(&self, receipt: ChargeReceipt, real_cost: u64);

    /// Reverts a charge, except for what time has given back already.
    fn refund(&self, receipt: ChargeReceipt) {
        self.settle(receipt, 0);
    }
}

/// A charge of a hold queue, with the rule that holds.
pub type HeldCharge = (RuleRef, ChargeReceipt);

/// The receipts of a request that may still be settled. Charges that are never settled remain.
#[derive(Default)]
pub struct UnsettledCharges {
    /// Receipts of rules that depend on the response.
    on_response: SmallVec<[(RuleRef, ChargeReceipt); 1]>,
    permits: SmallVec<[ChargeReceipt; 1]>,
    /// Charges of hold queues, the one with the longest wait first.
    held: SmallVec<[HeldCharge; 1]>,
    rest: SmallVec<[ChargeReceipt; 1]>,
}

impl UnsettledCharges {
    /// Whether the verdict leaves anything to settle.
    pub fn any_unsettled(verdict: &EngineVerdict) -> bool {
        let open = |rule: &Rule, shape| rule.settles_later() || matches!(shape, Shape::Concurrency);
        !verdict.delay.is_zero()
            || verdict.limits().iter().any(|limit| open(&limit.rule, limit.limit.shape()))
    }

    /// Whether the verdict holds the request.
    pub fn any_held(verdict: &EngineVerdict) -> bool {
        let holds = |shape| matches!(shape, Shape::LeakyBucket { release: Release::Hold { .. }, .. });
        verdict.limits().iter().any(|limit| holds(limit.limit.shape()))
    }

    /// Splits the verdict's receipt.
    pub fn take_from(verdict: &mut EngineVerdict) -> UnsettledCharges {
        let mut charges = UnsettledCharges::default();
        let mut longest_delay = Duration::ZERO;
        let Some(receipt) = verdict.take_receipt() else { return charges };
        // Every limit that allowed was charged, in this order.
        let charged = verdict.limits_with_rules().filter(|(limit, _)| limit.is_charged());
        for ((limit, rule), receipt) in charged.zip(receipt.split()) {
            if limit.limit.shape() == Shape::Concurrency {
                charges.permits.push(receipt);
            } else if receipt.queue_key().is_some() {
                let position = if limit.delay() > longest_delay { 0 } else { charges.held.len() };
                charges.held.insert(position, (rule, receipt));
                longest_delay = longest_delay.max(limit.delay());
            } else if rule.settles_later() {
                charges.on_response.push((rule, receipt));
            } else {
                charges.rest.push(receipt);
            }
        }
        charges
    }

    /// Whether charges depend on the response.
    pub fn is_open(&self) -> bool {
        !self.on_response.is_empty()
    }

    /// The hold queue with the longest wait.
    pub fn queue(&self) -> Option<Fingerprint> {
        self.held.first()?.1.queue_key()
    }

    /// The hold queue with the longest wait, and its charge if it is the only one: a request in several queues cannot
    /// move up in one.
    pub fn take_held(&mut self) -> Option<(Fingerprint, Option<HeldCharge>)> {
        let queue = self.queue()?;
        Some((queue, if self.held.len() == 1 { self.held.pop() } else { None }))
    }

    /// The wait is over: a charge that was not refunded is settled like any other.
    pub fn finish_wait(&mut self, own: Option<HeldCharge>) {
        let all = self.held.drain(..).chain(own);
        self.on_response.extend(all.filter(|(rule, _)| rule.settles_later()));
    }

    /// Refunds everything: the request was not served.
    pub fn refund_all(&mut self, counters: &(impl Settle + ?Sized)) {
        let later = self.on_response.drain(..).chain(self.held.drain(..)).map(|(_, receipt)| receipt);
        let all = later.chain(self.permits.drain(..)).chain(self.rest.drain(..));
        all.for_each(|receipt| counters.refund(receipt));
    }

    /// Settles by the response: free, the full cost, or the cost stated in the header of the rule.
    pub fn settle<'h>(
        &mut self,
        counters: &impl Settle,
        status: u16,
        header: impl Fn(&str) -> Option<&'h [u8]>,
    ) {
        for (rule, receipt) in self.on_response.drain(..) {
            let cost = rule.cost_from.as_ref().and_then(|name| header(name));
            let cost = cost.and_then(|cost| std::str::from_utf8(cost).ok()?.trim().parse().ok());
            match cost {
                _ if !rule.count_when.counts(status) => counters.refund(receipt),
                Some(cost) => counters.settle(receipt, cost),
                None => {}
            }
        }
    }

    /// Permits to be released when the request is over, however it ends.
    pub fn permits<S: Settle>(&mut self, counters: &Arc<S>) -> Option<Permits<S>> {
        let permits = std::mem::take(&mut self.permits);
        (!permits.is_empty()).then(|| Permits { counters: Arc::clone(counters), receipts: permits })
    }
}

/// A wait before the request is served: refunds all charges if dropped early.
pub struct RefundOnDrop<G, C>
where
    G: Deref<Target: Settle>,
    C: DerefMut<Target = UnsettledCharges>,
{
    counters: G,
    charges: Option<C>,
}

impl<G, C> RefundOnDrop<G, C>
where
    G: Deref<Target: Settle>,
    C: DerefMut<Target = UnsettledCharges>,
{
    pub fn new(counters: G, charges: C) -> RefundOnDrop<G, C> {
        RefundOnDrop { counters, charges: Some(charges) }
    }

    pub fn charges(&mut self) -> &mut UnsettledCharges {
        self.charges.as_mut().expect("charges are taken at the end only")
    }

    /// The wait is over: nothing is refunded.
    pub fn complete(mut self) -> C {
        self.charges.take().expect("charges are taken at the end only")
    }
}

impl<G, C> Drop for RefundOnDrop<G, C>
where
    G: Deref<Target: Settle>,
    C: DerefMut<Target = UnsettledCharges>,
{
    fn drop(&mut self) {
        if let Some(charges) = &mut self.charges {
            charges.refund_all(&*self.counters);
        }
    }
}

/// Permits of concurrency limits, released on drop.
pub struct Permits<S: Settle> {
    counters: Arc<S>,
    receipts: SmallVec<[ChargeReceipt; 1]>,
}

impl<S: Settle> Drop for Permits<S> {
    fn drop(&mut self) {
        self.receipts.drain(..).for_each(|receipt| self.counters.refund(receipt));
    }
}
