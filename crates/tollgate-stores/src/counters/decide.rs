//! Decides charges and settlements on decoded states. Pure; used by the stores that read, decide and write back.
//!
//! Works on one state, or on several that are charged all or none (I3). Must not know where states are stored.

use tollgate::Time;
use tollgate::internal::algorithm::{Algorithm as _, QuotaState};
use tollgate::internal::store::{Charge, ChargeOpKind, DeniedHits, Enforcement, ReceiptItem, apply};

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
    let (before, _) = apply(quota, state, now, charge.cost, ChargeOpKind::Peek);
    let (mut outcome, changed) = match kind(charge, mode) {
        ChargeOpKind::Peek => (before, false),
        kind => apply(quota, state, now, charge.cost, kind),
    };
    if let Some(grant) = &mut outcome.grant {
        grant.mark = quota.mark(state);
    }
    DecidedCharge { result: ChargeResult { outcome, before: Some(before) }, changed }
}

fn kind(charge: &Charge, mode: ChargeMode) -> ChargeOpKind {
    match (mode, charge.denied_hits) {
        (ChargeMode::Charge, DeniedHits::Free) => ChargeOpKind::Charge,
        (ChargeMode::Charge, DeniedHits::Counted) => ChargeOpKind::ChargeOrDrain,
        (ChargeMode::CountDenied, DeniedHits::Counted) => ChargeOpKind::Drain,
        (ChargeMode::CountDenied, DeniedHits::Free) | (ChargeMode::Peek, _) => ChargeOpKind::Peek,
    }
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
    let real_cost = item.unit_cost.saturating_mul(real_cost);
    item.quota.correct(state, &item.grant, real_cost, now);
}
