//! A slot: the key's tag and its packed state, in sixteen bytes.
//!
//! ```text
//!          63                         19 18      13 12      0
//!     tag  | owner: fingerprint, 45 bits | spilled | class  |   0: the slot is empty
//!     word | state, low 58 bits                 | generation |   what a charge replaces
//! ```
//!
//! A state has 64 bits. The generation displaces its six highest from the word into the tag: the *spilled bits*. They
//! rarely change, so nearly every charge replaces the word alone, and a CAS of eight bytes is cheaper than one of
//! sixteen.
//!
//! ABA: every change of the tag increments the generation, so the CAS of a thread that has read the slot before it was
//! reused fails. The generation wraps after 63 values: a stale CAS succeeds only if a thread is suspended between its
//! load and its CAS while the slot is reused exactly that often and ends in an identical word.
//!
//! Torn reads: a lock-free reader loads the word, then the tag. If the tag changed in between, so did the generation,
//! and the CAS or the confirming load of the word fails.
//!
//! Ordering: a CAS that succeeds is AcqRel and loads are Acquire, so the writes before an entry was published (its
//! class, an earlier charge) happen before the operations of a thread that reads it. Nothing needs SeqCst here; the
//! bits of changed lines have their own fences (`changes`).
//!
//! Where the processor has no 16-byte CAS ([`NATIVE`]), the word has the generation [`LOCKED_GENERATION`] while the
//! tag changes. Charges and readers spin until it is unlocked: a spin lock for each slot, taken only to change more
//! than the word.
//!
//! Everything lock-free in the store goes through the operations of this file.

/// The tag (zero: the slot is empty) and the state.
pub(super) type SlotEntry = (u64, u64);

pub(super) const EMPTY: SlotEntry = (0, 0);
pub(super) const SLOTS_PER_LINE: usize = 4;

/// The low bits of a word that hold its generation. Its values are 0 to 62; 63 is the lock.
pub(super) const GENERATION_BITS: u32 = 6;
pub(super) const GENERATION_MASK: u64 = (1 << GENERATION_BITS) - 1;
/// The generation of a locked word; no other word has it.
const LOCKED_GENERATION: u64 = GENERATION_MASK;
/// Number of consecutive states that one tag covers: within such a range a new state changes only the word.
pub(super) const WORD_RANGE: u64 = 1 << (64 - GENERATION_BITS);
/// The bits of a tag that hold the high bits of the state, which the generation displaces from the word. Zero in an
/// owner.
const SPILLED_BITS: u64 = GENERATION_MASK << SPILLED_AT;
const SPILLED_AT: u32 = CLASS_BITS;
/// The bits of a tag that hold its class.
pub(super) const CLASS_BITS: u32 = 13;
/// The owner field of a tag begins at this bit; the class is in the bits below [`SPILLED_AT`].
pub(super) const OWNER_AT: u32 = SPILLED_AT + GENERATION_BITS;

/// The high bits of a state, shifted to where a tag stores them.
#[inline(always)]
pub(super) fn spilled_bits_of(state: u64) -> u64 {
    state >> (64 - OWNER_AT) & SPILLED_BITS
}

/// The value of a slot as it was loaded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct SlotValue {
    tag: u64,
    word: u64,
}

impl SlotValue {
    #[inline(always)]
    fn new((tag, state): SlotEntry, generation: u64) -> SlotValue {
        SlotValue {
            tag: tag | spilled_bits_of(state),
            word: state << GENERATION_BITS | generation & GENERATION_MASK,
        }
    }

    #[inline(always)]
    pub(super) fn tag(self) -> u64 {
        self.tag & !SPILLED_BITS
    }

    #[inline(always)]
    pub(super) fn state(self) -> u64 {
        (self.tag & SPILLED_BITS) << (64 - OWNER_AT) | self.word >> GENERATION_BITS
    }

    pub(super) fn entry(self) -> SlotEntry {
        (self.tag(), self.state())
    }

    /// The same owner, class and generation with another state.
    #[inline(always)]
    fn with_state(self, state: u64) -> SlotValue {
        SlotValue::new((self.tag(), state), self.word)
    }

