//! `tollgate simulate`: replays an access log through the engine, on the log's own clock.
//!
//! Decisions are made by [`Simulation`], which is the live engine with time passed in. Nothing is sent to a server.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::{Problem, Problems};
use tollgate::internal::http::FieldSelection;
use tollgate::internal::policy::PolicyParts;
use tollgate_stores::rules::for_each_rule;

use crate::cli::access_log::{AccessLog, AccessLogFormat};
use crate::cli::{Exit, input_file, out};

mod algorithms;
mod comparison;
mod denied_keys;
mod replay;
mod report;
mod timeline;

use comparison::Comparison;
pub use replay::Simulation;
use timeline::Timeline;

#[derive(Args)]
pub struct SimulateArgs {
    /// The access log; `-` reads it from stdin
    log: PathBuf,
    /// The configuration to try, or a list of rules
    #[arg(short, long, value_name = "FILE", default_value = "tollgate.yaml")]
    config: PathBuf,
    /// Show what changes against this configuration
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Also show what each algorithm would deny with the same rates
    #[arg(long)]
    algorithms: bool,
    /// Draw requests and denials over time as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Exit 1 if a larger share of the requests is denied
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    max_denied: Option<Percent>,
    /// The format of the log, if it is not recognised
    #[arg(long, value_name = "FORMAT")]
    format: Option<AccessLogFormat>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A share in millionths of a percent, so that comparisons are exact.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Percent(u64);

impl Percent {
    const WHOLE: u64 = 100 * 1_000_000;

    /// Whether `part` of `whole` is more than this share.
    fn is_exceeded_by(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(Self::WHOLE) > u128::from(whole) * u128::from(self.0)
    }
}

fn percent(text: &str) -> Result<Percent, String> {
    let expected = || format!("expected a percentage from 0% to 100% such as 0.5%, got '{text}'");
    let number = text.strip_suffix('%').ok_or_else(expected)?.trim_end();
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let are_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(fraction) || whole.len() > 3 || fraction.len() > 6 {
        return Err(expected());
    }
    let read = |digits: &str| digits.parse::<u64>().map_err(|_| expected());
    let millionths = read(whole)? * 1_000_000 + read(&format!("{fraction:0<6}"))?;
    if millionths > Percent::WHOLE { Err(expected()) } else { Ok(Percent(millionths)) }
}

pub fn run(args: &SimulateArgs) -> Exit {
    simulate(args).unwrap_or_else(|exit| exit)
}

fn simulate(args: &SimulateArgs) -> Result<Exit, Exit> {
    let invalid = |problems: Problems| match args.json {
        true => out::json_problems(&problems),
        false => out::problems(&problems),
    };
    if args.log == Path::new("-") && [Some(&args.config), args.compare.as_ref()].contains(&Some(&args.log)) {
        out::message("error: the log and a configuration cannot both be read from stdin");
        return Err(Exit::Usage);
    }
    let load = |file: &Path| load_policy(file).map_err(invalid);
    let plan = load(&args.config)?;
    let mut variants = match args.algorithms {
        true => algorithms::variants(&plan),
        false => Vec::new(),
    };
    let mut fields = FieldSelection::of_policy(&plan.policy, &[]);
    let mut comparison = None;
    if let Some(file) = &args.compare {
        let old = load(file)?;
        fields = fields.union(&FieldSelection::of_policy(&old.policy, &[]));
        comparison = Some(Comparison::new(Simulation::new(old)));
    }
    let mut simulation = Simulation::new(plan);
    let mut timeline = args.plot.as_ref().map(|_| Timeline::default());
    let mut log = AccessLog::open(&args.log, args.format)?;
    let summary = log.read(|record, at| {
        let hit = record.hit(&fields);
        let denial = simulation.decide(&hit, at, record.status);
        if let Some(comparison) = &mut comparison {
            comparison.decide(&hit, at, record.status, denial.as_ref());
        }
        for variant in &mut variants {
            variant.simulation.decide(&hit, at, record.status);
        }
        if let Some(timeline) = &mut timeline {
            timeline.add(at, denial.is_some());
        }
    })?;
    summary.print_notes(&log.name);
    let report = report::Report {
        log: &log.name,
        summary: &summary,
        simulation: &simulation,
        comparison: comparison.as_ref().zip(args.compare.as_deref()),
        variants: &variants,
    };
    match args.json {
        true => out::pretty(&report.json()),
        false => report.print(),
    }
    if let (Some(path), Some(timeline)) = (&args.plot, timeline) {
        let title = format!("{}: requests and denials", log.name);
        fs::write(path, timeline.draw(&title)).map_err(|error| {
            out::message(format!("error: {} cannot be written: {error}", path.display()));
            Exit::Failure
        })?;
    }
    match args.max_denied {
        Some(most) if most.is_exceeded_by(simulation.denied, summary.requests) => {
            out::message(format!(
                "error: {} of {} requests are denied, more than --max-denied allows",
                simulation.denied, summary.requests
            ));
            Ok(Exit::Failure)
        }
        _ => Ok(Exit::Success),
    }
}

/// A policy, and the memory of its counters.
pub struct SimulationPlan {
    pub policy: PolicySnapshot,
    pub memory_bytes: usize,
}

/// Counters of one simulation take no more: two of them and the rest fit half a gigabyte.
const MAX_MEMORY_BYTES: usize = 192 << 20;

/// The policy of a configuration or of a list of rules.
fn load_policy(file: &Path) -> Result<SimulationPlan, Problems> {
    let input = input_file::read(file)?;
    let in_file = |problems: Problems| problems.in_file(&input.name);
    if input.is_list() {
        let policy = policy_of_list(input.text()).map_err(in_file)?;
        return Ok(SimulationPlan { policy, memory_bytes: MAX_MEMORY_BYTES });
    }
    let mut config = input.config(file)?;
    let policy = config.take_policy().map_err(in_file)?;
    if policy.rules().is_empty() {
        out::message(format!(
            "warning: {} has no rules; those of a database are written to a file by `tollgate rules export`",
            input.name
        ));
    }
    Ok(SimulationPlan { policy, memory_bytes: config.memory_bytes.min(MAX_MEMORY_BYTES) })
}

/// The policy of a list of rules, or of a configuration.
pub fn policy_of(text: &str) -> Result<PolicySnapshot, Problems> {
    if input_file::is_list(text) { policy_of_list(text) } else { PolicySnapshot::from_yaml(text) }
}

fn policy_of_list(text: &str) -> Result<PolicySnapshot, Problems> {
    let rules = for_each_rule(text, Vec::new, |rules, read| rules.push(read.rule))?;
    let parts = PolicyParts { rules, ..PolicyParts::default() };
    PolicySnapshot::new(parts).map_err(|error| Problem::new(None, "rules", error).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_compared_exactly() {
        let one = percent("1%").expect("a percentage");
        assert!(!one.is_exceeded_by(10, 1000) && one.is_exceeded_by(11, 1000));
        assert!(percent("0%").expect("a percentage").is_exceeded_by(1, u64::MAX));
        assert!(!percent("100%").expect("a percentage").is_exceeded_by(u64::MAX, u64::MAX));
        assert!(!one.is_exceeded_by(0, 0));
        for bad in ["1", "%", "-1%", "101%", "1.%", ".5%", "1e1%", "100.000001%"] {
            assert!(percent(bad).is_err(), "{bad}");
        }
    }
}
