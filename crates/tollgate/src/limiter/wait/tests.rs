//! A manual clock, and an executor that polls what was woken: no thread, no runtime, no time that passes by itself.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// Timers of a manual clock: a sleeper is woken when the clock has passed its time.
#[derive(Default)]
struct Timers {
    sleepers: RefCell<BTreeMap<(Time, u64), Waker>>,
    next: Cell<u64>,
}

struct Sleep<'t> {
    limiter: &'t Limiter,
    timers: &'t Timers,
    until: Time,
    id: u64,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.limiter.clock.now() >= self.until {
            return Poll::Ready(());
        }
        self.timers.sleepers.borrow_mut().insert((self.until, self.id), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        self.timers.sleepers.borrow_mut().remove(&(self.until, self.id));
    }
}

/// The number of a task, and the queue of those that were woken.
struct TaskWaker {
    number: usize,
    woken: Arc<Mutex<VecDeque<usize>>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        lock(&self.woken).push_back(self.number);
    }
}

type Task<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

/// Tasks, each polled when it was woken.
struct Executor<'t> {
    limiter: &'t Limiter,
    timers: &'t Timers,
    tasks: Vec<Option<Task<'t>>>,
    woken: Arc<Mutex<VecDeque<usize>>>,
    polls: u64,
}

impl<'t> Executor<'t> {
    fn new(limiter: &'t Limiter, timers: &'t Timers) -> Executor<'t> {
        Executor { limiter, timers, tasks: Vec::new(), woken: Arc::default(), polls: 0 }
    }

    fn spawn(&mut self, task: impl Future<Output = ()> + 't) {
        lock(&self.woken).push_back(self.tasks.len());
        self.tasks.push(Some(Box::pin(task)));
    }

    fn run(&mut self) {
        loop {
            let Some(number) = lock(&self.woken).pop_front() else { return };
            let Some(task) = &mut self.tasks[number] else { continue };
            self.polls += 1;
            let waker = Waker::from(Arc::new(TaskWaker { number, woken: Arc::clone(&self.woken) }));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready() {
                self.tasks[number] = None;
            }
        }
    }

    fn advance(&mut self, duration: Duration) {
        self.limiter.clock.advance(duration);
        let now = self.limiter.clock.now();
        let due: Vec<_> = {
            let mut sleepers = self.timers.sleepers.borrow_mut();
            let later = sleepers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut *sleepers, later).into_values().collect()
        };
        due.into_iter().for_each(Waker::wake);
        self.run();
    }
}

fn limiter(rate: &str) -> Limiter {
    let clock = crate::time::Clock::manual(Time::from_secs(1_800_000_000));
    Limiter::builder().memory_bytes(16 << 20).clock(clock).build(rate).expect("a limiter")
}

fn sleep<'t>(limiter: &'t Limiter, timers: &'t Timers) -> impl Fn(Duration) -> Sleep<'t> {
    move |wait| {
        let id = timers.next.replace(timers.next.get() + 1);
        Sleep { limiter, timers, until: limiter.clock.now() + wait, id }
    }
}

#[test]
fn ten_thousand_callers_are_served_in_order_at_the_rate() {
    const CALLERS: u64 = 10_000;
    let limiter = limiter("{limit: 10/s, burst: 1}");
    let timers = Timers::default();
    let served = Rc::new(RefCell::new(Vec::new()));
    let mut executor = Executor::new(&limiter, &timers);
    for n in 0..CALLERS {
        let limiter = &limiter;
        let timers = &timers;
        let served = Rc::clone(&served);
        executor.spawn(async move {
            limiter.until_ready("key", sleep(limiter, timers)).await.expect("it is served");
            served.borrow_mut().push(n);
        });
    }
    executor.run();
    assert_eq!(served.borrow().len(), 1, "the burst");
    for n in 1..CALLERS {
        executor.advance(Duration::from_millis(99));
        assert_eq!(served.borrow().len() as u64, n, "not before its time");
        executor.advance(Duration::from_millis(1));
        assert_eq!(served.borrow().len() as u64, n + 1, "at its time");
    }
    assert!(served.borrow().is_sorted(), "first come, first served");
    assert_eq!(limiter.queues.waiting(), (0, 0));
    assert!(executor.polls <= 4 * CALLERS, "no busy waiting");
}

