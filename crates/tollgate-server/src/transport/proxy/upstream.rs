//! One API server: where it is, how it is doing, and the connections to it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::header::HeaderValue;
use tollgate::Time;

use crate::config::Address;
use crate::transport::proxy::pool::Pool;

/// Failures in a row after which an upstream is left alone for a while.
const MAX_FAILURES: u32 = 3;
/// How long it is left alone; then a request tries it again.
const REST: Duration = Duration::from_secs(10);

pub struct Upstream {
    pub address: Address,
    pub host: HeaderValue,
    /// Exchanges under way.
    pub in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Not asked before this instant, in nanoseconds, unless all others are down too.
    rests_until: AtomicU64,
    /// What active checks say; true where there are none.
    passes_checks: AtomicBool,
    /// One for each worker.
    pools: Box<[Pool]>,
}

impl Upstream {
    pub fn new(address: Address, workers: usize) -> Upstream {
        let host = HeaderValue::from_str(address.authority.as_str()).expect("an authority fits a header");
        Upstream {
            address,
            host,
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            rests_until: AtomicU64::new(0),
            passes_checks: AtomicBool::new(true),
            pools: (0..workers).map(|_| Pool::default()).collect(),
        }
    }

    pub fn pool(&self, worker: usize) -> &Pool {
        &self.pools[worker % self.pools.len()]
    }

    pub fn pools(&self) -> &[Pool] {
        &self.pools
    }

    pub fn is_up(&self, now: Time) -> bool {
        self.passes_checks.load(Ordering::Relaxed) && self.rests_until.load(Ordering::Relaxed) <= now.nanos()
    }

    /// It answered.
    pub fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.rests_until.store(0, Ordering::Relaxed);
        }
    }

    /// It could not be reached, or broke off.
    pub fn failed(&self, now: Time) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= MAX_FAILURES {
            let rested = self.rests_until.swap((now + REST).nanos(), Ordering::Relaxed) > now.nanos();
            if !rested {
                tracing::warn!(upstream = %self.address, failures, "an upstream is down: others take its requests");
            }
        }
    }

    /// Takes what an active check found.
    pub fn checked(&self, passes: bool) {
        let before = self.passes_checks.swap(passes, Ordering::Relaxed);
        match (before, passes) {
            (true, false) => tracing::warn!(upstream = %self.address, "an upstream fails its health check"),
            (false, true) => {
                self.succeeded();
                tracing::info!(upstream = %self.address, "an upstream passes its health check again");
            }
            _ => {}
        }
    }
}
