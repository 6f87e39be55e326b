//! throttlecrab: GCRA over one hash map, behind a mutex as its documentation advises.
//!
//! With its periodic store: the adaptive one scans the whole map at every insertion while the map is
//! more than three quarters full.

use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use throttlecrab::{PeriodicStore, RateLimiter};

use crate::contestant::{Allowance, Contestant};

pub struct Throttlecrab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
    per_day: i64,
}

impl Contestant<String> for Throttlecrab {
    fn new(allowance: Allowance, _: usize) -> Self {
        let limiter = Mutex::new(RateLimiter::new(PeriodicStore::new()));
        Throttlecrab { limiter, per_day: i64::from(allowance.per_day()) }
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.admit(key, 1)
    }

    fn admit(&self, key: &String, cost: u32) -> bool {
        let mut limiter = self.limiter.lock().unwrap_or_else(PoisonError::into_inner);
        let day = Allowance::DAY_S as i64;
        let answer =
            limiter.rate_limit(key, self.per_day, self.per_day, day, i64::from(cost), SystemTime::now());
        answer.expect("the limit is valid").0
    }
}
