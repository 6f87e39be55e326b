//! One run of one target: inputs are changed, run, and kept if they reach new code.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::corpus::{self, Kind};
use crate::coverage::Coverage;
use crate::mutate::mutate;
use crate::targets::Target;

/// An input that takes longer is reported: work that is not linear, or a wait.
const TOO_SLOW: Duration = Duration::from_secs(5);

pub struct Session<'t> {
    target: &'t Target,
    rng: Rng,
    inputs: Vec<Vec<u8>>,
    coverage: Coverage,
    current: Option<Current>,
    runs: u64,
}

/// An input that a target does not survive.
#[derive(Debug)]
pub struct Failure {
    pub input: Vec<u8>,
    pub why: String,
}

impl<'t> Session<'t> {
    /// Begins with the seeds, the corpus and the regressions, which are all run. The input that is being run is kept in
    /// `current`.
    pub fn start(target: &'t Target, seed: u64, current: Option<Current>) -> Result<Session<'t>, Failure> {
        let mut inputs = vec![Vec::new()];
        inputs.extend((target.seeds)());
        for kind in [Kind::Corpus, Kind::Regressions] {
            inputs.extend(corpus::load(kind, target.name).expect("the corpus can be read"));
        }
        let rng = Rng::with_seed(seed);
        let coverage = Coverage::new();
        let mut session = Session { target, rng, inputs: Vec::new(), coverage, current, runs: 0 };
        for input in inputs {
            session.run(&input)?;
            session.inputs.push(input);
        }
        Ok(session)
    }

    /// Changes an input and runs it.
    pub fn step(&mut self) -> Result<(), Failure> {
        let [one, other] = [0; 2].map(|_| self.rng.usize(0..self.inputs.len()));
        let Target { words, max_bytes, .. } = self.target;
        let input = mutate(&mut self.rng, &self.inputs[one], &self.inputs[other], words, *max_bytes);
        if self.run(&input)? {
            self.inputs.push(input);
        }
        Ok(())
    }

    /// Runs an input; returns whether it has reached new code.
    fn run(&mut self, input: &[u8]) -> Result<bool, Failure> {
        if let Some(current) = &mut self.current {
            current.set(input).expect("the input can be written");
        }
        self.coverage.reset();
        let started = Instant::now();
        run(self.target, input)?;
        self.runs += 1;
        let took = started.elapsed();
        if took > TOO_SLOW {
            return Err(Failure { input: input.to_vec(), why: format!("it took {took:?}") });
        }
        Ok(self.coverage.add())
    }

    pub fn runs(&self) -> u64 {
        self.runs
    }

    pub fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// The smallest inputs that reach what all of them reach together, as far as they may be kept.
    pub fn distilled(mut self) -> Result<Vec<Vec<u8>>, Failure> {
        self.inputs.retain(|input| input.len() <= corpus::MAX_KEPT_BYTES && !input.is_empty());
        self.inputs.sort_by_key(Vec::len);
        self.coverage = Coverage::new();
        let mut kept = Vec::new();
        for input in std::mem::take(&mut self.inputs) {
            if self.run(&input)? {
                kept.push(input);
            }
        }
        // The later ones reach what takes a longer input to reach.
        let surplus = kept.len().saturating_sub(corpus::MAX_KEPT);
        kept.drain(..surplus);
        Ok(kept)
    }
}

/// Runs one input; a panic is the error.
pub fn run(target: &Target, input: &[u8]) -> Result<(), Failure> {
    let ran = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    ran.map_err(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let why = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        Failure { input: input.to_vec(), why: why.to_owned() }
    })
}

/// The shortest input found that fails in place of a failing one: parts are removed for as long as it still fails.
pub fn shrink(target: &Target, mut input: Vec<u8>) -> Vec<u8> {
    let mut size = input.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < input.len() {
            let mut shorter = input.clone();
            shorter.drain(at..(at + size).min(input.len()));
            if run(target, &shorter).is_err() {
                input = shorter;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    input
}

/// A file with the input that is being run: what a stack overflow or an abort leaves behind.
pub struct Current(File);

impl Current {
    pub fn create(path: &Path) -> io::Result<Current> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        Ok(Current(File::create(path)?))
    }

    fn set(&mut self, input: &[u8]) -> io::Result<()> {
        self.0.set_len(input.len() as u64)?;
        self.0.write_all_at(input, 0)
    }
}