#[test]
fn a_caller_that_gives_up_leaves_no_trace() {
    let limiter = limiter("{limit: 1/s, burst: 1}");
    let timers = Timers::default();
    let served = Rc::new(RefCell::new(Vec::new()));
    let mut executor = Executor::new(&limiter, &timers);
    for n in 0..5 {
        let limiter = &limiter;
        let timers = &timers;
        let served = Rc::clone(&served);
        executor.spawn(async move {
            limiter.until_ready("key", sleep(limiter, timers)).await.expect("it is served");
            served.borrow_mut().push(n);
        });
    }
    executor.run();
    // The first in the queue and one in the middle.
    executor.tasks[1] = None;
    executor.tasks[3] = None;
    executor.run();
    executor.advance(SECOND);
    assert_eq!(*served.borrow(), [0, 2], "the next takes the turn of the one that left");
    executor.advance(SECOND);
    assert_eq!(*served.borrow(), [0, 2, 4]);
    assert_eq!(limiter.queues.waiting(), (0, 0));
    assert!(timers.sleepers.borrow().is_empty());
    executor.advance(SECOND);
    assert!(limiter.check("key").is_allowed(), "those that left were not charged");
}

#[test]
fn half_of_ten_thousand_callers_give_up_and_the_others_keep_order_and_rate() {
    const CALLERS: usize = 10_000;
    let turn = Duration::from_millis(100);
    let limiter = limiter("{limit: 10/s, burst: 1}");
    let start = limiter.clock.now();
    let timers = Timers::default();
    let served = Rc::new(RefCell::new(Vec::new()));
    let mut executor = Executor::new(&limiter, &timers);
    for n in 0..CALLERS {
        let limiter = &limiter;
        let timers = &timers;
        let served = Rc::clone(&served);
        executor.spawn(async move {
            limiter.until_ready("key", sleep(limiter, timers)).await.expect("it is served");
            served.borrow_mut().push(n);
        });
    }
    executor.run();
    // Half of those that give up wait in the queue, the others are first in it and sleep.
    for n in (0..CALLERS).filter(|n| n % 4 == 1) {
        executor.tasks[n] = None;
    }
    for n in (1..CALLERS).filter(|n| n % 4 != 1) {
        if n % 4 == 3 {
            executor.tasks[n] = None;
            executor.run();
        } else {
            executor.advance(turn);
            assert_eq!(served.borrow().last(), Some(&n), "no turn is lost, and none is early");
        }
    }
    let served = served.borrow();
    assert!(served.len() == CALLERS / 2 && served.is_sorted(), "first come, first served");
    assert_eq!(limiter.clock.now(), start + turn * (CALLERS as u32 / 2 - 1));
    assert_eq!((limiter.queues.waiting(), timers.sleepers.borrow().len()), ((0, 0), 0));
    assert!(executor.polls <= 4 * CALLERS as u64, "{}: no busy waiting", executor.polls);
    limiter.clock.advance(turn);
    assert!(limiter.check("key").is_allowed(), "those that left were not charged");
}

#[test]
fn a_small_cost_waits_behind_a_large_one() {
    let limiter = limiter("{limit: 1/s, burst: 5}");
    let timers = Timers::default();
    let served = Rc::new(RefCell::new(Vec::new()));
    let mut executor = Executor::new(&limiter, &timers);
    for cost in [4, 5, 1, 6] {
        let limiter = &limiter;
        let timers = &timers;
        let served = Rc::clone(&served);
        executor.spawn(async move {
            let result = limiter.until_ready_n("key", cost, sleep(limiter, timers)).await;
            served.borrow_mut().push((cost, result));
        });
    }
    executor.run();
    assert_eq!(*served.borrow(), [(4, Ok(()))], "one is left, which the next caller but one needs");
    executor.advance(SECOND * 4);
    assert_eq!(served.borrow()[1..], [(5, Ok(()))]);
    executor.advance(SECOND);
    assert_eq!(served.borrow()[2..], [(1, Ok(())), (6, Err(WaitError::Never))]);
}

