//! Requests that wait for their turn (`on_exceed: hold`).
//!
//! A queue for each key, in the order of its turns. Who leaves early gives its place to the one behind, that one
//! its own to the next, and the last place goes back to the store: nobody waits for somebody who has gone.

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

use crate::connection::{Shutdown, told_to_stop};
use crate::gate::Gate;

/// All that waits. What it may hold is bounded by whoever lets requests in.
#[derive(Default)]
pub struct Room {
    queues: Mutex<Queues>,
    /// How many queues there are, to be read without the lock.
    busy: AtomicUsize,
    changed: Notify,
}

#[derive(Default)]
struct Queues {
    by_key: HashMap<Fingerprint, Queue>,
    /// When to look at which queue, earliest first.
    turns: BinaryHeap<Reverse<(Time, Fingerprint)>>,
    waiting: usize,
    next: u64,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// The look that counts; all others are out of date.
    look: Option<Time>,
    /// One was called and is not on its way yet: the next one waits for that, or it might overtake.
    calling: bool,
}

struct Waiting {
    number: u64,
    turn: Time,
    /// What was charged for the place; one that holds several places cannot move up.
    place: Option<Receipt>,
    called: oneshot::Sender<Option<Receipt>>,
}

/// A request in the queue. To drop it is to leave.
pub struct Held {
    room: Arc<Room>,
    gate: Arc<Gate>,
    key: Fingerprint,
    number: u64,
    called: oneshot::Receiver<Option<Receipt>>,
    done: bool,
}

impl Room {
    /// Enters the queue of `key`; `None` if `max` requests wait already.
    pub fn enter(
        self: &Arc<Self>,
        gate: &Arc<Gate>,
        key: Fingerprint,
        turn: Time,
        place: &mut Option<Receipt>,
        max: usize,
    ) -> Option<Held> {
        let mut queues = self.lock();
        if queues.waiting >= max {
            return None;
        }
        queues.waiting += 1;
        queues.next += 1;
        let number = queues.next;
        let (call, called) = oneshot::channel();
        let queue = queues.by_key.entry(key).or_default();
        let behind = queue.waiting.partition_point(|other| other.turn <= turn);
        queue.waiting.insert(behind, Waiting { number, turn, place: place.take(), called: call });
        self.busy.store(queues.by_key.len(), Ordering::Relaxed);
        self.look_at(&mut queues, key);
        Some(Held { room: Arc::clone(self), gate: Arc::clone(gate), key, number, called, done: false })
    }

