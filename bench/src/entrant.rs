//! A contestant with its keys in place, ready to be measured next to others.
//!
//! Every decision is compared with the expected one, and wrong ones are reported.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use crate::contestant::{Allowance, BATCH, Contestant};
use crate::effort::Effort;
use crate::keys::{Draws, Key};
use crate::roster::INEXACT;

/// Decisions between two looks at the clock of the harness.
const CHUNK: usize = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Manner {
    Single,
    Batch,
}

/// How many decisions were not the ones due.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    pub wrong: usize,
    pub decisions: usize,
}

/// How long a decision takes, as each thread sees it.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub ns: f64,
    pub faults: Faults,
}

pub trait Entrant<K>: Send {
    /// How many keys were let in, and how many of those should have been but were not.
    fn entry(&self) -> Faults;

    fn measure(
        &self,
        draws: &Draws<K>,
        manner: Manner,
        threads: usize,
        start: usize,
        effort: &Effort,
    ) -> Pace;
}

struct Entered<C> {
    contestant: C,
    allowance: Allowance,
    entry: Faults,
}

/// A name and its contestant.
pub type Named<K> = (&'static str, Box<dyn Entrant<K>>);

/// Prepares entrants two at a time, as there are two cores; their order is kept.
pub fn prepare<K: Key>(jobs: Vec<impl FnOnce() -> Named<K> + Send>) -> Vec<Named<K>> {
    let mut jobs = jobs.into_iter();
    let mut ready = Vec::new();
    while let Some(job) = jobs.next() {
        std::thread::scope(|scope| {
            let other = jobs.next().map(|job| scope.spawn(job));
            ready.push(job());
            ready.extend(other.map(|other| other.join().expect("an entrant can be prepared")));
        });
    }
    ready
}

/// Builds a contestant and lets all keys in.
pub fn enter<K: Key, C: Contestant<K> + Send + 'static>(
    name: &'static str,
    allowance: Allowance,
    keys: usize,
) -> Box<dyn Entrant<K>> {
    enter_built(name, C::new(allowance, keys), allowance, allowance.first_cost(), keys)
}

/// Lets all keys in, each with a hit of `first_cost`.
pub fn enter_built<K: Key, C: Contestant<K> + Send + 'static>(
    name: &'static str,
    contestant: C,
    allowance: Allowance,
    first_cost: u32,
    keys: usize,
) -> Box<dyn Entrant<K>> {
    let admitted = (0..keys).filter(|n| contestant.admit(&K::nth(*n), first_cost)).count();
    let estimates = name.starts_with(INEXACT) && allowance == Allowance::Spent;
    if estimates {
        (0..keys).for_each(|n| _ = contestant.check(&K::nth(n)));
    }
    let wrong = if estimates { 0 } else { keys - admitted };
    Box::new(Entered { contestant, allowance, entry: Faults { wrong, decisions: keys } })
}

/// What one thread did.
#[derive(Default)]
struct Lap {
    elapsed: Duration,
    decisions: usize,
    allowed: usize,
}

impl<K: Key, C: Contestant<K> + Send> Entrant<K> for Entered<C> {
    fn entry(&self) -> Faults {
        self.entry
    }

    fn measure(
        &self,
        draws: &Draws<K>,
        manner: Manner,
        threads: usize,
        start: usize,
        effort: &Effort,
    ) -> Pace {
        let barrier = Barrier::new(threads);
        let run = |thread: usize| {
            let mut at = (start + thread * draws.0.len() / threads) % draws.0.len() / CHUNK * CHUNK;
            barrier.wait();
            self.spin(&draws.0, &mut at, manner, effort.warm);
            barrier.wait();
            self.spin(&draws.0, &mut at, manner, effort.slice)
        };
        let laps: Vec<Lap> = std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads).map(|thread| scope.spawn(move || run(thread))).collect();
            let mut laps = vec![run(0)];
            laps.extend(others.into_iter().map(|other| other.join().expect("a measuring thread lives")));
            laps
        });
        let decisions: usize = laps.iter().map(|lap| lap.decisions).sum();
        let allowed: usize = laps.iter().map(|lap| lap.allowed).sum();
        let wrong = if self.allowance == Allowance::Ample { decisions - allowed } else { allowed };
        let elapsed: Duration = laps.iter().map(|lap| lap.elapsed).sum();
        Pace { ns: elapsed.as_nanos() as f64 / decisions as f64, faults: Faults { wrong, decisions } }
    }
}

impl<C> Entered<C> {
    fn spin<K: Key>(&self, draws: &[K], at: &mut usize, manner: Manner, time: Duration) -> Lap
    where
        C: Contestant<K>,
    {
        let mut lap = Lap::default();
        let start = Instant::now();
        while lap.elapsed < time {
            self.contestant.tick();
            let chunk = &draws[*at..*at + CHUNK];
            match manner {
                Manner::Single => {
                    lap.allowed += chunk.iter().filter(|key| self.contestant.check(key)).count()
                }
                Manner::Batch => {
                    for batch in chunk.as_chunks::<BATCH>().0 {
                        lap.allowed += self.contestant.check_batch(batch);
                    }
                }
            }
            lap.decisions += CHUNK;
            *at = if *at + 2 * CHUNK > draws.len() { 0 } else { *at + CHUNK };
            lap.elapsed = start.elapsed();
        }
        lap
    }
}
