//! The result of a simulation, as text and as JSON.

use std::path::Path;

use serde_json::{Map, Value, json};
use tollgate::internal::rule::RuleMode;
use tollgate::internal::time::calendar;

use super::algorithms::Variant;
use super::comparison::Comparison;
use super::denied_keys::{DenialsByRule, DeniedKeys};
use super::replay::Simulation;
use crate::cli::access_log::AccessLogSummary;
use crate::cli::out;
use crate::cli::table::TextTable;

/// Keys that are listed for each rule.
const WORST: usize = 10;

pub struct Report<'r> {
    pub log: &'r str,
    pub summary: &'r AccessLogSummary,
    pub simulation: &'r Simulation,
    pub comparison: Option<(&'r Comparison, &'r Path)>,
    pub variants: &'r [Variant],
}

/// A rule with its counts.
struct RuleResult<'s> {
    id: String,
    mode: RuleMode,
    allowed: u64,
    denied: u64,
    denials: DenialsByRule<'s>,
}

impl Report<'_> {
    fn rules(&self) -> Vec<RuleResult<'_>> {
        let mut keys = self.simulation.keys.by_rule(WORST);
        let one = |rule: &tollgate::internal::rule::RuleInForce| {
            let counts = rule.counts();
            RuleResult {
                id: rule.id.to_string(),
                mode: rule.mode,
                allowed: counts.allowed,
                denied: counts.denied + counts.shadow_denied,
                denials: DenialsByRule::default(),
            }
        };
        let mut rules: Vec<_> = self.simulation.policy.listed().into_iter().map(|rule| one(rule)).collect();
        for rule in &mut rules {
            rule.denials = keys.remove(rule.id.as_str()).unwrap_or_default();
        }
        rules
    }

    pub fn print(&self) {
        let simulation = self.simulation;
        let between = self.summary.first.map_or_else(String::new, |first| {
            format!(", {} to {}", calendar::rfc3339(first), calendar::rfc3339(self.summary.last))
        });
        out::line(format!("{}: {}{between}", self.log, out::pluralize(self.summary.requests, "request")));
        let share = share(simulation.denied, self.summary.requests);
        let banned = match simulation.banned {
            0 => String::new(),
            banned => format!(", {banned} of them banned"),
        };
        out::line(format!("denied: {} ({share}){banned}", simulation.denied));
        out::line("");
        let rules = self.rules();
        let at_least = if simulation.keys.error > 0 { "at least " } else { "" };
        let rows: Vec<_> = rules
            .iter()
            .map(|rule| {
                let clients = format!("{at_least}{}", rule.denials.clients);
                let mode = rule.mode.name().to_owned();
                vec![rule.id.clone(), rule.allowed.to_string(), rule.denied.to_string(), clients, mode]
            })
            .collect();
        print_table(&["RULE", "ALLOWED", "DENIED", "CLIENTS DENIED", "MODE"], &rows);
        for rule in rules.iter().filter(|rule| !rule.denials.worst.is_empty()) {
            out::line(format!("\ndenied most often by {}:", rule.id));
            print_keys(&rule.denials);
        }
        print_error(&simulation.keys);
        self.print_comparison();
        self.print_variants();
        simulation.notes().iter().for_each(|note| out::message(format!("note: {note}")));
    }

    fn print_comparison(&self) {
        let Some((comparison, file)) = self.comparison else { return };
        out::line(format!(
            "\nagainst {}: {} more denied, {} no longer denied ({} denied there)",
            file.display(),
            comparison.newly_denied,
            comparison.newly_allowed,
            comparison.old.denied
        ));
        let by_rule = comparison.keys.by_rule(WORST);
        let mut rules: Vec<_> = by_rule.into_iter().collect();
        rules.sort_unstable_by(|a, b| a.0.cmp(b.0));
        for (rule, denials) in rules {
            let by = if rule.is_empty() { "a ban".to_owned() } else { rule.to_owned() };
            let clients = out::pluralize(denials.clients, "client");
            out::line(format!("\nnewly denied by {by}, {clients}:"));
            print_keys(&denials);
        }
        print_error(&comparison.keys);
    }

    fn print_variants(&self) {
        if self.variants.is_empty() {
            return;
        }
        out::line("\nthe same rates under each algorithm:");
        let row = |variant: &Variant| {
            let denied = variant.simulation.denied;
            let unchanged = variant.unchanged.as_ref().map(|rule| format!("rule {rule} keeps its own"));
            let overridden = variant.overridden.as_ref();
            let overridden = overridden.map(|rule| format!("overrides of rule {rule} keep their own"));
            let note = unchanged.into_iter().chain(overridden).collect::<Vec<_>>().join("; ");
            let share = share(denied, self.summary.requests);
            vec![variant.algorithm.to_owned(), denied.to_string(), share, note]
        };
        let rows: Vec<_> = self.variants.iter().map(row).collect();
        print_table(&["ALGORITHM", "DENIED", "SHARE", "NOTE"], &rows);
    }

    pub fn json(&self) -> Value {
        let simulation = self.simulation;
        let rules: Vec<_> = self.rules().iter().map(|rule| self.rule_json(rule)).collect();
        let mut report = json!({
            "requests": self.summary.requests,
            "denied": simulation.denied,
            "banned": simulation.banned,
            "unreadable": self.summary.unreadable,
            "out_of_order": self.summary.late,
            "first": self.summary.first.map(calendar::rfc3339),
            "last": self.summary.first.map(|_| calendar::rfc3339(self.summary.last)),
            "rules": rules,
            "notes": simulation.notes(),
        });
        if let Some((comparison, file)) = self.comparison {
            let rules: Map<String, Value> = comparison
                .keys
                .by_rule(WORST)
                .into_iter()
                .map(|(rule, denials)| {
                    (rule.to_owned(), json!({ "clients": denials.clients, "worst": worst(&denials) }))
                })
                .collect();
            report["compare"] = json!({
                "file": file.display().to_string(),
                "denied": comparison.old.denied,
                "newly_denied": comparison.newly_denied,
                "newly_allowed": comparison.newly_allowed,
                "rules": rules,
            });
        }
        if !self.variants.is_empty() {
            let one = |variant: &Variant| {
                json!({
                    "algorithm": variant.algorithm,
                    "denied": variant.simulation.denied,
                    "unchanged": variant.unchanged,
                    "overrides_unchanged": variant.overridden,
                })
            };
            report["algorithms"] = self.variants.iter().map(one).collect();
        }
        report
    }

    fn rule_json(&self, rule: &RuleResult<'_>) -> Value {
        json!({
            "rule": rule.id,
            "mode": rule.mode.name(),
            "allowed": rule.allowed,
            "denied": rule.denied,
            "clients": rule.denials.clients,
            "worst": worst(&rule.denials),
            "error": self.simulation.keys.error,
        })
    }
}

fn worst(denials: &DenialsByRule<'_>) -> Vec<Value> {
    denials.worst.iter().map(|(key, denied)| json!({ "key": key, "denied": denied })).collect()
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.2} %", if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 })
}

fn print_table(head: &'static [&'static str], rows: &[Vec<String>]) {
    TextTable::new(head).lines(rows).iter().for_each(out::line);
}

fn print_keys(denials: &DenialsByRule<'_>) {
    let row = |(key, count): &(&str, u64)| {
        let key = if key.is_empty() { "all clients together" } else { key };
        vec![key.to_owned(), count.to_string()]
    };
    let rows: Vec<_> = denials.worst.iter().map(row).collect();
    print_table(&["KEY", "DENIED"], &rows);
}

fn print_error(keys: &DeniedKeys) {
    if keys.error > 0 {
        out::message(format!(
            "note: too many clients to count each one: the true counts of keys are higher by at most {}",
            keys.error
        ));
    }
}
