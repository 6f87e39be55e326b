//! Circuit breaker, one per server.
//!
//! It opens after several consecutive failures over a minimum time, or at once when the connection is lost. While it
//! is open, requests fail immediately and the driver probes at jittered intervals. After a successful probe the share
//! of admitted requests ramps up.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tollgate::internal::lock;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::counters::StoreError;

/// Consecutive failures that open the breaker, if they last at least `MIN_FAILING_TIME`: a short pause is no outage.
const FAILURE_THRESHOLD: u32 = 5;
const MIN_FAILING_TIME: Duration = Duration::from_millis(100);
const INITIAL_PROBE_INTERVAL: Duration = Duration::from_millis(50);
const MAX_PROBE_INTERVAL: Duration = Duration::from_millis(200);
/// Shares of requests admitted after a successful probe, one per step.
const RAMP_UP_SHARES: [f32; 3] = [0.125, 0.25, 0.5];
const RAMP_UP_STEP: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Breaker {
    server: Box<str>,
    closed: AtomicBool,
    failures: AtomicU32,
    /// Time of the first of the consecutive failures.
    failing_since: Mutex<Instant>,
    refused: AtomicU64,
    opened: AtomicU64,
    state: Mutex<BreakerState>,
    changed: Notify,
}

#[derive(Clone, Debug)]
enum BreakerState {
    Closed,
    Open {
        since: Instant,
        reason: String,
        probe_at: Instant,
        probe_interval: Duration,
    },
    /// `since`: when it opened; `probed_at`: when the first probe succeeded.
    RampingUp {
        since: Instant,
        probed_at: Instant,
    },
}

/// State of a server, for metrics and the health endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerHealth {
    pub server: Box<str>,
    /// Why requests are not sent to it; `None` while the breaker is closed.
    pub trouble: Option<String>,
    /// Requests that failed immediately because the breaker was open.
    pub refused: u64,
    /// Number of times the breaker has opened.
    pub opened: u64,
}

/// Errors of Redis that start with one of these are about the user or the password, so the server was reached.
const LOGIN_ERRORS: [&str; 3] = ["NOPERM ", "NOAUTH ", "WRONGPASS "];

/// The error of a server without a usable connection.
pub fn unusable(server: String, reason: String) -> StoreError {
    match LOGIN_ERRORS.iter().any(|code| reason.starts_with(code)) {
        true => StoreError::Refused { server, reason },
        false => StoreError::Unreachable { server, reason },
    }
}

impl Breaker {
    pub fn new(server: impl Into<Box<str>>) -> Breaker {
        Breaker {
            server: server.into(),
            closed: AtomicBool::new(true),
            failures: AtomicU32::new(0),
            failing_since: Mutex::new(Instant::now()),
            refused: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            state: Mutex::new(BreakerState::Closed),
            changed: Notify::new(),
        }
    }

