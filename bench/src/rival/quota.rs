//! quota: GCRA over its own sharded map with a cache of slots, in its short boolean form.

use std::hash::Hash;

use quota::{QuotaPolicy, QuotaPool, RefillRate};

use crate::contestant::{Allowance, Contestant};

pub struct Quota<K: Eq + Hash>(QuotaPool<K>);

impl<K: Eq + Hash + Clone + Send + Sync> Contestant<K> for Quota<K> {
    fn new(allowance: Allowance, _: usize) -> Self {
        let per_day = allowance.per_day();
        let policy =
            QuotaPolicy::new().set_capacity(f64::from(per_day)).set_refill_rate(RefillRate::per_day(per_day));
        Quota(QuotaPool::with_key_type(policy, u64::from(per_day)))
    }

    #[inline(always)]
    fn check(&self, key: &K) -> bool {
        self.0.check(key, 1)
    }

    fn admit(&self, key: &K, cost: u32) -> bool {
        self.0.check(key, u64::from(cost))
    }
}
