//! Decisions under a policy beside the one in force: limits of another format, on the same counters and statistics.

use crate::engine::{DecisionContext, DecisionMode, EngineCore};
use crate::hit::Hit;
use crate::plan::Plan;
use crate::policy::PolicySnapshot;
use crate::store::ChargeOutcome;
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
                let mut outcome = ChargeOutcome::new();
                match context.may_charge(&plan) {
                    true => self.store.charge_while(plan.charges(), now, &InForce::always(), &mut outcome),
                    false => self.store.write_peek(plan.charges(), now, &mut outcome),
                }
                self.finish(&context, &mut plan, outcome.limits.iter().map(Some), &[]);
            }
        }
        verdict
    }
}
