//! `tollgate verify`: recomputes from a decision log that no limit was ever exceeded.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use tollgate::Time;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::Problems;
use tollgate::internal::time::calendar::rfc3339;

use crate::cli::progress::Progress;
use crate::cli::{Exit, input_file, out};
use crate::config::{is_stdin, shown_file};

mod definition;
mod ledger;
mod origins;

use ledger::{Ledger, Unchecked, Violation};
use origins::Counters;

/// Violations that are listed.
const LISTED: usize = 10;

#[derive(Args)]
pub struct VerifyArgs {
    /// Decision logs; `-` reads one from stdin
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    /// The configuration, or a list of rules, that was in force
    #[arg(short, long, value_name = "FILE", default_value = "tollgate.yaml")]
    config: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &VerifyArgs) -> Exit {
    let (policy, counters) = match policy(&args.config) {
        Ok(read) => read,
        Err(problems) if args.json => return out::json_problems(&problems),
        Err(problems) => return out::problems(&problems),
    };
    let mut ledger = Ledger::default();
    let mut first_lines = Vec::new();
    for path in &args.logs {
        let name = shown_file(path);
        let progress = Progress::start(format!("reading {name}"), None);
        first_lines.push((ledger.lines, name.clone()));
        let read = open(path).and_then(|log| ledger.read(&policy, log));
        drop(progress);
        if let Err(error) = read {
            out::message(format!("error: {name}: {error}"));
            return Exit::Usage;
        }
    }
    let violations = ledger.violations();
    let config = shown_file(&args.config);
    let report =
        Report { ledger: &ledger, violations: &violations, config, counters, first_lines: &first_lines };
    if args.json {
        out::pretty(&report.json())
    } else {
        report.print()
    }
    if violations.is_empty() && report.unproven().is_empty() { Exit::Success } else { Exit::Failure }
}

fn policy(file: &Path) -> Result<(PolicySnapshot, Counters), Problems> {
    let input = input_file::read(file)?;
    if input.is_list() {
        let whole = format!("rules:\n{}", input.text());
        let policy = PolicySnapshot::from_yaml(&whole).map_err(|problems| problems.in_file(&input.name))?;
        return Ok((policy, Counters::Unknown));
    }
    let mut config = input.config(file)?;
    let policy = config.take_policy().map_err(|problems| problems.in_file(&input.name))?;
    Ok((policy, Counters::of(&config)))
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    Ok(match is_stdin(path) {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path)?)),
    })
}

struct Report<'r> {
    ledger: &'r Ledger,
    violations: &'r [Violation],
    /// The name of the configuration.
    config: String,
    counters: Counters,
    /// Lines before each log, and its name.
    first_lines: &'r [(u64, String)],
}

impl Report<'_> {
    /// The log and the line in it.
    fn place(&self, line: u64) -> (&str, u64) {
        let log = self.first_lines.iter().rev().find(|(before, _)| *before < line);
        log.map_or(("", line), |(before, name)| (name, line - before))
    }

    fn print(&self) {
        for violation in self.violations.iter().take(LISTED) {
            let entry = violation.excess.entry;
            let (log, line) = self.place(entry.line);
            out::line(out::escape_control(&format!(
                "{log}:{line}: rule {} exceeded {} ({}) for key {} at {}: {}",
                violation.rule,
                violation.limit,
                violation.limit.shape().name(),
                violation.key,
                rfc3339(Time::from_nanos(entry.at_ns)),
                violation.excess.why
            )));
        }
        for (rule, limit, charges, why) in self.ledger.unchecked() {
            let charges = out::pluralize(charges, "charge");
            let why = why.why();
            out::message(out::escape_control(&format!(
                "note: rule {rule} {limit}, {charges}, not checked: {why}"
            )));
        }
        for note in self.ledger.origins.notes(&self.counters) {
            out::message(format!("note: {note}"));
        }
        let unproven = self.unproven();
        let (limits, keys) = self.ledger.checked();
        out::line(format!(
            "{}, {} of {} under {}: {}",
            out::pluralize(self.ledger.decisions, "decision"),
            out::pluralize(self.ledger.charges, "charge"),
            out::pluralize(keys as u64, "key"),
            out::pluralize(limits as u64, "limit"),
            match self.violations.len() {
                0 if unproven.is_empty() => "no limit was exceeded".to_owned(),
                0 => "it is not proven that no limit was exceeded".to_owned(),
                count => format!("exceeded for {}", out::pluralize(count as u64, "key")),
            }
        ));
        unproven.iter().for_each(|why| out::line(out::escape_control(&format!("not proven: {why}"))));
    }

    /// What the log and the configuration leave open.
    fn unproven(&self) -> Vec<String> {
        let Ledger { without_charges, first_without_charges, uncounted, .. } = *self.ledger;
        let mut open = Vec::new();
        if let Some(first) = first_without_charges {
            let (log, line) = self.place(first);
            open.push(format!(
                "{} without charges in the log, the first at {log}:{line}: the log was altered, not written with \
                 `sample: all`, or written while nodes had shares of a limit",
                out::pluralize(without_charges, "admitted request")
            ));
        }
        if uncounted > 0 {
            let count = out::pluralize(uncounted, "request");
            open.push(format!(
                "{count} admitted although the counter could not be read (on_store_error: open)"
            ));
        }
        let foreign = self.ledger.of_another_configuration();
        if foreign > 0 {
            let count = out::pluralize(foreign, "charge");
            open.push(format!("{count} under limits that {} does not have", self.config));
        }
        if self.ledger.has_only_denials() {
            open.push("the log has only denials: write it with `sample: all`".to_owned());
        }
        open.extend(self.ledger.origins.unproven(&self.counters));
        open
    }

    fn json(&self) -> Value {
        let violation = |violation: &Violation| {
            let (log, line) = self.place(violation.excess.entry.line);
            json!({
                "log": log,
                "line": line,
                "rule": violation.rule,
                "limit": violation.limit.to_string(),
                "algorithm": violation.limit.shape().name(),
                "key": violation.key,
                "at": rfc3339(Time::from_nanos(violation.excess.entry.at_ns)),
                "why": violation.excess.why,
            })
        };
        let unchecked = |(rule, limit, charges, why): (&str, &str, u64, Unchecked)| json!({ "rule": rule, "limit": limit, "charges": charges, "why": why.why() });
        let (limits, keys) = self.ledger.checked();
        json!({
            "decisions": self.ledger.decisions,
            "charges": self.ledger.charges,
            "without_charges": self.ledger.without_charges,
            "unproven": self.unproven(),
            "notes": self.ledger.origins.notes(&self.counters),
            "limits": limits,
            "keys": keys,
            "violations": self.violations.iter().map(violation).collect::<Value>(),
            "unchecked": self.ledger.unchecked().into_iter().map(unchecked).collect::<Value>(),
        })
    }
}
