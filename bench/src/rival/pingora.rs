//! pingora-limits: a count-min sketch. It does not distinguish keys, it estimates: not exact.

use std::hash::Hash;
use std::time::Duration;

use pingora_limits::rate::Rate;

use crate::contestant::{Allowance, Contestant};

pub struct Pingora {
    rate: Rate,
    per_day: isize,
}

impl<K: Hash> Contestant<K> for Pingora {
    fn new(allowance: Allowance, _: usize) -> Self {
        let rate = Rate::new(Duration::from_secs(Allowance::DAY_S));
        Pingora { rate, per_day: allowance.per_day() as isize }
    }

    #[inline(always)]
    fn check(&self, key: &K) -> bool {
        self.rate.observe(key, 1) <= self.per_day
    }

    fn admit(&self, key: &K, _: u32) -> bool {
        self.rate.observe(key, 1) <= self.per_day // cells are shared by many keys
    }
}
