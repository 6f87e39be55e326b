//! Hold queues: requests that wait for their release time (`on_exceed: hold`).
//!
//! One queue per key. Its positions are ordered by release time, its requests by arrival; the n-th request has the n-th
//! position. When a request leaves early, each later request thereby takes over the release time and charge of the one
//! before it, and the last charge is refunded: no request waits for one that is gone. Every operation costs the
//! logarithm of the number of held requests.
//!
//! ```text
//! positions   12:00:01   12:00:02   12:00:03        B leaves:   12:00:01   12:00:02   (12:00:03 refunded)
//! requests       A          B          C                           A          C
//! ```

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tollgate::Time;
use tollgate::internal::fingerprint::Fingerprint;
use tollgate::internal::store::ChargeReceipt;

use crate::connection::{Shutdown, shutdown_requested};
use crate::gate::Gate;

/// Queues that are checked under one lock. Those that are due as well wait for the next one.
const CHECKS_PER_LOCK: usize = 64;

/// All held requests. The caller of `enqueue` passes the bound on their number.
#[derive(Default)]
pub struct HoldQueues {
    table: Mutex<HoldTable>,
    /// The number of queues, readable without the lock.
    key_count: AtomicUsize,
    changed: Notify,
}

#[derive(Default)]
struct HoldTable {
    by_key: HashMap<Fingerprint, HoldQueue>,
    /// When to check which queue: one wakeup per queue.
    wakeups: BTreeSet<(Time, Fingerprint)>,
    waiting: usize,
    next_number: u64,
}

#[derive(Default)]
struct HoldQueue {
    /// Release times with their charges; as many as there are requests in `waiting`.
    positions: BTreeMap<HoldPosition, ChargeReceipt>,
    /// Requests that move up, by number: in order of arrival.
    waiting: BTreeMap<u64, ReleaseSender>,
    /// Requests with several held charges. They have no charge here, and keep their release time.
    fixed: BTreeMap<HoldPosition, ReleaseSender>,
    /// The wakeup of this queue.
    wakeup: Option<Time>,
    /// A request was released and has not resumed yet. The next one is released only then; otherwise it could overtake.
    is_releasing: bool,
}

/// A release time, and the number of the request that was given it first.
type HoldPosition = (Time, u64);
type ReleaseSender = oneshot::Sender<Option<ChargeReceipt>>;

impl HoldQueue {
    fn first(&self) -> Option<HoldPosition> {
        let movable = self.positions.first_key_value().map(|(position, _)| *position);
        let fixed = self.fixed.first_key_value().map(|(position, _)| *position);
        movable.into_iter().chain(fixed).min()
    }

    /// Takes the first request if it is due, with the charge of its position.
    fn take_due(&mut self, now: Time) -> Option<(ReleaseSender, Option<ChargeReceipt>)> {
        let first = self.first().filter(|(release_at, _)| *release_at <= now)?;
        match self.positions.remove(&first) {
            Some(charge) => self.waiting.pop_first().map(|(_, release_tx)| (release_tx, Some(charge))),
            None => self.fixed.remove(&first).map(|release_tx| (release_tx, None)),
        }
    }
}

/// A request in a queue. Dropping it removes it from the queue.
pub struct HeldRequest {
    queues: Arc<HoldQueues>,
    gate: Arc<Gate>,
    key: Fingerprint,
    /// Its number, and the release time that it was given.
    entered: HoldPosition,
    release_rx: oneshot::Receiver<Option<ChargeReceipt>>,
    is_released: bool,
}

