//! Limits that requests bring along: each distinct limit is a policy of one rule, made when it is first used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tollgate::internal::PolicySnapshot;
use tollgate::internal::policy::Settings;

use super::hit::COUNTED_BY;
use super::request::LimitOverride;
use super::{Compat, policy_of};

/// Distinct limits that are kept; more are made anew. Counters are not part of it.
const MAX_KEPT: usize = 1_024;

/// The path of their hits.
pub const PATH: &str = "/override";

pub struct LimitOverrides {
    settings: Settings,
    compat: Compat,
    made: Mutex<HashMap<LimitOverride, Arc<PolicySnapshot>>>,
}

impl LimitOverrides {
    pub fn new(settings: Settings, compat: Compat) -> LimitOverrides {
        LimitOverrides { settings, compat, made: Mutex::default() }
    }

    /// The policy of a limit.
    pub fn policy(&self, limit: LimitOverride) -> Arc<PolicySnapshot> {
        let mut made = self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(policy) = made.get(&limit) {
            return Arc::clone(policy);
        }
        if made.len() >= MAX_KEPT {
            made.clear();
        }
        let LimitOverride { requests_per_unit, unit } = limit;
        let rules = format!(
            "rules: [{{ id: envoy-override, key: 'attr:{COUNTED_BY}', limit: {}, \
             algorithm: fixed-window, count_denied: {} }}]",
            unit.rate(requests_per_unit),
            self.compat == Compat::Envoy
        );
        let policy = policy_of(&rules, self.settings.clone()).expect("any number per unit is a limit");
        let policy = Arc::new(policy);
        made.insert(limit, Arc::clone(&policy));
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envoy::LimitUnit;

    #[test]
    fn every_limit_is_a_policy_of_one_rule() {
        let overrides = LimitOverrides::new(Settings::default(), Compat::Tollgate);
        for requests_per_unit in [0, 1, u32::MAX] {
            for unit in LimitUnit::ALL {
                let policy = overrides.policy(LimitOverride { requests_per_unit, unit });
                assert_eq!(policy.rules().len(), 1, "{requests_per_unit}/{unit:?}");
            }
        }
        let limit = LimitOverride { requests_per_unit: 5, unit: LimitUnit::Minute };
        assert!(Arc::ptr_eq(&overrides.policy(limit), &overrides.policy(limit)));
    }
}
