//! A sliding window: the count of every step there ever was, summed over the last window.
//!
//! The log's step is ten microseconds, a compacted window's its resolution, a tiered window's its finest
//! level. Permits of a concurrency limit are a window of the longest hold time in steps of a microsecond, from which
//! those that were returned are refunded.

use std::collections::{BTreeMap, HashMap};

use tollgate::internal::limit::{Limit, Shape};

use super::{Every, Model};

pub struct Steps {
    limit: u64,
    step_ns: u64,
    /// How many steps the window has, the running one included.
    steps: u64,
    counts: BTreeMap<u64, u64>,
    /// The step in which a hit was counted.
    hits: HashMap<usize, u64>,
}

impl Steps {
    pub fn new(limit: &Limit, every: Every) -> Steps {
        let step_ns = match limit.shape() {
            Shape::SlidingLog => 10_000,
            Shape::SlidingCompact { resolution } => resolution.as_nanos() as u64,
            Shape::TieredWindow { levels } => levels.finest().secs() * 1_000_000_000,
            Shape::Concurrency => 1_000,
            other => panic!("{other:?} does not count steps"),
        };
        let steps = every.nanos() / step_ns;
        Steps { limit: limit.rate().count(), step_ns, steps, counts: BTreeMap::new(), hits: HashMap::new() }
    }

    /// The steps that count at `now`.
    fn window(&self, now: u64) -> std::ops::RangeInclusive<u64> {
        let running = now / self.step_ns;
        (running + 1).saturating_sub(self.steps)..=running
    }

    fn add(&mut self, now: u64, cost: u64) {
        *self.counts.entry(now / self.step_ns).or_default() += cost;
    }

    fn room(&self, now: u64, bound: u64) -> u64 {
        bound.saturating_sub(self.used(now))
    }
}

impl Model for Steps {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn left(&self, now: u64) -> u64 {
        self.room(now, self.limit)
    }

    fn used(&self, now: u64) -> u64 {
        self.counts.range(self.window(now)).map(|(_, count)| count).sum()
    }

    fn charge(&mut self, id: usize, now: u64, cost: u64) {
        self.add(now, cost);
        self.hits.insert(id, now / self.step_ns);
    }

    /// A counted denial fills the window at most: as much of the oldest entries is dropped.
    fn drain(&mut self, now: u64, cost: u64) {
        let bound = self.limit.max(self.used(now));
        self.add(now, cost.min(self.limit));
        let mut excess = self.used(now).saturating_sub(bound);
        for (_, count) in self.counts.range_mut(self.window(now)) {
            let out = excess.min(*count);
            *count -= out;
            excess -= out;
        }
    }

    fn owe(&mut self, now: u64, cost: u64) {
        self.add(now, cost.min(self.room(now, 2 * self.limit)));
    }

    fn refund(&mut self, id: usize, amount: u64, now: u64) {
        let step = self.hits[&id];
        if self.window(now).contains(&step) {
            let count = self.counts.entry(step).or_default();
            *count = count.saturating_sub(amount);
        }
    }

    fn adopt(&mut self, limit: &Limit, _now: u64) {
        self.limit = limit.rate().count();
    }
}
