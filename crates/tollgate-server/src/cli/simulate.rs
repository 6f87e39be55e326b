//! `tollgate simulate`: replays an access log through the engine, on the log's own clock, or asks a server to replay its
//! latest requests.
//!
//! Decisions are made by [`Simulation`], which is the live engine with time passed in.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use hyper::Method;
use serde_json::json;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::document::{self, MapReader, Problem, Problems};
use tollgate::internal::policy::{PolicyParts, Settings};
use tollgate_stores::rules::for_each_rule;

use crate::cli::access_log::{AccessLog, AccessLogFormat};
use crate::cli::session::Session;
use crate::cli::{AdminArgs, Exit, input_file, out};

mod algorithms;
mod comparison;
mod denied_keys;
mod policy_text;
mod replay;
mod report;
mod run;
mod timeline;

use policy_text::policy_text;
pub use replay::Simulation;
pub use report::SimulationReport;
pub use run::{SimulationOptions, SimulationRun};

#[derive(Args)]
pub struct SimulateArgs {
    /// The access log; `-` reads it from stdin
    #[arg(required_unless_present = "live")]
    log: Option<PathBuf>,
    /// The latest requests of a running server instead of a log; compared with its rules unless --compare is given
    #[arg(long, conflicts_with_all = ["log", "format"])]
    live: bool,
    /// The configuration to try, or a list of rules; `-` reads it from stdin
    #[arg(short, long, value_name = "FILE", default_value = "tollgate.yaml")]
    config: PathBuf,
    /// Show what changes against this configuration
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Also show what each algorithm would deny with the same rates
    #[arg(long)]
    algorithms: bool,
    /// Draw requests and denials over time: a file that ends with .svg or .png
    #[arg(long, value_name = "FILE", value_parser = plot_file)]
    plot: Option<PathBuf>,
    /// Exit 1 if a larger share of the requests is denied
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    max_denied: Option<Percent>,
    /// The format of the log, if it is not recognised
    #[arg(long, value_name = "FORMAT")]
    format: Option<AccessLogFormat>,
    #[command(flatten)]
    admin: AdminArgs,
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

fn plot_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let is_svg = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg"));
    match is_svg || is_png(&path) {
        true => Ok(path),
        false => Err("expected a file that ends with .svg or .png".to_owned()),
    }
}

fn is_png(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("png"))
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
    let simulated = match &args.log {
        Some(log) if !args.live => of_log(args, log),
        _ => of_live_requests(args),
    };
    simulated.and_then(|(name, report)| conclude(args, &name, &report)).unwrap_or_else(|exit| exit)
}

fn invalid(args: &SimulateArgs, problems: &Problems) -> Exit {
    match args.admin.json {
        true => out::json_problems(problems),
        false => out::problems(problems),
    }
}

/// Rejects that several inputs are read from stdin.
fn reject_shared_stdin(args: &SimulateArgs) -> Result<(), Exit> {
    let inputs = [args.log.as_ref(), Some(&args.config), args.compare.as_ref()];
    if inputs.into_iter().flatten().filter(|path| path.as_path() == Path::new("-")).count() > 1 {
        out::message("error: only one of the log and the configurations can be read from stdin");
        return Err(Exit::Usage);
    }
    Ok(())
}

fn of_log(args: &SimulateArgs, log: &Path) -> Result<(String, SimulationReport), Exit> {
    reject_shared_stdin(args)?;
    let load = |file: &Path| load_policy(file).map_err(|problems| invalid(args, &problems));
    let plan = load(&args.config)?;
    let compare =
        args.compare.as_ref().map(|file| Ok((file.display().to_string(), load(file)?))).transpose()?;
    let options = SimulationOptions {
        compare,
        has_algorithms: args.algorithms,
        has_timeline: args.plot.is_some(),
        sampled_one_in: None,
    };
    let mut run = SimulationRun::new(plan, options);
    let mut log = AccessLog::open(log, args.format)?;
    let fields = run.fields().clone();
    let summary = log.read(&fields, |record, at| run.decide(&record.hit(), at, record.status))?;
    summary.print_notes(&log.name);
    let report = run.report(str::to_owned);
    Ok((
        log.name.clone(),
        SimulationReport { unreadable: summary.unreadable, out_of_order: summary.late, ..report },
    ))
}

