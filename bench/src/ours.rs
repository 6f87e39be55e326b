//! Tollgate: the limiter for one limit, and the whole engine.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate::internal::{EngineCore, EngineSetup, Limit, PolicySnapshot, Shape};
use tollgate::{Clock, Hit, Limiter, Time};

use crate::contestant::{Allowance, BATCH, Contestant};

/// Enough for every key of every measurement.
const CAP_BYTES: usize = 8 << 30;

/// A limiter, which reads its clock for each decision, or for each batch.
pub struct Ours {
    limiter: Limiter,
}

impl Ours {
    pub fn with_shape(per_day: u32, shape: Shape) -> Ours {
        let rate = format!("{per_day}/d").parse().expect("a rate");
        let limit = Limit::new(rate, shape).expect("a valid limit");
        Ours {
            limiter: tollgate::internal::limiter::with_limit(&limit, CAP_BYTES)
                .expect("memory for every key"),
        }
    }
}

impl Contestant<String> for Ours {
    fn new(allowance: Allowance, _: usize) -> Self {
        Ours::with_shape(allowance.per_day(), Shape::GCRA)
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.limiter.check(key.as_str()).is_allowed()
    }

    fn admit(&self, key: &String, cost: u32) -> bool {
        self.limiter.check_n(key.as_str(), u64::from(cost)).is_allowed()
    }

    fn check_batch(&self, keys: &[String; BATCH]) -> usize {
        let keys: [&str; BATCH] = std::array::from_fn(|n| keys[n].as_str());
        let mut allowed = 0;
        self.limiter.check_batch(&keys, |answer| allowed += usize::from(answer.is_allowed()));
        allowed
    }
}

impl Contestant<u64> for Ours {
    fn new(allowance: Allowance, _: usize) -> Self {
        Ours::with_shape(allowance.per_day(), Shape::GCRA)
    }

    #[inline(always)]
    fn check(&self, key: &u64) -> bool {
        self.limiter.check(key).is_allowed()
    }

    fn admit(&self, key: &u64, cost: u32) -> bool {
        self.limiter.check_n(key, u64::from(cost)).is_allowed()
    }

    fn check_batch(&self, keys: &[u64; BATCH]) -> usize {
        let keys: [&u64; BATCH] = std::array::from_fn(|n| &keys[n]);
        let mut allowed = 0;
        self.limiter.check_batch(&keys, |answer| allowed += usize::from(answer.is_allowed()));
        allowed
    }
}

/// A limiter and a clock that is read now and then: as programs with a ticker do.
pub struct OursCached {
    ours: Ours,
    nanos: AtomicU64,
}

impl OursCached {
    fn with(allowance: Allowance) -> OursCached {
        let ours = Ours::with_shape(allowance.per_day(), Shape::GCRA);
        let nanos = AtomicU64::new(ours.limiter.clock().now().nanos());
        OursCached { ours, nanos }
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.nanos.load(Relaxed))
    }

    fn refresh(&self) {
        self.nanos.store(self.ours.limiter.clock().now().nanos(), Relaxed);
    }
}

impl Contestant<String> for OursCached {
    fn new(allowance: Allowance, _: usize) -> Self {
        OursCached::with(allowance)
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        self.ours.limiter.check_at(key.as_str(), self.now()).is_allowed()
    }

    fn admit(&self, key: &String, cost: u32) -> bool {
        self.ours.admit(key, cost)
    }

    fn tick(&self) {
        self.refresh();
    }
}

impl Contestant<u64> for OursCached {
    fn new(allowance: Allowance, _: usize) -> Self {
        OursCached::with(allowance)
    }

    #[inline(always)]
    fn check(&self, key: &u64) -> bool {
        self.ours.limiter.check_at(key, self.now()).is_allowed()
    }

    fn admit(&self, key: &u64, cost: u32) -> bool {
        self.ours.admit(key, cost)
    }

    fn tick(&self) {
        self.refresh();
    }
}

/// The engine with `RULES` rules, each of which counts every user.
pub struct OurEngine<const RULES: usize, const TRACK: bool> {
    engine: EngineCore,
    clock: Clock,
}

impl<const RULES: usize, const TRACK: bool> Contestant<String> for OurEngine<RULES, TRACK> {
    fn new(allowance: Allowance, _: usize) -> Self {
        let mut yaml = String::from("rules:\n");
        for n in 0..RULES {
            let limit = allowance.per_day();
            writeln!(yaml, "  - {{id: rule-{n}, key: user, limit: {limit}/d, track: {TRACK}}}")
                .expect("writing to a string cannot fail");
        }
        OurEngine { engine: engine_of(&yaml), clock: Clock::new() }
    }

    #[inline(always)]
    fn check(&self, key: &String) -> bool {
        let verdict = self.engine.check(&Hit::by(key), self.clock.now());
        verdict.allowed && verdict.limits().len() == RULES
    }

    fn admit(&self, key: &String, cost: u32) -> bool {
        self.engine.check(&Hit::by(key).cost(u64::from(cost)), self.clock.now()).allowed
    }
}

pub fn engine_of(yaml: &str) -> EngineCore {
    let policy = PolicySnapshot::from_yaml(yaml).expect("the rules are valid");
    EngineCore::with_setup(policy, EngineSetup { memory_bytes: CAP_BYTES, ..EngineSetup::default() })
}
