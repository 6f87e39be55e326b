//! Decisions a second, turned around: nanoseconds a decision, ours, the rivals' and the floor's.

use crate::contestant::Allowance;
use crate::effort::Effort;
use crate::entrant::{Manner, Named, prepare};
use crate::keys::{Draws, Key, Random};
use crate::roster::{self, Candidate};
use crate::score::{Scores, median};

pub const THREADS: [usize; 2] = [1, 2];

/// The order of the keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spread {
    Hot,
    Uniform,
    Zipf,
    /// Uniform, sixteen at a time.
    Batch,
}

impl Spread {
    fn word(self) -> &'static str {
        match self {
            Spread::Hot => "1 hot key",
            Spread::Uniform => "uniform",
            Spread::Zipf => "Zipf(0.99)",
            Spread::Batch => "uniform, batches of 16",
        }
    }
}

/// The name of a line: `strings, 1 M uniform, allowed`.
pub fn line<K: Key>(keys: usize, spread: Spread, allowance: Allowance) -> String {
    let size = match keys {
        1 => String::new(),
        keys if keys.is_multiple_of(1_000_000) => format!("{} M ", keys / 1_000_000),
        keys => format!("{} k ", keys / 1_000),
    };
    format!("{}, {size}{}, {}", K::KIND, spread.word(), allowance.word())
}

/// Which lines are wanted, and how thoroughly.
pub struct Contest<'s> {
    pub effort: Effort,
    pub wanted: Vec<Spread>,
    pub scores: &'s mut Scores,
}

impl Contest<'_> {
    pub fn run(&mut self) {
        use Allowance::{Ample, Spent};
        use Spread::{Batch, Hot, Uniform, Zipf};
        let every = self.effort.every_line;
        for allowance in [Ample, Spent] {
            self.stage(roster::strings(), 1, allowance, &[Hot]);
            self.stage(roster::numbers(), 1, allowance, &[Hot]);
        }
        self.stage(roster::strings(), 100_000, Ample, &[Uniform]);
        self.stage(roster::numbers(), 100_000, Ample, &[Uniform]);
        self.stage(roster::strings(), 1_000_000, Ample, &[Uniform, Zipf, Batch]);
        self.stage(roster::strings(), 1_000_000, Spent, &[Uniform]);
        let more: &[Spread] = if every { &[Uniform, Zipf, Batch] } else { &[Uniform, Batch] };
        self.stage(roster::numbers(), 1_000_000, Ample, more);
        if every {
            self.stage(roster::numbers(), 1_000_000, Spent, &[Uniform]);
        }
        self.most_keys(roster::strings());
        self.most_keys(roster::numbers());
    }

    /// Ten million keys: us, the floor, and the rivals that were best with a million.
    fn most_keys<K: Key>(&mut self, mut candidates: Vec<Candidate<K>>) {
        let million = line::<K>(1_000_000, Spread::Uniform, Allowance::Ample);
        let best = self.scores.rivals_by_value(&million, 1);
        let best: Vec<_> = best.iter().take(self.effort.rivals_at_most_keys).map(|(name, _)| *name).collect();
        candidates.retain(|candidate| {
            [roster::OURS, roster::FLOOR].contains(&candidate.name) || best.contains(&candidate.name)
        });
        self.stage(candidates, 10_000_000, Allowance::Ample, &[Spread::Uniform]);
    }

    /// All contestants with the same keys, measured in all the selected ways.
    fn stage<K: Key>(
        &mut self,
        candidates: Vec<Candidate<K>>,
        keys: usize,
        allowance: Allowance,
        spreads: &[Spread],
    ) {
        let mut spreads: Vec<Spread> =
            spreads.iter().copied().filter(|spread| self.wanted.contains(spread)).collect();
        if spreads.contains(&Spread::Batch) && !spreads.contains(&Spread::Uniform) {
            spreads.insert(0, Spread::Uniform); // batches are compared with single decisions
        }
        if spreads.is_empty() {
            return;
        }
        eprintln!("measuring {}", line::<K>(keys, spreads[0], allowance));
        let count = self.effort.keys(keys);
        let enters = |candidate: &Candidate<K>| !candidate.slow || count <= self.effort.slow_keys;
        let entered = |candidate: Candidate<K>| {
            move || (candidate.name, (candidate.enter)(candidate.name, allowance, count))
        };
        let entrants = prepare(candidates.into_iter().filter(enters).map(entered).collect());
        for spread in spreads {
            let draws = match spread {
                Spread::Hot | Spread::Uniform | Spread::Batch => {
                    Draws::<K>::uniform(count, self.effort.layout)
                }
                Spread::Zipf => Draws::<K>::zipf(count, self.effort.layout),
            };
            let manner = if spread == Spread::Batch { Manner::Batch } else { Manner::Single };
            let able = |name: &str| spread != Spread::Batch || [roster::OURS, roster::FLOOR].contains(&name);
            let able: Vec<_> = entrants.iter().filter(|(name, _)| able(name)).collect();
            let title = line::<K>(keys, spread, allowance);
            compare(&title, &able, &draws, manner, &self.effort, self.scores);
        }
    }
}

/// Rounds in alternating order; the medians become scores.
pub fn compare<K: Key>(
    title: &str,
    entrants: &[&Named<K>],
    draws: &Draws<K>,
    manner: Manner,
    effort: &Effort,
    scores: &mut Scores,
) {
    for (name, entrant) in entrants.iter().copied() {
        scores.note(title, name, entrant.entry());
    }
    let mut random = Random::new(3);
    let mut times = vec![[const { Vec::new() }; THREADS.len()]; entrants.len()];
    for round in 0..effort.rounds {
        let start = random.below(draws.0.len());
        for turn in 0..entrants.len() {
            let n = (turn + round) % entrants.len();
            for (at, threads) in THREADS.into_iter().enumerate() {
                let (name, entrant) = entrants[n];
                let pace = entrant.measure(draws, manner, threads, start, effort);
                scores.note(title, name, pace.faults);
                times[n][at].push(pace.ns);
            }
        }
    }
    for ((name, _), times) in entrants.iter().copied().zip(times) {
        for (threads, times) in THREADS.into_iter().zip(times) {
            scores.put(title, name, threads, median(times));
        }
    }
}
