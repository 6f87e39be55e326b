//! Tollgate against its rivals and against what the machine allows, everything from the same run.
//!
//! Tables on stdout, progress on stderr.

mod algorithms;
mod bans;
mod bytes;
mod comparison;
mod contestant;
mod decisions;
mod effort;
mod engine;
mod entrant;
mod floor;
mod growth;
mod keys;
mod logs;
mod ours;
mod promise;
mod rival;
mod roster;
mod rules;
mod score;
mod table;
mod tsc;

use std::process::ExitCode;
use std::time::Instant;

use decisions::{Contest, Spread, THREADS};
use effort::Effort;
use keys::Layout;
use score::Scores;

const PARTS: [&str; 11] =
    ["hot", "uniform", "zipf", "batch", "bytes", "logs", "algorithms", "engine", "rules", "bans", "growth"];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [child, name, keys] = &arguments[..]
        && child == growth::CHILD
    {
        growth::run_child(name, keys.parse().expect("the parent counts"));
        return ExitCode::SUCCESS;
    }
    if let [child, users] = &arguments[..]
        && child == logs::CHILD
    {
        logs::run_child(users.parse().expect("the parent counts"));
        return ExitCode::SUCCESS;
    }
    let smoke = std::env::var_os("BENCH_SMOKE").is_some_and(|value| value == "1");
    let mut effort = Effort::FULL;
    let mut layout = Layout::Warm;
    let mut strict = false;
    let mut parts = Vec::new();
    for argument in &arguments {
        match argument.as_str() {
            "--quick" => effort = Effort::QUICK,
            "--strict" => strict = true,
            "--cold-keys" => layout = Layout::Cold,
            part if PARTS.contains(&part) => parts.push(part),
            other => {
                eprintln!(
                    "unknown '{other}': use --quick, --strict, --cold-keys, --build or {}",
                    PARTS.join(", ")
                );
                return ExitCode::from(2);
            }
        }
    }
    if smoke {
        effort = Effort::SMOKE;
    }
    effort.layout = layout;
    let outcome = run(&effort, &|part| parts.is_empty() || parts.contains(&part));
    let failed = !outcome.correct || (strict && !outcome.kept);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

struct Outcome {
    /// None of our decisions was wrong.
    correct: bool,
    /// What must hold does.
    kept: bool,
}

/// Measures and prints the wanted parts.
fn run(effort: &Effort, wants: &dyn Fn(&str) -> bool) -> Outcome {
    let start = Instant::now();
    let mut scores = Scores::default();
    println!("Tollgate and its rivals, {} run: medians of {} rounds", effort.name, effort.rounds);
    if let Some(warning) = effort.warning() {
        println!("{warning}");
    }
    contest(effort, wants, &mut scores);
    if wants("bytes") || wants("growth") {
        let histograms = bytes::measure(effort, &mut scores);
        let lines = [bytes::MILLION, bytes::TEN_MILLION].map(str::to_owned);
        comparison::print("Resident bytes a key, grown from empty (× ours)", &scores, &lines, &[1]);
        bytes::print_histograms(&histograms);
    }
    if wants("logs") {
        logs::measure(effort, &mut scores);
    }
    if wants("algorithms") {
        algorithms::measure(effort, &mut scores);
        algorithms::print(&scores);
    }
    if wants("engine") {
        engine::measure(effort, &mut scores);
        engine::print(&scores);
    }
    if wants("rules") {
        let loads = rules::measure(effort, &mut scores);
        rules::print(&loads, &scores);
    }
    if wants("bans") {
        bans::measure(effort, &mut scores);
        bans::print(&scores);
    }
    let correct = scores.print_faults();
    let kept = promise::print(&scores);
    println!("\nmeasured in {:.0} s", start.elapsed().as_secs_f64());
    Outcome { correct, kept }
}

fn contest(effort: &Effort, wants: &dyn Fn(&str) -> bool, scores: &mut Scores) {
    let spreads = [
        ("hot", Spread::Hot),
        ("uniform", Spread::Uniform),
        ("zipf", Spread::Zipf),
        ("batch", Spread::Batch),
        ("growth", Spread::Uniform),
    ];
    let wanted: Vec<Spread> =
        spreads.iter().filter(|(part, _)| wants(part)).map(|(_, spread)| *spread).collect();
    if wanted.is_empty() {
        return;
    }
    Contest { effort: *effort, wanted, scores }.run();
    let lines = scores.lines().to_vec();
    let title =
        "Decisions: ns each (× ours as a share of theirs; * the best exact rival; ~ not exact; ! wrong)";
    comparison::print(title, scores, &lines, &THREADS);
}
