//! What was let through, and that it never was more than the definition of the limit allows.
//!
//! Looks at admissions only: neither at the model nor at any state. A refunded charge counts as if it
//! had not happened, for as much as was given back.

use std::time::Duration;

use tollgate::internal::limit::{Limit, Refill, Shape, WindowStart};

use crate::model::{Calendar, Every};

struct Entry {
    id: usize,
    at: u64,
    /// In fractions of a token where the bucket is continuous.
    amount: u128,
}

pub struct Ledger {
    limit: Limit,
    every: Every,
    entries: Vec<Entry>,
    /// Nothing but hits has happened to the key so far.
    only_hits: bool,
}

impl Ledger {
    pub fn new(limit: Limit, every: Every) -> Ledger {
        Ledger { limit, every, entries: Vec::new(), only_hits: true }
    }

    /// Closes this ledger and opens the one of another limit.
    pub fn turn_over(&mut self, limit: Limit) {
        self.check();
        *self = Ledger { only_hits: false, ..Ledger::new(limit, self.every) };
    }

    /// Counts what was taken without being let through.
    pub fn take(&mut self) {
        self.only_hits = false;
    }

    pub fn admit(&mut self, id: usize, at: u64, cost: u64) {
        let amount = u128::from(cost) * self.token();
        self.entries.push(Entry { id, at, amount });
        self.check_counter();
    }

    /// Counts a refund that has changed something.
    pub fn refund(&mut self, id: usize, amount: u64, now: u64) {
        let token = self.token();
        let count = self.count();
        let period_ns = u128::from(self.every.nanos());
        // A refund of the last entry of a queue leaves it as if it had never entered.
        let leaks = matches!(self.limit.shape(), Shape::LeakyBucket { .. });
        let continuous = self.is_continuous() && !leaks;
        self.only_hits = false;
        if let Some(entry) = self.entries.iter_mut().find(|entry| entry.id == id) {
            let ticks = |time: u64| u128::from(time) * count * token / period_ns;
            let by_time = if continuous { ticks(now) - ticks(entry.at) } else { 0 };
            entry.amount -= (u128::from(amount) * token).saturating_sub(by_time);
        }
    }

    pub fn check(&self) {
        match self.limit.shape() {
            Shape::Gcra { .. } | Shape::LeakyBucket { .. } => self.check_continuous(),
            Shape::TokenBucket { refill: Refill::Continuous, .. } => self.check_continuous(),
            Shape::TokenBucket { refill: Refill::Tick(tick), .. } => self.check_tick(tick),
            Shape::TokenBucket { refill: Refill::Calendar, .. } => {
                self.check_refills(&Calendar::of(self.every), 1, self.limit.capacity().into());
            }
            Shape::FixedWindow { start: WindowStart::Aligned } => self.check_aligned(),
            Shape::FixedWindow { start: WindowStart::FirstHit } => self.check_first_hit(),
            Shape::SlidingLog => self.check_steps(10_000),
            Shape::Concurrency => self.check_steps(1_000),
            Shape::SlidingCompact { resolution } => self.check_steps(resolution.as_nanos() as u64),
            Shape::TieredWindow { levels } => self.check_steps(levels.finest().secs() * 1_000_000_000),
            Shape::SlidingCounter | Shape::Cell { .. } => {}
        }
    }

    fn count(&self) -> u128 {
        self.limit.rate().count().into()
    }

    fn is_continuous(&self) -> bool {
        let refill = match self.limit.shape() {
            Shape::TokenBucket { refill, .. } => refill,
            Shape::Gcra { .. } | Shape::LeakyBucket { .. } => Refill::Continuous,
            _ => return false,
        };
        refill == Refill::Continuous
    }

    fn token(&self) -> u128 {
        match self.is_continuous() {
            true => (u128::from(self.every.nanos()) / self.count().max(1)).max(1),
            false => 1,
        }
    }

