//! What is asked of states: the pure half of a store that reads values, decides, and writes them back.
//!
//! One state alone, or several together that are charged all or none (I3). Nothing here knows where
//! states are kept.

use tollgate::Time;
use tollgate::algorithm::{Algorithm as _, Quota, State};
use tollgate::store::{DeniedHits, Part, Weight};

use super::{CentralCharge, CentralReceiptItem};

/// How far a charge may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Intent {
    /// Take the cost if it is allowed; count a denied one where the charge says so.
    Take,
    /// Take nothing, but count a denied cost where the charge says so: the request is denied already.
    Deny,
    /// Change nothing.
    Peek,
}

/// What came of a charge on its state.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    pub part: Part,
    /// What a peek would have answered, where that is known without asking.
    pub before: Option<Part>,
    pub changed: bool,
}

/// Decides one charge, and changes the state as far as it is intended.
pub fn run(charge: &CentralCharge, intent: Intent, state: &mut State, now: Time) -> Ran {
    let (quota, cost) = (Quota::new(&charge.limit), charge.cost);
    let decision = quota.decide(state, now, cost);
    let reset_after = quota.fresh_at(state).since(now);
    let before = Part { decision, remaining: decision.left, reset_after, grant: None };
    let mut part = before;
    match (decision.is_allowed(), intent) {
        (true, Intent::Take) => {
            quota.charge(state, now, cost);
            part.remaining = decision.left.saturating_sub(cost);
            part.grant = Some(quota.grant(state, now, cost));
        }
        (false, Intent::Take | Intent::Deny) if charge.denied == DeniedHits::Counted => {
            quota.drain(state, now, cost);
            part.decision = quota.decide(state, now, cost); // the wait has grown
            part.remaining = part.decision.left;
        }
        _ => return Ran { part, before: Some(before), changed: false },
    }
    part.reset_after = quota.fresh_at(state).since(now);
    Ran { part, before: Some(before), changed: true }
}

/// Decides charges of one request that are kept together: takes all that are enforced, or none.
pub fn run_all(charges: &[CentralCharge], intent: Intent, states: &mut [State], now: Time) -> Vec<Ran> {
    let denied = intent == Intent::Take
        && charges.iter().zip(&*states).any(|(charge, state)| {
            charge.weight == Weight::Enforced
                && !Quota::new(&charge.limit).decide(state, now, charge.cost).is_allowed()
        });
    let intent = if denied { Intent::Deny } else { intent };
    charges.iter().zip(states).map(|(charge, state)| run(charge, intent, state, now)).collect()
}

/// Corrects a charge after the fact: the difference is given back, or owed.
pub fn settle(item: &CentralReceiptItem, real_cost: u64, state: &mut State, now: Time) {
    let (quota, grant) = (Quota::new(&item.limit), &item.grant);
    let real_cost = item.unit_cost.saturating_mul(real_cost);
    match real_cost.checked_sub(grant.cost) {
        Some(more) => quota.owe(state, now, more),
        None => quota.refund(state, grant, grant.cost - real_cost, now),
    }
}
