//! Admission of calls: the caller's budget, the limits learned from the server, and a FIFO queue per key.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use thiserror::Error;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::budget::{BudgetResult, CallBudget};
use crate::builder::ThrottleBuilder;
use crate::headers::{ServerLimits, grpc};
use crate::key_table::{KeyState, KeyTable};
use crate::learned::{Readiness, ResponseKind, SentCall};

mod permit;

pub use permit::CallPermit;
use permit::UnsentCall;

/// Calls that may wait at once; further ones fail.
const MAX_WAITING: usize = 100_000;
/// A wait that other processes end at the same time is lengthened by up to this fraction of itself.
const JITTER_FRACTION: f64 = 0.02;
const MAX_JITTER: Duration = Duration::from_secs(1);

/// Keeps calls under a budget, and under the limits that servers state. Clones share their budget.
#[derive(Clone)]
pub struct Throttle {
    inner: Arc<Inner>,
}

struct Inner {
    budget: Option<CallBudget>,
    learns: bool,
    max_wait: Option<Duration>,
    keys: KeyTable,
    waiting: AtomicUsize,
}

/// Why a call may not be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ThrottleError {
    /// The limits would admit it only after the deadline.
    #[error("the rate limit does not allow the call in time; it may be sent in {} s", .retry_after.as_secs_f64().ceil())]
    TooLate {
        /// When it may be sent, as far as that is known.
        retry_after: Duration,
    },
    /// The limit admits nothing.
    #[error("the rate limit is 0: it never allows a call")]
    Never,
    /// Too many calls are waiting.
    #[error("{MAX_WAITING} calls are waiting already")]
    TooManyWaiting,
}

impl fmt::Debug for Throttle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("waiting", &self.waiting()).finish_non_exhaustive()
    }
}

impl Throttle {
    /// Sends at most the given number of calls per time to each host, such as `100/m`.
    pub fn new(limit: &str) -> Result<Throttle, crate::BuildError> {
        Throttle::builder().limit(limit).build()
    }

    /// Knows no limit but those that servers state.
    pub fn learning() -> Throttle {
        Throttle::builder().build().expect("without a limit there is none to be invalid")
    }

    /// More settings.
    pub fn builder() -> ThrottleBuilder {
        ThrottleBuilder::default()
    }

    pub(crate) fn with(
        budget: Option<CallBudget>,
        learns: bool,
        max_wait: Option<Duration>,
        keys: KeyTable,
    ) -> Throttle {
        let inner = Inner { budget, learns, max_wait, keys, waiting: AtomicUsize::new(0) };
        Throttle { inner: Arc::new(inner) }
    }

    /// Waits until a call may be sent, at most as long as the throttle is set to. Calls of a key are served in the order of
    /// their arrival; a call that is dropped leaves the queue and is not charged.
    pub async fn acquire(&self, key: &str) -> Result<CallPermit, ThrottleError> {
        self.acquire_before(key, self.inner.max_wait.map(|wait| Instant::now() + wait)).await
    }

    /// As [`acquire`](Self::acquire), but fails as soon as it is known that the wait is longer than `max_wait`.
    pub async fn acquire_within(&self, key: &str, max_wait: Duration) -> Result<CallPermit, ThrottleError> {
        self.acquire_before(key, Some(Instant::now() + max_wait.min(FOREVER))).await
    }

    /// The number of calls that wait.
    pub fn waiting(&self) -> usize {
        self.inner.waiting.load(Ordering::Relaxed)
    }

    async fn acquire_before(
        &self,
        key: &str,
        deadline: Option<Instant>,
    ) -> Result<CallPermit, ThrottleError> {
        let deadline = deadline.unwrap_or_else(|| Instant::now() + FOREVER);
        let _waiting = Waiting::enter(&self.inner.waiting)?;
        let state = self.inner.keys.get(key);
        let guard = timeout_at(deadline, state.queue_lock.lock()).await;
        let _guard = guard.map_err(|_| self.inner.too_late(&state))?;
        loop {
            self.inner.wait_for_server(&state, deadline).await?;
            let Some(budget) = &self.inner.budget else { break };
            match budget.charge(key).await {
                BudgetResult::Never => return Err(ThrottleError::Never),
                BudgetResult::Denied { retry_after } => {
                    let jitter = if budget.is_shared() { Jitter::Random } else { Jitter::None };
                    let due = Instant::now() + retry_after;
                    *state.first_due() = Some(due);
                    wait(due, deadline, jitter).await?;
                }
                BudgetResult::Charged { delay, receipt } => {
                    let unsent = UnsentCall::new(self.inner.clone(), receipt);
                    if !delay.is_zero() {
                        wait(Instant::now() + delay, deadline, Jitter::None).await?;
                        self.inner.wait_for_server(&state, deadline).await?;
                    }
                    return Ok(unsent.send(&state));
                }
            }
        }
        Ok(UnsentCall::new(self.inner.clone(), None).send(&state))
    }
}

