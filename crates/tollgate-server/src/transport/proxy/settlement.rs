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
pub type Place = (Arc<RuleInForce>, Receipt);

/// The receipts of a request that may still be settled. What is never settled stays charged.
#[derive(Default)]
pub struct Charges {
    /// Of rules that look at the response.
    later: SmallVec<[(Arc<RuleInForce>, Receipt); 1]>,
    permits: SmallVec<[Receipt; 1]>,
    /// Places in queues, the one with the longest wait first.
    places: SmallVec<[Place; 1]>,
    rest: SmallVec<[Receipt; 1]>,
}

impl Charges {
    /// Whether the verdict leaves anything to settle.
    pub fn are_open(verdict: &Verdict) -> bool {
        let open = |rule: &Rule, shape| rule.settles_later() || shape == Shape::Concurrency;
        !verdict.delay.is_zero() || verdict.limits.iter().any(|limit| open(&limit.rule, limit.limit.shape()))
    }

    /// Whether the verdict gave the request a place in a queue.
    pub fn have_place(verdict: &Verdict) -> bool {
        let holds = |shape| matches!(shape, Shape::LeakyBucket { release: Release::Hold { .. }, .. });
        verdict.limits.iter().any(|limit| holds(limit.limit.shape()))
    }

    /// Takes the verdict's receipt apart.
    pub fn of(verdict: &mut Verdict) -> Charges {
        let (mut charges, mut longest) = (Charges::default(), Duration::ZERO);
        let Some(receipt) = verdict.receipt.take() else { return charges };
        // All that allowed was charged, in this order.
        let charged = verdict.limits.iter().filter(|limit| limit.is_charged());
        for (limit, receipt) in charged.zip(receipt.split()) {
            if limit.limit.shape() == Shape::Concurrency {
                charges.permits.push(receipt);
            } else if receipt.queue().is_some() {
                charges.places.push((Arc::clone(&limit.rule), receipt));
                if limit.delay > longest {
                    let last = charges.places.len() - 1;
                    charges.places.swap(0, last);
                    longest = limit.delay;
                }
            } else if limit.rule.settles_later() {
                charges.later.push((Arc::clone(&limit.rule), receipt));
            } else {
                charges.rest.push(receipt);
            }
        }
        charges
    }

    /// The queue with the longest wait.
    pub fn queue(&self) -> Option<Fingerprint> {
        self.places.first()?.1.queue()
    }

    /// The queue with the longest wait, and the place in it if there is no other: one who waits in several
    /// cannot move up in one.
    pub fn take_place(&mut self) -> Option<(Fingerprint, Option<Place>)> {
        let queue = self.queue()?;
        Some((queue, if self.places.len() == 1 { self.places.pop() } else { None }))
    }

    /// The wait is over: a place that was not taken back is charged as any other.
    pub fn waited(&mut self, place: Option<Place>) {
        let all = self.places.drain(..).chain(place);
        self.later.extend(all.filter(|(rule, _)| rule.settles_later()));
    }

    /// Gives everything back: the request was not served at all.
    pub fn undo(&mut self, gate: &Gate) {
        let later = self.later.drain(..).chain(self.places.drain(..)).map(|(_, receipt)| receipt);
        let all = later.chain(self.permits.drain(..)).chain(self.rest.drain(..));
        all.for_each(|receipt| gate.refund(receipt));
    }

    /// What the response says about the cost: nothing, all of it, or so much.
    pub fn settle(&mut self, gate: &Gate, status: u16, headers: &HeaderMap) {
        for (rule, receipt) in self.later.drain(..) {
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
