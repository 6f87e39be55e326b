//! Growing from empty: resident memory, and how long single decisions take meanwhile.
//!
//! Measured in a process of its own, which holds nothing else: the benchmark runs itself again.

use std::process::{Command, Stdio};

use crate::contestant::{Allowance, Contestant};
use crate::keys::Key;
use crate::roster;
use crate::tsc::Ticks;

/// The first argument of such a process; the name and the number of keys follow.
pub const CHILD: &str = "--grow";

#[derive(Clone, Copy, Debug)]
pub struct Growth {
    pub bytes_per_key: f64,
    /// First hits that were denied.
    pub wrong: usize,
    pub p50_ns: f64,
    pub p99_ns: f64,
    pub p999_ns: f64,
    pub max_ns: f64,
}

/// Lets keys in, one hit each, all allowed, none forgotten meanwhile.
pub fn grow<K: Key, C: Contestant<K>>(keys: usize) -> Growth {
    let ticks = Ticks::new();
    let mut times = Histogram::new();
    let before = resident_bytes();
    let contestant = C::new(Allowance::Ample, keys);
    let mut allowed = 0;
    let mut max = 0;
    for n in 0..keys {
        let key = K::nth(n);
        let start = ticks.now();
        allowed += usize::from(contestant.admit(&key, Allowance::Ample.first_cost()));
        let took = ticks.now().saturating_sub(start);
        times.add(took);
        max = max.max(took);
    }
    let grown = resident_bytes().saturating_sub(before);
    drop(contestant);
    let quantile = |share| ticks.nanos(times.quantile(share));
    Growth {
        bytes_per_key: grown as f64 / keys as f64,
        wrong: keys - allowed,
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
        p999_ns: quantile(0.999),
        max_ns: ticks.nanos(max),
    }
}

/// What a process of its own does: grows a contestant and prints the result.
pub fn run_child(name: &str, keys: usize) {
    let candidate = roster::strings().into_iter().find(|candidate| candidate.name == name);
    let Growth { bytes_per_key, wrong, p50_ns, p99_ns, p999_ns, max_ns } =
        (candidate.expect("the parent knows all names").grow)(keys);
    println!("{bytes_per_key} {wrong} {p50_ns} {p99_ns} {p999_ns} {max_ns}");
}

/// Grows a contestant in a process of its own.
pub fn grown(name: &'static str, keys: usize) -> Growth {
    eprintln!("growing {name} to {keys} keys");
    let numbers = output_of_child(&[CHILD, name, &keys.to_string()]);
    let &[bytes_per_key, wrong, p50_ns, p99_ns, p999_ns, max_ns] = &numbers[..] else {
        panic!("growing {name} said {numbers:?}");
    };
    Growth { bytes_per_key, wrong: wrong as usize, p50_ns, p99_ns, p999_ns, max_ns }
}

/// The numbers that this program prints when it is run again, in a process of its own.
pub fn output_of_child(arguments: &[&str]) -> Vec<f64> {
    let program = std::env::current_exe().expect("a running program has a path");
    let mut command = Command::new(program);
    let output = command.args(arguments).stderr(Stdio::inherit()).output().expect("it can run itself");
    assert!(output.status.success(), "{arguments:?} failed");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

pub fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux tells the resident memory");
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).expect("it is listed");
    let kib = line.trim().trim_end_matches("kB").trim().parse::<usize>().expect("a number");
    kib << 10
}

/// Counts by size, each bucket an eighth wider than the one before.
struct Histogram(Vec<u64>);

impl Histogram {
    const STEPS: u32 = 3;

    fn new() -> Histogram {
        Histogram(vec![1; 64 << Self::STEPS]).emptied() // the pages are there before memory is measured
    }

    fn emptied(mut self) -> Histogram {
        self.0.fill(0);
        self
    }

    fn add(&mut self, value: u64) {
        self.0[Self::bucket(value)] += 1;
    }

    fn bucket(value: u64) -> usize {
        let value = value.max(1 << Self::STEPS);
        let power = value.ilog2();
        let step = (value >> (power - Self::STEPS)) & ((1 << Self::STEPS) - 1);
        ((power << Self::STEPS) as u64 + step) as usize
    }

    /// The lower end of the bucket in which the quantile lies.
    fn quantile(&self, share: f64) -> u64 {
        let total: u64 = self.0.iter().sum();
        let rank = (total as f64 * share) as u64;
        let mut below = 0;
        let at = self.0.iter().position(|count| {
            below += count;
            below > rank
        });
        let at = at.unwrap_or(0) as u64;
        let power = at >> Self::STEPS;
        let step = at & ((1 << Self::STEPS) - 1);
        ((1 << Self::STEPS) + step) << power.saturating_sub(u64::from(Self::STEPS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_within_an_eighth() {
        let mut histogram = Histogram::new();
        (1..=10_000).for_each(|value| histogram.add(value));
        for (share, exact) in [(0.5, 5_000.0), (0.99, 9_900.0), (0.999, 9_990.0)] {
            let found = histogram.quantile(share) as f64;
            assert!((exact * 0.87..=exact).contains(&found), "{share}: {found}");
        }
    }
}
