//! Hold queues: requests that wait for their release time (`on_exceed: hold`).
//!
//! One queue per key, ordered by release time. When a request leaves early, each later request takes over the release
//! time and charge of the one before it, and the last charge is refunded: no request waits for one that is gone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tollgate::Time;
use tollgate::fingerprint::Fingerprint;
use tollgate::store::Receipt;

use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::Gate;

/// All held requests. The caller of `enqueue` passes the bound on their number.
#[derive(Default)]
pub struct HoldQueues {
    queues: Mutex<HoldTable>,
    /// The number of queues, readable without the lock.
    key_count: AtomicUsize,
    changed: Notify,
}

#[derive(Default)]
struct HoldTable {
    by_key: HashMap<Fingerprint, HoldQueue>,
    /// When to check which queue, earliest first.
    wakeups: BinaryHeap<Reverse<(Time, Fingerprint)>>,
    waiting: usize,
    next_number: u64,
}

#[derive(Default)]
struct HoldQueue {
    waiting: VecDeque<HoldEntry>,
    /// The valid wakeup of this queue; other entries of the heap are stale.
    wakeup: Option<Time>,
    /// A request was released and has not resumed yet. The next one is released only then; otherwise it could overtake.
    is_releasing: bool,
}

struct HoldEntry {
    number: u64,
    turn: Time,
    /// The charge of this position. A request with several held charges has none here and cannot move up.
    charge: Option<Receipt>,
    release_tx: oneshot::Sender<Option<Receipt>>,
}

/// A request in a queue. Dropping it removes it from the queue.
pub struct HeldRequest {
    queues: Arc<HoldQueues>,
    gate: Arc<Gate>,
    key: Fingerprint,
    number: u64,
    release_rx: oneshot::Receiver<Option<Receipt>>,
    is_released: bool,
}

impl HoldQueues {
    /// Enters the queue of `key`; `None` if `max` requests are held already.
    pub fn enqueue(
        self: &Arc<Self>,
        gate: &Arc<Gate>,
        key: Fingerprint,
        turn: Time,
        charge: &mut Option<Receipt>,
        max: usize,
    ) -> Option<HeldRequest> {
        let mut queues = self.lock();
        if queues.waiting >= max {
            return None;
        }
        queues.waiting += 1;
        queues.next_number += 1;
        let number = queues.next_number;
        let (call, called) = oneshot::channel();
        let queue = queues.by_key.entry(key).or_default();
        let behind = queue.waiting.partition_point(|other| other.turn <= turn);
        queue.waiting.insert(behind, HoldEntry { number, turn, charge: charge.take(), release_tx: call });
        self.key_count.store(queues.by_key.len(), Ordering::Relaxed);
        self.schedule_wakeup(&mut queues, key);
        Some(HeldRequest {
            queues: Arc::clone(self),
            gate: Arc::clone(gate),
            key,
            number,
            release_rx: called,
            is_released: false,
        })
    }

    /// Whether any request is held, or was released and has not resumed yet.
    pub fn has_requests(&self) -> bool {
        self.key_count.load(Ordering::Relaxed) > 0
    }

    /// Whether the queue of `key` has requests: a new request goes behind them even if their release is overdue.
    pub fn has_requests_for(&self, key: Fingerprint) -> bool {
        self.has_requests() && self.lock().by_key.contains_key(&key)
    }

    /// The number of held requests.
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Schedules a wakeup for the first request of a queue.
    fn schedule_wakeup(&self, queues: &mut HoldTable, key: Fingerprint) {
        let Some(queue) = queues.by_key.get_mut(&key).filter(|queue| !queue.is_releasing) else { return };
        let Some(first) = queue.waiting.front().map(|first| first.turn) else {
            queues.by_key.remove(&key);
            self.key_count.store(queues.by_key.len(), Ordering::Relaxed);
            return;
        };
        if queue.wakeup.is_none_or(|wakeup_at| first < wakeup_at) {
            queue.wakeup = Some(first);
            let soonest = queues.wakeups.peek().is_none_or(|Reverse((turn, _))| first < *turn);
            queues.wakeups.push(Reverse((first, key)));
            if soonest {
                self.changed.notify_one();
            }
        }
    }

