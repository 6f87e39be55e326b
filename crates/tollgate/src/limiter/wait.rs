//! Waiting for a key, first come first served, on the caller's own runtime.
//!
//! A caller takes a *ticket* in the queue of its key. Only the first in a queue charges the limiter and sleeps until its
//! charge is due; the others wait for a wake-up. A ticket that is dropped leaves its queue and wakes the next, whether
//! its caller was served, timed out or was cancelled, so a queue never waits for a caller that is gone.

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use thiserror::Error;

use super::{Limiter, LimiterKey};
use crate::algorithm::Admission;
use crate::fingerprint::Fingerprint;
use crate::store::{Charge, ChargeReceipt};
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// Callers that may wait on a limiter at once; further ones are refused.
pub(super) const MAX_WAITING: usize = 100_000;

/// Sleeps in a row that may end before half of their time, by the limiter's clock. Timers are more exact than that, so
/// the clock does not advance while the runtime's does, and waiting would be a busy loop.
const MAX_EARLY_SLEEPS: u32 = 100;

/// Why a caller did not get its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The cost is above what the limit ever allows at once.
    #[error("the cost is above the limit: no wait would help")]
    Never,
    /// It would not be allowed within the given time.
    #[error("not allowed within the time given")]
    TimedOut,
    /// Too many callers are waiting.
    #[error("{MAX_WAITING} callers are waiting already")]
    TooManyWaiting,
    /// The sleeps ended, and the limiter's clock had not advanced.
    #[error(
        "{MAX_EARLY_SLEEPS} sleeps ended early by the limiter's clock: give it one that follows the runtime's"
    )]
    EarlySleep,
}

/// The queues of all keys that are waited for.
#[derive(Default)]
pub(super) struct WaitQueues(Mutex<Queues>);

#[derive(Default)]
struct Queues {
    /// By ticket number, which only grows, so the first entry came first.
    by_key: HashMap<Fingerprint, BTreeMap<u64, Waker>>,
    next_ticket: u64,
    waiting: usize,
}

/// A place in the queue of a key.
struct QueueTicket<'q> {
    queues: &'q WaitQueues,
    key: Fingerprint,
    number: u64,
}

impl WaitQueues {
    fn enter(&self, key: Fingerprint) -> Result<QueueTicket<'_>, WaitError> {
        let mut queues = lock(&self.0);
        if queues.waiting >= MAX_WAITING {
            return Err(WaitError::TooManyWaiting);
        }
        let number = queues.next_ticket;
        queues.next_ticket += 1;
        queues.waiting += 1;
        queues.by_key.entry(key).or_default().insert(number, Waker::noop().clone());
        Ok(QueueTicket { queues: self, key, number })
    }

    #[cfg(test)]
    fn waiting(&self) -> (usize, usize) {
        let queues = lock(&self.0);
        (queues.waiting, queues.by_key.len())
    }
}

impl QueueTicket<'_> {
    /// Ready when no earlier ticket of the key is left.
    fn poll_first(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut queues = lock(&self.queues.0);
        let Some(queue) = queues.by_key.get_mut(&self.key) else { return Poll::Ready(()) };
        if queue.keys().next() == Some(&self.number) {
            return Poll::Ready(());
        }
        if let Some(waker) = queue.get_mut(&self.number) {
            waker.clone_from(context.waker());
        }
        Poll::Pending
    }
}

