//! A sliding window counter: the count of every window there ever was, two of them weighted.

use std::collections::{BTreeMap, HashMap};

use tollgate::internal::limit::Limit;

use super::{Every, Model};

pub struct Counter {
    limit: u64,
    window_ns: u64,
    counts: BTreeMap<u64, u64>,
    /// The window in which a hit was counted.
    hits: HashMap<usize, u64>,
}

impl Counter {
    pub fn new(limit: &Limit, every: Every) -> Counter {
        let limit = limit.rate().count();
        let window_ns = every.nanos();
        Counter { limit, window_ns, counts: BTreeMap::new(), hits: HashMap::new() }
    }

    fn count(&self, window: u64) -> u128 {
        self.counts.get(&window).copied().unwrap_or(0).into()
    }

    /// `previous × rest + current × W`.
    fn weighted(&self, now: u64) -> u128 {
        let window = now / self.window_ns;
        let elapsed = now % self.window_ns;
        let previous = window.checked_sub(1).map_or(0, |previous| self.count(previous));
        previous * u128::from(self.window_ns - elapsed) + self.count(window) * u128::from(self.window_ns)
    }

    fn add(&mut self, now: u64, cost: u64) {
        *self.counts.entry(now / self.window_ns).or_default() += cost;
    }
}

impl Model for Counter {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn left(&self, now: u64) -> u64 {
        let whole = u128::from(self.limit) * u128::from(self.window_ns);
        (whole.saturating_sub(self.weighted(now)) / u128::from(self.window_ns)) as u64
    }

    fn used(&self, now: u64) -> u64 {
        self.weighted(now).div_ceil(u128::from(self.window_ns)) as u64
    }

    fn charge(&mut self, id: usize, now: u64, cost: u64) {
        self.add(now, cost);
        self.hits.insert(id, now / self.window_ns);
    }

    /// What is received counts in full beside the previous window, up to the limit in each.
    fn drain(&mut self, now: u64, cost: u64) {
        let room = self.limit.saturating_sub(self.count(now / self.window_ns) as u64);
        self.add(now, cost.min(room));
    }

    fn owe(&mut self, now: u64, cost: u64) {
        let room = (2 * self.limit).saturating_sub(self.used(now));
        self.add(now, cost.min(room));
    }

    fn refund(&mut self, id: usize, amount: u64, now: u64) {
        let window = self.hits[&id];
        if window + 1 >= now / self.window_ns {
            let count = self.counts.entry(window).or_default();
            *count = count.saturating_sub(amount);
        }
    }

    fn adopt(&mut self, limit: &Limit, _now: u64) {
        self.limit = limit.rate().count();
    }
}
