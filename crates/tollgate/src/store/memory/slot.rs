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

impl Line {
    /// The slot whose tag is wanted. All four are compared and none is jumped to: which one it is nobody can
    /// guess, and a jump that was guessed wrong keeps the next request's memory from being asked for meanwhile.
    #[inline(always)]
    pub(super) fn find(&self, is_wanted: impl Fn(u64) -> bool) -> Option<&Slot> {
        let mut found = None;
        for slot in self.0.each_ref() {
            found = if is_wanted(slot.tag()) { Some(slot) } else { found };
        }
        found
    }

    /// The slot with this tag.
    #[cfg(any(shuttle, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(super) fn slot_of(&self, tag: u64) -> Option<&Slot> {
        self.find(|found| found == tag)
    }

    /// The same in few steps, none of them on numbers: all of them wait for the line, and while they do they
    /// are in the way of the next request, whose steps are mostly on numbers.
    #[cfg(all(not(shuttle), target_arch = "x86_64"))]
    #[inline(always)]
    pub(super) fn slot_of(&self, tag: u64) -> Option<&Slot> {
        let equal: u32;
        // SAFETY: four reads of sixteen bytes of this line, which is aligned. The tag in each is read at once: it
        // does not cross eight bytes. Every processor of this architecture has the instructions.
        unsafe {
            std::arch::asm!(
                "movq {wanted}, {tag}",
                "punpcklqdq {wanted}, {wanted}",
                "movdqa {low}, [{line}]",
                "movdqa {high}, [{line} + 32]",
                "punpcklqdq {low}, [{line} + 16]",
                "punpcklqdq {high}, [{line} + 48]",
                "pcmpeqd {low}, {wanted}",
                "pcmpeqd {high}, {wanted}",
                "packssdw {low}, {high}",
                "pmovmskb {equal:e}, {low}",
                wanted = out(xmm_reg) _,
                low = out(xmm_reg) _,
                high = out(xmm_reg) _,
                equal = out(reg) equal,
                line = in(reg) std::ptr::from_ref(self),
                tag = in(reg) tag,
                options(readonly, nostack, preserves_flags),
            );
        }
        // Four bits for each slot: two for each half of its tag.
        let found = equal & equal >> 2 & 0x1111;
        // SAFETY: it is the number of a slot, times four.
        (found != 0).then(|| unsafe { self.0.get_unchecked(found.trailing_zeros() as usize / 4) })
    }
}

#[cfg(not(shuttle))]
mod atomic {
    use std::sync::atomic::{AtomicU64, Ordering};

    use portable_atomic::AtomicU128;

    use super::Pair;

    #[repr(transparent)]
    #[derive(Default)]
    pub(in super::super) struct Slot(AtomicU128);

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
        #[cfg(not(target_arch = "x86_64"))]
        #[inline]
        pub(in super::super) fn replace(&self, old: Pair, new: Pair) -> Result<(), Pair> {
            let join = |(tag, word): Pair| u128::from(word) << 64 | u128::from(tag);
            let replaced = self.0.compare_exchange(join(old), join(new), Ordering::AcqRel, Ordering::Acquire);
            replaced.map(drop).map_err(split)
        }

        /// The same by the instruction itself, without the call that asks each time whether it is there.
        #[cfg(target_arch = "x86_64")]
        #[inline(always)]
        pub(in super::super) fn replace(&self, old: Pair, new: Pair) -> Result<(), Pair> {
            let (tag, word, replaced): (u64, u64, u64);
            // SAFETY: there are no slots where `supported` is false; the address is a slot's, which is aligned;
            // `rbx`, which the compiler keeps for itself, is put back.
            unsafe {
                std::arch::asm!(
                    "xchg rsi, rbx",
                    "lock cmpxchg16b xmmword ptr [rdi]",
                    "sete cl",
                    "mov rbx, rsi",
                    in("rdi") std::ptr::from_ref(self),
                    inout("rsi") new.0 => _,
                    inout("rcx") new.1 => replaced,
                    inout("rax") old.0 => tag,
                    inout("rdx") old.1 => word,
                    options(nostack),
                );
            }
            if replaced as u8 == 1 { Ok(()) } else { Err((tag, word)) }
        }
    }

    /// Whether the processor can replace a pair. All can but the first of x86-64.
    pub(in super::super) fn supported() -> bool {
        #[cfg(target_arch = "x86_64")]
        return std::arch::is_x86_feature_detected!("cmpxchg16b");
        #[cfg(not(target_arch = "x86_64"))]
        true
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
#[cfg(not(shuttle))]
pub(super) use atomic::supported;
