//! A simulation with all of its options: another configuration to compare with, other algorithms, the
//! course over time.

use tollgate::internal::http::FieldSelection;
use tollgate::internal::rule::RuleInForce;
use tollgate::internal::time::calendar;
use tollgate::{Hit, Time};

use super::SimulationPlan;
use super::algorithms::{self, Variant};
use super::comparison::Comparison;
use super::denied_keys::DenialsByRule;
use super::replay::Simulation;
use super::report::{
    AlgorithmDenials, ComparisonReport, DeniedClients, SimulatedRule, SimulationReport, WORST,
};
use super::timeline::Timeline;

/// What is computed beside the denials.
#[derive(Default)]
pub struct SimulationOptions {
    /// Another configuration, with its name.
    pub compare: Option<(String, SimulationPlan)>,
    pub has_algorithms: bool,
    pub has_timeline: bool,
    /// For requests of one client in so many.
    pub sampled_one_in: Option<u64>,
}

pub struct SimulationRun {
    simulation: Simulation,
    comparison: Option<(String, Comparison)>,
    variants: Vec<Variant>,
    timeline: Option<Timeline>,
    fields: FieldSelection,
    first: Option<Time>,
    last: Time,
}

impl SimulationRun {
    pub fn new(plan: SimulationPlan, options: SimulationOptions) -> SimulationRun {
        let variants = if options.has_algorithms { algorithms::variants(&plan) } else { Vec::new() };
        let mut fields = FieldSelection::of_policy(&plan.policy, &[]);
        let comparison = options.compare.map(|(name, old)| {
            fields = fields.union(&FieldSelection::of_policy(&old.policy, &[]));
            (name, Comparison::new(Simulation::new(old)))
        });
        SimulationRun {
            simulation: Simulation::of_sample(plan, options.sampled_one_in.unwrap_or(1)).with_denied_keys(),
            comparison,
            variants,
            timeline: options.has_timeline.then(Timeline::default),
            fields,
            first: None,
            last: Time::from_secs(0),
        }
    }

    /// The fields that a request must have.
    pub fn fields(&self) -> &FieldSelection {
        &self.fields
    }

    /// Decides a request; times never go back.
    pub fn decide(&mut self, hit: &Hit<'_>, at: Time, status: Option<u16>) {
        let denial = self.simulation.decide(hit, at, status);
        if let Some((_, comparison)) = &mut self.comparison {
            comparison.decide(hit, at, status, denial.as_ref());
        }
        for variant in &mut self.variants {
            variant.simulation.decide(hit, at, status);
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.add(at, denial.is_some());
        }
        self.first.get_or_insert(at);
        self.last = at;
    }

    /// The report on all requests. Keys are listed as `shown` writes them.
    pub fn report(self, shown: impl Fn(&str) -> String) -> SimulationReport {
        let simulation = &self.simulation;
        let mut by_rule = simulation.denied_keys(WORST);
        let mut one = |rule: &RuleInForce| {
            let counts = rule.counts();
            let denials = by_rule.remove(rule.id.as_str()).unwrap_or_default();
            SimulatedRule {
                rule: rule.id.to_string(),
                mode: rule.mode.name().to_owned(),
                allowed: counts.allowed,
                denied: counts.denied + counts.shadow_denied,
                keys: DeniedClients::new(&denials, &shown),
                error: simulation.denied_keys_error(),
            }
        };
        let rules = simulation.policy.listed().into_iter().map(|rule| one(rule)).collect();
        let compare = self.comparison.as_ref().map(|(name, comparison)| {
            let clients = |(rule, denials): (&str, DenialsByRule<'_>)| {
                (rule.to_owned(), DeniedClients::new(&denials, &shown))
            };
            ComparisonReport {
                file: name.clone(),
                denied: comparison.old.denied,
                newly_denied: comparison.newly_denied,
                newly_allowed: comparison.newly_allowed,
                rules: comparison.keys.by_rule(WORST).into_iter().map(clients).collect(),
                error: comparison.keys.error,
            }
        });
        let algorithm = |variant: &Variant| AlgorithmDenials {
            algorithm: variant.algorithm.to_owned(),
            denied: variant.simulation.denied,
            unchanged: variant.unchanged.clone(),
            overrides_unchanged: variant.overridden.clone(),
        };
        SimulationReport {
            requests: simulation.requests,
            denied: simulation.denied,
            banned: simulation.banned,
            unreadable: 0,
            out_of_order: 0,
            first: self.first.map(calendar::rfc3339),
            last: self.first.map(|_| calendar::rfc3339(self.last)),
            rules,
            notes: simulation.notes(),
            compare,
            algorithms: self.variants.iter().map(algorithm).collect(),
            timeline: self.timeline,
        }
    }
}
