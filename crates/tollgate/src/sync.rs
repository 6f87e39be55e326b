//! The locks of the library, in one place so that model checking can replace them.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use std::sync::PoisonError;

/// A spin-loop hint, for retries after a lost race.
pub(crate) fn spin() {
    #[cfg(not(shuttle))]
    std::hint::spin_loop();
    #[cfg(shuttle)]
    shuttle::hint::spin_loop();
}

/// Locks, ignoring poison: every critical section leaves a consistent state even if it panics.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    begin_section();
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A lock is taken: the steps that follow are its critical section, for tests that bound it.
#[inline(always)]
pub(crate) fn begin_section() {
    #[cfg(any(test, feature = "testing"))]
    steps::begin_section();
}

/// No lock is held: the steps that follow are in no critical section.
#[inline(always)]
pub(crate) fn end_section() {
    #[cfg(any(test, feature = "testing"))]
    steps::end_section();
}

/// Entries, lines or bans that a critical section visits, for tests that bound it.
#[inline(always)]
pub(crate) fn count_steps(count: usize) {
    #[cfg(any(test, feature = "testing"))]
    steps::count(count);
    #[cfg(not(any(test, feature = "testing")))]
    let _ = count;
}

/// The work of one thread, counted by the code that visits entries, lines of a table, states and bans.
///
/// A critical section is taken to last until the thread's next lock or [`end_section`], so it is never counted too short
/// unless locks are nested; the total bounds those.
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(
    not(feature = "testing"),
    allow(unreachable_pub, dead_code, reason = "unit tests need a part of it")
)]
pub mod steps {
    use std::cell::Cell;

    thread_local! {
        static TOTAL: Cell<usize> = const { Cell::new(0) };
        static SECTION: Cell<usize> = const { Cell::new(0) };
        static LONGEST: Cell<usize> = const { Cell::new(0) };
        static IS_UNLOCKED: Cell<bool> = const { Cell::new(false) };
    }

    /// The steps of some work.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct CountedSteps {
        /// Of all of it.
        pub total: usize,
        /// Of its longest critical section.
        pub longest_section: usize,
    }

    impl CountedSteps {
        /// The larger numbers of both.
        pub fn max(self, other: CountedSteps) -> CountedSteps {
            CountedSteps {
                total: self.total.max(other.total),
                longest_section: self.longest_section.max(other.longest_section),
            }
        }
    }

    /// Counts the steps of some work on this thread.
    pub fn measure(work: impl FnOnce()) -> CountedSteps {
        [&TOTAL, &SECTION, &LONGEST].into_iter().for_each(|count| count.set(0));
        IS_UNLOCKED.set(false);
        work();
        CountedSteps { total: TOTAL.get(), longest_section: LONGEST.get() }
    }

    pub(super) fn begin_section() {
        SECTION.set(0);
        IS_UNLOCKED.set(false);
    }

    pub(super) fn end_section() {
        IS_UNLOCKED.set(true);
    }

    pub(super) fn count(count: usize) {
        TOTAL.set(TOTAL.get() + count);
        if IS_UNLOCKED.get() {
            return;
        }
        SECTION.set(SECTION.get() + count);
        LONGEST.set(LONGEST.get().max(SECTION.get()));
    }
}

/// Bugs that the models inject one at a time, to prove that they would find them.
#[cfg(shuttle)]
pub mod seeded {
    use std::sync::atomic::{AtomicU8, Ordering};

    pub const NONE: u8 = 0;
    /// A charge replaces an equal state without checking the generation.
    pub const NO_GENERATION: u8 = 1;
    /// A key that was not found is inserted without a second lookup under the lock.
    pub const NO_RECHECK: u8 = 2;
    /// An entry is moved with the value loaded earlier: concurrent charges are lost.
    pub const LOST_UPDATE: u8 = 3;

    /// The tag of a slot is read before its word.
    pub const TAG_FIRST: u8 = 4;
    /// A shard uses class numbers interned before a collection.
    pub const STALE_NUMBERS: u8 = 5;
    /// A line is marked as changed before its slot is changed.
    pub const MARK_FIRST: u8 = 6;
    /// The mark of a line is cleared after the line was read.
    pub const CLEAR_LATE: u8 = 7;

    static PLANTED: AtomicU8 = AtomicU8::new(NONE);

    pub fn plant(bug: u8) {
        PLANTED.store(bug, Ordering::SeqCst);
    }

    pub(crate) fn is(bug: u8) -> bool {
        PLANTED.load(Ordering::SeqCst) == bug
    }
}
