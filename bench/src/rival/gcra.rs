//! gcra: GCRA over dashmap. Its `check` is async but never waits, so it is polled once.

use std::fmt::Display;
use std::hash::Hash;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use gcra::{RateLimit, RateLimiter};

use crate::contestant::{Allowance, Contestant};

pub struct Gcra<K: Eq + Hash> {
    limiter: RateLimiter<K>,
    limit: RateLimit,
}

impl<K> Contestant<K> for Gcra<K>
where
    K: Eq + Hash + Clone + Display + Send + Sync + 'static,
{
    fn new(allowance: Allowance, _: usize) -> Self {
        let limit = RateLimit::new(allowance.per_day(), Duration::from_secs(Allowance::DAY_S));
        Gcra { limiter: RateLimiter::new(0), limit }
    }

    #[inline(always)]
    fn check(&self, key: &K) -> bool {
        self.admit(key, 1)
    }

    fn admit(&self, key: &K, cost: u32) -> bool {
        let check = pin!(self.limiter.check(key.clone(), &self.limit, cost));
        match check.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer.is_ok(),
            Poll::Pending => unreachable!("there is nothing to wait for"),
        }
    }
}
