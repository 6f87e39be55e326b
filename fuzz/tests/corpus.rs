//! Every target on its seeds, its corpus, its regressions, and on inputs made from them with a fixed seed.

use tollgate_fuzz::corpus::{self, Kind, MAX_KEPT, MAX_KEPT_BYTES};
use tollgate_fuzz::session::{Failure, Session};
use tollgate_fuzz::targets::{TARGETS, Target};

/// Seconds in a test run; `scripts/fuzz` takes the duration as an argument.
const STEPS: usize = 300;

fn check(target: &Target) -> Result<(), Failure> {
    let mut session = Session::start(target, 1, None)?;
    (0..STEPS).try_for_each(|_| session.step())
}

#[test]
fn every_target_survives_its_corpus_and_what_is_made_of_it() {
    let failures: Vec<String> = TARGETS
        .iter()
        .filter_map(|target| {
            let Failure { input, why } = check(target).err()?;
            Some(format!("{}: {why}\n  {}", target.name, input.escape_ascii()))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_target_has_a_corpus_within_its_bounds() {
    for target in TARGETS {
        let inputs = corpus::load(Kind::Corpus, target.name).expect("the corpus can be read");
        assert!((1..=MAX_KEPT).contains(&inputs.len()), "{}: {} inputs", target.name, inputs.len());
        let longest = inputs.iter().map(Vec::len).max();
        assert!(longest <= Some(MAX_KEPT_BYTES), "{}: {longest:?} bytes", target.name);
    }
}
