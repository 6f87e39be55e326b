//! Metrics under the names of other rate limiters, so that their boards go on working.
//!
//! The values are those of the page's other metrics: nothing is counted for them. Labels come from the configuration. A
//! limit of `envoy_config` has its domain and descriptor; a rule applies in every domain, so its domain is [`DOMAIN`].

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use tollgate::internal::rule_stats::RuleCounts;
use tollgate::internal::verdict::Reason;

use crate::envoy::EnvoyLimits;
use crate::gate::Gate;
use crate::insight::{Insight, SeriesName};
use crate::metrics::Transport;
use crate::metrics::decision_times::TIMED_PERIOD;
use crate::metrics::rules::{OTHER, SelectedRules, sum};
use crate::metrics::writer::MetricsWriter;

/// Another rate limiter whose names are used, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompatNames {
    /// envoyproxy/ratelimit, as its statistics arrive in Prometheus.
    Envoy,
    Limitador,
}

impl CompatNames {
    pub const ALL: [(&'static str, CompatNames); 2] =
        [("envoy", CompatNames::Envoy), ("limitador", CompatNames::Limitador)];
}

/// The domain of rules.
const DOMAIN: &str = "tollgate";
/// Value of the label that names a method.
const METHOD: &str = "ShouldRateLimit";

/// What names a limit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct LimitLabels {
    domain: String,
    key1: String,
    /// All further entries of the descriptor; empty if there are none.
    key2: String,
    /// The limit's own name, or its rule's.
    name: String,
}

#[derive(Clone, Copy, Default)]
struct LimitValues {
    counts: RuleCounts,
    near: u64,
}

/// The limits of one page. Descriptors that have the same labels are added up.
struct CompatLimits(BTreeMap<LimitLabels, LimitValues>);

impl CompatLimits {
    fn collect(gate: &Gate, envoy: &EnvoyLimits, selected: &SelectedRules<'_>) -> CompatLimits {
        let insight = gate.insight.get().map(Insight::data);
        let near = |name: SeriesName<'_>| {
            insight.as_ref().and_then(|data| data.series(name)).map_or(0, |series| series.near_limit_total())
        };
        let mut configured: HashMap<&str, LimitLabels> = HashMap::new();
        envoy.visit_limits(&mut |domain, entries, limit| {
            let id = &limit.path[1..];
            configured.insert(id, LimitLabels::of_descriptor(domain, entries, &limit.name, id));
        });
        let mut limits: BTreeMap<LimitLabels, LimitValues> = BTreeMap::new();
        let mut add = |labels: LimitLabels, counts, near| {
            let values = limits.entry(labels).or_default();
            values.counts = sum(values.counts, counts);
            values.near += near;
        };
        for (rule, counts) in &selected.own {
            let id = rule.id.as_str();
            let labels = configured.remove(id).unwrap_or_else(|| LimitLabels::of_rule(id));
            add(labels, *counts, near(SeriesName::Rule(id)));
        }
        if let Some(counts) = selected.other {
            add(LimitLabels::of_rule(OTHER), counts, near(SeriesName::Other));
        }
        CompatLimits(limits)
    }
}

impl LimitLabels {
    fn of_rule(id: &str) -> LimitLabels {
        let name = id.to_owned();
        LimitLabels { domain: DOMAIN.to_owned(), key1: name.clone(), key2: String::new(), name }
    }

    fn of_descriptor(domain: &str, entries: &[(&str, &str)], name: &str, id: &str) -> LimitLabels {
        let mut words = entries.iter().map(|(key, value)| match value.is_empty() {
            true => (*key).to_owned(),
            false => format!("{key}_{value}"),
        });
        let key1 = words.next().unwrap_or_default();
        let key2 = words.collect::<Vec<_>>().join(".");
        let name = if name.is_empty() { id } else { name };
        LimitLabels { domain: domain.to_owned(), key1, key2, name: name.to_owned() }
    }
}

