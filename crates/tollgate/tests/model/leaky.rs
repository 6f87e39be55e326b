//! A leaky bucket as a queue: its entries in order, and how much of each has not leaked.

use std::time::Duration;

use tollgate::internal::limit::{Limit, Release, Shape};

use super::bucket::{Flow, convert};
use super::{Every, Model, first};

struct Waiting {
    /// The hit, unless it cannot be refunded.
    id: Option<usize>,
    water: u128,
}

pub struct Leaky {
    every: Every,
    capacity: u64,
    release: Release,
    flow: Flow,
    /// Front first, as it stood at `at`.
    queue: Vec<Waiting>,
    at: u64,
}

impl Leaky {
    pub fn new(limit: &Limit, every: Every) -> Leaky {
        let Shape::LeakyBucket { release, .. } = limit.shape() else { panic!("not a leaky bucket") };
        let capacity = limit.capacity();
        let flow = Flow::continuous(limit.rate().count(), every);
        Leaky { every, capacity, release, flow, queue: Vec::new(), at: 0 }
    }

    fn water(&self, now: u64) -> u128 {
        let water = self.queue.iter().map(|waiting| waiting.water).sum();
        self.flow.missing(water, self.at, now)
    }

    /// Lets out, from the front, what has leaked until `now`.
    fn leak(&mut self, now: u64) {
        let standing: u128 = self.queue.iter().map(|waiting| waiting.water).sum();
        let mut leaked = standing - self.water(now);
        for waiting in &mut self.queue {
            let out = leaked.min(waiting.water);
            waiting.water -= out;
            leaked -= out;
        }
        self.queue.retain(|waiting| waiting.water > 0);
        self.at = now;
    }

    /// Whether an entry of now may leave at `at`: no more than `after` are ahead of it.
    fn is_released(&self, at: u64, after: u64) -> bool {
        self.water(at) <= u128::from(after) * self.flow.token
    }

    /// Enters behind all others, with as much as `bound` allows.
    fn enter(&mut self, id: Option<usize>, now: u64, cost: u64, bound: u64) {
        self.leak(now);
        let room = (u128::from(bound) * self.flow.token).saturating_sub(self.water(now));
        let water = room.min(u128::from(cost) * self.flow.token);
        if water > 0 {
            self.queue.push(Waiting { id, water });
        }
    }
}

impl Model for Leaky {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn left(&self, now: u64) -> u64 {
        let full = u128::from(self.capacity) * self.flow.token;
        (full.saturating_sub(self.water(now)) / self.flow.token) as u64
    }

    fn used(&self, now: u64) -> u64 {
        self.water(now).div_ceil(self.flow.token) as u64
    }

    fn in_time(&self, now: u64) -> bool {
        match self.release {
            Release::AtOnce => true,
            Release::Hold { max_wait: None, after } => {
                self.water(now) <= u128::from(after + self.capacity) * self.flow.token
            }
            Release::Hold { max_wait: Some(max_wait), after } => {
                self.is_released(now.saturating_add(max_wait.as_nanos() as u64), after)
            }
        }
    }

    fn delay(&self, now: u64) -> Duration {
        match self.release {
            Release::AtOnce => Duration::ZERO,
            Release::Hold { after, .. } => {
                Duration::from_nanos(first(now, |at| self.is_released(at, after)) - now)
            }
        }
    }

    fn charge(&mut self, id: usize, now: u64, cost: u64) {
        self.enter(Some(id), now, cost, self.capacity);
    }

    fn drain(&mut self, now: u64, cost: u64) {
        self.enter(None, now, cost, self.capacity);
    }

    fn owe(&mut self, now: u64, cost: u64) {
        self.enter(None, now, cost, 2 * self.capacity);
    }

    fn refund(&mut self, id: usize, amount: u64, now: u64) {
        self.leak(now);
        if let Some(last) = self.queue.last_mut().filter(|last| last.id == Some(id)) {
            last.water -= (u128::from(amount) * self.flow.token).min(last.water);
        }
        self.queue.retain(|waiting| waiting.water > 0);
    }

    fn adopt(&mut self, limit: &Limit, now: u64) {
        let water = self.water(now);
        let old_token = self.flow.token;
        *self = Leaky::new(limit, self.every);
        self.queue.push(Waiting { id: None, water: convert(water, old_token, self.flow.token) });
        self.at = now;
    }
}