/// A regression: a runtime with paused time made it a busy loop, because the limiter's own clock went on as usual.
#[test]
fn sleeps_that_end_at_once_do_not_become_a_busy_loop() {
    let limiter = limiter("{limit: 1/h, burst: 1}");
    let sleeps = Cell::new(0);
    let counted = |_: Duration| {
        sleeps.set(sleeps.get() + 1);
        std::future::ready(())
    };
    let timers = Timers::default();
    let mut executor = Executor::new(&limiter, &timers);
    executor.spawn(async {
        limiter.until_ready("key", counted).await.expect("the burst");
        assert_eq!(limiter.until_ready("key", counted).await, Err(WaitError::EarlySleep));
    });
    executor.run();
    assert_eq!(sleeps.get(), MAX_EARLY_SLEEPS);
    assert_eq!(limiter.queues.waiting(), (0, 0));
}

#[test]
fn a_deadline_ends_the_wait_first_in_the_queue_or_not() {
    let limiter = limiter("{limit: 1/s, burst: 1}");
    let timers = Timers::default();
    let results = Rc::new(RefCell::new(Vec::new()));
    let mut executor = Executor::new(&limiter, &timers);
    for max_wait in [SECOND * 10, SECOND, SECOND / 2, SECOND * 10] {
        let limiter = &limiter;
        let timers = &timers;
        let results = Rc::clone(&results);
        executor.spawn(async move {
            let result = limiter.until_ready_within("key", max_wait, sleep(limiter, timers)).await;
            results.borrow_mut().push((max_wait.as_millis(), result));
        });
    }
    executor.run();
    executor.advance(SECOND / 2);
    assert_eq!(*results.borrow(), [(10_000, Ok(())), (500, Err(WaitError::TimedOut))]);
    executor.advance(SECOND / 2);
    assert_eq!(results.borrow()[2], (1_000, Ok(())));
    executor.advance(SECOND);
    assert_eq!(results.borrow()[3], (10_000, Ok(())));
    // The wait of the first is known: it fails at once.
    let limiter = &limiter;
    let timers = &timers;
    let results = Rc::clone(&results);
    executor.spawn(async move {
        let result = limiter.until_ready_within("key", SECOND / 2, sleep(limiter, timers)).await;
        results.borrow_mut().push((500, result));
    });
    executor.run();
    assert_eq!(executor.tasks.iter().flatten().count(), 0);
}

#[test]
fn keys_do_not_wait_for_each_other() {
    let limiter = limiter("{limit: 1/h, burst: 1}");
    let timers = Timers::default();
    let served = Rc::new(Cell::new(0));
    let mut executor = Executor::new(&limiter, &timers);
    for key in ["ann", "ann", "bob"] {
        let limiter = &limiter;
        let timers = &timers;
        let served = Rc::clone(&served);
        executor.spawn(async move {
            limiter.until_ready(key, sleep(limiter, timers)).await.expect("it is served");
            served.set(served.get() + 1);
        });
    }
    executor.run();
    assert_eq!((served.get(), limiter.queues.waiting()), (2, (1, 1)));
}

#[test]
fn a_leaky_bucket_is_waited_for_outside() {
    let limiter = limiter("{limit: 2/s, burst: 2, algorithm: leaky-bucket}");
    let timers = Timers::default();
    let served = Rc::new(Cell::new(0));
    let mut executor = Executor::new(&limiter, &timers);
    for _ in 0..4 {
        let limiter = &limiter;
        let timers = &timers;
        let served = Rc::clone(&served);
        executor.spawn(async move {
            limiter.until_ready("key", sleep(limiter, timers)).await.expect("it is served");
            served.set(served.get() + 1);
        });
    }
    executor.run();
    assert_eq!(served.get(), 1);
    for n in 2..=4 {
        executor.advance(SECOND / 2);
        assert_eq!(served.get(), n);
    }
}

#[test]
fn a_limit_of_nothing_is_an_error_and_so_is_a_full_queue() {
    let none = limiter("{limit: 0/s}");
    let timers = Timers::default();
    let mut executor = Executor::new(&none, &timers);
    executor.spawn(async { assert!(none.until_ready("key", sleep(&none, &timers)).await.is_err()) });
    executor.run();
    assert_eq!(executor.tasks.iter().flatten().count(), 0);
    let limiter = Limiter::from_yaml("{limit: 1/h}", 16 << 20).expect("a limiter");
    let key = limiter.secret.fingerprint(["key"]);
    let tickets: Vec<_> = (0..MAX_WAITING).map(|_| limiter.queues.enter(key).expect("room")).collect();
    assert_eq!(limiter.queues.enter(key).err(), Some(WaitError::TooManyWaiting));
    drop(tickets);
    assert_eq!(limiter.queues.waiting(), (0, 0));
}
