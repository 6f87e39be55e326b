//! Hold queues: requests that wait for their release time (`on_exceed: hold`), on the caller's own runtime.
//!
//! One queue per key. Its positions are ordered by release time, its requests by arrival; the n-th request has the n-th
//! position. When a request leaves early, each later request thereby takes over the release time and charge of the one
//! before it, and the last charge is refunded: no request waits for one that is gone. Only the first request of a queue
//! sleeps; when it leaves, it wakes the next one, so requests of a key resume in order. Every operation costs the
//! logarithm of the number of held requests.
//!
//! ```text
//! positions   12:00:01   12:00:02   12:00:03        B leaves:   12:00:01   12:00:02   (12:00:03 refunded)
//! requests       A          B          C                           A          C
//! ```

use std::collections::{BTreeMap, HashMap};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker, ready};
use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::settlement::Settle;
use crate::store::ChargeReceipt;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// All held requests. The caller of `enqueue` passes the bound on their number.
#[derive(Default)]
pub struct HoldQueues {
    queues: Mutex<HoldTable>,
    /// The number of queues, readable without the lock.
    key_count: AtomicUsize,
}

#[derive(Default)]
struct HoldTable {
    by_key: HashMap<Fingerprint, HoldQueue>,
    waiting: usize,
    next_number: u64,
}

#[derive(Default)]
struct HoldQueue {
    /// Release times with their charges; as many as there are requests in `waiting`.
    positions: BTreeMap<HoldTicket, ChargeReceipt>,
    /// Requests that move up, by number: in order of arrival.
    waiting: BTreeMap<u64, Waker>,
    /// Requests with several held charges. They have no charge here, and keep their release time.
    fixed: BTreeMap<HoldTicket, Waker>,
}

/// What a request is given when it enters. The number orders `waiting`, the release time orders `positions`: the ticket
/// of a request that has moved up is the key of the position that another one, or none, takes now.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct HoldTicket {
    release_at: Time,
    number: u64,
}

/// The request that leaves a queue first: its number, and when it leaves.
#[derive(PartialEq, Eq)]
struct FirstInQueue {
    number: u64,
    release_at: Time,
}

impl HoldTicket {
    /// A request that keeps its release time, as the first.
    fn as_first(&self) -> FirstInQueue {
        FirstInQueue { number: self.number, release_at: self.release_at }
    }
}

/// What a held request is to do.
#[expect(clippy::large_enum_variant, reason = "it is returned and taken apart, never stored")]
enum NextStep {
    /// Resume, with the charge of its position.
    Resume(Option<ChargeReceipt>),
    /// It is the first: sleep until then.
    SleepUntil(Time),
    /// Wait to be woken by the first.
    AwaitWake,
}

impl HoldQueue {
    fn first(&self) -> Option<FirstInQueue> {
        let movable = self.positions.keys().next().zip(self.waiting.keys().next());
        let fixed = self.fixed.keys().next();
        match (movable, fixed) {
            (Some((position, _)), Some(fixed)) if fixed < position => Some(fixed.as_first()),
            (Some((position, number)), _) => {
                Some(FirstInQueue { number: *number, release_at: position.release_at })
            }
            (None, fixed) => fixed.map(HoldTicket::as_first),
        }
    }

    fn waker(&mut self, ticket: HoldTicket) -> Option<&mut Waker> {
        match self.waiting.get_mut(&ticket.number) {
            Some(waker) => Some(waker),
            None => self.fixed.get_mut(&ticket),
        }
    }

    fn waker_of_first(&self) -> Option<Waker> {
        let FirstInQueue { number, release_at } = self.first()?;
        let fixed = || self.fixed.get(&HoldTicket { release_at, number });
        self.waiting.get(&number).or_else(fixed).cloned()
    }

    /// Removes the first request, which is released; returns the charge of the first position.
    fn leave_released(&mut self, ticket: HoldTicket) -> Option<ChargeReceipt> {
        match self.waiting.remove(&ticket.number) {
            Some(_) => self.positions.pop_first().map(|(_, charge)| charge),
            None => {
                self.fixed.remove(&ticket);
                None
            }
        }
    }

    /// Removes a request before its release. Later ones move up; returns the charge of the last position, which is left
    /// over.
    fn leave_early(&mut self, ticket: HoldTicket) -> Option<ChargeReceipt> {
        match self.waiting.remove(&ticket.number) {
            Some(_) => self.positions.pop_last().map(|(_, charge)| charge),
            None => {
                self.fixed.remove(&ticket);
                None
            }
        }
    }
}

/// A request in a queue. Dropping it removes it from the queue.
pub struct HeldRequest<S: Settle> {
    queues: Arc<HoldQueues>,
    counters: Arc<S>,
    key: Fingerprint,
    ticket: HoldTicket,
    is_released: bool,
}

