//! A slot: whose it is and what state that one has, in sixteen bytes.
//!
//! A charge replaces eight of them, the word: that is cheaper than to replace all sixteen. So that a slot
//! which changed hands meanwhile is never charged, a count in the word goes up with every change that is not of
//! the word alone, and who has read a word before it finds that it is another one now. The count goes round
//! after 63: to be taken in, a thread would have to stand between two of its instructions while a slot changes
//! hands just that often, and its new owner to be in the very state that the old one was in.
//!
//! Where the processor cannot replace sixteen bytes at once ([`NATIVE`]), the word is replaced by one with the count
//! [`BUSY`] while the tag changes. Charges and readers wait until the word is back: a spin lock for each slot, taken
//! only to change more than the word.
//!
//! Everything lock-free in the store goes through the operations of this file.

/// Whose a slot is (a tag; zero is nobody's), and the state.
pub(super) type Entry = (u64, u64);

pub(super) const EMPTY: Entry = (0, 0);
pub(super) const SLOTS_PER_LINE: usize = 4;

/// The bits of a word that count.
pub(super) const COUNT_BITS: u32 = 6;
pub(super) const COUNT: u64 = (1 << COUNT_BITS) - 1;
/// The count of a word that is locked; no other word has it.
const BUSY: u64 = COUNT;
/// The states of an age are all in their words: no change among them is of the tag.
pub(super) const AGE: u64 = 1 << (64 - COUNT_BITS);
/// The bits of a tag where those of the state are that the count takes the place of. Owners leave them zero.
const LENT: u64 = COUNT << LENT_AT;
const LENT_AT: u32 = KIND_BITS;
/// The bits of a tag that name its kind.
pub(super) const KIND_BITS: u32 = 13;
/// A tag names its owner in the bits from here on, and its kind in those below [`LENT_AT`].
pub(super) const OWNER_AT: u32 = LENT_AT + COUNT_BITS;

/// The bits of a state that its tag is lent.
#[inline(always)]
pub(super) fn lent(state: u64) -> u64 {
    state >> (64 - OWNER_AT) & LENT
}

/// What a slot holds, as it was seen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Seen {
    tag: u64,
    word: u64,
}

impl Seen {
    #[inline(always)]
    fn new((tag, state): Entry, count: u64) -> Seen {
        Seen { tag: tag | lent(state), word: state << COUNT_BITS | count & COUNT }
    }

    #[inline(always)]
    pub(super) fn tag(self) -> u64 {
        self.tag & !LENT
    }

    #[inline(always)]
    pub(super) fn state(self) -> u64 {
        (self.tag & LENT) << (64 - OWNER_AT) | self.word >> COUNT_BITS
    }

    pub(super) fn entry(self) -> Entry {
        (self.tag(), self.state())
    }

    /// The same owner with another state.
    #[inline(always)]
    fn with(self, state: u64) -> Seen {
        Seen::new((self.tag(), state), self.word)
    }