impl MetricsWriter<'_> {
    /// The names that were chosen, for the rules of a page.
    pub(super) fn compat(&mut self, gate: &Gate, selected: &SelectedRules<'_>) -> fmt::Result {
        let live = gate.live.load();
        if live.compat_names.is_empty() {
            return Ok(());
        }
        let limits = CompatLimits::collect(gate, &live.envoy, selected);
        if live.compat_names.contains(&CompatNames::Envoy) {
            self.envoy_names(gate, &limits)?;
        }
        if live.compat_names.contains(&CompatNames::Limitador) {
            self.limitador_names(gate, &limits)?;
        }
        Ok(())
    }

    fn envoy_names(&mut self, gate: &Gate, limits: &CompatLimits) -> fmt::Result {
        type Value = fn(&LimitValues) -> u64;
        let over = |values: &LimitValues| values.counts.denied + values.counts.shadow_denied;
        let names: [(&str, &str, Value); 5] = [
            ("total_hits", "Hits on a limit, as envoyproxy/ratelimit names them.", |values| {
                values.counts.allowed + values.counts.denied + values.counts.shadow_denied
            }),
            ("within_limit", "Hits within a limit.", |values| values.counts.allowed),
            ("near_limit", "Hits within a limit of which 80 % or more is used.", |values| values.near),
            ("over_limit", "Hits over a limit, those in shadow mode included.", over),
            ("shadow_mode", "Hits over a limit in shadow mode.", |values| values.counts.shadow_denied),
        ];
        for (name, help, value) in names {
            let name = format!("ratelimit_service_rate_limit_{name}");
            let mut samples = self.untyped(&name, help)?;
            for (labels, values) in &limits.0 {
                let all = [("domain", &*labels.domain), ("key1", &*labels.key1), ("key2", &*labels.key2)];
                let shown = if labels.key2.is_empty() { 2 } else { 3 };
                samples.sample(&all[..shown], value(values))?;
            }
        }
        let calls = gate.requests.total(Transport::Grpc);
        let method = [("grpc_method", METHOD)];
        self.untyped("ratelimit_service_total_requests", "Calls on the listener grpc.")?
            .sample(&method, calls)?;
        let mut times = gate.decision_times.latencies.snapshot();
        times.scale(u64::from(TIMED_PERIOD), 1_000.0);
        self.histogram_of(
            "ratelimit_service_response_time_seconds",
            "Times of decisions in milliseconds, as envoyproxy/ratelimit has them. Estimated from one in 64.",
            &method,
            times,
        )?;
        self.untyped("ratelimit_service_config_load_success", "Configurations that were loaded.")?
            .sample(&[], 1 + gate.reloads.applied())?;
        self.untyped("ratelimit_service_config_load_error", "Configurations that were rejected.")?
            .sample(&[], gate.reloads.rejected())
    }

    fn limitador_names(&mut self, gate: &Gate, limits: &CompatLimits) -> fmt::Result {
        let passes = |reason: &Reason| matches!(reason, Reason::Ok | Reason::AllowList | Reason::NoRule);
        let authorized = gate.engine.decisions().filter(|(reason, _)| passes(reason));
        let authorized = authorized.map(|(_, count)| count).sum();
        let namespace = [("limitador_namespace", DOMAIN)];
        self.untyped("authorized_calls", "Admitted calls, as limitador names them.")?
            .sample(&namespace, authorized)?;
        self.untyped("authorized_hits", "Admitted calls; their costs are not added up.")?
            .sample(&namespace, authorized)?;
        // Without the descriptors, which these labels do not have.
        let mut limited: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (labels, values) in &limits.0 {
            *limited.entry((&labels.domain, &labels.name)).or_default() += values.counts.denied;
        }
        let mut samples = self.untyped("limited_calls", "Denied calls, by limit.")?;
        for ((domain, name), count) in limited {
            samples.sample(&[("limitador_namespace", domain), ("limit_name", name)], count)?;
        }
        self.gauge("limitador_up", "Always 1.", 1)?;
        let central = gate.central.get();
        let is_partitioned = central.is_some_and(|central| central.is_impaired());
        self.gauge(
            "datastore_partitioned",
            "1 while a server of the central store does not answer.",
            u64::from(is_partitioned),
        )?;
        central.map_or(Ok(()), |central| {
            let help = "Time of a decision with charges in the central store, in seconds.";
            self.histogram("datastore_latency", help, &central.latencies)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(entries: &[(&str, &str)], name: &str) -> [String; 3] {
        let labels = LimitLabels::of_descriptor("shop", entries, name, "id");
        [labels.key1, labels.key2, labels.name]
    }

    #[test]
    fn a_descriptor_is_named_as_envoyproxy_ratelimit_names_it() {
        assert_eq!(check(&[("remote_address", "")], ""), ["remote_address", "", "id"]);
        assert_eq!(check(&[("plan", "pro")], "plans"), ["plan_pro", "", "plans"]);
        assert_eq!(check(&[("path", "/a*"), ("user", "")], ""), ["path_/a*", "user", "id"]);
        assert_eq!(check(&[("a", ""), ("b", "1"), ("c", "")], ""), ["a", "b_1.c", "id"]);
    }
}
