//! Admission of calls: the caller's budget, the limits learned from the server, and a FIFO queue per key.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode};
use thiserror::Error;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, sleep_until, timeout_at};
use tollgate::internal::store::ChargeReceipt;

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
        // While no call waits there is no order to keep, so the store is asked about several calls at a time.
        let mut denied_until = None;
        if !state.has_queue()
            && let Ok(call) = UnsentCall::reserve(&self.inner, &state)
        {
            match self.inner.charge(call, key).await? {
                Attempt::Charged { call, delay } if delay.is_zero() => return Ok(call.send()),
                Attempt::Charged { call, delay } => {
                    let _queued = state.enqueue();
                    let first = state.queue_lock.try_lock();
                    let send_at = Instant::now() + delay;
                    let _delayed = first.is_ok().then(|| state.delay_first(send_at));
                    return self.inner.send_at(send_at, call, &state, deadline).await;
                }
                Attempt::Denied { until } => denied_until = Some(until),
            }
        }
        let _queued = state.enqueue();
        if let Some(until) = denied_until.filter(|until| *until > deadline) {
            return Err(too_late(until));
        }
        let _first = self.inner.wait_for_turn(&state, deadline).await?;
        loop {
            if let Some(until) = denied_until {
                self.inner.wait_for_budget(until, &state, deadline).await?;
            }
            let call = self.inner.wait_for_server(&state, deadline).await?;
            match self.inner.charge(call, key).await? {
                Attempt::Charged { call, delay } if delay.is_zero() => return Ok(call.send()),
                Attempt::Charged { call, delay } => {
                    let send_at = Instant::now() + delay;
                    let _delayed = state.delay_first(send_at);
                    return self.inner.send_at(send_at, call, &state, deadline).await;
                }
                Attempt::Denied { until } => denied_until = Some(until),
            }
        }
    }
}

/// The budget's answer to a call that the server allows.
enum Attempt {
    /// It may be sent after the delay.
    Charged {
        call: UnsentCall,
        delay: Duration,
    },
    Denied {
        until: Instant,
    },
}

/// Longer than any program runs: a deadline for calls without one. A longer wait could not be added to a time.
pub(crate) const FOREVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

impl Inner {
    /// Charges a call to the budget, if there is one.
    async fn charge(&self, call: UnsentCall, key: &str) -> Result<Attempt, ThrottleError> {
        let Some(budget) = &self.budget else {
            return Ok(Attempt::Charged { call, delay: Duration::ZERO });
        };
        match budget.charge(key).await {
            BudgetResult::Charged { delay, receipt } => {
                Ok(Attempt::Charged { call: call.charged(receipt), delay })
            }
            BudgetResult::Denied { retry_after } => {
                Ok(Attempt::Denied { until: Instant::now() + retry_after })
            }
            BudgetResult::Never => Err(ThrottleError::Never),
        }
    }

    fn refund(&self, receipt: Option<Box<ChargeReceipt>>) {
        if let (Some(receipt), Some(budget)) = (receipt, &self.budget) {
            budget.refund(*receipt);
        }
    }

    /// Waits until a call is the first of the queue. After the deadline it fails as soon as the first one waits for a
    /// limit: while that one asks the store, there may be room for both.
    async fn wait_for_turn<'s>(
        &self,
        state: &'s KeyState,
        deadline: Instant,
    ) -> Result<MutexGuard<'s, ()>, ThrottleError> {
        let mut turn = pin!(state.queue_lock.lock());
        if let Ok(first) = timeout_at(deadline, turn.as_mut()).await {
            return Ok(first);
        }
        loop {
            let mut blocked = pin!(state.blocked.notified());
            blocked.as_mut().enable();
            if let Some(until) = blocked_until(state) {
                return Err(too_late(until));
            }
            tokio::select! {
                first = turn.as_mut() => return Ok(first),
                () = blocked => {}
            }
        }
    }

    /// Waits until the budget may admit the first call of the queue.
    async fn wait_for_budget(
        &self,
        until: Instant,
        state: &KeyState,
        deadline: Instant,
    ) -> Result<(), ThrottleError> {
        let jitter = match &self.budget {
            Some(budget) if budget.is_shared() => Jitter::Random,
            _ => Jitter::None,
        };
        let until = jitter.later(until, deadline);
        let _delayed = state.delay_first(until);
        wait(until, deadline).await
    }

    /// Sends a call that was charged once its delay is over, unless the server stops it meanwhile.
    async fn send_at(
        self: &Arc<Inner>,
        at: Instant,
        call: UnsentCall,
        state: &Arc<KeyState>,
        deadline: Instant,
    ) -> Result<CallPermit, ThrottleError> {
        let charge = call.into_charge();
        wait(at, deadline).await?;
        let call = self.wait_for_server(state, deadline).await?;
        Ok(call.charged(charge.take()).send())
    }

    /// Waits until the server allows a call, as far as it has said so.
    async fn wait_for_server(
        self: &Arc<Inner>,
        state: &Arc<KeyState>,
        deadline: Instant,
    ) -> Result<UnsentCall, ThrottleError> {
        loop {
            let answered = state.answered.notified();
            let readiness = match UnsentCall::reserve(self, state) {
                Ok(call) => return Ok(call),
                Err(readiness) => readiness,
            };
            state.blocked.notify_waiters();
            match readiness {
                Readiness::Now => {}
                Readiness::At(at) => wait(Jitter::Random.later(at, deadline), deadline).await?,
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

/// Until when a limit stops the first call of the queue.
fn blocked_until(state: &KeyState) -> Option<Instant> {
    let stated = match state.learned().readiness(Instant::now()) {
        Readiness::Now => None,
        Readiness::At(at) | Readiness::OnResponseOrAt(at) => Some(at),
    };
    state.first_due().max(stated)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Jitter {
    None,
    Random,
}

impl Jitter {
    /// A time that is later by the jitter, but not because of it after the deadline.
    fn later(self, at: Instant, deadline: Instant) -> Instant {
        if self == Jitter::None || at >= deadline {
            return at;
        }
        let length = at.saturating_duration_since(Instant::now());
        let extra = length.mul_f64(JITTER_FRACTION * fastrand::f64()).min(MAX_JITTER);
        (at + extra).min(deadline)
    }
}

/// Waits until `at`, or fails at once if that is after the deadline.
async fn wait(at: Instant, deadline: Instant) -> Result<(), ThrottleError> {
    if at > deadline {
        return Err(too_late(at));
    }
    sleep_until(at).await;
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