    /// What comes after this one if not only the word changes.
    fn followed_by(self, entry: Entry) -> Seen {
        let count = (self.word & COUNT) + 1;
        Seen::new(entry, if count == BUSY { 0 } else { count })
    }
}

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
            found = if is_wanted(slot.whole_tag()) { Some(slot) } else { found };
        }
        found
    }

    /// The slot with this tag, as it stands there.
    #[cfg(any(shuttle, tollgate_portable, not(target_arch = "x86_64")))]
    #[inline(always)]
    pub(super) fn slot_of(&self, tag: u64) -> Option<&Slot> {
        self.0.iter().find(|slot| slot.whole_tag() == tag)
    }

    /// The same in few steps, none of them on numbers: all of them wait for the line, and while they do they
    /// are in the way of the next request, whose steps are mostly on numbers.
    #[cfg(not(any(shuttle, tollgate_portable, not(target_arch = "x86_64"))))]
    #[inline(always)]
    pub(super) fn slot_of(&self, tag: u64) -> Option<&Slot> {
        let equal: u32;
        // SAFETY: four reads of sixteen bytes of this line, which is aligned. The tag in each is read at once: it
        // does not cross eight bytes. There are no slots where `supported` is false.
        unsafe {
            std::arch::asm!(
                "movq {wanted}, {tag}",
                "punpcklqdq {wanted}, {wanted}",
                "movdqa {low}, [{line}]",
                "movdqa {high}, [{line} + 32]",
                "punpcklqdq {low}, [{line} + 16]",
                "punpcklqdq {high}, [{line} + 48]",
                "pcmpeqq {low}, {wanted}",
                "pcmpeqq {high}, {wanted}",
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
        // Four bits for each slot, all or none of them. Its number times four, times four, is where it begins.
        let at = equal.trailing_zeros() as usize * size_of::<Slot>() / 4;
        // SAFETY: a slot of this line begins there.
        (equal != 0).then(|| unsafe { &*self.0.as_ptr().byte_add(at) })
    }
}

#[cfg(not(shuttle))]
mod atomic {
    use std::sync::atomic::{AtomicU64, Ordering};

    use portable_atomic::AtomicU128;

    use super::{BUSY, COUNT, Entry, LENT, Seen};
    use crate::sync::spin;

    /// Whether sixteen bytes are replaced by one instruction. On x86-64 [`supported`] makes sure that the processor
    /// has it.
    const NATIVE: bool = !cfg!(tollgate_portable)
        && (AtomicU128::is_always_lock_free()
            || cfg!(all(target_arch = "x86_64", not(portable_atomic_no_outline_atomics))));
    /// How often a thread looks at a locked word before it gives up its processor.
    const SPINS: u32 = 100;

    /// Only where not [`NATIVE`].
    #[inline(always)]
    const fn is_busy(word: u64) -> bool {
        !NATIVE && word & COUNT == BUSY
    }

    #[repr(transparent)]
    #[derive(Default)]
    pub(in super::super) struct Slot(AtomicU128);

    impl From<u128> for Seen {
        fn from(both: u128) -> Seen {
            Seen { tag: both as u64, word: (both >> 64) as u64 }
        }
    }

    impl From<Seen> for u128 {
        fn from(Seen { tag, word }: Seen) -> u128 {
            u128::from(word) << 64 | u128::from(tag)
        }
    }

    impl Slot {
        #[inline]
        pub(in super::super) fn tag(&self) -> u64 {
            self.whole_tag() & !LENT
        }

        /// The tag with its lent bits.
        #[inline(always)]
        pub(in super::super) fn whole_tag(&self) -> u64 {
            self.tag_half().load(Ordering::Acquire)
        }

        /// The word, if it stands with this tag and its lent bits. The tag is read after the word: one that has
        /// changed since has another count.
        #[inline(always)]
        pub(in super::super) fn word_of(&self, whole_tag: u64) -> Option<u64> {
            let Seen { tag, word } = self.glance();
            (tag == whole_tag).then_some(word)
        }

        /// Replaces a word; says whether it was there.
        #[inline(always)]
        pub(in super::super) fn set_word(&self, word: u64, next: u64) -> bool {
            self.word_half().compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }

        /// The word and then the tag. They may never have stood together; [`set`](Self::set) and
        /// [`confirm`](Self::confirm) find out.
        #[inline(always)]
        pub(in super::super) fn glance(&self) -> Seen {
            self.settled(self.word_half().load(Ordering::Acquire))
        }

        /// Both as they stand together.
        #[inline]
        pub(in super::super) fn load(&self) -> Seen {
            if NATIVE {
                return self.0.load(Ordering::Acquire).into();
            }
            let mut seen = self.glance();
            while let Err(changed) = self.confirm(seen) {
                seen = changed;
            }
            seen
        }

        /// Whether what was seen is there; fails with what is there instead, and writes nothing. A word that has
        /// not changed since a tag was read has stood with it.
        #[inline]
        pub(in super::super) fn confirm(&self, seen: Seen) -> Result<(), Seen> {
            let word = self.word_half().load(Ordering::Acquire);
            if word == seen.word { Ok(()) } else { Err(self.settled(word)) }
        }

        /// Replaces the state of whose it is; fails with what is there instead.
        #[inline(always)]
        pub(in super::super) fn set(&self, seen: Seen, state: u64) -> Result<(), Seen> {
            let next = seen.with(state);
            if next.tag != seen.tag {
                return self.hand_over(seen, (seen.tag(), state));
            }
            let word = self.word_half();
            let replaced = word.compare_exchange(seen.word, next.word, Ordering::AcqRel, Ordering::Acquire);
            replaced.map(drop).map_err(|word| self.settled(word))
        }

        /// Replaces all of it; fails with what is there instead.
        #[cold]
        pub(in super::super) fn hand_over(&self, seen: Seen, entry: Entry) -> Result<(), Seen> {
            if !NATIVE {
                return self.replace_locked(seen, seen.followed_by(entry));
            }
            let (old, new) = (seen.into(), seen.followed_by(entry).into());
            let replaced = self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
            replaced.map(drop).map_err(Seen::from)
        }

        /// Replaces tag and word one after the other. The word is locked meanwhile: no charge replaces it, and a
        /// thread that reads the new tag finds the lock, or the new word.
        fn replace_locked(&self, seen: Seen, next: Seen) -> Result<(), Seen> {
            let word = self.word_half();
            let locked = word.compare_exchange(seen.word, BUSY, Ordering::AcqRel, Ordering::Acquire);
            locked.map_err(|word| self.settled(word))?;
            let tag = self.whole_tag();
            if tag != seen.tag {
                word.store(seen.word, Ordering::Release);
                return Err(Seen { tag, word: seen.word });
            }
            self.tag_half().store(next.tag, Ordering::Release);
            word.store(next.word, Ordering::Release);
            Ok(())
        }

        /// A word that was read and the tag with it; another word if that one was locked.
        #[inline(always)]
        fn settled(&self, word: u64) -> Seen {
            self.with_tag(if is_busy(word) { self.unlocked() } else { word })
        }

        #[cold]
        fn unlocked(&self) -> u64 {
            for spins in 0u32.. {
                let word = self.word_half().load(Ordering::Acquire);
                if !is_busy(word) {
                    return word;
                }
                if spins < SPINS { spin() } else { std::thread::yield_now() }
            }
            unreachable!("the lock is held for a few instructions")
        }

        #[inline(always)]
        fn with_tag(&self, word: u64) -> Seen {
            Seen { tag: self.whole_tag(), word }
        }

        #[inline(always)]
        fn tag_half(&self) -> &AtomicU64 {
            &self.halves()[usize::from(cfg!(target_endian = "big"))]
        }

        #[inline(always)]
        fn word_half(&self) -> &AtomicU64 {
            &self.halves()[usize::from(cfg!(target_endian = "little"))]
        }

        #[inline(always)]
        fn halves(&self) -> &[AtomicU64; 2] {
            // SAFETY: the halves are aligned to eight bytes. The whole is replaced by one instruction or not at all,
            // so that a half is at every moment one that was written.
            unsafe { &*std::ptr::from_ref(&self.0).cast::<[AtomicU64; 2]>() }
        }
    }

    /// Whether the processor can replace all of a slot, and find one. All can but the first of x86-64.
    pub(in super::super) fn supported() -> bool {
        #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
        return (!NATIVE || AtomicU128::is_lock_free()) && std::arch::is_x86_feature_detected!("sse4.1");
        #[cfg(not(all(target_arch = "x86_64", not(tollgate_portable))))]
        true
    }
}

#[cfg(shuttle)]
#[path = "slot/model.rs"]
mod atomic;

pub(super) use atomic::Slot;
#[cfg(not(shuttle))]
pub(super) use atomic::supported;

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn every_state_comes_back_whatever_the_count() {
        let tag = 0x0001_2345_6789_abcd << OWNER_AT | 7;
        for state in [0, 1, AGE - 1, AGE, AGE + 1, 6 * AGE + 42, u64::MAX - 1, u64::MAX] {
            for count in [0, 1, COUNT, COUNT + 1, u64::MAX] {
                let seen = Seen::new((tag, state), count);
                assert_eq!((seen.entry(), seen.word & COUNT), ((tag, state), count & COUNT));
            }
        }
    }

    #[test]
    fn what_is_not_of_the_word_alone_is_counted() {
        let slot = Slot::default();
        let owner = |n: u64| n << OWNER_AT | 1;
        let empty = slot.load();
        assert_eq!(slot.hand_over(empty, (owner(1), 5)), Ok(()));
        let first = slot.load();
        assert_eq!(slot.hand_over(first, EMPTY), Ok(()));
        assert_eq!(slot.load().entry(), EMPTY);
        assert_eq!(slot.hand_over(slot.load(), (owner(2), 5)), Ok(()));
        let second = slot.load();
        // The states are the same, but one of them is another's.
        assert_eq!(slot.set(first, 6), Err(second));
        assert!(!slot.set_word(first.word, 6 << COUNT_BITS | first.word & COUNT));
        assert_eq!(slot.confirm(first), Err(second));
        assert_eq!(slot.word_of(owner(1)), None);
        assert_eq!((slot.set(second, 5 + AGE), slot.load().entry()), (Ok(()), (owner(2), 5 + AGE)));
        assert!(slot.set(second, 6).is_err(), "the word is the same, and the tag is not");
    }

    #[test]
    fn the_slot_of_a_tag_is_found_wherever_it_stands() {
        let line = Line::default();
        for n in 0..SLOTS_PER_LINE {
            let entry = ((n as u64 + 1) << OWNER_AT | 1, 3);
            line.0[n].hand_over(line.0[n].load(), entry).expect("nobody else is here");
        }
        for n in 0..SLOTS_PER_LINE {
            let found = line.slot_of((n as u64 + 1) << OWNER_AT | 1).expect("it is there");
            assert!(std::ptr::eq(found, &line.0[n]));
        }
        assert!(line.slot_of(9 << OWNER_AT | 1).is_none() && line.slot_of(0).is_none());
    }

    /// Where sixteen bytes are replaced under a lock, a charge of eight of them was overwritten.
    #[test]
    fn no_charge_is_lost_while_the_slot_is_replaced() {
        const CHARGES: u64 = 100_000;
        const THREADS: u64 = 3;
        let tag = |n: u64| (n + 1) << OWNER_AT | 1;
        let slot = Slot::default();
        let start = AGE - CHARGES; // half of the charges are in the next age
        slot.hand_over(slot.load(), (tag(0), start)).expect("no other thread has it");
        let charge = |mut seen: Seen| {
            while let Err(changed) = slot.set(seen, seen.state() + 1) {
                seen = changed;
            }
        };
        std::thread::scope(|scope| {
            let charging: Vec<_> = (0..THREADS)
                .map(|_| scope.spawn(|| (0..CHARGES).for_each(|_| charge(slot.glance()))))
                .collect();
            let mut n = 0;
            while charging.iter().any(|thread| !thread.is_finished()) {
                n += 1;
                let seen = slot.load();
                let _ = slot.hand_over(seen, (tag(n % 2), seen.state()));
            }
        });
        assert_eq!(slot.load().state() - start, THREADS * CHARGES);
    }
}
