//! One upstream: its address, its health, and the connections to it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::header::HeaderValue;
use tollgate::Time;

use crate::config::UpstreamAddress;
use crate::transport::proxy::upstream::pool::ConnectionPool;

/// Consecutive failures after which an upstream is ejected.
const MAX_FAILURES: u32 = 3;
/// Duration of an ejection; afterwards requests use the upstream again.
const EJECTION_TIME: Duration = Duration::from_secs(10);

pub struct Upstream {
    pub address: UpstreamAddress,
    pub host: HeaderValue,
    /// Exchanges in flight.
    pub in_flight: AtomicUsize,
    failures: AtomicU32,
    /// Ejected until this timestamp in nanoseconds; used before it only if all others are down too.
    ejected_until: AtomicU64,
    /// Result of active checks; true where there are none.
    passes_checks: AtomicBool,
    /// One per worker.
    pools: Box<[ConnectionPool]>,
}

impl Upstream {
    pub fn new(address: UpstreamAddress, workers: usize) -> Upstream {
        let host = HeaderValue::from_str(address.authority.as_str()).expect("an authority fits a header");
        Upstream {
            address,
            host,
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            passes_checks: AtomicBool::new(true),
            pools: (0..workers).map(|_| ConnectionPool::default()).collect(),
        }
    }

    pub fn pool(&self, worker: usize) -> &ConnectionPool {
        &self.pools[worker % self.pools.len()]
    }

    pub fn pools(&self) -> &[ConnectionPool] {
        &self.pools
    }

    pub fn is_up(&self, now: Time) -> bool {
        self.passes_checks.load(Ordering::Relaxed)
            && self.ejected_until.load(Ordering::Relaxed) <= now.nanos()
    }

    /// The upstream responded.
    pub fn record_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
            self.ejected_until.store(0, Ordering::Relaxed);
        }
    }

    /// The upstream was unreachable, or broke off.
    pub fn record_failure(&self, now: Time) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= MAX_FAILURES {
            let was_ejected =
                self.ejected_until.swap((now + EJECTION_TIME).nanos(), Ordering::Relaxed) > now.nanos();
            if !was_ejected {
                tracing::warn!(upstream = %self.address, failures, "an upstream is down: its requests go to others");
            }
        }
    }

    /// Records the result of an active check.
    pub fn record_check(&self, passes: bool) {
        let before = self.passes_checks.swap(passes, Ordering::Relaxed);
        match (before, passes) {
            (true, false) => tracing::warn!(upstream = %self.address, "an upstream fails its health check"),
            (false, true) => {
                self.record_success();
                tracing::info!(upstream = %self.address, "an upstream passes its health check again");
            }
            _ => {}
        }
    }
}