    /// Whether a request may be sent now; if not, why. Never blocks.
    pub fn admit(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::Acquire) {
            return Ok(());
        }
        let state = self.lock_after_ramp_up();
        let reason = match &*state {
            BreakerState::Closed => return Ok(()),
            BreakerState::Open { reason, .. } => reason.clone(),
            BreakerState::RampingUp { probed_at, .. } => match admitted_share(*probed_at) {
                Some(share) if fastrand::f32() >= share => "it is returning gradually".to_owned(),
                _ => return Ok(()),
            },
        };
        drop(state);
        self.refused.fetch_add(1, Ordering::Relaxed);
        Err(unusable(self.server.to_string(), reason))
    }

    /// Records a reply.
    pub fn record_success(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a missing reply.
    pub fn record_failure(&self, reason: &str) {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        let has_lasted = {
            let mut since = lock(&self.failing_since);
            if failures == 1 {
                *since = Instant::now();
            }
            since.elapsed() >= MIN_FAILING_TIME
        };
        let is_ramping_up = matches!(*self.lock(), BreakerState::RampingUp { .. });
        if (failures >= FAILURE_THRESHOLD && has_lasted) || is_ramping_up {
            self.trip(reason);
        }
    }

    /// Opens at once: the connection is lost, so no request can succeed.
    pub fn trip(&self, reason: &str) {
        let mut state = self.lock();
        let now = Instant::now();
        let since = match &*state {
            BreakerState::Open { .. } => return,
            BreakerState::RampingUp { since, .. } => *since,
            BreakerState::Closed => {
                self.opened.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(server = %self.server, reason, "store does not answer: on_store_error is in force");
                now
            }
        };
        let reason = reason.to_owned();
        let probe_at = now + jittered(INITIAL_PROBE_INTERVAL);
        *state = BreakerState::Open { since, reason, probe_at, probe_interval: INITIAL_PROBE_INTERVAL };
        self.closed.store(false, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub fn is_open(&self) -> bool {
        matches!(*self.lock(), BreakerState::Open { .. })
    }

    /// Returns once the breaker is open.
    pub async fn wait_until_open(&self) {
        loop {
            // Register before checking: `notify_waiters` wakes only tasks that are already registered.
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            if self.is_open() {
                return;
            }
            changed.await;
        }
    }

    /// Returns when a probe is due. The server's driver task then sends a harmless request.
    pub async fn probe_due(&self) {
        self.wait_until_open().await;
        let due = match &*self.lock() {
            BreakerState::Open { probe_at, .. } => *probe_at,
            _ => return,
        };
        sleep_until(due).await;
    }

    /// A probe succeeded, or a new connection is established.
    pub fn probe_succeeded(&self) {
        let mut state = self.lock();
        if let BreakerState::Open { since, .. } = *state {
            self.failures.store(0, Ordering::Relaxed);
            *state = BreakerState::RampingUp { since, probed_at: Instant::now() };
        }
    }

    /// Another server has taken over. It has seen none of our load, so there is no ramp-up.
    pub fn close_after_failover(&self) {
        let mut state = self.lock();
        if let BreakerState::Open { since, .. } | BreakerState::RampingUp { since, .. } = *state {
            self.failures.store(0, Ordering::Relaxed);
            self.close(&mut state, since);
        }
    }

    pub fn probe_failed(&self, why: &str) {
        if let BreakerState::Open { probe_at, probe_interval, reason, .. } = &mut *self.lock() {
            *probe_interval = (*probe_interval * 2).min(MAX_PROBE_INTERVAL);
            *probe_at = Instant::now() + jittered(*probe_interval);
            *reason = why.to_owned();
        }
    }

    pub fn health(&self) -> ServerHealth {
        let trouble = match &*self.lock_after_ramp_up() {
            BreakerState::Closed => None,
            BreakerState::Open { reason, .. } => Some(reason.clone()),
            BreakerState::RampingUp { .. } => Some("it is returning gradually".to_owned()),
        };
        ServerHealth {
            server: self.server.clone(),
            trouble,
            refused: self.refused.load(Ordering::Relaxed),
            opened: self.opened.load(Ordering::Relaxed),
        }
    }

    /// Locks the state; closes the breaker if the ramp-up is complete.
    fn lock_after_ramp_up(&self) -> MutexGuard<'_, BreakerState> {
        let mut state = self.lock();
        if let BreakerState::RampingUp { since, probed_at } = *state
            && admitted_share(probed_at).is_none()
        {
            self.close(&mut state, since);
        }
        state
    }

    fn close(&self, state: &mut BreakerState, since: Instant) {
        *state = BreakerState::Closed;
        self.closed.store(true, Ordering::Release);
        let down_ms = since.elapsed().as_millis() as u64;
        tracing::info!(server = %self.server, down_ms, "store answers again");
    }

    fn lock(&self) -> MutexGuard<'_, BreakerState> {
        lock(&self.state)
    }
}

/// The share of requests admitted this long after a successful probe; `None` once the ramp-up is complete.
fn admitted_share(probed_at: Instant) -> Option<f32> {
    RAMP_UP_SHARES.get((probed_at.elapsed().as_millis() / RAMP_UP_STEP.as_millis()) as usize).copied()
}

