//! Decides charges and settlements on decoded states. Pure; used by the stores that read, decide and write back.
//!
//! Works on one state, or on several that are charged all or none (I3). Must not know where states are stored.

use tollgate::Time;
use tollgate::internal::algorithm::{Algorithm as _, QuotaState};
use tollgate::internal::store::{Charge, DeniedHits, Enforcement, LimitOutcome, ReceiptItem};

use super::request::{ChargeMode, ChargeResult};

/// The result of a charge, and whether it has changed the state.
#[derive(Clone, Copy, Debug)]
pub struct DecidedCharge {
    pub result: ChargeResult,
    pub changed: bool,
}

/// Decides one charge, and changes the state as far as `mode` permits.
pub fn charge(charge: &Charge, mode: ChargeMode, state: &mut QuotaState, now: Time) -> DecidedCharge {
    let quota = &charge.quota;
    let cost = charge.cost;
    let decision = quota.decide(state, now, cost);
    let reset_after = quota.expires_at(state).since(now);
    let before = LimitOutcome { decision, remaining: decision.left, reset_after, grant: None };
    let mut outcome = before;
    let changed = match (decision.is_allowed(), mode) {
        (true, ChargeMode::Charge) => {
            quota.charge(state, now, cost);
            outcome.remaining = decision.left.saturating_sub(cost);
            outcome.grant = Some(quota.grant(state, now, cost));
            true
        }
        (false, ChargeMode::Charge | ChargeMode::CountDenied)
            if charge.denied_hits == DeniedHits::Counted =>
        {
            quota.drain(state, now, cost);
            outcome.decision = quota.decide(state, now, cost); // the wait has grown
            outcome.remaining = outcome.decision.left;
            true
        }
        _ => false,
    };
    if changed {
        outcome.reset_after = quota.expires_at(state).since(now);
    }
    DecidedCharge { result: ChargeResult { outcome, before: Some(before) }, changed }
}

/// Decides the charges of one partition: applies all that are enforced, or none.
pub fn charge_all(
    charges: &[Charge],
    mode: ChargeMode,
    states: &mut [QuotaState],
    now: Time,
) -> Vec<DecidedCharge> {
    let denied = mode == ChargeMode::Charge
        && charges.iter().zip(&*states).any(|(charge, state)| {
            charge.enforcement == Enforcement::Enforced
                && !charge.quota.decide(state, now, charge.cost).is_allowed()
        });
    let mode = if denied { ChargeMode::CountDenied } else { mode };
    charges.iter().zip(states).map(|(each, state)| charge(each, mode, state, now)).collect()
}

/// Corrects a charge after the fact: the difference is refunded, or added as debt.
pub fn settle(item: &ReceiptItem, real_cost: u64, state: &mut QuotaState, now: Time) {
    let quota = &item.quota;
    let grant = &item.grant;
    let real_cost = item.unit_cost.saturating_mul(real_cost);
    match real_cost.checked_sub(grant.cost) {
        Some(more) => quota.add_debt(state, now, more),
        None => quota.refund(state, grant, grant.cost - real_cost, now),
    }
}
