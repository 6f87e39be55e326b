//! The locks of the library, in one place so that the concurrency models can stand in for them.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard};

use std::sync::PoisonError;

/// Locks, and goes on after a panic elsewhere: every critical section leaves whole states behind.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
