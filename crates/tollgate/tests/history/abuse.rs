//! Times, costs and grants that no sane caller would pass. Nothing may overflow.

use proptest::prelude::*;
use proptest::sample::Index;
use tollgate::internal::algorithm::{Algorithm, Grant, Quota};
use tollgate::internal::limit::Limit;
use tollgate::internal::time::Time;

use super::{Case, Family};

#[derive(Clone, Debug)]
pub struct Abuse {
    case: Case,
    steps: Vec<(Time, u64, Act)>,
}

#[derive(Clone, Debug)]
enum Act {
    Hit,
    Drain,
    Owe,
    Refund(Grant),
    Adopt(Index),
}

pub fn abuses() -> impl Strategy<Value = Abuse> {
    let grant = (times(), costs(), any::<u64>()).prop_map(|(at, cost, mark)| Grant { at, cost, mark });
    let act = prop_oneof![
        4 => Just(Act::Hit),
        1 => Just(Act::Drain),
        2 => Just(Act::Owe),
        2 => grant.prop_map(Act::Refund),
        2 => any::<Index>().prop_map(Act::Adopt),
    ];
    let cases = proptest::sample::select(&Family::ALL).prop_flat_map(Family::all_cases);
    (cases, prop::collection::vec((times(), costs(), act), 1..30))
        .prop_map(|(case, steps)| Abuse { case, steps })
}

fn times() -> impl Strategy<Value = Time> {
    let horizon = Limit::HORIZON.nanos();
    prop_oneof![
        0..3u64,
        horizon - 2..horizon + 2,
        1_800_000_000_000_000_000..1_800_000_100_000_000_000u64,
        u64::MAX - 2..=u64::MAX,
        any::<u64>(),
    ]
    .prop_map(Time::from_nanos)
}

fn costs() -> impl Strategy<Value = u64> {
    prop_oneof![0..3u64, 0..2_000_000_000u64, u64::MAX - 2..=u64::MAX, any::<u64>()]
}

impl Abuse {
    pub fn check(&self) {
        let mut quota = Quota::new(&self.case.limits[0]);
        let mut state = quota.fresh();
        for (now, cost, act) in &self.steps {
            let now = *now;
            let cost = *cost;
            let decision = quota.decide(&state, now, cost);
            match act {
                Act::Hit if decision.is_allowed() => quota.charge(&mut state, now, cost),
                Act::Hit => {}
                Act::Drain => quota.drain(&mut state, now, cost),
                Act::Owe => quota.add_debt(&mut state, now, cost),
                Act::Refund(grant) => {
                    // Only the last entry of a queue can be refunded, by its mark.
                    let own = Grant { mark: quota.mark(&state), ..*grant };
                    quota.refund(&mut state, grant, cost, now);
                    quota.refund(&mut state, &own, cost, now);
                }
                Act::Adopt(which) => {
                    let new = Quota::new(which.get(&self.case.limits));
                    state = new.adopt(&quota, state, now);
                    quota = new;
                }
            }
            quota.used(&state, now);
            quota.expires_at(&state);
        }
    }
}