/// Longer than any program runs: a deadline for calls without one. A longer wait could not be added to a time.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Inner {
    /// Waits until the server allows a call, as far as it has said so.
    async fn wait_for_server(&self, state: &KeyState, deadline: Instant) -> Result<(), ThrottleError> {
        loop {
            let answered = state.answered.notified();
            let readiness = state.learned().readiness(Instant::now());
            match readiness {
                Readiness::Now => return Ok(()),
                Readiness::At(at) => wait(at, deadline, Jitter::Random).await?,
                Readiness::OnResponseOrAt(at) => {
                    tokio::select! {
                        () = answered => {}
                        () = sleep_until(at.min(deadline)) => {
                            if at > deadline {
                                return Err(too_late(at));
                            }
                        }
                    }
                }
            }
        }
    }

    /// The error of a call that was not sent in time: it is sent after the first in the queue.
    fn too_late(&self, state: &KeyState) -> ThrottleError {
        let now = Instant::now();
        let first_due = state.first_due().filter(|due| *due > now);
        let stated = match state.learned().readiness(now) {
            Readiness::Now => None,
            Readiness::At(at) | Readiness::OnResponseOrAt(at) => Some(at),
        };
        too_late(first_due.max(stated).unwrap_or(now + Duration::from_secs(1)))
    }

    /// Records a response; returns how long further calls wait if it is a refusal.
    fn observe(
        &self,
        state: &KeyState,
        call: SentCall,
        status: StatusCode,
        headers: &HeaderMap,
    ) -> Option<Duration> {
        let mut stated = match self.learns {
            true => ServerLimits::read(headers, SystemTime::now()),
            false => ServerLimits::default(),
        };
        let is_refused = match status {
            StatusCode::TOO_MANY_REQUESTS => self.learns,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::FORBIDDEN => stated.retry_after.is_some(),
            // Without a delay it may be a message that is too large.
            StatusCode::OK => stated.retry_after.is_some() && grpc::is_refusal(headers),
            _ => false,
        };
        if !is_refused {
            stated.retry_after = None; // of a redirect, or of an answer that is not ready
        }
        let kind = if is_refused { ResponseKind::Refused } else { ResponseKind::Served };
        let wait = state.learned().observe(call, kind, &stated, Instant::now());
        state.answered.notify_one();
        wait
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Jitter {
    None,
    Random,
}

/// Waits until `at`, or fails at once if that is after the deadline.
async fn wait(at: Instant, deadline: Instant, jitter: Jitter) -> Result<(), ThrottleError> {
    if at > deadline {
        return Err(too_late(at));
    }
    let extra = match jitter {
        Jitter::None => Duration::ZERO,
        Jitter::Random => {
            let length = at.saturating_duration_since(Instant::now());
            length.mul_f64(JITTER_FRACTION * fastrand::f64()).min(MAX_JITTER)
        }
    };
    sleep_until((at + extra).min(deadline)).await;
    Ok(())
}

fn too_late(at: Instant) -> ThrottleError {
    ThrottleError::TooLate { retry_after: at.saturating_duration_since(Instant::now()) }
}

/// Counts a call as waiting until it is dropped.
struct Waiting<'c>(&'c AtomicUsize);

impl<'c> Waiting<'c> {
    fn enter(count: &'c AtomicUsize) -> Result<Waiting<'c>, ThrottleError> {
        let entered = Waiting(count);
        if count.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            return Err(ThrottleError::TooManyWaiting);
        }
        Ok(entered)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
