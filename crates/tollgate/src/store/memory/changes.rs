//! Lines of the table that have changed since the state log was last written: one bit per line.
//!
//! A writer makes its change, then sets the bit; the reader clears the bit, then reads the line. A full fence on both
//! sides orders them: either the reader sees the change, or the writer sees the bit cleared and sets it again. A bit
//! that is already set is not written, so its cache line stays shared among threads that charge hot keys.
//!
//! Entries that leave the table are in no line. Explicitly removed keys are recorded by fingerprint; expired and
//! evicted entries may stay in the log.

use std::sync::atomic::fence;

use crate::changes::{ChangedKeys, Changes};
use crate::fingerprint::Fingerprint;
#[cfg(shuttle)]
use crate::sync::seeded;
use crate::sync::{AtomicU64, Mutex, Ordering, lock};

/// Removed keys that are recorded between two writes of the log.
const MAX_REMOVED: usize = 1 << 18;

pub(super) struct ChangedLines {
    words: Box<[AtomicU64]>,
    removed: Mutex<ChangedKeys>,
}

impl ChangedLines {
    pub(super) const LINES_PER_WORD: usize = u64::BITS as usize;

    pub(super) fn of(lines: usize) -> Option<ChangedLines> {
        let words = (0..lines.div_ceil(Self::LINES_PER_WORD)).map(|_| AtomicU64::new(0)).collect();
        let removed = Mutex::new(ChangedKeys::recorded(Changes::Recorded, MAX_REMOVED)?);
        Some(ChangedLines { words, removed })
    }

    /// Marks a line as changed. The change was an atomic read-modify-write, or was made under the shard's lock.
    #[inline]
    pub(super) fn mark(&self, line: usize) {
        let word = &self.words[line / Self::LINES_PER_WORD];
        let bit = 1 << (line % Self::LINES_PER_WORD);
        after_change();
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Clears a word of the bit set, then calls `read` with the bits that it had.
    pub(super) fn take_and_read(&self, word: usize, read: impl FnOnce(u64)) {
        #[cfg(shuttle)]
        if seeded::is(seeded::CLEAR_LATE) {
            read(self.words[word].load(Ordering::SeqCst));
            self.take(word);
            return;
        }
        read(self.take(word));
    }

    /// Takes and clears the changed lines of a word of the bit set.
    pub(super) fn take(&self, word: usize) -> u64 {
        let Some(word) = self.words.get(word) else { return 0 };
        if word.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let changed = word.swap(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        changed
    }

    pub(super) fn note_removed(&self, fingerprint: Fingerprint) {
        lock(&self.removed).add(fingerprint);
    }

    pub(super) fn removed(&self) -> &Mutex<ChangedKeys> {
        &self.removed
    }
}

/// On x86-64 the change was a locked instruction, which is a full fence; only the compiler must keep the order.
#[inline(always)]
fn after_change() {
    #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(tollgate_portable))))]
    fence(Ordering::SeqCst);
}