    /// Releases all requests that are due; returns when to check again.
    fn release_due(&self, now: Time) -> Option<Time> {
        let mut queues = self.lock();
        while let Some(Reverse((turn, key))) = queues.wakeups.peek().copied() {
            if turn > now {
                return Some(turn);
            }
            queues.wakeups.pop();
            let Some(queue) = queues.by_key.get_mut(&key).filter(|queue| queue.wakeup == Some(turn)) else {
                continue;
            };
            queue.wakeup = None;
            let due = queue.waiting.front().is_some_and(|first| first.turn <= now);
            match if due { queue.waiting.pop_front() } else { None } {
                Some(first) => {
                    queue.is_releasing = true;
                    queues.waiting -= 1;
                    first.release_tx.send(first.charge).ok();
                }
                // The first request has left, and no later one could move up.
                None => self.schedule_wakeup(&mut queues, key),
            }
        }
        None
    }

    /// A released request has resumed or is gone: the next one may be released.
    fn finish_release(&self, key: Fingerprint) {
        let mut queues = self.lock();
        if let Some(queue) = queues.by_key.get_mut(&key) {
            queue.is_releasing = false;
            self.schedule_wakeup(&mut queues, key);
        }
    }

    /// Removes a request from its queue. Later requests move up; returns the charge that is left over at the end.
    fn remove(&self, key: Fingerprint, number: u64) -> Option<Receipt> {
        let mut queues = self.lock();
        let queue = queues.by_key.get_mut(&key)?;
        let at = queue.waiting.iter().position(|waiting| waiting.number == number)?;
        let removed = queue.waiting.remove(at)?;
        let mut turn = removed.turn;
        let mut charge = removed.charge;
        for behind in queue.waiting.range_mut(at..) {
            if charge.is_none() || behind.charge.is_none() {
                break;
            }
            std::mem::swap(&mut behind.turn, &mut turn);
            std::mem::swap(&mut behind.charge, &mut charge);
        }
        queues.waiting -= 1;
        self.schedule_wakeup(&mut queues, key);
        charge
    }

    fn lock(&self) -> MutexGuard<'_, HoldTable> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldRequest {
    /// Returns at the request's release time, with the charge of its position.
    pub async fn wait(&mut self) -> Option<Receipt> {
        let charge = (&mut self.release_rx).await.ok().flatten();
        self.is_released = true;
        self.queues.finish_release(self.key);
        charge
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        if self.is_released {
            return;
        }
        let mut charge = self.queues.remove(self.key, self.number);
        // Released in the meantime: the charge is this request's own again.
        if let Ok(own) = self.release_rx.try_recv() {
            self.queues.finish_release(self.key);
            charge = own;
        }
        if let Some(charge) = charge {
            self.gate.refund(charge);
        }
    }
}

