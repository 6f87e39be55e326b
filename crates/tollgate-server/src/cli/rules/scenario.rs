//! `tollgate rules test FILE`: requests and expected decisions, on a virtual clock.
//!
//! Each test starts with empty counters. A step sends requests of the decision API or lets time pass; what is expected
//! are fields of the verdict. Nothing is sent to a server.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tollgate::internal::document::{Problem, Problems};

use crate::cli::{Exit, input_file, out};

mod junit;
mod parse;
mod run;

use parse::ScenarioFile;
use run::TestResult;

#[derive(Args)]
pub struct TestArgs {
    /// The file of tests; `-` reads it from stdin
    file: PathBuf,
    /// Test the rules of this configuration instead of the one that the file names
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only run tests whose names contain this text
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Also write the results as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &TestArgs) -> Exit {
    let results = match run_file(args) {
        Ok(results) => results,
        Err(problems) if args.json => return out::json_problems(&problems),
        Err(problems) => return out::problems(&problems),
    };
    let failed = results.iter().filter(|result| result.failure.is_some()).count();
    if args.json {
        out::pretty(&json(&results));
    } else {
        print(&results);
    }
    if let Some(path) = &args.junit
        && let Err(error) = fs::write(path, junit::document(&args.file.display().to_string(), &results))
    {
        out::message(format!("error: {} cannot be written: {error}", path.display()));
        return Exit::Failure;
    }
    if results.is_empty() {
        out::message("error: no test was run");
        return Exit::Failure;
    }
    if failed == 0 { Exit::Success } else { Exit::Failure }
}

fn run_file(args: &TestArgs) -> Result<Vec<TestResult>, Problems> {
    let input = input_file::read(&args.file)?;
    let folder = if input.name == "stdin" { None } else { args.file.parent() };
    let folder = folder.unwrap_or(Path::new(""));
    let in_file = |problems: Problems| problems.in_file(&input.name);
    let scenario = ScenarioFile::parse(input.text()).map_err(in_file)?;
    let policy = || scenario.policy(folder, args.config.as_deref(), &input.name);
    policy()?; // an invalid configuration is reported once
    let is_selected = |name: &str| args.only.as_ref().is_none_or(|only| name.contains(only.as_str()));
    let selected = scenario.tests.iter().filter(|test| is_selected(&test.name));
    selected.map(|test| Ok(run::run(test, policy()?, scenario.start))).collect()
}

fn print(results: &[TestResult]) {
    for result in results {
        let name = out::escape_control(&result.name);
        let Some(failure) = &result.failure else {
            out::line(format!("ok      {name}"));
            continue;
        };
        out::line(format!("FAILED  {name}"));
        failure.lines().iter().for_each(|line| out::line(format!("        {}", out::escape_control(line))));
    }
    let failed = results.iter().filter(|result| result.failure.is_some()).count();
    let total = out::pluralize(results.len() as u64, "test");
    out::line(format!("{total}, {failed} failed"));
}

fn json(results: &[TestResult]) -> serde_json::Value {
    let one = |result: &TestResult| {
        json!({
            "name": result.name,
            "passed": result.failure.is_none(),
            "failure": result.failure.as_ref().map(|failure| json!({
                "line": failure.line,
                "message": failure.lines().join("\n"),
            })),
        })
    };
    json!({
        "tests": results.iter().map(one).collect::<Vec<_>>(),
        "failed": results.iter().filter(|result| result.failure.is_some()).count(),
    })
}

/// One test of a file.
struct Scenario {
    name: String,
    steps: Vec<ScenarioStep>,
}

struct ScenarioStep {
    line: u32,
    action: Action,
}

enum Action {
    Wait(Duration),
    Send {
        /// A request of the decision API, as JSON.
        request: Vec<u8>,
        times: u64,
        /// The status of the response, for rules that count by it.
        status: Option<u16>,
        /// Expected fields of each verdict.
        expected: serde_json::Map<String, serde_json::Value>,
    },
}

fn problem(message: impl std::fmt::Display) -> Problems {
    Problem::new(None, "", message).into()
}
