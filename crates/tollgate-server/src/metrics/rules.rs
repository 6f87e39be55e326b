//! Metrics by rule, for a bounded number of rules.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use tollgate::internal::PolicySnapshot;
use tollgate::internal::lock;
use tollgate::internal::rule::{RuleId, RuleInForce};
use tollgate::internal::rule_stats::RuleCounts;

use crate::metrics::writer::MetricsWriter;

/// Rules with series of their own.
const MAX_RULES: usize = 1_000;
/// The label of all other rules together. A rule of this name is one of them.
pub(super) const OTHER: &str = "other";

/// The rules that have series of their own, from one scrape to the next: a rule keeps its series while it is in force.
#[derive(Default)]
pub struct RuleSeries(Mutex<KeptSeries>);

#[derive(Default)]
struct KeptSeries {
    rules: HashSet<RuleId>,
    /// What was shown of all others. It never decreases: Prometheus would take that for a restart.
    other: RuleCounts,
}

/// The counts of one page.
pub(super) struct SelectedRules<'p> {
    pub(super) own: Vec<(&'p RuleInForce, RuleCounts)>,
    pub(super) other: Option<RuleCounts>,
}

impl RuleSeries {
    /// Selects among the rules of several policies; their ids differ.
    pub(super) fn select<'p>(&self, policies: &[&'p PolicySnapshot]) -> SelectedRules<'p> {
        let mut kept = lock(&self.0);
        // A database may have a million rules: of these, only those with hits.
        let shown = |rule: &&Arc<RuleInForce>| !rule.is_added() || rule.counts() != RuleCounts::default();
        let rules = || policies.iter().flat_map(|policy| policy.rules().iter()).filter(shown);
        let known = rules().filter(|rule| kept.rules.contains(&rule.id));
        let mut selected: HashSet<RuleId> = known.map(|rule| rule.id.clone()).collect();
        let mut own = Vec::with_capacity(selected.len());
        let mut other = None::<RuleCounts>;
        for rule in rules() {
            let counts = rule.counts();
            let is_new = !selected.contains(&rule.id);
            if is_new && (selected.len() >= MAX_RULES || rule.id.as_str() == OTHER) {
                other = Some(sum(other.unwrap_or_default(), counts));
                continue;
            }
            if is_new {
                selected.insert(rule.id.clone());
            }
            own.push((&**rule, counts));
        }
        kept.rules = selected;
        let is_shown = other.is_some() || kept.other != RuleCounts::default();
        kept.other = largest(kept.other, other.unwrap_or_default());
        SelectedRules { own, other: is_shown.then_some(kept.other) }
    }
}

pub(super) fn sum(one: RuleCounts, other: RuleCounts) -> RuleCounts {
    combine(one, other, |one, other| one + other)
}

fn largest(one: RuleCounts, other: RuleCounts) -> RuleCounts {
    combine(one, other, u64::max)
}

fn combine(one: RuleCounts, other: RuleCounts, with: impl Fn(u64, u64) -> u64) -> RuleCounts {
    RuleCounts {
        allowed: with(one.allowed, other.allowed),
        denied: with(one.denied, other.denied),
        shadow_denied: with(one.shadow_denied, other.shadow_denied),
        banned: with(one.banned, other.banned),
    }
}

impl MetricsWriter<'_> {
    pub(super) fn rules(&mut self, selected: &SelectedRules<'_>) -> fmt::Result {
        let SelectedRules { own, other } = selected;
        let other = other.map(|counts| (OTHER, counts));
        let named = own.iter().map(|(rule, counts)| (rule.id.as_str(), *counts));
        let mut hits = self.counters("tollgate_rule_hits_total", "Hits on a rule, by outcome.")?;
        for (rule, counts) in named.chain(other) {
            let rule = ("rule", rule);
            hits.sample(&[rule, ("outcome", "allowed")], counts.allowed)?;
            hits.sample(&[rule, ("outcome", "denied")], counts.denied)?;
            hits.sample(&[rule, ("outcome", "shadow_denied")], counts.shadow_denied)?;
        }
        let banning = own.iter().filter(|(rule, _)| rule.ban.is_some());
        let banning = banning.map(|(rule, counts)| (rule.id.as_str(), *counts));
        let mut bans =
            self.counters("tollgate_rule_bans_total", "Automatic bans, by the rule that led to them.")?;
        for (rule, counts) in banning.chain(other.filter(|(_, counts)| counts.banned > 0)) {
            bans.sample(&[("rule", rule)], counts.banned)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use tollgate::internal::EngineCore;
    use tollgate::{Hit, Time};

    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);

    fn policy(ids: impl Iterator<Item = String>) -> PolicySnapshot {
        let rules: Vec<_> = ids.map(|id| format!("{{ id: {id}, match: /{id}, limit: 9/d }}")).collect();
        PolicySnapshot::from_yaml(&format!("rules: [{}]", rules.join(", "))).expect("valid rules")
    }

    fn numbered(count: usize) -> impl Iterator<Item = String> {
        (0..count).map(|n| format!("r{n:04}"))
    }

    fn hit(engine: &EngineCore, path: &str) {
        assert!(engine.check(&Hit::on("GET", "", path), NOW).allowed);
    }

    fn check(engine: &EngineCore, series: &RuleSeries, own: usize, other: Option<u64>) {
        let policy = engine.policy();
        let selected = series.select(&[&policy]);
        let found = (selected.own.len(), selected.other.map(|counts| counts.allowed));
        assert_eq!(found, (own, other));
    }

    #[test]
    fn rules_beyond_the_bound_are_counted_together_and_the_sum_never_decreases() {
        let engine = EngineCore::new(policy(numbered(MAX_RULES + 20)));
        let series = RuleSeries::default();
        hit(&engine, "/r1003");
        check(&engine, &series, MAX_RULES, Some(1));
        // A rule that comes first in the order takes no series from another.
        let first = std::iter::once("a".to_owned());
        engine.apply(policy(first.chain(numbered(MAX_RULES + 20))), NOW);
        hit(&engine, "/a");
        hit(&engine, "/r0999");
        check(&engine, &series, MAX_RULES, Some(2));
        engine.apply(policy(numbered(10)), NOW);
        check(&engine, &series, 10, Some(2));
    }

    #[test]
    fn a_rule_named_other_is_not_shown_twice() {
        let engine = EngineCore::new(policy(["other".to_owned(), "a".to_owned()].into_iter()));
        hit(&engine, "/other");
        check(&engine, &RuleSeries::default(), 1, Some(1));
    }
}
