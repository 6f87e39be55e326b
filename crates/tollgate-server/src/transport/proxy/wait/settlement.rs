//! What a request has cost in the end: known after its response, or when it is over.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::HeaderMap;
use smallvec::SmallVec;
use tollgate::Verdict;
use tollgate::fingerprint::Fingerprint;
use tollgate::limit::{Release, Shape};
use tollgate::rule::{Rule, RuleInForce};
use tollgate::store::Receipt;

use crate::gate::Gate;

/// A place in a queue, and the rule whose queue it is.
pub type HeldCharge = (Arc<RuleInForce>, Receipt);

/// The receipts of a request that may still be settled. What is never settled stays charged.
#[derive(Default)]
pub struct UnsettledCharges {
    /// Of rules that look at the response.
    on_response: SmallVec<[(Arc<RuleInForce>, Receipt); 1]>,
    permits: SmallVec<[Receipt; 1]>,
    /// Places in queues, the one with the longest wait first.
    held: SmallVec<[HeldCharge; 1]>,
    rest: SmallVec<[Receipt; 1]>,
}

impl UnsettledCharges {
    /// Whether the verdict leaves anything to settle.
    pub fn any_unsettled(verdict: &Verdict) -> bool {
        let open = |rule: &Rule, shape| rule.settles_later() || shape == Shape::Concurrency;
        !verdict.delay.is_zero() || verdict.limits.iter().any(|limit| open(&limit.rule, limit.limit.shape()))
    }

    /// Whether the verdict gave the request a place in a queue.
    pub fn any_held(verdict: &Verdict) -> bool {
        let holds = |shape| matches!(shape, Shape::LeakyBucket { release: Release::Hold { .. }, .. });
        verdict.limits.iter().any(|limit| holds(limit.limit.shape()))
    }

    /// Takes the verdict's receipt apart.
    pub fn take_from(verdict: &mut Verdict) -> UnsettledCharges {
        let mut charges = UnsettledCharges::default();
        let mut longest = Duration::ZERO;
        let Some(receipt) = verdict.receipt.take() else { return charges };
        // All that allowed was charged, in this order.
        let charged = verdict.limits.iter().filter(|limit| limit.is_charged());
        for (limit, receipt) in charged.zip(receipt.split()) {
            if limit.limit.shape() == Shape::Concurrency {
                charges.permits.push(receipt);
            } else if receipt.queue_key().is_some() {
                charges.held.push((Arc::clone(&limit.rule), receipt));
                if limit.delay > longest {
                    let last = charges.held.len() - 1;
                    charges.held.swap(0, last);
                    longest = limit.delay;
                }
            } else if limit.rule.settles_later() {
                charges.on_response.push((Arc::clone(&limit.rule), receipt));
            } else {
                charges.rest.push(receipt);
            }
        }
        charges
    }

    /// The queue with the longest wait.
    pub fn queue(&self) -> Option<Fingerprint> {
        self.held.first()?.1.queue_key()
    }

    /// The queue with the longest wait, and the place in it if there is no other: one who waits in several
    /// cannot move up in one.
    pub fn take_held(&mut self) -> Option<(Fingerprint, Option<HeldCharge>)> {
        let queue = self.queue()?;
        Some((queue, if self.held.len() == 1 { self.held.pop() } else { None }))
    }

    /// The wait is over: a place that was not taken back is charged as any other.
    pub fn finish_wait(&mut self, place: Option<HeldCharge>) {
        let all = self.held.drain(..).chain(place);
        self.on_response.extend(all.filter(|(rule, _)| rule.settles_later()));
    }

    /// Gives everything back: the request was not served at all.
    pub fn refund_all(&mut self, gate: &Gate) {
        let later = self.on_response.drain(..).chain(self.held.drain(..)).map(|(_, receipt)| receipt);
        let all = later.chain(self.permits.drain(..)).chain(self.rest.drain(..));
        all.for_each(|receipt| gate.refund(receipt));
    }

    /// What the response says about the cost: nothing, all of it, or so much.
    pub fn settle(&mut self, gate: &Gate, status: u16, headers: &HeaderMap) {
        for (rule, receipt) in self.on_response.drain(..) {
            let cost = rule.cost_from.as_ref().and_then(|name| headers.get(name.as_ref()));
            let cost = cost.and_then(|cost| cost.to_str().ok()?.trim().parse().ok());
            match cost {
                _ if !rule.count_when.counts(status) => gate.refund(receipt),
                Some(cost) => gate.settle(receipt, cost),
                None => {}
            }
        }
    }

    /// What is given back when the request is over, however it ends.
    pub fn permits(&mut self, gate: &Arc<Gate>) -> Option<Permits> {
        let permits = std::mem::take(&mut self.permits);
        (!permits.is_empty()).then(|| Permits { gate: Arc::clone(gate), receipts: permits })
    }
}

/// Permits of limits on what happens at once: given back when dropped.
pub struct Permits {
    gate: Arc<Gate>,
    receipts: SmallVec<[Receipt; 1]>,
}

impl Drop for Permits {
    fn drop(&mut self) {
        self.receipts.drain(..).for_each(|receipt| self.gate.refund(receipt));
    }
}
