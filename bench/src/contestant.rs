//! What is measured: a limiter that decides one key at a time, and some that decide sixteen.
//!
//! Dispatch is static inside the timed loop and every `check` is inlined there, so the trait costs nothing.
//! Every contestant reads its own clock, as it would in production.

/// Keys decided together by those who can.
pub const BATCH: usize = 16;

/// What a contestant promises each key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allowance {
    /// A thousand million a day, all at once if need be: everything is allowed.
    Ample,
    /// Two a day: after the first hit, which costs two, everything is denied.
    Spent,
}

impl Allowance {
    pub const DAY_S: u64 = 86_400;

    pub const fn per_day(self) -> u32 {
        match self {
            Allowance::Ample => 1_000_000_000,
            Allowance::Spent => 2,
        }
    }

    /// The cost of each key's first hit, before the measurement. In a bucket that lasts for more than
    /// an hour: a state that is full again may be forgotten, and would be neither found nor counted.
    pub const fn first_cost(self) -> u32 {
        match self {
            Allowance::Ample => 50_000_000,
            Allowance::Spent => 2,
        }
    }

    pub const fn word(self) -> &'static str {
        match self {
            Allowance::Ample => "allowed",
            Allowance::Spent => "denied",
        }
    }
}

pub trait Contestant<K>: Sync + Sized {
    /// A contestant without keys. `keys` is how many will come: a hint for those that cannot grow.
    fn new(allowance: Allowance, keys: usize) -> Self;

    /// Takes one.
    fn check(&self, key: &K) -> bool;

    /// Takes `cost`: a key's first hit.
    fn admit(&self, key: &K, cost: u32) -> bool;

    /// How many of a batch are allowed.
    fn check_batch(&self, keys: &[K; BATCH]) -> usize {
        keys.iter().filter(|key| self.check(key)).count()
    }

    /// Called now and then, for clocks that are not read at every decision.
    fn tick(&self) {}
}