    /// All intervals from one admission to another, with what was admitted in them.
    fn intervals(&self) -> impl Iterator<Item = (u64, u64, u128)> + '_ {
        (0..self.entries.len()).flat_map(|from| {
            let start = self.entries[from].at;
            self.entries[from..].iter().scan(0, move |sum, entry| {
                *sum += entry.amount;
                Some((start, entry.at, *sum))
            })
        })
    }

    /// Burst + rate × t in every interval t; instants are known to a tick, so less than a tick more.
    fn check_continuous(&self) {
        let token = self.token();
        let period_ns = u128::from(self.every.nanos());
        let burst = u128::from(self.limit.capacity()) * token;
        for (from, to, sum) in self.intervals() {
            let refilled = self.count() * token * u128::from(to - from);
            let above = sum.saturating_sub(burst) * period_ns;
            assert!(
                above == 0 || above < refilled + period_ns,
                "{sum} fractions passed from {from} to {to}, burst {burst}"
            );
        }
    }

    fn check_tick(&self, tick: Duration) {
        let share = self.count() * tick.as_nanos();
        self.check_refills(&Calendar::Even(tick.as_nanos() as u64), self.every.nanos().into(), share);
    }

    /// Burst plus the refills inside every interval.
    fn check_refills(&self, calendar: &Calendar, token: u128, share: u128) {
        let burst = u128::from(self.limit.capacity()) * token;
        for (from, to, sum) in self.intervals() {
            let mut allowed = burst;
            let mut refill = calendar.next(from);
            while refill <= to && allowed < sum * token {
                allowed += share;
                refill = calendar.next(refill);
            }
            assert!(sum * token <= allowed, "{sum} passed from {from} to {to}");
        }
    }

    fn check_aligned(&self) {
        let calendar = Calendar::of(self.every);
        for last in &self.entries {
            let start = calendar.start(last.at);
            let in_window = self.entries.iter().filter(|entry| calendar.start(entry.at) == start);
            let sum: u128 = in_window.map(|entry| entry.amount).sum();
            assert!(sum <= self.count(), "{sum} passed in the window that begins at {start}");
        }
    }

    /// A window begins with the first hit after the end of the previous one. With other operations it cannot
    /// be observed from outside when it began; but no interval as long as a window meets more than two.
    fn check_first_hit(&self) {
        for (from, to, sum) in self.intervals().filter(|(from, to, _)| to - from < self.every.nanos()) {
            assert!(sum <= 2 * self.count(), "{sum} passed from {from} to {to}");
        }
        let mut start = None::<u64>;
        let mut sum = 0;
        for entry in self.entries.iter().filter(|entry| self.only_hits && entry.amount > 0) {
            if start.is_none_or(|start| entry.at - start >= self.every.nanos()) {
                start = Some(entry.at);
                sum = 0;
            }
            sum += entry.amount;
            assert!(sum <= self.count(), "{sum} passed in the window that begins at {start:?}");
        }
    }

    /// The limit in every window, in whole steps.
    fn check_steps(&self, step_ns: u64) {
        let steps = self.every.nanos() / step_ns;
        for last in &self.entries {
            let end = last.at / step_ns;
            let counts = |at: u64| at / step_ns <= end && end - at / step_ns < steps;
            let sum: u128 =
                self.entries.iter().filter(|entry| counts(entry.at)).map(|entry| entry.amount).sum();
            assert!(sum <= self.count(), "{sum} passed in the window that ends with step {end}");
        }
    }

    /// previous × rest + (current + cost) × W <= limit × W at the latest admission, this cost counted.
    fn check_counter(&self) {
        let Some(last) = self.entries.last().filter(|last| last.amount > 0) else { return };
        if self.limit.shape() != Shape::SlidingCounter {
            return;
        }
        let window_ns = self.every.nanos();
        let in_window = |window: u64| -> u128 {
            let entries = self.entries.iter().filter(|entry| entry.at / window_ns == window);
            entries.map(|entry| entry.amount).sum()
        };
        let window = last.at / window_ns;
        let rest = window_ns - last.at % window_ns;
        let previous = window.checked_sub(1).map_or(0, in_window);
        let weighted = previous * u128::from(rest) + in_window(window) * u128::from(window_ns);
        assert!(weighted <= self.count() * u128::from(window_ns), "{weighted} at {}", last.at);
    }
}
