//! Limits that the caller brings along: one counter per key, and no rules.
//!
//! A key has one state, whatever the rates of its calls: the state of [`Shape::Cell`](crate::limit::Shape::Cell) is a
//! timestamp.

use std::time::Duration;

use crate::algorithm::Quota;
use crate::algorithm::gcra::Meter;
use crate::engine::EngineCore;
use crate::fingerprint::Fingerprint;
use crate::store::LimitOutcome;
use crate::time::{Period, Time};

/// Not the id of a rule, so that no rule shares these counters. The last byte is the number of the set.
const COUNTERS: &[u8; 8] = b"callers ";

/// A key of such a limit.
#[derive(Clone, Copy)]
pub struct ThrottleKey(Fingerprint);

impl EngineCore {
    /// The key with this name in a numbered set of keys; its cache lines are prefetched.
    #[inline]
    pub fn throttle_key(&self, set: u8, name: &[u8]) -> ThrottleKey {
        let mut counters = *COUNTERS;
        counters[COUNTERS.len() - 1] = set;
        let fingerprint = self.secret.digest().part(&counters).part(name).finish();
        self.store.prefetch(fingerprint);
        ThrottleKey(fingerprint)
    }

    /// Decides a cost, and charges it if it is allowed; a cost of zero charges nothing.
    #[inline]
    pub fn throttle(&self, key: ThrottleKey, meter: Meter, cost: u64, now: Time) -> LimitOutcome {
        self.store.charge_one(key.0, &Quota::Bucket(meter), cost, now)
    }

    /// Removes the state of a key; returns whether any of it was still used.
    pub fn reset_throttle(&self, key: ThrottleKey, now: Time) -> bool {
        let any = Meter::closed(Period::SECOND);
        let was_used = self.throttle(key, any, 0, now).reset_after > Duration::ZERO;
        self.store.reset(key.0) && was_used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::PolicySnapshot;

    const UNIT: Duration = Duration::from_nanos(1);

    fn engine() -> EngineCore {
        EngineCore::new(PolicySnapshot::from_yaml("rules: []").expect("no rules"))
    }

    fn meter(rate: &str, burst: u64) -> Meter {
        Meter::cell(rate.parse().expect("a rate"), burst, UNIT)
    }

    #[test]
    fn a_key_has_one_state_whatever_the_rates_of_its_calls() {
        let engine = engine();
        let now = Time::from_secs(1_800_000_000);
        let key = engine.throttle_key(0, b"ann");
        let fast = meter("60/m", 10);
        for left in (0..10).rev() {
            assert_eq!(engine.throttle(key, fast, 1, now).remaining, left);
        }
        assert!(!engine.throttle(key, fast, 1, now).decision.is_allowed());
        // Ten seconds are used: all of a capacity of ten seconds, a tenth of one of a hundred.
        let slow = meter("6/m", 10);
        let outcome = engine.throttle(key, slow, 1, now);
        assert_eq!((outcome.decision.is_allowed(), outcome.remaining), (true, 8));
        assert_eq!(outcome.reset_after, Duration::from_secs(20));
        let denied = engine.throttle(key, fast, 1, now);
        assert_eq!(denied.decision.retry_after(), Some(Duration::from_secs(11)));
    }

    #[test]
    fn a_million_rates_use_few_classes() {
        let engine = engine();
        let now = Time::from_secs(1_800_000_000);
        let before = engine.store().usage().bytes;
        for n in 1..=100_000u64 {
            let key = engine.throttle_key(0, &n.to_le_bytes());
            let rate = format!("{n}/h").parse().expect("a rate");
            assert!(engine.throttle(key, Meter::cell(rate, n, UNIT), n, now).decision.is_allowed());
        }
        let per_key = (engine.store().usage().bytes - before) / 100_000;
        assert!(per_key <= 32, "{per_key} bytes a key");
    }

    #[test]
    fn a_cost_of_zero_is_a_look_and_a_reset_says_whether_anything_was_used() {
        let engine = engine();
        let now = Time::from_secs(1_800_000_000);
        let key = engine.throttle_key(0, b"ann");
        let limit = meter("1/s", 5);
        assert_eq!(engine.throttle(key, limit, 0, now).remaining, 5);
        assert!(!engine.reset_throttle(key, now), "a look leaves nothing");
        engine.throttle(key, limit, 5, now);
        let drained = engine.throttle(key, limit, 0, now);
        assert_eq!((drained.decision.is_allowed(), drained.remaining), (true, 0));
        assert!(engine.reset_throttle(key, now));
        engine.throttle(key, limit, 5, now);
        assert!(!engine.reset_throttle(key, now + Duration::from_secs(5)), "full again");
    }
}
