//! Counts over time: a ring with one point per step, the oldest replaced first.

use serde::{Deserialize, Serialize};

/// Decisions of one step, by outcome. A request is counted under one of `allowed`, `denied` and `banned`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Point {
    pub allowed: u32,
    pub denied: u32,
    pub banned: u32,
    /// Requests that a rule in shadow mode would have denied.
    pub shadow_denied: u32,
    /// An estimate of the different keys that were denied.
    pub clients_limited: u32,
}

impl Point {
    /// Adds the counts of another point. Estimates of different keys cannot be added: the larger one is a lower bound.
    pub fn add(&mut self, other: &Point) {
        self.allowed = self.allowed.saturating_add(other.allowed);
        self.denied = self.denied.saturating_add(other.denied);
        self.banned = self.banned.saturating_add(other.banned);
        self.shadow_denied = self.shadow_denied.saturating_add(other.shadow_denied);
        self.clients_limited = self.clients_limited.max(other.clients_limited);
    }

    /// Removes the counts of another point.
    pub fn subtract(&mut self, other: &Point) {
        self.allowed = self.allowed.saturating_sub(other.allowed);
        self.denied = self.denied.saturating_sub(other.denied);
        self.banned = self.banned.saturating_sub(other.banned);
        self.shadow_denied = self.shadow_denied.saturating_sub(other.shadow_denied);
    }

    pub fn decisions(&self) -> u64 {
        u64::from(self.allowed) + u64::from(self.denied) + u64::from(self.banned)
    }

    pub fn is_empty(&self) -> bool {
        *self == Point::default()
    }
}

/// The latest points of one series. Steps are numbered from 1970; the number of a step is its start divided by its length.
pub struct PointRing {
    points: Box<[Point]>,
    first: u64,
    latest: u64,
}

impl PointRing {
    /// A ring with `first` as its earliest step.
    pub fn new(capacity: usize, first: u64) -> PointRing {
        PointRing { points: vec![Point::default(); capacity].into_boxed_slice(), first, latest: first }
    }

    /// Makes `step` the latest one. Steps never go back.
    pub fn advance(&mut self, step: u64) {
        let capacity = self.points.len() as u64;
        let skipped = step.saturating_sub(self.latest).min(capacity);
        for back in 0..skipped {
            *self.slot(step - back) = Point::default();
        }
        self.latest = self.latest.max(step);
    }

    /// The point of the latest step.
    pub fn current(&mut self) -> &mut Point {
        self.slot(self.latest)
    }

    fn slot(&mut self, step: u64) -> &mut Point {
        let capacity = self.points.len() as u64;
        &mut self.points[(step % capacity) as usize]
    }

    /// The earliest step.
    pub fn oldest(&self) -> u64 {
        self.first.max((self.latest + 1).saturating_sub(self.points.len() as u64))
    }

    /// The points of the steps from `from` to `to`, both included, oldest first.
    pub fn range(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, Point)> + '_ {
        let capacity = self.points.len() as u64;
        let steps = from.max(self.oldest())..to.min(self.latest).saturating_add(1);
        steps.map(move |step| (step, self.points[(step % capacity) as usize]))
    }

    /// Adds all points of another ring with the same capacity.
    pub fn absorb(&mut self, other: &PointRing) {
        for (step, point) in other.range(0, u64::MAX) {
            if (self.oldest()..=self.latest).contains(&step) {
                self.slot(step).add(&point);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(count: u32) -> Point {
        Point { allowed: count, ..Point::default() }
    }

    #[test]
    fn skipped_steps_are_empty_and_old_ones_are_replaced() {
        let mut ring = PointRing::new(4, 100);
        for (step, count) in [(100, 1), (101, 2), (103, 3)] {
            ring.advance(step);
            ring.current().add(&allowed(count));
        }
        let counts = |ring: &PointRing, from, to| -> Vec<(u64, u32)> {
            ring.range(from, to).map(|(step, point)| (step, point.allowed)).collect()
        };
        assert_eq!(counts(&ring, 0, u64::MAX), [(100, 1), (101, 2), (102, 0), (103, 3)]);
        assert_eq!(counts(&ring, 101, 102), [(101, 2), (102, 0)]);
        ring.advance(105);
        assert_eq!(counts(&ring, 0, u64::MAX), [(102, 0), (103, 3), (104, 0), (105, 0)]);
        ring.advance(1_000_000);
        assert_eq!(counts(&ring, 0, 999_999), [(999_997, 0), (999_998, 0), (999_999, 0)]);
    }

    #[test]
    fn an_absorbed_ring_adds_what_is_still_within() {
        let mut other = PointRing::new(3, 10);
        let mut ring = PointRing::new(3, 10);
        other.current().add(&allowed(5));
        other.advance(12);
        other.current().add(&allowed(7));
        ring.advance(13);
        ring.absorb(&other);
        let counts: Vec<_> = ring.range(0, u64::MAX).map(|(step, point)| (step, point.allowed)).collect();
        assert_eq!(counts, [(11, 0), (12, 7), (13, 0)]);
    }
}
