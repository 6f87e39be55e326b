//! governor: GCRA over dashmap; time by quanta, its default.

use std::hash::{BuildHasher, Hash, RandomState};
use std::num::NonZeroU32;
use std::time::Duration;

use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter, clock::DefaultClock};

use crate::contestant::{Allowance, Contestant};

pub struct Governor<K: Hash + Eq + Clone, S: BuildHasher + Clone = RandomState> {
    limiter: RateLimiter<K, DashMapStateStore<K, S>, DefaultClock>,
}

impl<K, S> Contestant<K> for Governor<K, S>
where
    K: Hash + Eq + Clone + Send + Sync,
    S: BuildHasher + Clone + Default + Send + Sync,
{
    fn new(allowance: Allowance, _: usize) -> Self {
        let burst = NonZeroU32::new(allowance.per_day()).expect("an allowance is not 0");
        let each = Duration::from_secs(Allowance::DAY_S) / allowance.per_day();
        let quota = Quota::with_period(each).expect("a period is not 0").allow_burst(burst);
        Governor { limiter: RateLimiter::dashmap_with_hasher(quota, S::default()) }
    }

    #[inline(always)]
    fn check(&self, key: &K) -> bool {
        self.limiter.check_key(key).is_ok()
    }

    fn admit(&self, key: &K, cost: u32) -> bool {
        let cost = NonZeroU32::new(cost).expect("a cost is not 0");
        matches!(self.limiter.check_key_n(key, cost), Ok(Ok(())))
    }
}
