//! The same rules and rates under each algorithm.

use std::sync::Arc;
use std::time::Duration;

use tollgate::internal::PolicySnapshot;
use tollgate::internal::limit::{Levels, Limit, Refill, Release, Shape, WindowStart};
use tollgate::internal::policy::PolicyParts;
use tollgate::internal::rule::{Limits, Rule, RuleLimit};

use super::SimulationPlan;
use super::replay::Simulation;

/// Eight simulations run at once.
const MAX_MEMORY_BYTES: usize = 48 << 20;

const SHAPES: [Shape; 8] = [
    Shape::GCRA,
    Shape::TokenBucket { burst: None, refill: Refill::Continuous },
    Shape::LeakyBucket { burst: None, release: Release::HOLD },
    Shape::FixedWindow { start: WindowStart::Aligned },
    Shape::SlidingLog,
    Shape::SlidingCompact { resolution: Duration::from_secs(1) },
    Shape::SlidingCounter,
    Shape::TieredWindow { levels: Levels::SMH },
];

/// The rules with one algorithm for all.
pub struct Variant {
    pub algorithm: &'static str,
    pub simulation: Simulation,
    /// The first rule whose rate the algorithm does not take; it keeps its own algorithm.
    pub unchanged: Option<String>,
    /// The first rule with overrides, which keep their own algorithm.
    pub overridden: Option<String>,
}

pub fn variants(plan: &SimulationPlan) -> Vec<Variant> {
    SHAPES.into_iter().filter_map(|shape| variant(&plan.policy, shape)).collect()
}

fn variant(policy: &PolicySnapshot, shape: Shape) -> Option<Variant> {
    let mut unchanged = None;
    let mut overridden = None;
    let mut rules = Vec::new();
    for rule in policy.listed() {
        let mut rule: Rule = Rule::clone(rule);
        match limits_with(&rule.limits, shape) {
            Some(limits) => rule.limits = Arc::new(limits),
            None => _ = unchanged.get_or_insert(rule.id.to_string()),
        }
        if !rule.overrides.is_empty() {
            overridden.get_or_insert(rule.id.to_string());
        }
        rules.push(rule);
    }
    let allow = policy.allow_list().map(|(key, _)| key.clone()).collect();
    let bans = policy.file_bans().cloned().collect();
    let parts = PolicyParts { rules, allow, bans, settings: policy.settings().clone() };
    let policy = PolicySnapshot::new(parts).ok()?;
    let simulation = Simulation::new(SimulationPlan { policy, memory_bytes: MAX_MEMORY_BYTES });
    Some(Variant { algorithm: shape.name(), simulation, unchanged, overridden })
}

/// The same rates with another algorithm; permits are not rates.
fn limits_with(limits: &Limits, shape: Shape) -> Option<Limits> {
    let one = |each: &RuleLimit| {
        let is_rate = each.limit.shape() != Shape::Concurrency;
        let limit = is_rate.then(|| Limit::new(each.limit.rate(), shape).ok()).flatten()?;
        Some(RuleLimit::new(limit))
    };
    let all = |list: &[RuleLimit]| list.iter().map(one).collect::<Option<Vec<_>>>();
    Some(match limits {
        Limits::Same(list) => Limits::Same(all(list)?.into()),
        Limits::By { attribute, values, default } => Limits::By {
            attribute: attribute.clone(),
            values: values
                .iter()
                .map(|(name, list)| Some((name.clone(), all(list)?.into())))
                .collect::<Option<Vec<_>>>()?,
            default: match default {
                Some(list) => Some(all(list)?.into()),
                None => None,
            },
        },
    })
}
