//! What live data take of the heap when every structure is at its bound: at most 32 MiB.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tollgate::{Hit, Time};
use tollgate_server::testing::{CountedNode, TopOutcome, TopWindow};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller has promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Half an hour before a full hour: two hours are counted, and the current one is half over.
const START: u64 = 1_800_001_800;
/// More than the rules with a series of their own and those that may become one.
const RULES: usize = 1_300;
const SECONDS: u64 = 2 * 3_600;
/// Of the last minutes, which have sketches of their own, and fill the sample.
const BUSY_SECONDS: u64 = 700;
const MAX_BYTES: usize = 32 << 20;

/// Each key has one request that is allowed, and is then near its limit or over it.
fn send(node: &CountedNode, now: Time, n: u64) {
    let rule = n % RULES as u64;
    let path = format!("/{}-{rule}", if n.is_multiple_of(2) { "denied" } else { "near" });
    let user = format!("{n}-{}", "long".repeat(40));
    for _ in 0..2 {
        node.check(&Hit::on("GET", "example.com", &path).user(&*user), now);
    }
}

#[test]
fn live_data_at_all_their_bounds_take_at_most_32_mib() {
    let rules: String = (0..RULES)
        .map(|n| {
            let kind = if n.is_multiple_of(2) { "denied" } else { "near" };
            let limit = if n.is_multiple_of(2) { 1 } else { 2 };
            let id = format!("{n}-{}", "r".repeat(50));
            format!("- {{ id: {id}, match: /{kind}-{n}, key: user, limit: {limit}/d }}\n")
        })
        .collect();
    let mut node = CountedNode::new(&format!("rules:\n{rules}"));
    // What the engine allocates for its own threads and rules is not counted.
    (0..2 * RULES as u64).for_each(|n| send(&node, Time::from_secs(START - 1), u64::MAX / 2 + n));
    let before = LIVE.load(Ordering::Relaxed);
    node.switch_on(Time::from_secs(START));
    let unread = node.subscribe();
    let mut most = 0;
    let mut key = 0;
    for second in 0..SECONDS {
        let now = Time::from_secs(START + second);
        let keys = if second + BUSY_SECONDS >= SECONDS { 1_000 } else { 150 };
        for _ in 0..keys {
            send(&node, now, key);
            key += 1;
        }
        most = most.max(LIVE.load(Ordering::Relaxed) - before);
        node.tick(Time::from_secs(START + second + 1));
        most = most.max(LIVE.load(Ordering::Relaxed) - before);
    }
    // A batch for each stripe, nearly full.
    let now = Time::from_secs(START + SECONDS);
    for thread in 0..32 {
        let node = &node;
        std::thread::scope(|scope| {
            scope.spawn(move || (0..200).for_each(|n| send(node, now, key + thread * 1_000 + n)));
        });
    }
    most = most.max(LIVE.load(Ordering::Relaxed) - before);
    println!("{most} bytes of {MAX_BYTES}, {} by the sum of the bounds", CountedNode::MAX_BYTES);
    assert!(most <= MAX_BYTES, "{most} bytes");
    for outcome in [TopOutcome::Denied, TopOutcome::Allowed, TopOutcome::Near] {
        for window in [TopWindow::Minute, TopWindow::Hour] {
            let listed = node.top(outcome, window, usize::MAX).keys.len();
            assert!(
                listed >= 2_048,
                "{outcome:?} {window:?}: {listed} keys are listed, so the sketch is not full"
            );
        }
    }
    let (requests, one_in) = node.sample();
    assert!(one_in > 1 && requests > 4_000, "the sample is full: {requests}, one in {one_in}");
    drop(unread);
}
