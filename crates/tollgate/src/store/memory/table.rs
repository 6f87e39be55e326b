//! A shard's table: lines of four slots that grow one at a time (linear hashing).
//!
//! A key has two home lines. While `n` lines are in use, a home is the lowest bits of one half of the
//! fingerprint; when line `n` is added, the keys of just one line are divided between the two. So
//! growth never moves more than four entries, and nothing ever pauses for it.
//!
//! Finding is lock-free. An entry that is being moved is in neither place for a moment: who does not
//! find a key asks again under the shard's lock.

use crate::fingerprint::Fingerprint;
use crate::store::memory::slot::{Line, Slot};
use crate::sync::{AtomicUsize, Ordering};

/// Lines in use at the beginning.
const FIRST_LINES: usize = if cfg!(shuttle) { 1 } else { 8 };

pub(super) struct Table {
    in_use: AtomicUsize,
}

impl Table {
    pub(super) fn new(max_lines: usize) -> Table {
        Table { in_use: AtomicUsize::new(FIRST_LINES.min(max_lines)) }
    }

    #[inline]
    pub(super) fn lines(&self) -> usize {
        self.in_use.load(Ordering::Acquire)
    }

    /// Says that one more line is in use; its keys have been moved there.
    pub(super) fn add_line(&self) {
        self.in_use.fetch_add(1, Ordering::Release);
    }

    /// The slot of a key, if it stands where it belongs.
    #[inline]
    pub(super) fn find<'l>(&self, lines: &'l [Line], fingerprint: Fingerprint) -> Option<&'l Slot> {
        let wanted = stored_bits(fingerprint);
        let [first, second] = homes(fingerprint, self.lines()).map(|line| &lines[line]);
        prefetch(second); // while the first one is on its way
        first.0.iter().chain(&second.0).find(|slot| slot.tag() >> KIND_BITS == wanted)
    }

    /// Asks the processor to bring a key's lines nearer.
    #[inline]
    pub(super) fn prefetch(&self, lines: &[Line], fingerprint: Fingerprint) {
        homes(fingerprint, self.lines()).into_iter().for_each(|line| prefetch(&lines[line]));
    }
}

#[inline]
fn prefetch(line: &Line) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch reads nothing, and the line exists.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(line).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

pub(super) const KIND_BITS: u32 = 8;

/// The bits of a fingerprint that a tag holds; never zero, for zero is empty.
#[inline]
pub(super) fn stored_bits(fingerprint: Fingerprint) -> u64 {
    (fingerprint.0 >> KIND_BITS).max(1)
}

#[inline]
pub(super) fn tag(fingerprint: Fingerprint, kind: u8) -> u64 {
    stored_bits(fingerprint) << KIND_BITS | u64::from(kind)
}

/// The fingerprint that a tag stands for, without the bits that say its kind.
pub(super) fn fingerprint_of(tag: u64) -> Fingerprint {
    Fingerprint(tag & !((1 << KIND_BITS) - 1))
}

pub(super) fn kind_of(tag: u64) -> u8 {
    tag as u8
}

/// The two home lines of a key while `lines` are in use. They come from bits that neither choose the
/// shard nor, as long as a shard has less than 2^18 lines, each other.
#[inline]
pub(super) fn homes(fingerprint: Fingerprint, lines: usize) -> [usize; 2] {
    [home(fingerprint.0 >> KIND_BITS, lines), home(fingerprint.0 >> 26, lines)]
}

#[inline]
fn home(bits: u64, lines: usize) -> usize {
    let mask = lines.next_power_of_two() - 1;
    match bits as usize & mask {
        line if line < lines => line,
        beyond => beyond & (mask >> 1), // not divided yet
    }
}

/// The line whose keys are divided when line `lines` is added.
pub(super) fn divided_by(lines: usize) -> usize {
    lines - (lines + 1).next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_a_line_divides_the_keys_of_one_line_only() {
        for lines in 1..600 {
            for key in 0..2_000u64 {
                let bits = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let (before, after) = (home(bits, lines), home(bits, lines + 1));
                assert!(before < lines && after <= lines);
                assert!(after == before || (before == divided_by(lines) && after == lines), "{lines}");
            }
        }
    }
}
