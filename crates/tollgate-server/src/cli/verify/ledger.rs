//! The charges of decision logs, by rule, limit and key.

use std::collections::HashMap;
use std::io::{self, BufRead};

use serde::Deserialize;
use tollgate::internal::rule::RuleInForce;
use tollgate::internal::{Limit, PolicySnapshot};

use super::definition::{self, Excess, LedgerEntry};

/// A longer line is not one of ours.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The fields of a line that matter here.
#[derive(Deserialize)]
struct LogLine<'a> {
    event: &'a str,
    #[serde(default)]
    allowed: bool,
    rule: Option<&'a str>,
    #[serde(borrow, default)]
    charged: Vec<LoggedChargeLine<'a>>,
}

#[derive(Deserialize)]
struct LoggedChargeLine<'a> {
    rule: &'a str,
    limit: &'a str,
    key: &'a str,
    at_ns: u64,
    cost: u64,
}

/// One limit of one rule, as the rules state it.
struct CheckedLimit {
    rule: String,
    limit: Limit,
    keys: HashMap<Box<str>, Vec<LedgerEntry>>,
}

#[derive(Default)]
pub struct Ledger {
    limits: Vec<CheckedLimit>,
    by_name: HashMap<(Box<str>, Box<str>), LimitStatus>,
    pub lines: u64,
    pub decisions: u64,
    pub charges: u64,
    /// Admitted requests with a rule but without charges: the log was not written with `sample: all`.
    pub without_charges: u64,
}

enum LimitStatus {
    Checked(usize),
    /// Why it is not, and how many charges there were.
    Unchecked(&'static str, u64),
}

/// A limit that was exceeded.
pub struct Violation {
    pub rule: String,
    pub limit: Limit,
    pub key: String,
    pub excess: Excess,
}

impl Ledger {
    /// Adds the lines of a log, which are numbered from `self.lines + 1`.
    pub fn read(&mut self, policy: &PolicySnapshot, mut log: impl BufRead) -> io::Result<()> {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = io::Read::take(&mut log, MAX_LINE_BYTES as u64).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(());
            }
            self.lines += 1;
            if line.trim_ascii().is_empty() {
                continue;
            }
            let parsed: LogLine<'_> = serde_json::from_slice(&line)
                .map_err(|error| io::Error::other(format!("line {}: {error}", self.lines)))?;
            if parsed.event == "decision" {
                self.add(policy, &parsed);
            }
        }
    }

    fn add(&mut self, policy: &PolicySnapshot, line: &LogLine<'_>) {
        self.decisions += 1;
        if line.allowed && line.rule.is_some() && line.charged.is_empty() {
            self.without_charges += 1;
        }
        for charge in &line.charged {
            self.charges += 1;
            let entry = LedgerEntry { at_ns: charge.at_ns, cost: charge.cost, line: self.lines };
            match self.status(policy, charge) {
                LimitStatus::Checked(limit) => {
                    let limit = *limit;
                    let keys = &mut self.limits[limit].keys;
                    match keys.get_mut(charge.key) {
                        Some(entries) => entries.push(entry),
                        None => drop(keys.insert(charge.key.into(), vec![entry])),
                    }
                }
                LimitStatus::Unchecked(_, charges) => *charges += 1,
            }
        }
    }

    fn status(&mut self, policy: &PolicySnapshot, charge: &LoggedChargeLine<'_>) -> &mut LimitStatus {
        let limits = &mut self.limits;
        self.by_name.entry((charge.rule.into(), charge.limit.into())).or_insert_with(|| {
            let found = policy.rule(charge.rule).ok_or("no rule has this id");
            match found.and_then(|rule| checked_limit(rule, charge.limit)) {
                Ok(limit) => {
                    let rule = charge.rule.to_owned();
                    limits.push(CheckedLimit { rule, limit, keys: HashMap::new() });
                    LimitStatus::Checked(limits.len() - 1)
                }
                Err(why) => LimitStatus::Unchecked(why, 0),
            }
        })
    }

    /// The limits that were checked: how many, and for how many keys.
    pub fn checked(&self) -> (usize, usize) {
        (self.limits.len(), self.limits.iter().map(|limit| limit.keys.len()).sum())
    }

    /// Rule, limit, number of charges and why they were not checked.
    pub fn unchecked(&self) -> Vec<(&str, &str, u64, &'static str)> {
        let mut unchecked: Vec<_> = self
            .by_name
            .iter()
            .filter_map(|((rule, limit), status)| match status {
                LimitStatus::Unchecked(why, charges) => Some((&**rule, &**limit, *charges, *why)),
                LimitStatus::Checked(_) => None,
            })
            .collect();
        unchecked.sort_unstable();
        unchecked
    }

    /// The first violation of each key, the earliest first.
    pub fn violations(&mut self) -> Vec<Violation> {
        let mut violations = Vec::new();
        for CheckedLimit { rule, limit, keys } in &mut self.limits {
            for (key, entries) in keys {
                entries.sort_unstable();
                if let Some(excess) = definition::first_excess(limit, entries) {
                    violations.push(Violation {
                        rule: rule.clone(),
                        limit: *limit,
                        key: key.to_string(),
                        excess,
                    });
                }
            }
        }
        violations.sort_by_key(|violation| violation.excess.entry);
        violations
    }
}

/// The limit of a rule that a log names, if its charges tell everything.
fn checked_limit(rule: &RuleInForce, text: &str) -> Result<Limit, &'static str> {
    if rule.settles_later() {
        return Err("its charges are corrected later, which the log does not state");
    }
    let found = rule.all_limits().find(|limit| limit.limit.to_string() == text);
    let limit = found.ok_or("the rule has another limit now")?.limit;
    if definition::is_verifiable(&limit) { Ok(limit) } else { Err("its permits are given back") }
}
