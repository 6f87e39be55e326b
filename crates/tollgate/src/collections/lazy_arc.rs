//! A shared value that is created on first access, in one word: there may be a million of them.
//!
//! Not `OnceLock<Arc<T>>`, which takes two words, nor `once_cell::race::OnceBox<Arc<T>>`, which adds an allocation and
//! an indirection.

use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

pub(crate) struct LazyArc<T> {
    /// Null, or one strong count of an `Arc`; set once, and released on drop.
    value: AtomicPtr<T>,
    owns: PhantomData<Arc<T>>,
}

impl<T> Default for LazyArc<T> {
    fn default() -> Self {
        LazyArc { value: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }
}

impl<T: Default> LazyArc<T> {
    pub(crate) fn from_arc(value: Arc<T>) -> LazyArc<T> {
        LazyArc { value: AtomicPtr::new(Arc::into_raw(value).cast_mut()), owns: PhantomData }
    }

    /// The value, if it exists.
    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        // SAFETY: a non-null pointer is to an `Arc` of which `self` owns a count.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    pub(crate) fn get_or_init(&self) -> &T {
        self.get().unwrap_or_else(|| self.init())
    }

    /// The value as an `Arc`; creates it if needed.
    pub(crate) fn to_arc(&self) -> Arc<T> {
        let value: *const T = self.get_or_init();
        // SAFETY: the pointer came from `Arc::into_raw`, and `self` owns a count.
        unsafe {
            Arc::increment_strong_count(value);
            Arc::from_raw(value)
        }
    }

    /// If several threads create the value concurrently, the first CAS wins and the others use its value.
    #[cold]
    fn init(&self) -> &T {
        let fresh = Arc::into_raw(Arc::<T>::default()).cast_mut();
        let null = ptr::null_mut();
        let done = Ordering::AcqRel;
        let failed = Ordering::Acquire;
        let value = match self.value.compare_exchange(null, fresh, done, failed) {
            Ok(_) => fresh,
            Err(first) => {
                // SAFETY: the CAS failed, so no other thread has seen `fresh`.
                drop(unsafe { Arc::from_raw(fresh) });
                first
            }
        };
        // SAFETY: not null, and `self` owns a count.
        unsafe { &*value }
    }
}

impl<T> Drop for LazyArc<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: releases the count that `self` owns.
            drop(unsafe { Arc::from_raw(value) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, OnceLock};
    use std::thread;

    use super::*;

    #[test]
    fn all_callers_get_the_same_value_and_it_is_dropped_with_the_last() {
        let once = LazyArc::<Mutex<Vec<u8>>>::default();
        assert!(once.get().is_none());
        thread::scope(|scope| {
            for n in 0..8 {
                let once = &once;
                scope.spawn(move || once.get_or_init().lock().expect("no panic").push(n));
            }
        });
        let shared = once.to_arc();
        assert_eq!(shared.lock().expect("no panic").len(), 8);
        let next = LazyArc::from_arc(once.to_arc());
        drop(once);
        assert_eq!(next.get().map(|value| value.lock().expect("no panic").len()), Some(8));
        assert_eq!(Arc::strong_count(&shared), 2);
        drop(next);
        assert_eq!(Arc::strong_count(&shared), 1);
    }

    #[test]
    fn it_is_half_as_large_as_a_once_lock() {
        assert_eq!(
            [size_of::<LazyArc<u8>>(), size_of::<OnceLock<Arc<u8>>>()],
            [size_of::<usize>(), 2 * size_of::<usize>()]
        );
    }
}
