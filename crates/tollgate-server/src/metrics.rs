//! `/metrics` in Prometheus' text format. Label values come from the configuration only.

use std::fmt::Write;
use std::sync::Arc;

use tollgate::Enforce;
use tollgate::rule::RuleInForce;
use tollgate::rule_stats::RuleCounts;

use crate::gate::Gate;
use crate::transport::proxy::Proxy;

mod central;
mod proxy;
mod rules_db;
mod state;
mod tracking;

pub fn write(gate: &Gate, proxy: Option<&Proxy>) -> String {
    let mut page = MetricsWriter(String::with_capacity(8 << 10));
    let engine = &gate.engine;
    let now = gate.now();
    let policy = engine.policy();

    page.describe("tollgate_build_info", "gauge", "The version that is running.");
    page.sample("tollgate_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);

    page.describe("tollgate_decisions_total", "counter", "Verdicts, by reason.");
    for (reason, count) in engine.decisions() {
        page.sample("tollgate_decisions_total", &[("reason", reason.name())], count);
    }

    page.describe("tollgate_rule_hits_total", "counter", "Hits on a rule, by what it said to them.");
    // A database may have a million rules: of these, only those with hits.
    let shown = |rule: &&Arc<RuleInForce>| !rule.is_added() || rule.counts() != RuleCounts::default();
    let records = || policy.rules().iter().filter(shown).map(|rule| (rule, rule.counts()));
    for (rule, tally) in records() {
        let outcomes =
            [("allowed", tally.allowed), ("denied", tally.denied), ("shadow_denied", tally.shadow_denied)];
        for (outcome, count) in outcomes {
            page.sample(
                "tollgate_rule_hits_total",
                &[("rule", rule.id.as_str()), ("outcome", outcome)],
                count,
            );
        }
    }
    page.describe("tollgate_rule_bans_total", "counter", "Automatic bans, by the rule that led to them.");
    for (rule, tally) in records().filter(|(rule, _)| rule.ban.is_some()) {
        page.sample("tollgate_rule_bans_total", &[("rule", rule.id.as_str())], tally.banned);
    }

    page.one(
        "tollgate_bans_dropped_total",
        "counter",
        "Automatic bans not kept: the list is full.",
        engine.dropped_bans(),
    );
    page.one(
        "tollgate_bans_unpublished_total",
        "counter",
        "Automatic bans that hold on this node only: too many at once for the rules database.",
        engine.unpublished_bans(),
    );
    page.one(
        "tollgate_violations_dropped_total",
        "counter",
        "Denials that count towards no ban: too many keys at once.",
        engine.dropped_violations(),
    );
    page.one("tollgate_bans", "gauge", "Bans in force.", engine.ban_count(now) as u64);
    page.one("tollgate_rules", "gauge", "Rules in force.", policy.rules().len() as u64);
    page.one(
        "tollgate_rules_generation",
        "gauge",
        "The generation of the rules in force.",
        policy.generation(),
    );
    page.describe("tollgate_enforce", "gauge", "The panic switch: 1 for the position it is in.");
    for position in Enforce::ALL {
        let is_set = u64::from(engine.enforce() == position);
        page.sample("tollgate_enforce", &[("position", position.name())], is_set);
    }
    let (applied, rejected) = gate.reloads.count();
    page.describe(
        "tollgate_reloads_total",
        "counter",
        "Changes of the configuration file, by what came of them.",
    );
    page.sample("tollgate_reloads_total", &[("result", "applied")], applied);
    page.sample("tollgate_reloads_total", &[("result", "rejected")], rejected);

    let usage = engine.store().usage();
    page.one("tollgate_store_keys", "gauge", "Keys in the memory store, expired ones included.", usage.keys);
    page.one("tollgate_store_bytes", "gauge", "Bytes that the memory store uses.", usage.bytes);
    page.one("tollgate_store_cap_bytes", "gauge", "Bytes that the memory store may use.", usage.cap_bytes);
    page.one(
        "tollgate_store_evicted_total",
        "counter",
        "Live keys that made room for others.",
        usage.evicted,
    );
    page.one(
        "tollgate_store_unstored_total",
        "counter",
        "Charges of new keys that found no room: memory is full.",
        usage.unstored,
    );
    page.one(
        "tollgate_store_refused_total",
        "counter",
        "Charges of new keys denied because memory is full.",
        usage.denied_full,
    );
    page.one(
        "tollgate_store_coarsened_total",
        "counter",
        "States merged into fewer steps because memory is full.",
        usage.coarsened,
    );
    page.one(
        "tollgate_store_aggregated_limits",
        "gauge",
        "Limits under which new keys share a counter because memory is full.",
        engine.store().aggregated_limits(now) as u64,
    );
    page.one(
        "tollgate_events_dropped_total",
        "counter",
        "Decisions missing from the event stream.",
        engine.events().dropped(),
    );
    page.one(
        "tollgate_ignored_matches_total",
        "counter",
        "Rules not looked at: more than 64 matched.",
        engine.ignored_matches(),
    );
    if let Some(saving) = gate.saving.get() {
        page.saving(saving, now);
    }
    if let Some(rulebook) = gate.rules_follower.get() {
        page.rules_db(rulebook, now);
    }
    if let Some(central) = gate.central.get() {
        page.central(central, engine);
        page.tracking(engine.outbox(), &central.track_writes);
    }
    if let Some(proxy) = proxy {
        page.proxy(proxy);
    }
    page.0
}

struct MetricsWriter(String);

impl MetricsWriter {
    fn describe(&mut self, name: &str, kind: &str, help: &str) {
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}")
            .expect("writing to a string cannot fail");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let labels: Vec<_> = labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        writeln!(self.0, "{name}{labels} {value}").expect("writing to a string cannot fail");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: u64) {
        self.describe(name, kind, help);
        self.sample(name, &[], value);
    }
}
