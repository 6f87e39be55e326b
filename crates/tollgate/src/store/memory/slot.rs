//! A slot: tag and word, sixteen bytes that change together or not at all.
//!
//! Everything lock-free in the store goes through the operations of this file. Halves may be read to find
//! a slot and to decide what to write; but a pair is replaced only if it is, as a whole, the one that was
//! decided on, so a slot that changed hands meanwhile is never charged.

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
            self.halves()[usize::from(cfg!(target_endian = "big"))].load(Ordering::Acquire)
        }

        #[inline]
        pub(in super::super) fn word(&self) -> u64 {
            self.halves()[usize::from(cfg!(target_endian = "little"))].load(Ordering::Acquire)
        }

        /// Tag and word, read one after the other: they may never have stood together.
        #[inline]
        pub(in super::super) fn glance(&self) -> Pair {
            let word = self.word();
            (self.tag(), word)
        }

        #[inline]
        fn halves(&self) -> &[AtomicU64; 2] {
            // SAFETY: the halves of the pair are aligned to eight bytes, and only read through this. Writers
            // replace the pair in one instruction, so a half that is read is one that was written.
            unsafe { &*std::ptr::from_ref(&self.0).cast::<[AtomicU64; 2]>() }
        }

        #[inline]
        pub(in super::super) fn load(&self) -> Pair {
            split(self.0.load(Ordering::Acquire))
        }

        /// Whether the pair is `seen`; fails with what is there instead, and writes nothing.
        #[inline]
        pub(in super::super) fn confirm(&self, seen: Pair) -> Result<(), Pair> {
            let now = self.load();
            if now == seen { Ok(()) } else { Err(now) }
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
    //! The same operations, with a step of the model checker before each of them.

    use shuttle::sync::atomic::{AtomicBool, Ordering};
    use std::sync::Mutex;

    use super::Pair;
    use crate::sync::seeded;

    #[derive(Default)]
    pub(in super::super) struct Slot {
        pair: Mutex<Pair>,
        step: AtomicBool,
    }

    impl Slot {
        pub(in super::super) fn tag(&self) -> u64 {
            self.load().0
        }

        pub(in super::super) fn word(&self) -> u64 {
            self.load().1
        }

        pub(in super::super) fn glance(&self) -> Pair {
            let word = self.word();
            (self.tag(), word)
        }

        pub(in super::super) fn load(&self) -> Pair {
            self.with(|pair| *pair)
        }

        pub(in super::super) fn confirm(&self, seen: Pair) -> Result<(), Pair> {
            let now = self.load();
            if now == seen { Ok(()) } else { Err(now) }
        }

        pub(in super::super) fn replace(&self, old: Pair, new: Pair) -> Result<(), Pair> {
            self.with(|pair| {
                if seeded::is(seeded::HALF_A_SLOT) && old.0 == new.0 && old.1 == pair.1 {
                    pair.1 = new.1;
                    return Ok(());
                }
                if *pair != old {
                    return Err(*pair);
                }
                *pair = new;
                Ok(())
            })
        }

        pub(in super::super) fn overwrite(&self, new: Pair) {
            self.with(|pair| *pair = new);
        }

        fn with<T>(&self, act: impl FnOnce(&mut Pair) -> T) -> T {
            self.step.load(Ordering::SeqCst);
            act(&mut self.pair.lock().expect("no operation panics"))
        }
    }
}

pub(super) use atomic::Slot;
