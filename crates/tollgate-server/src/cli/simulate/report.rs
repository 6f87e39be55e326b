//! The result of a simulation, as text and as JSON. A server answers with the same JSON for its live requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::denied_keys::DenialsByRule;
use super::timeline::Timeline;
use crate::cli::out;
use crate::cli::table::TextTable;

/// Keys that are listed for each rule.
pub(super) const WORST: usize = 10;

#[derive(Serialize, Deserialize)]
pub struct SimulationReport {
    pub requests: u64,
    /// By a limit or a ban.
    pub denied: u64,
    pub banned: u64,
    pub unreadable: u64,
    pub out_of_order: u64,
    pub first: Option<String>,
    pub last: Option<String>,
    pub rules: Vec<SimulatedRule>,
    pub notes: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare: Option<ComparisonReport>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub algorithms: Vec<AlgorithmDenials>,
    /// Only in the answer of a server, which does not draw.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Timeline>,
}

/// A rule with its counts.
#[derive(Serialize, Deserialize)]
pub struct SimulatedRule {
    pub rule: String,
    pub mode: String,
    pub allowed: u64,
    pub denied: u64,
    #[serde(flatten)]
    pub keys: DeniedClients,
    /// The true counts of keys are higher by at most this.
    pub error: u64,
}

#[derive(Default, Serialize, Deserialize)]
pub struct DeniedClients {
    pub clients: u64,
    /// Most denials first.
    pub worst: Vec<DeniedKey>,
}

#[derive(Serialize, Deserialize)]
pub struct DeniedKey {
    pub key: String,
    pub denied: u64,
}

#[derive(Serialize, Deserialize)]
pub struct ComparisonReport {
    /// What it is compared with.
    pub file: String,
    pub denied: u64,
    pub newly_denied: u64,
    pub newly_allowed: u64,
    /// Newly denied keys by the rule that denies them.
    pub rules: BTreeMap<String, DeniedClients>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub error: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Serialize, Deserialize)]
pub struct AlgorithmDenials {
    pub algorithm: String,
    pub denied: u64,
    pub unchanged: Option<String>,
    pub overrides_unchanged: Option<String>,
}

impl DeniedClients {
    pub(super) fn new(denials: &DenialsByRule<'_>, shown: &impl Fn(&str) -> String) -> DeniedClients {
        let worst = denials.worst.iter();
        let worst = worst.map(|(key, denied)| DeniedKey { key: shown(key), denied: *denied }).collect();
        DeniedClients { clients: denials.clients, worst }
    }

    fn print(&self) {
        let row = |one: &DeniedKey| {
            let key = if one.key.is_empty() { "all clients together" } else { &one.key };
            vec![key.to_owned(), one.denied.to_string()]
        };
        let rows: Vec<_> = self.worst.iter().map(row).collect();
        print_table(&["KEY", "DENIED"], &rows);
    }
}

impl SimulationReport {
    /// Prints the report on requests of this name.
    pub fn print(&self, name: &str) {
        let between = self.first.as_ref().zip(self.last.as_ref());
        let between = between.map_or_else(String::new, |(first, last)| format!(", {first} to {last}"));
        out::line(format!("{name}: {}{between}", out::pluralize(self.requests, "request")));
        let share = share(self.denied, self.requests);
        let banned = match self.banned {
            0 => String::new(),
            banned => format!(", {banned} of them banned"),
        };
        out::line(format!("denied: {} ({share}){banned}", self.denied));
        out::line("");
        let error = self.rules.iter().map(|rule| rule.error).max().unwrap_or(0);
        let at_least = if error > 0 { "at least " } else { "" };
        let row = |rule: &SimulatedRule| {
            let clients = format!("{at_least}{}", rule.keys.clients);
            let [allowed, denied] = [rule.allowed, rule.denied].map(|count| count.to_string());
            vec![rule.rule.clone(), allowed, denied, clients, rule.mode.clone()]
        };
        let rows: Vec<_> = self.rules.iter().map(row).collect();
        print_table(&["RULE", "ALLOWED", "DENIED", "CLIENTS DENIED", "MODE"], &rows);
        for rule in self.rules.iter().filter(|rule| !rule.keys.worst.is_empty()) {
            out::line(format!("\ndenied most often by {}:", rule.rule));
            rule.keys.print();
        }
        print_error(error);
        if let Some(comparison) = &self.compare {
            comparison.print();
        }
        self.print_algorithms();
        self.notes.iter().for_each(|note| out::message(format!("note: {note}")));
    }

    /// As JSON for a program; the course over time is only drawn.
    pub fn json(&self) -> Value {
        let mut body = json!(self);
        if let Value::Object(fields) = &mut body {
            fields.shift_remove("timeline");
        }
        body
    }

    fn print_algorithms(&self) {
        if self.algorithms.is_empty() {
            return;
        }
        out::line("\nthe same rates under each algorithm:");
        let row = |variant: &AlgorithmDenials| {
            let unchanged = variant.unchanged.as_ref().map(|rule| format!("rule {rule} keeps its own"));
            let overridden = variant.overrides_unchanged.as_ref();
            let overridden = overridden.map(|rule| format!("overrides of rule {rule} keep their own"));
            let note = unchanged.into_iter().chain(overridden).collect::<Vec<_>>().join("; ");
            let share = share(variant.denied, self.requests);
            vec![variant.algorithm.clone(), variant.denied.to_string(), share, note]
        };
        let rows: Vec<_> = self.algorithms.iter().map(row).collect();
        print_table(&["ALGORITHM", "DENIED", "SHARE", "NOTE"], &rows);
    }
}

impl ComparisonReport {
    fn print(&self) {
        out::line(format!(
            "\nagainst {}: {} more denied, {} no longer denied ({} denied there)",
            self.file, self.newly_denied, self.newly_allowed, self.denied
        ));
        for (rule, keys) in &self.rules {
            let by = if rule.is_empty() { "a ban" } else { rule };
            out::line(format!("\nnewly denied by {by}, {}:", out::pluralize(keys.clients, "client")));
            keys.print();
        }
        print_error(self.error);
    }
}

fn share(part: u64, whole: u64) -> String {
    format!("{:.2} %", if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 })
}

fn print_table(head: &'static [&'static str], rows: &[Vec<String>]) {
    TextTable::new(head).lines(rows).iter().for_each(out::line);
}

fn print_error(error: u64) {
    if error > 0 {
        out::message(format!(
            "note: too many clients to count each one: the true counts of keys are higher by at most {error}"
        ));
    }
}
