//! Ten thousand callers that wait for one key: on the paused clock of tokio, and the memory that they take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::task::LocalSet;
use tokio::time::Instant;
use tollgate::{Clock, Limiter, Time};

struct Counting;

thread_local! {
    static LIVE_BYTES: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE_BYTES.set(LIVE_BYTES.get() + layout.size() as isize);
        // SAFETY: as the caller has promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE_BYTES.set(LIVE_BYTES.get() - layout.size() as isize);
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CALLERS: usize = 10_000;
const START: Time = Time::from_secs(1_800_000_000);

fn limiter(rate: &str) -> Limiter {
    let builder = Limiter::builder().memory_bytes(16 << 20).clock(Clock::manual(START));
    builder.build(rate).expect("a limiter")
}

#[tokio::test(start_paused = true)]
async fn on_a_paused_clock_they_are_served_in_order_at_the_rate() {
    let limiter = Rc::new(limiter("{limit: 10/s, burst: 1}"));
    let served = Rc::new(RefCell::new(Vec::new()));
    let began = Instant::now();
    let tasks = LocalSet::new();
    for n in 0..CALLERS {
        let limiter = Rc::clone(&limiter);
        let served = Rc::clone(&served);
        tasks.spawn_local(async move {
            let sleep = |wait: Duration| {
                let limiter = Rc::clone(&limiter);
                async move {
                    tokio::time::sleep(wait).await;
                    limiter.clock().advance_to(START + began.elapsed());
                }
            };
            limiter.until_ready("key", sleep).await.expect("it is served");
            served.borrow_mut().push((n, began.elapsed()));
        });
    }
    tasks.await;
    let served = served.borrow();
    assert_eq!(served.len(), CALLERS);
    for (n, (caller, at)) in served.iter().enumerate() {
        // The timers of tokio end at whole milliseconds.
        let due = Duration::from_millis(100) * n as u32;
        assert!(*caller == n && (due..due + Duration::from_millis(2)).contains(at), "{n}: {caller} {at:?}");
    }
}

/// What the queue takes of a waiting caller, beside the caller's future.
const MAX_BYTES_PER_CALLER: usize = 64;

/// The future of a caller, with a future of the runtime in it that takes no memory.
const MAX_FUTURE_BYTES: usize = 512;

type Caller<'l> = Pin<Box<dyn Future<Output = ()> + 'l>>;

#[test]
fn waiting_takes_bounded_memory_and_none_afterwards() {
    let limiter = limiter("{limit: 1/h, burst: 1}");
    let mut context = Context::from_waker(Waker::noop());
    let mut future_bytes = 0;
    let mut callers: Vec<Option<Caller<'_>>> = Vec::with_capacity(CALLERS);
    for _ in 0..CALLERS {
        let waiting = limiter.until_ready("key", |_| std::future::pending());
        future_bytes = size_of_val(&waiting);
        callers.push(Some(Box::pin(async { waiting.await.expect("it is served") })));
    }
    // The table of the queues has memory for some keys from the first one on.
    assert!(callers[0].as_mut().expect("a caller").as_mut().poll(&mut context).is_ready(), "the burst");
    callers[0] = None;
    let before = LIVE_BYTES.get();
    for caller in callers.iter_mut().flatten() {
        assert!(caller.as_mut().poll(&mut context).is_pending());
    }
    let per_caller = (LIVE_BYTES.get() - before) as usize / (CALLERS - 1);
    assert!(per_caller <= MAX_BYTES_PER_CALLER, "{per_caller} bytes per caller");
    assert!(future_bytes <= MAX_FUTURE_BYTES, "{future_bytes} bytes per future");
    // They leave in an order of their own: some from the middle, then the first ones.
    let caller_bytes: usize = callers.iter().flatten().map(|caller| size_of_val(&**caller)).sum();
    for n in (0..CALLERS).filter(|n| n % 3 == 0).chain(0..CALLERS) {
        callers[n] = None;
    }
    assert_eq!(LIVE_BYTES.get(), before - caller_bytes as isize, "nothing remains");
    println!("{per_caller} bytes in the queue and {future_bytes} bytes of the future for each caller");
}
