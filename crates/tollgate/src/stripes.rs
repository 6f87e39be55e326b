//! Data that every decision writes, one copy per stripe of threads: threads of different stripes share no cache line.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A power of two. With more threads than this, some share a stripe.
pub(crate) const STRIPES: usize = 32;

/// The stripe of the calling thread: threads are numbered in the order of their first decision.
#[inline]
pub(crate) fn current() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static STRIPE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % STRIPES;
    }
    STRIPE.with(|stripe| *stripe) % STRIPES // the compiler knows the bound
}

/// One `T` per stripe. Atomic, because threads may share a stripe.
pub struct Striped<T>(Box<[PaddedStripe<T>; STRIPES]>);

/// Two cache lines: processors prefetch them in pairs.
#[repr(align(128))]
#[derive(Default)]
struct PaddedStripe<T>(T);

impl<T: Default> Default for Striped<T> {
    fn default() -> Self {
        Striped(Box::new(std::array::from_fn(|_| PaddedStripe::default())))
    }
}

impl<T> Striped<T> {
    /// The copy of the calling thread.
    #[inline]
    pub fn current(&self) -> &T {
        self.get(current())
    }

    #[inline]
    pub(crate) fn get(&self, stripe: usize) -> &T {
        &self.0[stripe % STRIPES].0
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|stripe| &stripe.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;
    use std::thread;

    use super::*;

    #[test]
    fn a_thread_keeps_its_stripe_and_nothing_is_lost() {
        let counts = Striped::<AtomicU64>::default();
        thread::scope(|scope| {
            for _ in 0..STRIPES + 3 {
                scope.spawn(|| {
                    let mine = counts.current();
                    for _ in 0..100 {
                        assert!(std::ptr::eq(mine, counts.current()));
                        mine.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let total: u64 = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        assert_eq!(total, 100 * (STRIPES as u64 + 3));
    }
}
