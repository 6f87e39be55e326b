//! Which lines of the table have changed since a state log was last written: a bit for each line.
//!
//! A change is made first and marked afterwards; the reader clears a bit first and reads its line afterwards. A full
//! fence on both sides makes sure that one of them sees the other: either the reader sees the change, or the writer
//! finds the bit cleared and sets it again. A bit that is set already is not written, so hot keys share its memory.
//!
//! Entries that leave the table are not in any line. Those that were removed on purpose are remembered by key; those
//! that expired or were evicted may stay in the log.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::changes::{ChangedKeys, Changes};
use crate::fingerprint::Fingerprint;
use crate::sync::{Mutex, lock};

/// Removed keys that are remembered between two writes of the log.
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

    /// Notes that a line has changed. The change was an atomic read-modify-write, or was made under the shard's lock.
    #[inline]
    pub(super) fn mark(&self, line: usize) {
        let word = &self.words[line / Self::LINES_PER_WORD];
        let bit = 1 << (line % Self::LINES_PER_WORD);
        after_change();
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// The lines of a word that have changed, which are forgotten.
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

/// On x86-64 a locked instruction, which the change was, is a full fence; only the compiler must keep the order.
#[inline(always)]
fn after_change() {
    #[cfg(all(target_arch = "x86_64", not(tollgate_portable)))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(not(all(target_arch = "x86_64", not(tollgate_portable))))]
    fence(Ordering::SeqCst);
}
