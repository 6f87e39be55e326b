//! Runs targets: `tollgate-fuzz [TARGET] [--minutes N] [--seed N] [--keep]`, or `tollgate-fuzz TARGET FILE` for one input.
//!
//! `--keep` replaces the corpus of each target by the smallest inputs that reach what was reached. An input that fails
//! is made smaller and saved in `fuzz/regressions`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tollgate_fuzz::corpus::{self, Kind};
use tollgate_fuzz::session::{self, Current, Failure, Session};
use tollgate_fuzz::targets::{self, TARGETS, Target};

/// What is shown of an input that fails.
const SHOWN_BYTES: usize = 200;

struct Options {
    targets: Vec<&'static Target>,
    file: Option<PathBuf>,
    each: Duration,
    seed: u64,
    keep: bool,
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("{why}\nusage: tollgate-fuzz [TARGET [FILE]] [--minutes N] [--seed N] [--keep]");
            return ExitCode::from(2);
        }
    };
    // A failure says why; shrinking it panics many times.
    std::panic::set_hook(Box::new(|_| {}));
    let mut failed = false;
    for target in &options.targets {
        let ran = match &options.file {
            Some(file) => run_file(target, file),
            None => fuzz(target, &options),
        };
        if let Err(Failure { input, why }) = ran {
            failed = true;
            eprintln!("{} FAILED: {why}", target.name);
            let input = session::shrink(target, input);
            let file = corpus::save(Kind::Regressions, target.name, &input).expect("the input can be saved");
            let shown = input[..input.len().min(SHOWN_BYTES)].escape_ascii();
            eprintln!("  {} bytes in {}: {shown}", input.len(), file.display());
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { targets: TARGETS.iter().collect(), file: None, each: Duration::ZERO, seed: 1, keep: false };
    let mut minutes = 1.0;
    let mut arguments = std::env::args().skip(1);
    let mut named = false;
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().and_then(|value| value.parse::<f64>().ok());
            value.filter(|number| *number >= 0.0).ok_or(format!("{argument} takes a number"))
        };
        match argument.as_str() {
            "--minutes" => minutes = number()?,
            "--seed" => options.seed = number()? as u64,
            "--keep" => options.keep = true,
            file if named => options.file = Some(file.into()),
            name => {
                let names = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(" ");
                let target =
                    targets::named(name).ok_or_else(|| format!("no target '{name}': {}", names()))?;
                options.targets = vec![target];
                named = true;
            }
        }
    }
    options.each = Duration::from_secs_f64(minutes * 60.0 / options.targets.len() as f64);
    Ok(options)
}

fn run_file(target: &Target, file: &Path) -> Result<(), Failure> {
    let input = std::fs::read(file).map_err(|error| Failure { input: Vec::new(), why: error.to_string() })?;
    session::run(target, &input)
}

fn fuzz(target: &Target, options: &Options) -> Result<(), Failure> {
    let current = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/fuzz-current").join(target.name);
    let current = Current::create(&current).expect("the input that is being run can be kept");
    let mut session = Session::start(target, options.seed, Some(current))?;
    let before = session.coverage().edges();
    let started = Instant::now();
    while started.elapsed() < options.each {
        session.step()?;
    }
    let runs = session.runs();
    let edges = session.coverage().edges();
    eprintln!("{:<20} {runs:>9} runs, {edges} edges, {} of them new", target.name, edges - before);
    if options.keep && session.coverage().is_counted() {
        let kept = session.distilled()?;
        corpus::replace(target.name, &kept).expect("the corpus can be written");
    }
    Ok(())
}
