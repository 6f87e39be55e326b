//! One charge on one state, for every store that keeps states: in memory, and where the node decides for a server.

use std::time::Duration;

use crate::algorithm::{Algorithm, Grant};
use crate::store::LimitOutcome;
use crate::time::Time;

/// What a charge does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChargeOpKind {
    /// Charges the cost if it is allowed.
    Charge,
    /// Charges the cost if it is allowed; counts it against the limit if it is denied.
    ChargeOrDrain,
    /// Counts the cost against the limit if it is denied; charges nothing if it is allowed.
    Drain,
    /// Changes nothing.
    Peek,
}

/// Decides, and changes the state as the kind demands; returns whether it has changed. The mark of a grant is zero: it
/// depends on how the state is stored.
#[inline]
pub fn apply<A: Algorithm>(
    algorithm: &A,
    state: &mut A::State,
    now: Time,
    cost: u64,
    kind: ChargeOpKind,
) -> (LimitOutcome, bool) {
    let decision = algorithm.decide(state, now, cost);
    let mut outcome =
        LimitOutcome { decision, remaining: decision.left, reset_after: Duration::ZERO, grant: None };
    let changed = match (decision.is_allowed(), kind) {
        (true, ChargeOpKind::Charge | ChargeOpKind::ChargeOrDrain) => {
            algorithm.charge(state, now, cost);
            outcome.remaining = decision.left.saturating_sub(cost);
            let at = algorithm.counted_at(state, now);
            outcome.grant = Some(Grant { at, cost, mark: 0 });
            true
        }
        (false, ChargeOpKind::ChargeOrDrain | ChargeOpKind::Drain) => {
            algorithm.drain(state, now, cost);
            outcome.decision = algorithm.decide(state, now, cost); // the wait has grown
            outcome.remaining = outcome.decision.left;
            true
        }
        _ => false,
    };
    outcome.reset_after = algorithm.expires_at(state).since(now);
    (outcome, changed)
}