    /// Whether anybody waits, or was called and is not on its way yet.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > 0
    }

    /// Whether somebody in the queue of `key` does: who comes now is behind, however late that one is.
    pub fn is_busy_for(&self, key: Fingerprint) -> bool {
        self.is_busy() && self.lock().by_key.contains_key(&key)
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// Sees to it that the first of a queue is called at its turn.
    fn look_at(&self, queues: &mut Queues, key: Fingerprint) {
        let Some(queue) = queues.by_key.get_mut(&key).filter(|queue| !queue.calling) else { return };
        let Some(first) = queue.waiting.front().map(|first| first.turn) else {
            queues.by_key.remove(&key);
            self.busy.store(queues.by_key.len(), Ordering::Relaxed);
            return;
        };
        if queue.look.is_none_or(|look| first < look) {
            queue.look = Some(first);
            let soonest = queues.turns.peek().is_none_or(|Reverse((turn, _))| first < *turn);
            queues.turns.push(Reverse((first, key)));
            if soonest {
                self.changed.notify_one();
            }
        }
    }

    /// Calls everybody whose turn has come; returns when to look again.
    fn call(&self, now: Time) -> Option<Time> {
        let mut queues = self.lock();
        while let Some(Reverse((turn, key))) = queues.turns.peek().copied() {
            if turn > now {
                return Some(turn);
            }
            queues.turns.pop();
            let Some(queue) = queues.by_key.get_mut(&key).filter(|queue| queue.look == Some(turn)) else {
                continue;
            };
            queue.look = None;
            let due = queue.waiting.front().is_some_and(|first| first.turn <= now);
            match if due { queue.waiting.pop_front() } else { None } {
                Some(first) => {
                    queue.calling = true;
                    queues.waiting -= 1;
                    first.called.send(first.place).ok();
                }
                // Who was first has left, and nobody could move up.
                None => self.look_at(&mut queues, key),
            }
        }
        None
    }

    /// One who was called is on its way, or has gone: the next may be called.
    fn went(&self, key: Fingerprint) {
        let mut queues = self.lock();
        if let Some(queue) = queues.by_key.get_mut(&key) {
            queue.calling = false;
            self.look_at(&mut queues, key);
        }
    }

    /// Takes one out of its queue; those behind move up, and what is left over at the end is returned.
    fn leave(&self, key: Fingerprint, number: u64) -> Option<Receipt> {
        let mut queues = self.lock();
        let queue = queues.by_key.get_mut(&key)?;
        let at = queue.waiting.iter().position(|waiting| waiting.number == number)?;
        let gone = queue.waiting.remove(at)?;
        let (mut turn, mut place) = (gone.turn, gone.place);
        for behind in queue.waiting.range_mut(at..) {
            if place.is_none() || behind.place.is_none() {
                break;
            }
            std::mem::swap(&mut behind.turn, &mut turn);
            std::mem::swap(&mut behind.place, &mut place);
        }
        queues.waiting -= 1;
        self.look_at(&mut queues, key);
        place
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Returns when it is this request's turn, with what was charged for its place.
    pub async fn turn(&mut self) -> Option<Receipt> {
        let place = (&mut self.called).await.ok().flatten();
        self.done = true;
        self.room.went(self.key);
        place
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut place = self.room.leave(self.key, self.number);
        // Called in the meantime: the place is its own again.
        if let Ok(own) = self.called.try_recv() {
            self.room.went(self.key);
            place = own;
        }
        if let Some(place) = place {
            self.gate.refund(place);
        }
    }
}

/// Calls requests when it is their turn, until the shutdown.
pub async fn watch(room: Arc<Room>, gate: Arc<Gate>, mut shutdown: Shutdown) {
    const IDLE: Duration = Duration::from_secs(60);
    loop {
        let next = room.call(gate.now());
        let pause = next.map_or(IDLE, |turn| turn.since(gate.now()));
        tokio::select! {
            () = told_to_stop(&mut shutdown) => return,
            () = room.changed.notified() => {}
            () = sleep(pause) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate::{Engine, Hit, Policy};

    use super::*;
    use crate::gate::Live;
    use crate::history::History;

    const NOW: Time = Time::from_secs(1_800_000_000);

    struct Waiters {
        room: Arc<Room>,
        gate: Arc<Gate>,
    }

    impl Waiters {
        /// A queue of six that lets one a second out.
        fn new() -> Waiters {
            let text = "rules: [{ id: q, algorithm: leaky-bucket, limit: 1/s, burst: 6 }]";
            let live = Live {
                headers: Default::default(),
                jwt: None,
                history: History::new(text.to_owned()),
                allow: Vec::new(),
                trusted: Default::default(),
            };
            let gate = Gate::new(Engine::new(Policy::from_yaml(text).unwrap()), live);
            Waiters { room: Arc::default(), gate: Arc::new(gate) }
        }

        /// Enters at `now`; says after how many seconds it is its turn.
        fn enter(&self, now: Time) -> Option<(Held, u64)> {
            let mut verdict = self.gate.engine.check(&Hit::on("GET", "h", "/"), now);
            let mut place = verdict.receipt.take().filter(|_| verdict.allowed);
            let key = place.as_ref()?.queue()?;
            let held = self.room.enter(&self.gate, key, now + verdict.delay, &mut place, 10)?;
            Some((held, verdict.delay.as_secs()))
        }

        fn is_called(&self, held: &mut Held) -> bool {
            let called = held.called.try_recv().is_ok();
            if called {
                held.done = true;
                self.room.went(held.key);
            }
            called
        }
    }

    fn after(seconds: u64) -> Time {
        NOW + Duration::from_secs(seconds)
    }

    #[test]
    fn each_is_called_at_its_turn_and_in_order() {
        let waiters = Waiters::new();
        let mut held: Vec<_> =
            (0..6).map(|n| waiters.enter(NOW).map(|(held, turn)| (n, turn, held)).unwrap()).collect();
        assert!(held.iter().all(|(n, turn, _)| n == turn) && waiters.enter(NOW).is_none());
        for second in 0..6 {
            waiters.room.call(after(second));
            let called: Vec<_> =
                held.iter_mut().filter_map(|(n, _, held)| waiters.is_called(held).then_some(*n)).collect();
            assert_eq!(called, [second]);
        }
        assert_eq!(waiters.room.waiting(), 0);
    }

    #[test]
    fn who_leaves_gives_the_place_to_those_behind_and_the_last_place_back() {
        let waiters = Waiters::new();
        let mut held: Vec<_> = (0..6).map(|_| waiters.enter(NOW).unwrap().0).collect();
        waiters.room.call(NOW);
        assert!(waiters.is_called(&mut held[0]));
        drop(held.remove(2)); // its turn was second 2
        let (last, turn) = waiters.enter(NOW).expect("there is room again");
        assert_eq!(turn, 5, "at the end of the queue");
        held.push(last);
        for (second, place) in (1..6).zip(1..) {
            waiters.room.call(after(second));
            assert!(waiters.is_called(&mut held[place]), "second {second}");
        }
        assert_eq!(waiters.room.waiting(), 0);
    }

    #[test]
    fn a_whole_queue_that_leaves_late_leaves_nothing_behind() {
        let waiters = Waiters::new();
        let held: Vec<_> = (0..6).map(|_| waiters.enter(NOW).unwrap().0).collect();
        drop(held);
        assert_eq!(waiters.room.waiting(), 0);
        let again: Vec<_> = std::iter::from_fn(|| waiters.enter(NOW)).collect();
        let turns: Vec<_> = again.iter().map(|(_, turn)| *turn).collect();
        assert_eq!(turns, [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn nobody_is_called_early_where_the_first_could_not_be_followed() {
        let waiters = Waiters::new();
        let (first, _) = waiters.enter(NOW).unwrap();
        let key = first.key;
        // One who waits in another queue too has no place to hand on.
        let fixed = waiters.room.enter(&waiters.gate, key, after(2), &mut None, 10).unwrap();
        let mut last = waiters.room.enter(&waiters.gate, key, after(4), &mut None, 10).unwrap();
        drop((first, fixed));
        for second in [2, 3] {
            waiters.room.call(after(second));
            assert!(!waiters.is_called(&mut last), "second {second}");
        }
        waiters.room.call(after(4));
        assert!(waiters.is_called(&mut last));
    }

    #[test]
    fn a_full_room_takes_nobody_in() {
        let waiters = Waiters::new();
        let mut verdict = waiters.gate.engine.check(&Hit::on("GET", "h", "/"), NOW);
        let mut place = verdict.receipt.take();
        let key = place.as_ref().and_then(Receipt::queue).unwrap();
        assert!(waiters.room.enter(&waiters.gate, key, NOW, &mut place, 0).is_none());
        assert!(place.is_some(), "and the place is still its own");
    }
}
