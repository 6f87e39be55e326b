//! Decides charges and settlements on decoded states. Pure; used by the stores that read, decide and write back.
//!
//! Works on one state, or on several that are charged all or none (I3). Must not know where states are stored.

use tollgate::Time;
use tollgate::algorithm::{Algorithm as _, Quota, QuotaState};
use tollgate::store::{DeniedHits, Enforcement, LimitOutcome};

use super::{CentralCharge, CentralReceiptItem};

/// What a charge may change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargeMode {
    /// Apply the cost if it is allowed; count a denied cost if the charge says so.
    Charge,
    /// The request is already denied: apply nothing, but count a denied cost if the charge says so.
    CountDenied,
    /// Change nothing.
    Peek,
}

/// The result of a charge on one state.
#[derive(Clone, Copy, Debug)]
pub struct ChargeResult {
    pub part: LimitOutcome,
    /// The result of a peek at the same time, if it is known without another call.
    pub before: Option<LimitOutcome>,
    pub changed: bool,
}

/// Decides one charge, and changes the state as far as `mode` permits.
pub fn charge(charge: &CentralCharge, mode: ChargeMode, state: &mut QuotaState, now: Time) -> ChargeResult {
    let quota = Quota::new(&charge.limit);
    let cost = charge.cost;
    let decision = quota.decide(state, now, cost);
    let reset_after = quota.expires_at(state).since(now);
    let before = LimitOutcome { decision, remaining: decision.left, reset_after, grant: None };
    let mut part = before;
    match (decision.is_allowed(), mode) {
        (true, ChargeMode::Charge) => {
            quota.charge(state, now, cost);
            part.remaining = decision.left.saturating_sub(cost);
            part.grant = Some(quota.grant(state, now, cost));
        }
        (false, ChargeMode::Charge | ChargeMode::CountDenied)
            if charge.denied_hits == DeniedHits::Counted =>
        {
            quota.drain(state, now, cost);
            part.decision = quota.decide(state, now, cost); // the wait has grown
            part.remaining = part.decision.left;
        }
        _ => return ChargeResult { part, before: Some(before), changed: false },
    }
    part.reset_after = quota.expires_at(state).since(now);
    ChargeResult { part, before: Some(before), changed: true }
}

/// Decides the charges of one partition: applies all that are enforced, or none.
pub fn charge_all(
    charges: &[CentralCharge],
    mode: ChargeMode,
    states: &mut [QuotaState],
    now: Time,
) -> Vec<ChargeResult> {
    let denied = mode == ChargeMode::Charge
        && charges.iter().zip(&*states).any(|(charge, state)| {
            charge.enforcement == Enforcement::Enforced
                && !Quota::new(&charge.limit).decide(state, now, charge.cost).is_allowed()
        });
    let mode = if denied { ChargeMode::CountDenied } else { mode };
    charges.iter().zip(states).map(|(each, state)| charge(each, mode, state, now)).collect()
}

/// Corrects a charge after the fact: the difference is refunded, or added as debt.
pub fn settle(item: &CentralReceiptItem, real_cost: u64, state: &mut QuotaState, now: Time) {
    let quota = Quota::new(&item.limit);
    let grant = &item.grant;
    let real_cost = item.unit_cost.saturating_mul(real_cost);
    match real_cost.checked_sub(grant.cost) {
        Some(more) => quota.add_debt(state, now, more),
        None => quota.refund(state, grant, grant.cost - real_cost, now),
    }
}
