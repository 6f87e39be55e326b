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

mod definition;
mod ledger;

use ledger::{Ledger, Violation};

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
    let policy = match policy(&args.config) {
        Ok(policy) => policy,
        Err(problems) if args.json => return out::json_problems(&problems),
        Err(problems) => return out::problems(&problems),
    };
    let mut ledger = Ledger::default();
    let mut first_lines = Vec::new();
    for path in &args.logs {
        first_lines.push((ledger.lines, path.display().to_string()));
        let progress = Progress::start(format!("reading {}", path.display()), None);
        let read = open(path).and_then(|log| ledger.read(&policy, log));
        drop(progress);
        if let Err(error) = read {
            out::message(format!("error: {}: {error}", path.display()));
            return Exit::Usage;
        }
    }
    if ledger.charges == 0 && ledger.without_charges > 0 {
        out::message("error: the log does not state what was charged: write it with `sample: all`");
        return Exit::Usage;
    }
    let violations = ledger.violations();
    let report = Report { ledger: &ledger, violations: &violations, first_lines: &first_lines };
    if args.json {
        out::pretty(&report.json())
    } else {
        report.print()
    }
    if violations.is_empty() { Exit::Success } else { Exit::Failure }
}

fn policy(file: &Path) -> Result<PolicySnapshot, Problems> {
    let input = input_file::read(file)?;
    if input.is_list() {
        let whole = format!("rules:\n{}", input.text());
        return PolicySnapshot::from_yaml(&whole).map_err(|problems| problems.in_file(&input.name));
    }
    input.config(file)?.take_policy().map_err(|problems| problems.in_file(&input.name))
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    Ok(match path == Path::new("-") {
        true => Box::new(io::stdin().lock()),
        false => Box::new(BufReader::new(File::open(path)?)),
    })
}

struct Report<'r> {
    ledger: &'r Ledger,
    violations: &'r [Violation],
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
            out::message(out::escape_control(&format!(
                "note: rule {rule} {limit}, {charges}, not checked: {why}"
            )));
        }
        if self.ledger.without_charges > 0 {
            let count = out::pluralize(self.ledger.without_charges, "admitted request");
            out::message(format!("note: {count} without charges in the log"));
        }
        let (limits, keys) = self.ledger.checked();
        out::line(format!(
            "{}, {} of {} under {}: {}",
            out::pluralize(self.ledger.decisions, "decision"),
            out::pluralize(self.ledger.charges, "charge"),
            out::pluralize(keys as u64, "key"),
            out::pluralize(limits as u64, "limit"),
            match self.violations.len() {
                0 => "no limit was exceeded".to_owned(),
                count => format!("exceeded for {}", out::pluralize(count as u64, "key")),
            }
        ));
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
        let unchecked = |(rule, limit, charges, why): (&str, &str, u64, &str)| json!({ "rule": rule, "limit": limit, "charges": charges, "why": why });
        let (limits, keys) = self.ledger.checked();
        json!({
            "decisions": self.ledger.decisions,
            "charges": self.ledger.charges,
            "without_charges": self.ledger.without_charges,
            "limits": limits,
            "keys": keys,
            "violations": self.violations.iter().map(violation).collect::<Value>(),
            "unchecked": self.ledger.unchecked().into_iter().map(unchecked).collect::<Value>(),
        })
    }
}
