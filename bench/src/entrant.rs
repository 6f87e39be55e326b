//! A contestant with its keys in place, ready to be measured next to others.
//!
//! Each measurement fails if a decision is not the one that is due: what is fast and wrong has no time.

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

pub trait Entrant<K> {
    /// Nanoseconds that a decision takes, as each of so many threads sees it.
    fn measure(&self, draws: &Draws<K>, manner: Manner, threads: usize, start: usize, effort: &Effort)
    -> f64;
}

struct Entered<C> {
    name: &'static str,
    contestant: C,
    allowance: Allowance,
}

/// Builds a contestant and lets all keys in.
pub fn enter<K: Key, C: Contestant<K> + 'static>(
    name: &'static str,
    allowance: Allowance,
    keys: usize,
) -> Box<dyn Entrant<K>> {
    enter_built(name, C::new(allowance, keys), allowance, allowance.first_cost(), keys)
}

/// Lets all keys in, each with a hit of `first_cost`.
pub fn enter_built<K: Key, C: Contestant<K> + 'static>(
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
    assert!(admitted == keys || estimates, "{name}: {admitted} of {keys} first hits allowed");
    Box::new(Entered { name, contestant, allowance })
}

/// What one thread did.
#[derive(Default)]
struct Lap {
    elapsed: Duration,
    decisions: usize,
    allowed: usize,
}

impl<K: Key, C: Contestant<K>> Entrant<K> for Entered<C> {
    fn measure(
        &self,
        draws: &Draws<K>,
        manner: Manner,
        threads: usize,
        start: usize,
        effort: &Effort,
    ) -> f64 {
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
        let due = if self.allowance == Allowance::Ample { decisions } else { 0 };
        assert_eq!(allowed, due, "{}: allowed, of {decisions} decisions", self.name);
        let elapsed: Duration = laps.iter().map(|lap| lap.elapsed).sum();
        elapsed.as_nanos() as f64 / decisions as f64
    }
}

impl<C> Entered<C> {
    fn spin<K: Key>(&self, draws: &[K], at: &mut usize, manner: Manner, time: Duration) -> Lap
    where
        C: Contestant<K>,
    {
        let (mut lap, mut scratch) = (Lap::default(), C::Scratch::default());
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
                        lap.allowed += self.contestant.check_batch(batch, &mut scratch);
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
