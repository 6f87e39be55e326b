//! Waiting for a key with real threads, each with an executor of its own.

use std::future::{Future, ready};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tollgate::Limiter;

struct Unpark {
    thread: Thread,
    is_woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls a future, and again only when it was woken.
fn block_on<F: Future>(future: F) -> F::Output {
    let unpark = Arc::new(Unpark { thread: thread::current(), is_woken: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut future = pin!(future);
    loop {
        while !unpark.is_woken.swap(false, Ordering::Acquire) {
            thread::park();
        }
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
    }
}

fn blocking_sleep(wait: Duration) -> std::future::Ready<()> {
    thread::sleep(wait);
    ready(())
}

#[test]
fn threads_that_wait_and_give_up_lose_no_turn_and_keep_the_rate() {
    const THREADS: u64 = 8;
    const TURNS: u64 = 300;
    const PER_SECOND: u64 = 5_000;
    let limiter = Limiter::builder().memory_bytes(16 << 20).build("{limit: 5000/s, burst: 1}");
    let limiter = Arc::new(limiter.expect("a limiter"));
    let start = limiter.clock().now();
    let (done, finished) = mpsc::channel();
    for number in 0..THREADS {
        let limiter = Arc::clone(&limiter);
        let done = done.clone();
        thread::spawn(move || {
            for turn in 0..TURNS {
                if (turn + number) % 3 == 0 {
                    // It enters the queue and leaves it, perhaps as the first one or after it was woken.
                    let mut given_up = pin!(limiter.until_ready("key", |_| std::future::pending()));
                    let mut context = Context::from_waker(Waker::noop());
                    let served = given_up.as_mut().poll(&mut context).is_ready();
                    if served {
                        continue;
                    }
                }
                block_on(limiter.until_ready("key", blocking_sleep)).expect("it is served");
            }
            done.send(()).expect("the test waits");
        });
    }
    for _ in 0..THREADS {
        finished.recv_timeout(Duration::from_secs(120)).expect("no wake-up is lost");
    }
    let least = Duration::from_secs(1) * (THREADS * TURNS - 1) as u32 / PER_SECOND as u32;
    let took = limiter.clock().now().since(start);
    assert!(took >= least, "{took:?}: faster than the limit");
    block_on(limiter.until_ready("key", blocking_sleep)).expect("no caller is left in front");
}