    /// The value that replaces this one if more than the word changes: with the next generation.
    fn next_generation(self, entry: SlotEntry) -> SlotValue {
        let generation = (self.word & GENERATION_MASK) + 1;
        SlotValue::new(entry, if generation == LOCKED_GENERATION { 0 } else { generation })
    }
}

/// One cache line of slots.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct CacheLine(pub(super) [Slot; SLOTS_PER_LINE]);

impl CacheLine {
    /// The slot whose tag matches. Branch-free: which of the four matches is unpredictable, and a mispredicted branch
    /// would delay the prefetch of the next request.
    #[inline(always)]
    pub(super) fn find(&self, is_wanted: impl Fn(u64) -> bool) -> Option<&Slot> {
        let mut found = None;
        for slot in self.0.each_ref() {
            found = if is_wanted(slot.raw_tag()) { Some(slot) } else { found };
        }
        found
    }

    /// The slot with this tag, spilled bits included. Assembly with SSE4.1 was not faster (8 M decisions over 1 M
    /// strings: 2.3 to 3.0 s, with it 2.9 to 3.1 s); a search that stops at the match took 4.6 to 5.6 s.
    #[inline(always)]
    pub(super) fn find_raw_tag(&self, tag: u64) -> Option<&Slot> {
        self.find(|raw_tag| raw_tag == tag)
    }
}

#[cfg(not(shuttle))]
mod atomic {
    use std::sync::atomic::{AtomicU64, Ordering};

    use portable_atomic::AtomicU128;

    use super::{GENERATION_MASK, LOCKED_GENERATION, SPILLED_BITS, SlotEntry, SlotValue};
    use crate::sync::spin;

    /// Whether one instruction replaces sixteen bytes. On x86-64 [`supported`] checks that the processor has it.
    const NATIVE: bool = !cfg!(tollgate_portable)
        && (AtomicU128::is_always_lock_free()
            || cfg!(all(target_arch = "x86_64", not(portable_atomic_no_outline_atomics))));
    /// Spins on a locked word before the thread yields.
    const SPINS: u32 = 100;

    /// Only where not [`NATIVE`].
    #[inline(always)]
    const fn is_locked(word: u64) -> bool {
        !NATIVE && word & GENERATION_MASK == LOCKED_GENERATION
    }

    #[repr(transparent)]
    #[derive(Default)]
    pub(in super::super) struct Slot(AtomicU128);

    impl From<u128> for SlotValue {
        fn from(pair: u128) -> SlotValue {
            SlotValue { tag: pair as u64, word: (pair >> 64) as u64 }
        }
    }

    impl From<SlotValue> for u128 {
        fn from(SlotValue { tag, word }: SlotValue) -> u128 {
            u128::from(word) << 64 | u128::from(tag)
        }
    }

    impl Slot {
        #[inline]
        pub(in super::super) fn tag(&self) -> u64 {
            self.raw_tag() & !SPILLED_BITS
        }

        /// The tag with its spilled bits.
        #[inline(always)]
        pub(in super::super) fn raw_tag(&self) -> u64 {
            self.tag_half().load(Ordering::Acquire)
        }

        /// The word, if the slot has this tag with its spilled bits. The tag is loaded after the word: if the tag has
        /// changed since, so has the generation of the word.
        #[inline(always)]
        pub(in super::super) fn word_if_tag(&self, raw_tag: u64) -> Option<u64> {
            let SlotValue { tag, word } = self.load_unconfirmed();
            (tag == raw_tag).then_some(word)
        }

        /// CAS of the word; returns whether it succeeded. Relaxed on failure: the current value is not used.
        #[inline(always)]
        pub(in super::super) fn cas_word(&self, word: u64, next: u64) -> bool {
            self.word_half().compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        }

        /// Loads the word, then the tag. The pair may be torn; [`cas_state`](Self::cas_state) and
        /// [`confirm`](Self::confirm) detect that.
        #[inline(always)]
        pub(in super::super) fn load_unconfirmed(&self) -> SlotValue {
            self.pair_when_unlocked(self.word_half().load(Ordering::Acquire))
        }

