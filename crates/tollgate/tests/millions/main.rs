//! What very many rules, bans and allowed keys cost: bytes in memory, and bytes copied by one change.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use tollgate::Time;
use tollgate::internal::EngineCore;
use tollgate::internal::policy::PolicyChange;

mod keys;
mod rules;

struct Counting;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// What an allocation takes of the system: a word for its size, in steps of two.
fn taken(layout: Layout) -> usize {
    (layout.size() + 8).next_multiple_of(16).max(32)
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE.set(IN_USE.get() + taken(layout) as isize);
        ALLOCATED.set(ALLOCATED.get() + taken(layout));
        // SAFETY: as the caller has promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.set(IN_USE.get() - taken(layout) as isize);
        // SAFETY: as the caller has promised.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const NOW: Time = Time::from_secs(1_800_000_000);
/// One change allocates no more than this.
const MAX_BYTES_A_CHANGE: usize = 64 << 10;

/// What one change allocates.
fn allocated(engine: &EngineCore, change: PolicyChange) -> usize {
    let before = ALLOCATED.get();
    engine.change([change], NOW).expect("a valid change");
    ALLOCATED.get() - before
}
