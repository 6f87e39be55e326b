//! Interning: equal values are stored once, for as long as one is used.
//!
//! An interner holds one reference to each value. A value that only the interner refers to is unused. Unused values
//! are removed by a sweep once as many values were added as were in use at the last sweep: sweeps cost O(1) a change,
//! amortised.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use crate::collections::SharedStr;
use crate::collections::hamt::fold;

/// Fewer values than this cause no sweep.
pub(crate) const MIN_SWEEP: usize = 1_024;

pub(crate) struct Interner<T> {
    values: HashSet<T, BuildHasherDefault<FoldHasher>>,
    /// The length at which the next sweep runs.
    sweep_at: usize,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Interner { values: HashSet::default(), sweep_at: MIN_SWEEP }
    }
}

/// Values come from the operator, so the hash needs no secret: one multiplication per word.
#[derive(Default)]
struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        self.write_u64(rest.iter().fold(bytes.len() as u64, |word, byte| word << 8 | u64::from(*byte)));
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = fold(self.0, word);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A reference-counted value.
pub(crate) trait RefCounted: Clone + Eq + Hash {
    /// Whether there are references other than this one.
    fn is_used(&self) -> bool;
}

impl<T: Eq + Hash> RefCounted for Arc<T> {
    fn is_used(&self) -> bool {
        Arc::strong_count(self) > 1
    }
}

impl RefCounted for SharedStr {
    fn is_used(&self) -> bool {
        self.is_shared()
    }
}

impl<T: RefCounted> Interner<T> {
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Replaces a value by an equal one that is known, if there is one.
    pub(crate) fn share(&mut self, value: &mut T) {
        if let Some(known) = self.values.get(value) {
            *value = known.clone();
            return;
        }
        if self.values.len() >= self.sweep_at {
            self.sweep();
        }
        self.values.insert(value.clone());
    }

    /// Sound, because a value is cloned only by an owner of a reference, or under the lock that guards this table.
    pub(crate) fn sweep(&mut self) {
        self.values.retain(RefCounted::is_used);
        self.sweep_at = MIN_SWEEP.max(2 * self.values.len());
        if self.values.capacity() > 4 * self.sweep_at {
            self.values.shrink_to(self.sweep_at);
        }
    }
}