impl Drop for QueueTicket<'_> {
    fn drop(&mut self) {
        let mut queues = lock(&self.queues.0);
        queues.waiting -= 1;
        let Some(queue) = queues.by_key.get_mut(&self.key) else { return };
        let was_first = queue.keys().next() == Some(&self.number);
        queue.remove(&self.number);
        let next = queue.values().next().filter(|_| was_first).cloned();
        if queue.is_empty() {
            queues.by_key.remove(&self.key);
        }
        drop(queues);
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Limiter {
    /// Waits until the key is allowed, and charges one. Callers of a key are served in the order in which they began to
    /// wait; dropping the future gives up the place.
    ///
    /// `sleep` is the runtime's. Nothing is woken before its time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::new("10/s")?;
    /// limiter.until_ready("api.example.com", tokio::time::sleep).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// In a test with paused time, the limiter's clock must follow the runtime's: `sleep` advances it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    /// use tollgate::{Clock, Limiter, Time};
    ///
    /// tokio::time::pause();
    /// let began = Instant::now();
    /// let start = Time::from_secs(1_800_000_000);
    /// let limiter = Limiter::builder().clock(Clock::manual(start)).build("1/h")?;
    /// let clock = limiter.clock();
    /// let sleep = |wait: Duration| async move {
    ///     tokio::time::sleep(wait).await;
    ///     clock.advance_to(start + began.elapsed());
    /// };
    /// limiter.until_ready("api.example.com", sleep).await?;
    /// limiter.until_ready("api.example.com", sleep).await?;
    /// assert_eq!(began.elapsed().as_secs(), 3_600);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn until_ready<K, S, F>(&self, key: &K, sleep: S) -> Result<(), WaitError>
    where
        K: LimiterKey + ?Sized,
        S: Fn(Duration) -> F,
        F: Future<Output = ()>,
    {
        self.until_ready_n(key, 1, sleep).await
    }

    /// As [`until_ready`](Self::until_ready), for a charge of `cost`. Callers with a small cost wait behind an earlier one
    /// with a large cost. The runtime's timeout bounds the wait: dropped, it leaves no trace.
    pub async fn until_ready_n<K, S, F>(&self, key: &K, cost: u64, sleep: S) -> Result<(), WaitError>
    where
        K: LimiterKey + ?Sized,
        S: Fn(Duration) -> F,
        F: Future<Output = ()>,
    {
        let charge = self.charge(key, cost);
        let ticket = self.queues.enter(charge.fingerprint)?;
        poll_fn(|context| ticket.poll_first(context)).await;
        self.charge_first([charge], None, sleep).await
    }

    /// As [`until_ready`](Self::until_ready), but fails as soon as it is known that the key is not allowed within
    /// `max_wait`.
    pub async fn until_ready_within<K, S, F>(
        &self,
        key: &K,
        max_wait: Duration,
        sleep: S,
    ) -> Result<(), WaitError>
    where
        K: LimiterKey + ?Sized,
        S: Fn(Duration) -> F,
        F: Future<Output = ()>,
    {
        let deadline = self.clock.now() + max_wait;
        let charge = self.charge(key, 1);
        let ticket = self.queues.enter(charge.fingerprint)?;
        let mut expired = pin!(sleep(max_wait));
        poll_fn(|context| match ticket.poll_first(context) {
            Poll::Ready(()) => Poll::Ready(Ok(())),
            Poll::Pending => expired.as_mut().poll(context).map(|()| Err(WaitError::TimedOut)),
        })
        .await?;
        self.charge_first([charge], Some(deadline), sleep).await
    }

    /// Charges for the first caller in a queue; fails as soon as it is known that it would be after the deadline.
    async fn charge_first<S, F>(
        &self,
        charge: [Charge; 1],
        deadline: Option<Time>,
        sleep: S,
    ) -> Result<(), WaitError>
    where
        S: Fn(Duration) -> F,
        F: Future<Output = ()>,
    {
        let mut early_sleeps = 0;
        while let Some(wait) = self.try_charge(&charge)? {
            let now = self.clock.now();
            if deadline.is_some_and(|deadline| now + wait > deadline) {
                return Err(WaitError::TimedOut);
            }
            sleep(wait).await;
            let is_early = self.clock.now() < now + wait / 2;
            early_sleeps = if is_early { early_sleeps + 1 } else { 0 };
            if early_sleeps == MAX_EARLY_SLEEPS {
                return Err(WaitError::EarlySleep);
            }
        }
        Ok(())
    }

    /// Charges; returns how long to wait if that is not allowed now. A leaky bucket that would hold the request is
    /// left alone until it would not: the queue is here, where a caller can leave it.
    fn try_charge(&self, charge: &[Charge; 1]) -> Result<Option<Duration>, WaitError> {
        let now = self.clock.now();
        let peeked = self.store.peek(charge, now);
        if let Some(wait) = wait_of(peeked.limits[0].decision.admission)? {
            return Ok(Some(wait));
        }
        let outcome = self.store.charge(charge, now);
        let wait = wait_of(outcome.limits[0].decision.admission)?;
        // Another charge has come between: the bucket would hold this one.
        if wait.is_some()
            && let Some(receipt) = ChargeReceipt::of(charge, &outcome)
        {
            self.store.refund(receipt, now);
        }
        Ok(wait)
    }
}

/// How long to wait before a charge that is not allowed now, or is allowed with a delay.
fn wait_of(admission: Admission) -> Result<Option<Duration>, WaitError> {
    match admission {
        Admission::Allow { delay } if delay.is_zero() => Ok(None),
        Admission::Allow { delay: wait } | Admission::Deny { retry_after: wait } => Ok(Some(wait)),
        Admission::Never => Err(WaitError::Never),
    }
}

#[cfg(test)]
mod tests;
