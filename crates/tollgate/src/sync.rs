//! The locks of the library, in one place so that the concurrency models can stand in for them.

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

/// Before another try at what somebody else has just changed.
pub(crate) fn spin() {
    #[cfg(not(shuttle))]
    std::hint::spin_loop();
    #[cfg(shuttle)]
    shuttle::hint::spin_loop();
}

/// Locks, and goes on after a panic elsewhere: every critical section leaves whole states behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Bugs that the models plant one at a time, to show that they would find them.
#[cfg(shuttle)]
#[doc(hidden)]
pub mod seeded {
    use std::sync::atomic::{AtomicU8, Ordering};

    pub const NONE: u8 = 0;
    /// A charge replaces a state that looks the same, whoever's it is by now.
    pub const NO_GENERATION: u8 = 1;
    /// A key that was not found is inserted without looking again under the lock.
    pub const NO_RECHECK: u8 = 2;
    /// An entry is moved as it was seen, and what was charged meanwhile is lost.
    pub const LOST_UPDATE: u8 = 3;

    /// The tag of a slot is read before its word.
    pub const TAG_FIRST: u8 = 4;
    /// A shard goes on with the numbers of classes that it knew before a collection.
    pub const STALE_NUMBERS: u8 = 5;

    static PLANTED: AtomicU8 = AtomicU8::new(NONE);

    pub fn plant(bug: u8) {
        PLANTED.store(bug, Ordering::SeqCst);
    }

    pub(crate) fn is(bug: u8) -> bool {
        PLANTED.load(Ordering::SeqCst) == bug
    }
}
