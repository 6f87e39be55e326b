//! A fixed window: the count of every window there ever was.

use std::collections::HashMap;

use tollgate::internal::limit::{Limit, WindowStart};

use super::{Calendar, Every, Model};

struct Window {
    start: u64,
    end: u64,
    count: u64,
}

pub struct Fixed {
    limit: u64,
    start: WindowStart,
    length_ns: u64,
    calendar: Calendar,
    windows: Vec<Window>,
    /// The window into which a hit was counted.
    hits: HashMap<usize, u64>,
}

impl Fixed {
    pub fn new(limit: &Limit, every: Every, start: WindowStart) -> Fixed {
        Fixed {
            limit: limit.rate().count(),
            start,
            length_ns: every.nanos(),
            calendar: Calendar::of(every),
            windows: Vec::new(),
            hits: HashMap::new(),
        }
    }

    /// The window that `now` falls into; one in which nothing is counted has not begun.
    fn at(&self, now: u64) -> Option<usize> {
        self.windows.iter().position(|window| window.count > 0 && (window.start..window.end).contains(&now))
    }

    fn add(&mut self, now: u64, cost: u64, bound: u64) {
        let at = self.at(now).unwrap_or_else(|| {
            let (start, end) = match self.start {
                WindowStart::Aligned => (self.calendar.start(now), self.calendar.next(now)),
                WindowStart::FirstHit => (now, now.saturating_add(self.length_ns)),
            };
            self.windows.push(Window { start, end, count: 0 });
            self.windows.len() - 1
        });
        let count = &mut self.windows[at].count;
        *count = (*count).max(count.saturating_add(cost).min(bound));
    }
}

impl Model for Fixed {
    fn capacity(&self) -> u64 {
        self.limit
    }

    fn left(&self, now: u64) -> u64 {
        self.limit.saturating_sub(self.used(now))
    }

    fn used(&self, now: u64) -> u64 {
        self.at(now).map_or(0, |at| self.windows[at].count)
    }

    fn charge(&mut self, id: usize, now: u64, cost: u64) {
        self.add(now, cost, self.limit);
        self.hits.extend(self.at(now).map(|at| (id, self.windows[at].start)));
    }

    fn drain(&mut self, now: u64, cost: u64) {
        self.add(now, cost, self.limit);
    }

    fn owe(&mut self, now: u64, cost: u64) {
        self.add(now, cost, 2 * self.limit);
    }

    fn refund(&mut self, id: usize, amount: u64, now: u64) {
        let running = self.at(now).map(|at| &mut self.windows[at]);
        if let Some(window) = running.filter(|window| self.hits.get(&id) == Some(&window.start)) {
            window.count = window.count.saturating_sub(amount);
        }
    }

    fn adopt(&mut self, limit: &Limit, _now: u64) {
        self.limit = limit.rate().count();
    }
}