impl HoldQueues {
    /// Enters the queue of `key`; `None` if `max` requests are held already.
    pub fn enqueue<S: Settle>(
        self: &Arc<Self>,
        counters: &Arc<S>,
        key: Fingerprint,
        release_at: Time,
        charge: &mut Option<ChargeReceipt>,
        max: usize,
    ) -> Option<HeldRequest<S>> {
        let mut queues = lock(&self.queues);
        if queues.waiting >= max {
            return None;
        }
        queues.waiting += 1;
        queues.next_number += 1;
        let ticket = HoldTicket { release_at, number: queues.next_number };
        let queue = queues.by_key.entry(key).or_default();
        let first_before = queue.first();
        match charge.take() {
            Some(charge) => {
                queue.positions.insert(ticket, charge);
                queue.waiting.insert(ticket.number, Waker::noop().clone());
            }
            None => _ = queue.fixed.insert(ticket, Waker::noop().clone()),
        }
        let woken = if queue.first() == first_before { None } else { queue.waker_of_first() };
        self.key_count.store(queues.by_key.len(), Ordering::Relaxed);
        drop(queues);
        if let Some(first) = woken {
            first.wake(); // another request is the first now, or its release time has changed
        }
        let queues = Arc::clone(self);
        Some(HeldRequest { queues, counters: Arc::clone(counters), key, ticket, is_released: false })
    }

    /// Whether any request is held.
    pub fn has_requests(&self) -> bool {
        self.key_count.load(Ordering::Relaxed) > 0
    }

    /// Whether the queue of `key` has requests: a new request goes behind them even if their release is overdue.
    pub fn has_requests_for(&self, key: Fingerprint) -> bool {
        self.has_requests() && lock(&self.queues).by_key.contains_key(&key)
    }

    /// The number of held requests.
    pub fn waiting(&self) -> usize {
        lock(&self.queues).waiting
    }

    /// Removes a request from its queue by `leave`, and wakes the one that is first then.
    fn remove(
        &self,
        mut queues: impl std::ops::DerefMut<Target = HoldTable>,
        key: Fingerprint,
        leave: impl FnOnce(&mut HoldQueue) -> Option<ChargeReceipt>,
    ) -> Option<ChargeReceipt> {
        queues.waiting -= 1;
        let queue = queues.by_key.get_mut(&key)?;
        let charge = leave(queue);
        let next = queue.waker_of_first();
        if next.is_none() {
            queues.by_key.remove(&key);
            self.key_count.store(queues.by_key.len(), Ordering::Relaxed);
        }
        drop(queues);
        if let Some(next) = next {
            next.wake();
        }
        charge
    }
}

impl<S: Settle> HeldRequest<S> {
    /// Returns at the request's release time, with the charge of its position. `sleep` is the runtime's.
    pub async fn wait<F: Future<Output = ()>>(
        &mut self,
        now: impl Fn() -> Time,
        sleep: impl Fn(Duration) -> F,
    ) -> Option<ChargeReceipt> {
        let mut timer: Option<(Time, Pin<Box<F>>)> = None;
        poll_fn(|context| {
            loop {
                let due = match self.next_step(now(), context.waker()) {
                    NextStep::Resume(charge) => return Poll::Ready(charge),
                    NextStep::AwaitWake => return Poll::Pending,
                    NextStep::SleepUntil(due) => due,
                };
                let armed = timer.take().filter(|(armed, _)| *armed == due);
                let (_, sleeping) =
                    timer.insert(armed.unwrap_or_else(|| (due, Box::pin(sleep(due.since(now()))))));
                ready!(sleeping.as_mut().poll(context));
                timer = None;
            }
        })
        .await
    }

    fn next_step(&mut self, now: Time, waker: &Waker) -> NextStep {
        let ticket = self.ticket;
        let queues = Arc::clone(&self.queues);
        let mut table = lock(&queues.queues);
        let Some(queue) = table.by_key.get_mut(&self.key) else { return NextStep::Resume(None) };
        let own_turn = queue.first().filter(|first| first.number == ticket.number);
        if own_turn.as_ref().is_some_and(|first| first.release_at <= now) {
            self.is_released = true;
            return NextStep::Resume(queues.remove(table, self.key, |queue| queue.leave_released(ticket)));
        }
        if let Some(known) = queue.waker(ticket) {
            known.clone_from(waker);
        }
        own_turn.map_or(NextStep::AwaitWake, |first| NextStep::SleepUntil(first.release_at))
    }
}