        /// Loads both in one consistent read.
        #[inline]
        pub(in super::super) fn load(&self) -> SlotValue {
            if NATIVE {
                return self.0.load(Ordering::Acquire).into();
            }
            let mut loaded = self.load_unconfirmed();
            while let Err(changed) = self.confirm(loaded) {
                loaded = changed;
            }
            loaded
        }

        /// Checks that the slot still has the loaded value; on failure returns the current one. Writes nothing. A word
        /// that has not changed since the tag was loaded was stored together with that tag.
        #[inline]
        pub(in super::super) fn confirm(&self, loaded: SlotValue) -> Result<(), SlotValue> {
            let word = self.word_half().load(Ordering::Acquire);
            if word == loaded.word { Ok(()) } else { Err(self.pair_when_unlocked(word)) }
        }

        /// Replaces the state of the same key; on failure returns the current value.
        #[inline(always)]
        pub(in super::super) fn cas_state(&self, loaded: SlotValue, state: u64) -> Result<(), SlotValue> {
            let next = loaded.with_state(state);
            if next.tag != loaded.tag {
                return self.cas_entry(loaded, (loaded.tag(), state));
            }
            let word = self.word_half();
            let replaced = word.compare_exchange(loaded.word, next.word, Ordering::AcqRel, Ordering::Acquire);
            replaced.map(drop).map_err(|word| self.pair_when_unlocked(word))
        }

        /// Replaces tag and word; on failure returns the current value.
        #[cold]
        pub(in super::super) fn cas_entry(
            &self,
            loaded: SlotValue,
            entry: SlotEntry,
        ) -> Result<(), SlotValue> {
            if !NATIVE {
                return self.cas_entry_locked(loaded, loaded.next_generation(entry));
            }
            let old = loaded.into();
            let new = loaded.next_generation(entry).into();
            let replaced = self.0.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
            replaced.map(drop).map_err(SlotValue::from)
        }

        /// Replaces tag and word one after the other. The word is locked meanwhile: no charge can replace it, and a
        /// thread that reads the new tag sees the lock or the new word.
        fn cas_entry_locked(&self, loaded: SlotValue, next: SlotValue) -> Result<(), SlotValue> {
            let word = self.word_half();
            let locked =
                word.compare_exchange(loaded.word, LOCKED_GENERATION, Ordering::AcqRel, Ordering::Acquire);
            locked.map_err(|word| self.pair_when_unlocked(word))?;
            let tag = self.raw_tag();
            if tag != loaded.tag {
                word.store(loaded.word, Ordering::Release);
                return Err(SlotValue { tag, word: loaded.word });
            }
            self.tag_half().store(next.tag, Ordering::Release);
            word.store(next.word, Ordering::Release);
            Ok(())
        }

        /// The word that was loaded, or the next one after an unlock, with the tag that is loaded after it.
        #[inline(always)]
        fn pair_when_unlocked(&self, word: u64) -> SlotValue {
            self.with_tag(if is_locked(word) { self.wait_until_unlocked() } else { word })
        }

        #[cold]
        fn wait_until_unlocked(&self) -> u64 {
            for spins in 0u32.. {
                let word = self.word_half().load(Ordering::Acquire);
                if !is_locked(word) {
                    return word;
                }
                if spins < SPINS { spin() } else { std::thread::yield_now() }
            }
            unreachable!("the lock is held for a few instructions")
        }

        #[inline(always)]
        fn with_tag(&self, word: u64) -> SlotValue {
            SlotValue { tag: self.raw_tag(), word }
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
            // SAFETY: both halves are aligned to eight bytes. Sixteen bytes are replaced by one instruction or not at
            // all, so a load of one half never sees a torn value.
            unsafe { &*std::ptr::from_ref(&self.0).cast::<[AtomicU64; 2]>() }
        }
    }

