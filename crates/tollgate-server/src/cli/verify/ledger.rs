//! The charges of decision logs, by rule, limit and key.

use std::collections::HashMap;
use std::io::{self, BufRead};

use serde::Deserialize;
use tollgate::internal::rule::RuleInForce;
use tollgate::internal::{Limit, PolicySnapshot};

use super::definition::{self, Excess, LedgerEntry};
use super::origins::Origins;

/// A longer line is not one of ours.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The fields of a line that matter here.
#[derive(Deserialize)]
struct LogLine<'a> {
    event: &'a str,
    #[serde(default)]
    allowed: bool,
    #[serde(default)]
    reason: &'a str,
    rule: Option<&'a str>,
    cost: Option<u64>,
    node: Option<&'a str>,
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
    by_name: HashMap<(Box<str>, Box<str>), LimitCheck>,
    pub lines: u64,
    pub decisions: u64,
    pub charges: u64,
    /// Admitted requests that must have charged a limit, and whose charges are missing.
    pub without_charges: u64,
    /// The line of the first of them.
    pub first_without_charges: Option<u64>,
    /// Admitted requests whose counters could not be read: their rules fail open.
    pub uncounted: u64,
    pub origins: Origins,
    denied_by_limits: u64,
}

enum LimitCheck {
    Checked(usize),
    /// Why it is not, and how many charges there were.
    Unchecked(Unchecked, u64),
}

/// Why the charges of a limit are not checked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unchecked {
    /// The configuration has other rules than the node had.
    NoRule,
    OtherLimit,
    /// The log does not state what was given back.
    Settled,
    Released,
}

impl Unchecked {
    pub const fn why(self) -> &'static str {
        match self {
            Unchecked::NoRule => "no rule has this id",
            Unchecked::OtherLimit => "the rule has another limit now",
            Unchecked::Settled => "its charges are corrected later, which the log does not state",
            Unchecked::Released => "its permits are given back",
        }
    }

    /// Whether another configuration would allow the check.
    const fn is_of_another_configuration(self) -> bool {
        matches!(self, Unchecked::NoRule | Unchecked::OtherLimit)
    }
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
            let parsed: LogLine<'_> = serde_json::from_slice(&line).map_err(|error| {
                io::Error::other(format!("line {} is not one of a decision log: {error}", self.lines))
            })?;
            if parsed.event == "decision" {
                self.add(policy, &parsed);
            }
        }
    }

    fn add(&mut self, policy: &PolicySnapshot, line: &LogLine<'_>) {
        self.decisions += 1;
        self.denied_by_limits += u64::from(!line.allowed && line.reason == "limit");
        if line.allowed && line.charged.is_empty() {
            self.add_without_charges(policy, line);
        }
        for charge in &line.charged {
            self.charges += 1;
            self.origins.add(line.node, charge.key);
            let entry = LedgerEntry { at_ns: charge.at_ns, cost: charge.cost, line: self.lines };
            match self.status(policy, charge) {
                LimitCheck::Checked(limit) => {
                    let limit = *limit;
                    let keys = &mut self.limits[limit].keys;
                    match keys.get_mut(charge.key) {
                        Some(entries) => entries.push(entry),
                        None => drop(keys.insert(charge.key.into(), vec![entry])),
                    }
                }
                LimitCheck::Unchecked(_, charges) => *charges += 1,
            }
        }
    }

    /// An admitted request is not charged if no rule applies to it, or if it costs nothing.
    fn add_without_charges(&mut self, policy: &PolicySnapshot, line: &LogLine<'_>) {
        let is_given_back = |rule: &RuleInForce| {
            rule.settles_later() || !rule.all_limits().any(|limit| definition::is_verifiable(&limit.limit))
        };
        let rule = line.rule.and_then(|id| policy.rule(id));
        match line.reason {
            "no_rule" | "allow_list" => {}
            "store_error" => self.uncounted += 1,
            _ if line.cost == Some(0) || rule.is_some_and(|rule| is_given_back(rule)) => {}
            _ => {
                self.without_charges += 1;
                self.first_without_charges.get_or_insert(self.lines);
            }
        }
    }

    fn status(&mut self, policy: &PolicySnapshot, charge: &LoggedChargeLine<'_>) -> &mut LimitCheck {
        let limits = &mut self.limits;
        self.by_name.entry((charge.rule.into(), charge.limit.into())).or_insert_with(|| {
            let found = policy.rule(charge.rule).ok_or(Unchecked::NoRule);
            match found.and_then(|rule| checked_limit(rule, charge.limit)) {
                Ok(limit) => {
                    let rule = charge.rule.to_owned();
                    limits.push(CheckedLimit { rule, limit, keys: HashMap::new() });
                    LimitCheck::Checked(limits.len() - 1)
                }
                Err(why) => LimitCheck::Unchecked(why, 0),
            }
        })
    }

    /// The limits that were checked: how many, and for how many keys.
    pub fn checked(&self) -> (usize, usize) {
        (self.limits.len(), self.limits.iter().map(|limit| limit.keys.len()).sum())
    }

    /// Rule, limit, number of charges and why they were not checked.
    pub fn unchecked(&self) -> Vec<(&str, &str, u64, Unchecked)> {
        let mut unchecked: Vec<_> = self
            .by_name
            .iter()
            .filter_map(|((rule, limit), status)| match status {
                LimitCheck::Unchecked(why, charges) => Some((&**rule, &**limit, *charges, *why)),
                LimitCheck::Checked(_) => None,
            })
            .collect();
        unchecked.sort_unstable();
        unchecked
    }

    /// Charges that another configuration would allow to check.
    pub fn of_another_configuration(&self) -> u64 {
        let unchecked = self.unchecked().into_iter();
        unchecked
            .filter(|(_, _, _, why)| why.is_of_another_configuration())
            .map(|(_, _, charges, _)| charges)
            .sum()
    }

    /// Whether requests were denied by limits that no request was charged to: the log has only denials.
    pub fn has_only_denials(&self) -> bool {
        self.charges == 0 && self.denied_by_limits > 0 && self.without_charges == 0
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
fn checked_limit(rule: &RuleInForce, text: &str) -> Result<Limit, Unchecked> {
    if rule.settles_later() {
        return Err(Unchecked::Settled);
    }
    let found = rule.all_limits().find(|limit| limit.limit.to_string() == text);
    let limit = found.ok_or(Unchecked::OtherLimit)?.limit;
    if definition::is_verifiable(&limit) { Ok(limit) } else { Err(Unchecked::Released) }
}
