//! A slot: tag and word, sixteen bytes that change together or not at all.
//!
//! Everything lock-free in the store goes through the three operations of this file. The tag alone may
//! be read to find a slot; what is decided is decided on a whole pair, and what is written replaces the
//! whole pair that was decided on, so a slot that changed hands meanwhile is never charged.

/// Tag (56 bits of fingerprint, 8 bits of kind; zero is empty) and word (the state).
pub(super) type Pair = (u64, u64);

pub(super) const EMPTY: Pair = (0, 0);
pub(super) const SLOTS_PER_LINE: usize = 4;

/// One cache line of slots.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct Line(pub(super) [Slot; SLOTS_PER_LINE]);

#[cfg(not(shuttle))]
mod atomic {
    use std::sync::atomic::{AtomicU64, Ordering};

    use portable_atomic::AtomicU128;

    use super::Pair;

    #[repr(transparent)]
    #[derive(Default)]
    pub(in super::super) struct Slot(AtomicU128);

    fn join((tag, word): Pair) -> u128 {
        u128::from(word) << 64 | u128::from(tag)
    }

    fn split(both: u128) -> Pair {
        (both as u64, (both >> 64) as u64)
    }

    impl Slot {
        #[inline]
        pub(in super::super) fn tag(&self) -> u64 {
            if cfg!(target_endian = "big") {
                return self.load().0;
            }
            // SAFETY: on a little-endian machine the tag is the first half of the pair, aligned to eight
            // bytes, and only read here. Writers replace the pair in one instruction, so the half read
            // is one that was written.
            let tag = unsafe { &*std::ptr::from_ref(&self.0).cast::<AtomicU64>() };
            tag.load(Ordering::Acquire)
        }

        #[inline]
        pub(in super::super) fn load(&self) -> Pair {
            split(self.0.load(Ordering::Acquire))
        }

        /// Replaces `old` by `new`; fails with what is there instead.
        #[inline]
        pub(in super::super) fn replace(&self, old: Pair, new: Pair) -> Result<(), Pair> {
            let replaced = self.0.compare_exchange(join(old), join(new), Ordering::AcqRel, Ordering::Acquire);
            replaced.map(drop).map_err(split)
        }
    }
}

#[cfg(shuttle)]
mod atomic {
    //! The same three operations over a lock that the model checker schedules.

    use super::Pair;
    use crate::sync::{Mutex, lock};

    #[derive(Default)]
    pub(in super::super) struct Slot(Mutex<Pair>);

    impl Slot {
        pub(in super::super) fn tag(&self) -> u64 {
            lock(&self.0).0
        }

        pub(in super::super) fn load(&self) -> Pair {
            *lock(&self.0)
        }

        pub(in super::super) fn replace(&self, old: Pair, new: Pair) -> Result<(), Pair> {
            let mut pair = lock(&self.0);
            if *pair != old {
                return Err(*pair);
            }
            *pair = new;
            Ok(())
        }
    }
}

pub(super) use atomic::Slot;
