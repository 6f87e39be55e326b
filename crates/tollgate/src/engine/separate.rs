//! Decisions under a policy beside the one in force: limits of another format, on the same counters and statistics.

use crate::engine::{DecisionContext, DecisionMode, EngineCore};
use crate::hit::Hit;
use crate::plan::Plan;
use crate::policy::PolicySnapshot;
use crate::store::memory::InForce;
use crate::time::Time;
use crate::verdict::EngineVerdict;

impl EngineCore {
    /// As [`decide`](Self::decide), under a policy that is replaced independently of the one in force. A counter that
    /// is created under a replaced version of it is one of an old limit.
    pub fn decide_separate(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        now: Time,
        mode: DecisionMode,
    ) -> EngineVerdict {
        let mut verdict = EngineVerdict::new(self.next_id(policy));
        let context = DecisionContext { policy, hit, now, mode };
        let mut plan = Plan::new(&mut verdict);
        match self.begin(&context, &mut plan) {
            Err(exempt) => self.finish_exempt(&context, plan.verdict, exempt),
            Ok(()) => {
                let may_charge = context.may_charge(&plan);
                let limits = plan.verdict.limits_mut();
                match may_charge {
                    true => self.store.charge_while(limits, now, &InForce::always()),
                    false => self.store.write_peek(limits, now),
                };
                self.finish(&context, &mut plan, &[]);
            }
        }
        verdict
    }
}