/// A random duration between 0.5 and 1.5 times `interval`, so that nodes do not probe in lockstep.
pub fn jittered(interval: Duration) -> Duration {
    interval.mul_f64(0.5 + fastrand::f64())
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    async fn open() -> Breaker {
        let breaker = Breaker::new("127.0.0.1:1");
        for _ in 0..FAILURE_THRESHOLD {
            assert_eq!(breaker.admit(), Ok(()));
            breaker.record_failure("no answer");
            advance(MIN_FAILING_TIME / (FAILURE_THRESHOLD - 1)).await;
        }
        breaker
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_pauses_for_a_moment_is_not_down() {
        let breaker = Breaker::new("127.0.0.1:1");
        for _ in 0..1000 {
            breaker.record_failure("no answer");
        }
        assert_eq!(breaker.admit(), Ok(()));
        advance(MIN_FAILING_TIME).await;
        breaker.record_failure("no answer");
        assert!(breaker.admit().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn it_opens_after_consecutive_failures_and_fails_fast_with_the_reason() {
        let breaker = open().await;
        let error = breaker.admit().expect_err("open").to_string();
        assert_eq!(error, "127.0.0.1:1 cannot be reached: no answer");
        assert_eq!((breaker.health().refused, breaker.health().opened), (1, 1));
    }

    #[test]
    fn a_server_that_refuses_the_login_was_reached() {
        let error = |reason: &str| unusable("127.0.0.1:1".to_owned(), reason.to_owned()).to_string();
        let refusal = "NOPERM User a has no permissions to run the 'script|load' command";
        assert_eq!(error(refusal), format!("127.0.0.1:1 refused: {refusal}"));
        assert_eq!(error("connection refused"), "127.0.0.1:1 cannot be reached: connection refused");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_in_between_keeps_it_closed() {
        let breaker = Breaker::new("127.0.0.1:1");
        for _ in 0..10 * FAILURE_THRESHOLD {
            breaker.record_failure("no answer");
            breaker.record_success();
        }
        assert_eq!(breaker.admit(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn probes_are_soon_and_then_rarer_and_requests_return_gradually() {
        let breaker = open().await;
        let start = Instant::now();
        for _ in 0..8 {
            breaker.probe_due().await;
            breaker.probe_failed("still nothing");
        }
        assert!(start.elapsed() < 8 * MAX_PROBE_INTERVAL.mul_f64(1.5));
        breaker.probe_due().await;
        breaker.probe_succeeded();
        let passed = |_| (0..1000).filter(|_| breaker.admit().is_ok()).count();
        let first = passed(());
        advance(2 * RAMP_UP_STEP).await;
        let later = passed(());
        assert!((50..250).contains(&first) && (400..600).contains(&later), "{first} then {later}");
        advance(RAMP_UP_STEP).await;
        assert_eq!(passed(()), 1000);
        assert_eq!(breaker.health().trouble, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_taken_over_gets_all_requests_at_once() {
        let breaker = open().await;
        breaker.close_after_failover();
        assert!((0..100).all(|_| breaker.admit().is_ok()));
        assert_eq!((breaker.health().trouble, breaker.health().opened), (None, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn all_waiters_are_woken_when_it_opens() {
        let breaker = Breaker::new("127.0.0.1:1");
        let waiting =
            async { tokio::join!(breaker.wait_until_open(), breaker.wait_until_open(), breaker.probe_due()) };
        let trip = async { breaker.trip("gone") };
        tokio::time::timeout(Duration::from_secs(1), async { tokio::join!(waiting, trip) })
            .await
            .expect("all return");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_on_the_way_back_opens_it_again() {
        let breaker = open().await;
        breaker.probe_due().await;
        breaker.probe_succeeded();
        breaker.record_failure("no answer");
        assert!((0..100).all(|_| breaker.admit().is_err()));
        assert_eq!(breaker.health().opened, 1, "one outage");
    }
}