impl HoldQueues {
    /// Enters the queue of `key`; `None` if `max` requests are held already.
    pub fn enqueue(
        self: &Arc<Self>,
        gate: &Arc<Gate>,
        key: Fingerprint,
        release_at: Time,
        charge: &mut Option<ChargeReceipt>,
        max: usize,
    ) -> Option<HeldRequest> {
        let mut table = self.lock();
        if table.waiting >= max {
            return None;
        }
        table.waiting += 1;
        table.next_number += 1;
        let entered = (release_at, table.next_number);
        let (release_tx, release_rx) = oneshot::channel();
        let queue = table.by_key.entry(key).or_default();
        match charge.take() {
            Some(charge) => {
                queue.positions.insert(entered, charge);
                queue.waiting.insert(entered.1, release_tx);
            }
            None => _ = queue.fixed.insert(entered, release_tx),
        }
        self.key_count.store(table.by_key.len(), Ordering::Relaxed);
        self.schedule_wakeup(&mut table, key);
        Some(HeldRequest {
            queues: Arc::clone(self),
            gate: Arc::clone(gate),
            key,
            entered,
            release_rx,
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

    /// Schedules a wakeup for the first request of a queue. A queue without requests is removed.
    fn schedule_wakeup(&self, table: &mut HoldTable, key: Fingerprint) {
        let Some(queue) = table.by_key.get_mut(&key).filter(|queue| !queue.is_releasing) else { return };
        let first = queue.first().map(|(release_at, _)| release_at);
        if queue.wakeup != first {
            if let Some(former) = queue.wakeup {
                table.wakeups.remove(&(former, key));
            }
            queue.wakeup = first;
            if let Some(release_at) = first {
                table.wakeups.insert((release_at, key));
                if table.wakeups.first() == Some(&(release_at, key)) {
                    self.changed.notify_one();
                }
            }
        }
        if first.is_none() {
            table.by_key.remove(&key);
            self.key_count.store(table.by_key.len(), Ordering::Relaxed);
        }
    }

    /// Releases all requests that are due; returns when to check again.
    pub(in crate::transport::proxy) fn release_due(&self, now: Time) -> Option<Time> {
        loop {
            let next = self.release_some(now)?;
            if next > now {
                return Some(next);
            }
        }
    }

    /// Checks a bounded number of queues that are due; returns the time of the next wakeup.
    fn release_some(&self, now: Time) -> Option<Time> {
        let mut table = self.lock();
        for _ in 0..CHECKS_PER_LOCK {
            let (release_at, key) = *table.wakeups.first()?;
            if release_at > now {
                break;
            }
            table.wakeups.pop_first();
            let Some(queue) = table.by_key.get_mut(&key) else { continue };
            queue.wakeup = None;
            if let Some((release_tx, charge)) = queue.take_due(now) {
                queue.is_releasing = true;
                table.waiting -= 1;
                release_tx.send(charge).ok();
            }
        }
        table.wakeups.first().map(|(release_at, _)| *release_at)
    }

    /// A released request has resumed or is gone: the next one may be released.
    fn finish_release(&self, key: Fingerprint) {
        let mut table = self.lock();
        if let Some(queue) = table.by_key.get_mut(&key) {
            queue.is_releasing = false;
            self.schedule_wakeup(&mut table, key);
        }
    }

    /// Removes a request from its queue. Later requests move up; returns the charge that is left over at the end.
    fn remove(&self, key: Fingerprint, entered: HoldPosition) -> Option<ChargeReceipt> {
        let mut table = self.lock();
        let queue = table.by_key.get_mut(&key)?;
        let surplus_charge = match queue.waiting.remove(&entered.1) {
            Some(_) => queue.positions.pop_last().map(|(_, charge)| charge),
            None => {
                queue.fixed.remove(&entered)?;
                None
            }
        };
        table.waiting -= 1;
        self.schedule_wakeup(&mut table, key);
        surplus_charge
    }

    fn lock(&self) -> MutexGuard<'_, HoldTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldRequest {
    /// Returns at the request's release time, with the charge of its position.
    pub async fn wait(&mut self) -> Option<ChargeReceipt> {
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
        let mut charge = self.queues.remove(self.key, self.entered);
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
        let pause = next.map_or(IDLE, |release_at| release_at.since(gate.now()));
        tokio::select! {
            () = shutdown_requested(&mut shutdown) => return,
            () = queues.changed.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Hit;
    use tollgate::internal::{EngineCore, PolicySnapshot};

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
            let gate = Gate::new(EngineCore::new(PolicySnapshot::from_yaml(text).unwrap()), live);
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
        let mut held: Vec<_> = (0..6)
            .map(|n| waiters.enter(NOW).map(|(held, release_at)| (n, release_at, held)).unwrap())
            .collect();
        assert!(held.iter().all(|(n, release_at, _)| n == release_at) && waiters.enter(NOW).is_none());
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
        drop(held.remove(2)); // released at second 2
        let (last, release_at) = waiters.enter(NOW).expect("there is room again");
        assert_eq!(release_at, 5, "at the end of the queue");
        held.push(last);
        for (second, index) in (1..6).zip(1..) {
            waiters.queues.release_due(after(second));
            assert!(waiters.is_called(&mut held[index]), "second {second}");
        }
        assert_eq!(waiters.queues.waiting(), 0);
    }

    /// Release times move up further than one position, and the order stays that of arrival.
    #[test]
    fn a_new_request_goes_behind_all_that_have_moved_up() {
        let waiters = Waiters::new();
        let mut held: Vec<_> = (0..6).map(|_| waiters.enter(NOW).unwrap().0).collect();
        held.drain(1..4);
        let (last, release_at) = waiters.enter(NOW).expect("there is room again");
        assert_eq!(release_at, 3, "the three that left are not waited for");
        held.push(last);
        for second in 0..4 {
            waiters.queues.release_due(after(second));
            let called: Vec<_> = held.iter_mut().map(|held| waiters.is_called(held)).collect();
            assert_eq!(called.iter().position(|called| *called), Some(0), "second {second}");
            held.remove(0);
        }
        let table = waiters.queues.lock();
        assert_eq!((table.waiting, table.by_key.len(), table.wakeups.len()), (0, 0, 0));
    }

    #[test]
    fn requests_that_come_and_go_leave_no_wakeups_behind() {
        let waiters = Waiters::new();
        let _first = waiters.enter(NOW).unwrap();
        for _ in 0..100 {
            drop(waiters.enter(NOW).unwrap());
        }
        assert_eq!(waiters.queues.lock().wakeups.len(), 1);
    }

    #[test]
    fn a_whole_queue_that_leaves_late_leaves_nothing_behind() {
        let waiters = Waiters::new();
        let held: Vec<_> = (0..6).map(|_| waiters.enter(NOW).unwrap().0).collect();
        drop(held);
        assert_eq!(waiters.queues.waiting(), 0);
        let again: Vec<_> = std::iter::from_fn(|| waiters.enter(NOW)).collect();
        let release_seconds: Vec<_> = again.iter().map(|(_, release_at)| *release_at).collect();
        assert_eq!(release_seconds, [0, 1, 2, 3, 4, 5]);
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
        let key = receipt.as_ref().and_then(ChargeReceipt::queue_key).unwrap();
        assert!(waiters.queues.enqueue(&waiters.gate, key, NOW, &mut receipt, 0).is_none());
        assert!(receipt.is_some(), "the receipt is not taken");
    }
}