/// Releases requests when they are due, until the shutdown.
pub async fn watch(queues: Arc<HoldQueues>, gate: Arc<Gate>, mut shutdown: Shutdown) {
    const IDLE: Duration = Duration::from_secs(60);
    loop {
        let next = queues.release_due(gate.now());
        let pause = next.map_or(IDLE, |turn| turn.since(gate.now()));
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => return,
            () = queues.changed.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::{Engine, Hit, Policy};

    use super::*;
    use crate::config_history::ConfigHistory;
    use crate::gate::LiveSettings;

    const NOW: Time = Time::from_secs(1_800_000_000);

    struct Waiters {
        queues: Arc<HoldQueues>,
        gate: Arc<Gate>,
    }

    impl Waiters {
        /// A queue of six that releases one per second.
        fn new() -> Waiters {
            let text = "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/s, burst: 6 }]";
            let live = LiveSettings {
                headers: Default::default(),
                jwt: None,
                history: ConfigHistory::new(text.to_owned()),
                allow: Vec::new(),
                trusted: Default::default(),
            };
            let gate = Gate::new(Engine::new(Policy::from_yaml(text).unwrap()), live);
            Waiters { queues: Arc::default(), gate: Arc::new(gate) }
        }

        /// Enters at `now`; returns the wait in seconds.
        fn enter(&self, now: Time) -> Option<(HeldRequest, u64)> {
            let mut verdict = self.gate.engine.check(&Hit::on("GET", "h", "/"), now);
            let mut receipt = verdict.receipt.take().filter(|_| verdict.allowed);
            let key = receipt.as_ref()?.queue_key()?;
            let held = self.queues.enqueue(&self.gate, key, now + verdict.delay, &mut receipt, 10)?;
            Some((held, verdict.delay.as_secs()))
        }

        fn is_called(&self, held: &mut HeldRequest) -> bool {
            let called = held.release_rx.try_recv().is_ok();
            if called {
                held.is_released = true;
                self.queues.finish_release(held.key);
            }
            called
        }
    }

    fn after(seconds: u64) -> Time {
        NOW + Duration::from_secs(seconds)
    }

    #[test]
    fn held_requests_are_released_at_their_turn_and_in_order() {
        let waiters = Waiters::new();
        let mut held: Vec<_> =
            (0..6).map(|n| waiters.enter(NOW).map(|(held, turn)| (n, turn, held)).unwrap()).collect();
        assert!(held.iter().all(|(n, turn, _)| n == turn) && waiters.enter(NOW).is_none());
        for second in 0..6 {
            waiters.queues.release_due(after(second));
            let called: Vec<_> =
                held.iter_mut().filter_map(|(n, _, held)| waiters.is_called(held).then_some(*n)).collect();
            assert_eq!(called, [second]);
        }
        assert_eq!(waiters.queues.waiting(), 0);
    }

    #[test]
    fn a_request_that_leaves_moves_the_others_up_and_the_last_charge_is_refunded() {
        let waiters = Waiters::new();
        let mut held: Vec<_> = (0..6).map(|_| waiters.enter(NOW).unwrap().0).collect();
        waiters.queues.release_due(NOW);
        assert!(waiters.is_called(&mut held[0]));
        drop(held.remove(2)); // its turn was second 2
        let (last, turn) = waiters.enter(NOW).expect("there is room again");
        assert_eq!(turn, 5, "at the end of the queue");
        held.push(last);
        for (second, index) in (1..6).zip(1..) {
            waiters.queues.release_due(after(second));
            assert!(waiters.is_called(&mut held[index]), "second {second}");
        }
        assert_eq!(waiters.queues.waiting(), 0);
    }

    #[test]
    fn a_whole_queue_that_leaves_late_leaves_nothing_behind() {
        let waiters = Waiters::new();
        let held: Vec<_> = (0..6).map(|_| waiters.enter(NOW).unwrap().0).collect();
        drop(held);
        assert_eq!(waiters.queues.waiting(), 0);
        let again: Vec<_> = std::iter::from_fn(|| waiters.enter(NOW)).collect();
        let turns: Vec<_> = again.iter().map(|(_, turn)| *turn).collect();
        assert_eq!(turns, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn no_request_is_released_early_if_the_first_has_no_charge() {
        let waiters = Waiters::new();
        let (first, _) = waiters.enter(NOW).unwrap();
        let key = first.key;
        // A request that is held in another queue, too, has no charge to hand on.
        let fixed = waiters.queues.enqueue(&waiters.gate, key, after(2), &mut None, 10).unwrap();
        let mut last = waiters.queues.enqueue(&waiters.gate, key, after(4), &mut None, 10).unwrap();
        drop((first, fixed));
        for second in [2, 3] {
            waiters.queues.release_due(after(second));
            assert!(!waiters.is_called(&mut last), "second {second}");
        }
        waiters.queues.release_due(after(4));
        assert!(waiters.is_called(&mut last));
    }

    #[test]
    fn a_full_queue_accepts_no_request() {
        let waiters = Waiters::new();
        let mut verdict = waiters.gate.engine.check(&Hit::on("GET", "h", "/"), NOW);
        let mut receipt = verdict.receipt.take();
        let key = receipt.as_ref().and_then(Receipt::queue_key).unwrap();
        assert!(waiters.queues.enqueue(&waiters.gate, key, NOW, &mut receipt, 0).is_none());
        assert!(receipt.is_some(), "the receipt is not taken");
    }
}