impl<S: Settle> Drop for HeldRequest<S> {
    fn drop(&mut self) {
        if self.is_released {
            return;
        }
        let leave = |queue: &mut HoldQueue| queue.leave_early(self.ticket);
        let left_over = self.queues.remove(lock(&self.queues.queues), self.key, leave);
        if let Some(charge) = left_over {
            self.counters.refund(charge);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Context;

    use super::*;
    use crate::engine::EngineCore;
    use crate::hit::Hit;
    use crate::policy::PolicySnapshot;

    const NOW: Time = Time::from_secs(1_800_000_000);

    impl Settle for EngineCore {
        fn settle(&self, receipt: ChargeReceipt, real_cost: u64) {
            EngineCore::settle(self, receipt, real_cost, NOW);
        }
    }

    struct Waiters {
        queues: Arc<HoldQueues>,
        engine: Arc<EngineCore>,
    }

    impl Waiters {
        /// A queue of six that releases one per second.
        fn new() -> Waiters {
            let text = "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/s, burst: 6 }]";
            let engine = EngineCore::new(PolicySnapshot::from_yaml(text).unwrap());
            Waiters { queues: Arc::default(), engine: Arc::new(engine) }
        }

        /// Enters at `now`; returns the wait in seconds.
        fn enter(&self, now: Time) -> Option<(HeldRequest<EngineCore>, u64)> {
            let mut verdict = self.engine.check(&Hit::on("GET", "h", "/"), now);
            let mut receipt = verdict.take_receipt().filter(|_| verdict.allowed);
            let key = receipt.as_ref()?.queue_key()?;
            let held = self.queues.enqueue(&self.engine, key, now + verdict.delay, &mut receipt, 10)?;
            Some((held, verdict.delay.as_secs()))
        }

        fn is_released(&self, held: &mut HeldRequest<EngineCore>, now: Time) -> bool {
            let never = |_| std::future::pending::<()>();
            let mut context = Context::from_waker(Waker::noop());
            pin!(held.wait(|| now, never)).poll(&mut context).is_ready()
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
            let called: Vec<_> = held
                .iter_mut()
                .filter_map(|(n, _, held)| waiters.is_released(held, after(second)).then_some(*n))
                .collect();
            assert_eq!(called, [second]);
        }
        assert_eq!(waiters.queues.waiting(), 0);
    }

    #[test]
    fn a_request_that_leaves_moves_the_others_up_and_the_last_charge_is_refunded() {
        let waiters = Waiters::new();
        let mut held: Vec<_> = (0..6).map(|_| waiters.enter(NOW).unwrap().0).collect();
        assert!(waiters.is_released(&mut held[0], NOW));
        drop(held.remove(2)); // released at second 2
        let (last, release_at) = waiters.enter(NOW).expect("there is room again");
        assert_eq!(release_at, 5, "at the end of the queue");
        held.push(last);
        for (second, index) in (1..6).zip(1..) {
            assert!(waiters.is_released(&mut held[index], after(second)), "second {second}");
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
            let called: Vec<_> =
                held.iter_mut().map(|held| waiters.is_released(held, after(second))).collect();
            assert_eq!(called.iter().position(|called| *called), Some(0), "second {second}");
            held.remove(0);
        }
        let table = lock(&waiters.queues.queues);
        assert_eq!((table.waiting, table.by_key.len()), (0, 0));
    }

    struct CountedWakes(AtomicUsize);

    impl std::task::Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_request_is_woken_when_it_becomes_the_first_and_not_before() {
        let waiters = Waiters::new();
        let mut held: Vec<_> = (0..4).map(|_| waiters.enter(NOW).unwrap().0).collect();
        let wakes = Arc::new(CountedWakes(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&wakes));
        let mut last = held.pop().unwrap();
        assert!(matches!(last.next_step(NOW, &waker), NextStep::AwaitWake));
        drop(held.pop());
        assert!(waiters.is_released(&mut held[0], NOW));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0, "another one is before it");
        assert!(waiters.is_released(&mut held[1], after(1)));
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(
            matches!(last.next_step(after(1), &waker), NextStep::SleepUntil(release_at) if release_at == after(2))
        );
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
        let fixed = waiters.queues.enqueue(&waiters.engine, key, after(2), &mut None, 10).unwrap();
        let mut last = waiters.queues.enqueue(&waiters.engine, key, after(4), &mut None, 10).unwrap();
        drop((first, fixed));
        for second in [2, 3] {
            assert!(!waiters.is_released(&mut last, after(second)), "second {second}");
        }
        assert!(waiters.is_released(&mut last, after(4)));
    }

    #[test]
    fn a_full_queue_accepts_no_request() {
        let waiters = Waiters::new();
        let mut verdict = waiters.engine.check(&Hit::on("GET", "h", "/"), NOW);
        let mut receipt = verdict.take_receipt();
        let key = receipt.as_ref().and_then(ChargeReceipt::queue_key).unwrap();
        assert!(waiters.queues.enqueue(&waiters.engine, key, NOW, &mut receipt, 0).is_none());
        assert!(receipt.is_some(), "the receipt is not taken");
    }
}
