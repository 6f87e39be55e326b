//! A bucket by what is missing from it, in exact fractions of a token.
//!
//! Continuous: time is counted in ticks of period/(N·K), K = max(1, ⌊period/N⌋), and a tick brings a
//! K-th of a token. Otherwise every refill is an event that is played one by one.

use std::collections::HashMap;

use tollgate::internal::limit::{Limit, Refill, Shape};

use super::{Calendar, Every, Model};

/// How a bucket gets its tokens back, and the fractions in which that is exact.
pub struct Flow {
    /// The fractions that make a token.
    pub token: u128,
    source: Source,
}

enum Source {
    /// So many fractions in a period.
    Continuous { fractions: u128, period_ns: u128 },
    /// So many fractions at each boundary.
    Events { calendar: Calendar, share: u128 },
}

impl Flow {
    pub fn continuous(count: u64, every: Every) -> Flow {
        // A closed bucket forgets one in a period: what was used outlives a limit of zero, not for ever.
        let count = u128::from(count.max(1));
        let period_ns = u128::from(every.nanos());
        let token = (period_ns / count).max(1);
        Flow { token, source: Source::Continuous { fractions: count * token, period_ns } }
    }

    fn of(limit: &Limit, every: Every) -> Flow {
        let count = limit.rate().count();
        match limit.shape() {
            Shape::TokenBucket { refill: Refill::Tick(tick), .. } if count > 0 => {
                // In lowest terms: what is carried over is rounded up to the fraction the limit knows.
                let share = u128::from(count) * tick.as_nanos();
                let token = every.nanos().into();
                let divisor = common_divisor(share, token);
                let calendar = Calendar::Even(tick.as_nanos() as u64);
                Flow { token: token / divisor, source: Source::Events { calendar, share: share / divisor } }
            }
            Shape::TokenBucket { refill: Refill::Calendar, .. } if count > 0 => {
                let calendar = Calendar::of(every);
                let share = limit.capacity().into();
                Flow { token: 1, source: Source::Events { calendar, share } }
            }
            _ => Flow::continuous(count, every),
        }
    }

    /// What is still missing at `to` of what was missing at `from`.
    pub fn missing(&self, missing: u128, from: u64, to: u64) -> u128 {
        match &self.source {
            Source::Continuous { fractions, period_ns } => {
                let ticks = |time: u64| u128::from(time) * fractions / period_ns;
                missing.saturating_sub(ticks(to) - ticks(from))
            }
            Source::Events { calendar, share } => {
                let mut missing = missing;
                let mut refill = calendar.next(from);
                while refill <= to && missing > 0 {
                    missing = missing.saturating_sub(*share);
                    refill = calendar.next(refill);
                }
                missing
            }
        }
    }

    /// What time has not given back at `to` of `amount` tokens taken at `from`.
    pub fn not_given_back(&self, amount: u64, from: u64, to: u64) -> u128 {
        let taken = u128::from(amount) * self.token;
        match &self.source {
            Source::Continuous { .. } => self.missing(taken, from, to),
            Source::Events { calendar, .. } if calendar.next(from) <= to => 0,
            Source::Events { .. } => taken,
        }
    }
}

fn common_divisor(a: u128, b: u128) -> u128 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

/// Fractions of `old` to a token in fractions of `new`, rounded up.
pub fn convert(fractions: u128, old: u128, new: u128) -> u128 {
    fractions / old * new + (fractions % old * new).div_ceil(old)
}

pub struct Bucket {
    every: Every,
    capacity: u64,
    flow: Flow,
    /// Fractions missing from a full bucket at `at`.
    missing: u128,
    at: u64,
    hits: HashMap<usize, u64>,
}

impl Bucket {
    pub fn new(limit: &Limit, every: Every) -> Bucket {
        let capacity = limit.capacity();
        let flow = Flow::of(limit, every);
        Bucket { every, capacity, flow, missing: 0, at: 0, hits: HashMap::new() }
    }

    fn missing_at(&self, now: u64) -> u128 {
        self.flow.missing(self.missing, self.at, now)
    }

    fn tokens(&self, count: u64) -> u128 {
        u128::from(count) * self.flow.token
    }

    /// Takes `cost`, but not so much that more than `bound` tokens are missing.
    fn take(&mut self, now: u64, cost: u64, bound: u64) {
        let missing = self.missing_at(now);
        self.missing = missing.max((missing + self.tokens(cost)).min(self.tokens(bound)));
        self.at = now;
    }
}

impl Model for Bucket {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn left(&self, now: u64) -> u64 {
        (self.tokens(self.capacity).saturating_sub(self.missing_at(now)) / self.flow.token) as u64
    }

    fn used(&self, now: u64) -> u64 {
        self.missing_at(now).div_ceil(self.flow.token) as u64
    }

    fn charge(&mut self, id: usize, now: u64, cost: u64) {
        self.take(now, cost, self.capacity);
        self.hits.insert(id, now);
    }

    fn drain(&mut self, now: u64, cost: u64) {
        self.take(now, cost, self.capacity);
    }

    fn owe(&mut self, now: u64, cost: u64) {
        self.take(now, cost, 2 * self.capacity);
    }

    fn refund(&mut self, id: usize, amount: u64, now: u64) {
        let back = self.flow.not_given_back(amount, self.hits[&id], now);
        self.missing = self.missing_at(now).saturating_sub(back);
        self.at = now;
    }

    fn adopt(&mut self, limit: &Limit, now: u64) {
        let missing = self.missing_at(now);
        let old_token = self.flow.token;
        *self = Bucket::new(limit, self.every);
        self.missing = convert(missing, old_token, self.flow.token);
        self.at = now;
    }
}
