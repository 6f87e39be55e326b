//! The locks of the library, in one place so that the concurrency models can stand in for them.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicUsize, Ordering},
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
