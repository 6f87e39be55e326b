//! trypema: sliding windows of coarse buckets over dashmap. It looks first and counts afterwards, so
//! that threads may overshoot: not exact.

use std::sync::Arc;

use trypema::local::LocalRateLimiterProvider;
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::contestant::{Allowance, Contestant};

pub struct Trypema {
    provider: Arc<LocalRateLimiterProvider>,
    rate: RateLimit,
}

impl Contestant<String> for Trypema {
    fn new(allowance: Allowance, _: usize) -> Self {
        let provider = LocalRateLimiterProvider::builder()
            .window_size(WindowSize::days_or_panic(1))
            .bucket_size(BucketSize::minutes_or_panic(1))
            .disable_cleanup()
            .build()
            .expect("the windows are valid");
        Trypema { provider, rate: RateLimit::per_day_or_panic(f64::from(allowance.per_day())) }
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.admit(key, 1)
    }

    fn admit(&self, key: &String, cost: u32) -> bool {
        matches!(self.provider.absolute().inc(key, &self.rate, u64::from(cost)), RateLimitDecision::Allowed)
    }
}
