//! Estimate of the server's clock that is never ahead of it.
//!
//! When a reply arrives, the server's clock has passed the time in it, so each reply gives a lower bound of the offset
//! between the clocks. The largest recent bound is used: a deadline computed with it is never later than the caller's.

use std::sync::Mutex;
use std::time::Duration;

use tollgate::internal::lock;

use tokio::time::Instant;

/// A bound expires after one to two of these, because clocks drift and are adjusted.
const BOUND_LIFETIME: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct ServerClock {
    origin: Instant,
    bounds: Mutex<OffsetBounds>,
}

/// Lower bounds of the server's clock minus ours, in microseconds.
#[derive(Clone, Copy, Debug)]
struct OffsetBounds {
    since: Instant,
    current: Option<i64>,
    before: Option<i64>,
}

impl ServerClock {
    pub(super) fn new() -> ServerClock {
        let now = Instant::now();
        let bounds = OffsetBounds { since: now, current: None, before: None };
        ServerClock { origin: now, bounds: Mutex::new(bounds) }
    }

    /// A clock with the same origin and without bounds.
    pub(super) fn without_bounds(&self) -> ServerClock {
        let bounds = OffsetBounds { since: Instant::now(), current: None, before: None };
        ServerClock { origin: self.origin, bounds: Mutex::new(bounds) }
    }

    /// Replaces the bounds by those of `seen`, which may be of another server.
    pub(super) fn replace(&self, seen: &ServerClock) {
        let seen = *lock(&seen.bounds);
        *lock(&self.bounds) = seen;
    }

    /// The server's clock showed `server_us` at some time before `now`.
    pub(super) fn observe(&self, server_us: u64, now: Instant) {
        let bound = i64::try_from(server_us).unwrap_or(i64::MAX) - self.local_us(now);
        let mut bounds = lock(&self.bounds);
        if now.saturating_duration_since(bounds.since) > BOUND_LIFETIME {
            *bounds = OffsetBounds { since: now, current: None, before: bounds.current };
        }
        bounds.current = bounds.current.max(Some(bound));
    }

    /// Lower bound of the server's clock when ours shows `local`; `None` without an observation.
    pub(super) fn lower_bound_at(&self, local: Instant) -> Option<u64> {
        let bounds = *lock(&self.bounds);
        let bound = bounds.current.max(bounds.before)?;
        u64::try_from(bound.saturating_add(self.local_us(local))).ok()
    }

    fn local_us(&self, local: Instant) -> i64 {
        i64::try_from(local.saturating_duration_since(self.origin).as_micros()).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_deadline_never_lies_behind_the_callers() {
        let clock = ServerClock::new();
        assert_eq!(clock.lower_bound_at(Instant::now()), None);
        let start = Instant::now();
        // The server shows 5000000 plus the elapsed time; replies take between 1 and 9 ms.
        for transit_ms in [9, 4, 1, 7] {
            let shown = 5_000_000 + start.elapsed().as_micros() as u64;
            advance(Duration::from_millis(transit_ms)).await;
            clock.observe(shown, Instant::now());
            let truth = 5_000_000 + start.elapsed().as_micros() as u64;
            assert!(clock.lower_bound_at(Instant::now()).expect("seen") <= truth);
        }
        let truth = 5_000_000 + start.elapsed().as_micros() as u64;
        assert_eq!(clock.lower_bound_at(Instant::now()), Some(truth - 1000), "the quickest answer counts");
    }

    #[tokio::test(start_paused = true)]
    async fn another_server_has_another_clock() {
        let clock = ServerClock::new();
        clock.observe(9_000_000_000, Instant::now());
        let next = clock.without_bounds();
        next.observe(5_000_000, Instant::now());
        clock.replace(&next);
        assert_eq!(clock.lower_bound_at(Instant::now()), Some(5_000_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_clock_that_was_set_back_is_accepted_after_a_while() {
        let clock = ServerClock::new();
        clock.observe(9_000_000_000, Instant::now());
        for second in 1..30 {
            advance(Duration::from_secs(1)).await;
            clock.observe(second * 1_000_000, Instant::now());
        }
        assert_eq!(clock.lower_bound_at(Instant::now()), Some(29_000_000));
    }
}