    /// Whether the processor has the 16-byte CAS. All x86-64 processors except the earliest do.
    pub(in super::super) fn supported() -> bool {
        #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
        return !NATIVE || AtomicU128::is_lock_free();
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
    fn every_state_round_trips_with_every_generation() {
        let tag = 0x0001_2345_6789_abcd << OWNER_AT | 7;
        for state in
            [0, 1, WORD_RANGE - 1, WORD_RANGE, WORD_RANGE + 1, 6 * WORD_RANGE + 42, u64::MAX - 1, u64::MAX]
        {
            for generation in [0, 1, GENERATION_MASK, GENERATION_MASK + 1, u64::MAX] {
                let loaded = SlotValue::new((tag, state), generation);
                assert_eq!(
                    (loaded.entry(), loaded.word & GENERATION_MASK),
                    ((tag, state), generation & GENERATION_MASK)
                );
            }
        }
    }

    #[test]
    fn a_change_of_the_tag_increments_the_generation() {
        let slot = Slot::default();
        let owner = |n: u64| n << OWNER_AT | 1;
        let empty = slot.load();
        assert_eq!(slot.cas_entry(empty, (owner(1), 5)), Ok(()));
        let first = slot.load();
        assert_eq!(slot.cas_entry(first, EMPTY), Ok(()));
        assert_eq!(slot.load().entry(), EMPTY);
        assert_eq!(slot.cas_entry(slot.load(), (owner(2), 5)), Ok(()));
        let second = slot.load();
        // The states are equal, but the tags differ.
        assert_eq!(slot.cas_state(first, 6), Err(second));
        assert!(!slot.cas_word(first.word, 6 << GENERATION_BITS | first.word & GENERATION_MASK));
        assert_eq!(slot.confirm(first), Err(second));
        assert_eq!(slot.word_if_tag(owner(1)), None);
        assert_eq!(
            (slot.cas_state(second, 5 + WORD_RANGE), slot.load().entry()),
            (Ok(()), (owner(2), 5 + WORD_RANGE))
        );
        assert!(slot.cas_state(second, 6).is_err(), "the word is the same, and the tag is not");
    }

    #[test]
    fn the_slot_of_a_tag_is_found_at_any_index() {
        let line = CacheLine::default();
        for n in 0..SLOTS_PER_LINE {
            let entry = ((n as u64 + 1) << OWNER_AT | 1, 3);
            line.0[n].cas_entry(line.0[n].load(), entry).expect("no other thread runs");
        }
        for n in 0..SLOTS_PER_LINE {
            let found = line.find_raw_tag((n as u64 + 1) << OWNER_AT | 1).expect("it is there");
            assert!(std::ptr::eq(found, &line.0[n]));
        }
        assert!(line.find_raw_tag(9 << OWNER_AT | 1).is_none() && line.find_raw_tag(0).is_none());
    }

    /// A regression: where sixteen bytes are replaced under a lock, a concurrent charge of the word was overwritten.
    #[test]
    fn no_charge_is_lost_while_the_slot_is_replaced() {
        const CHARGES: u64 = 100_000;
        const THREADS: u64 = 3;
        let tag = |n: u64| (n + 1) << OWNER_AT | 1;
        let slot = Slot::default();
        let start = WORD_RANGE - CHARGES; // half of the charges are in the next range
        slot.cas_entry(slot.load(), (tag(0), start)).expect("no other thread has it");
        let charge = |mut loaded: SlotValue| {
            while let Err(changed) = slot.cas_state(loaded, loaded.state() + 1) {
                loaded = changed;
            }
        };
        std::thread::scope(|scope| {
            let charging: Vec<_> = (0..THREADS)
                .map(|_| scope.spawn(|| (0..CHARGES).for_each(|_| charge(slot.load_unconfirmed()))))
                .collect();
            let mut n = 0;
            while charging.iter().any(|thread| !thread.is_finished()) {
                n += 1;
                let loaded = slot.load();
                let _ = slot.cas_entry(loaded, (tag(n % 2), loaded.state()));
            }
        });
        assert_eq!(slot.load().state() - start, THREADS * CHARGES);
    }
}
