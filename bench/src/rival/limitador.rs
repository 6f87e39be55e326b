//! limitador: fixed windows over moka, limits matched by CEL; called as its documentation shows.

use std::collections::HashMap;

use limitador::RateLimiter;
use limitador::limit::{Limit, Namespace};

use crate::contestant::{Allowance, Contestant};

pub struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl Contestant<String> for Limitador {
    fn new(allowance: Allowance, keys: usize) -> Self {
        let user = "user".try_into().expect("a variable");
        let limit = Limit::new("bench", u64::from(allowance.per_day()), Allowance::DAY_S, [], [user]);
        let limiter = RateLimiter::new(2 * keys as u64); // so that none is evicted
        limiter.add_limit(limit);
        Limitador { limiter, namespace: "bench".into() }
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.admit(key, 1)
    }

    fn admit(&self, key: &String, cost: u32) -> bool {
        let values = HashMap::from([("user".to_owned(), key.clone())]);
        let answer =
            self.limiter.check_rate_limited_and_update(&self.namespace, &values.into(), u64::from(cost));
        !answer.expect("memory does not fail").limited
    }
}
