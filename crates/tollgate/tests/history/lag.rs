//! Threads that race for a key: some have read their clock up to a second before others.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::internal::algorithm::{Algorithm, Quota};
use tollgate::internal::time::Time;

use super::{Case, Family};

#[derive(Clone, Debug)]
pub struct Lag {
    case: Case,
    start_ns: u64,
    steps: Vec<Step>,
}

/// The latest clock advances; a node that lags behind it charges.
#[derive(Clone, Debug)]
struct Step {
    forward_ns: u64,
    behind_ns: u64,
    cost: u64,
    then: Then,
}

#[derive(Clone, Copy, Debug)]
enum Then {
    Charge,
    ChargeAndRefund,
    Drain,
    Owe,
}

pub fn lags() -> impl Strategy<Value = Lag> {
    const SECOND_NS: u64 = 1_000_000_000;
    let then = prop_oneof![
        6 => Just(Then::Charge),
        1 => Just(Then::ChargeAndRefund),
        1 => Just(Then::Drain),
        1 => Just(Then::Owe),
    ];
    let forward = prop_oneof![Just(0), Just(1), 0..SECOND_NS / 10, 0..3 * SECOND_NS];
    let behind = prop_oneof![Just(0), Just(1), 0..=SECOND_NS];
    let step = (forward, behind, 0..5u64, then).prop_map(|(forward_ns, behind_ns, cost, then)| Step {
        forward_ns,
        behind_ns,
        cost,
        then,
    });
    let start = prop_oneof![1 => 0..2 * SECOND_NS, 4 => 1_800_000_000 * SECOND_NS..1_900_000_000 * SECOND_NS];
    let cases = proptest::sample::select(&Family::ALL).prop_flat_map(Family::all_cases);
    (cases, start, prop::collection::vec(step, 1..60)).prop_map(|(case, start_ns, steps)| Lag {
        case,
        start_ns,
        steps,
    })
}

impl Lag {
    /// A lagging clock is never admitted more than a current one, and removes nothing from the count.
    pub fn check(&self) {
        let quota = Quota::new(&self.case.limits[0]);
        let mut state = quota.fresh();
        let mut latest = Time::from_nanos(self.start_ns);
        for step in &self.steps {
            latest = latest + Duration::from_nanos(step.forward_ns);
            let now = latest - Duration::from_nanos(step.behind_ns);
            let used = quota.used(&state, latest);
            let ahead = quota.decide(&state, latest, step.cost);
            let behind = quota.decide(&state, now, step.cost);
            assert!(behind.left <= ahead.left, "{} left behind, {} ahead", behind.left, ahead.left);
            assert!(ahead.is_allowed() || !behind.is_allowed(), "passes behind only");
            match step.then {
                Then::Charge | Then::ChargeAndRefund if behind.is_allowed() => {
                    quota.charge(&mut state, now, step.cost);
                }
                Then::Drain if !behind.is_allowed() => quota.drain(&mut state, now, step.cost),
                Then::Owe => quota.add_debt(&mut state, now, step.cost),
                _ => {}
            }
            let after = quota.used(&state, latest);
            assert!(used <= after && after <= used.saturating_add(step.cost), "{used} used, then {after}");
            if matches!(step.then, Then::ChargeAndRefund) && behind.is_allowed() {
                let grant = quota.grant(&state, now, step.cost);
                quota.refund(&mut state, &grant, step.cost, latest);
                let left = quota.used(&state, latest);
                assert!(left >= used, "gave back what others had used");
                let is_bucket = matches!(quota, Quota::Bucket(_) | Quota::Leaky(_));
                assert!(
                    is_bucket || left == used,
                    "a refund was lost: {used} used, then {after}, then {left}"
                );
            }
        }
    }
}