/// Asks a server for the same report on its latest requests.
fn of_live_requests(args: &SimulateArgs) -> Result<(String, SimulationReport), Exit> {
    reject_shared_stdin(args)?;
    let load = |file: &Path| policy_to_send(file).map_err(|problems| invalid(args, &problems));
    let rules = load(&args.config)?;
    let compare = args.compare.as_deref().map(load).transpose()?;
    let report =
        json!({ "compare": compare, "algorithms": args.algorithms, "timeline": args.plot.is_some() });
    let body = json!({ "rules": rules, "sample": "live", "report": report });
    let mut session = Session::open(&args.admin)?;
    let mut answer = session.call(Method::POST, "/v1/simulate", Some(body))?.body;
    let sampled_one_in = answer["sampled_one_in"].as_u64().unwrap_or(1);
    let report: Result<SimulationReport, _> = serde_json::from_value(answer["report"].take());
    let mut report = report.map_err(|error| {
        out::message(format!("error: unexpected response from {}: {error}", args.admin.admin));
        Exit::Failure
    })?;
    if let (Some(comparison), Some(file)) = (&mut report.compare, &args.compare) {
        comparison.file = file.display().to_string();
    }
    if sampled_one_in > 1 {
        report.notes.push(format!("one client in {sampled_one_in} is recorded, with all of its requests"));
    }
    Ok(("live requests".to_owned(), report))
}

/// Prints the report; the exit code says whether too many requests are denied.
fn conclude(args: &SimulateArgs, name: &str, report: &SimulationReport) -> Result<Exit, Exit> {
    match args.admin.json {
        true => out::pretty(&report.json()),
        false => report.print(name),
    }
    if let (Some(path), Some(timeline)) = (&args.plot, &report.timeline) {
        let title = format!("{name}: requests and denials");
        let drawn = match is_png(path) {
            true => timeline.png(&title),
            false => timeline.svg(&title).into_bytes(),
        };
        fs::write(path, drawn).map_err(|error| {
            out::message(format!("error: {} cannot be written: {error}", path.display()));
            Exit::Failure
        })?;
    }
    match args.max_denied {
        Some(most) if most.is_exceeded_by(report.denied, report.requests) => {
            out::message(format!(
                "error: {} of {} requests are denied, more than --max-denied allows",
                report.denied, report.requests
            ));
            Ok(Exit::Failure)
        }
        _ => Ok(Exit::Success),
    }
}

/// The rules of a file as a server takes them, after the checks of this program.
fn policy_to_send(file: &Path) -> Result<String, Problems> {
    let input = input_file::read(file)?;
    let in_file = |problems: Problems| problems.in_file(&input.name);
    if input.is_list() {
        policy_of_list(input.text()).map_err(in_file)?;
        return Ok(input.text().to_owned());
    }
    input.config(file)?.take_policy().map_err(in_file)?;
    policy_text(input.text()).map_err(in_file)
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

/// The policy of a list of rules, or of a configuration with nothing but rules, lists and identities.
pub fn policy_of(text: &str) -> Result<PolicySnapshot, Problems> {
    if input_file::is_list(text) {
        return policy_of_list(text);
    }
    let root = document::read(text)?;
    let mut problems = Problems::new();
    let mut parts = PolicyParts::default();
    if !root.is_null()
        && let Some(mut map) = MapReader::new(&root, "", &mut problems)
    {
        parts.read(&mut map);
        parts.settings = Settings::read(&mut map);
        map.finish();
    }
    problems.or(())?;
    PolicySnapshot::new(parts).map_err(|error| Problem::new(None, "rules", error).into())
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
