//! A shard's table: lines of four slots that grow one at a time (linear hashing).
//!
//! A key has two candidate lines. While `n` lines are in use, a candidate is the lowest bits of one half of the
//! fingerprint; when line `n` is added, the keys of exactly one line are split between the two. So growth moves at
//! most four entries and never pauses the table.
//!
//! Lookups are lock-free. An entry that is being moved is briefly in neither line, so a thread that does not find a
//! key looks it up again under the shard's lock.

use crate::fingerprint::Fingerprint;
use crate::prefetch;
use crate::store::memory::region::ShardLines;
use crate::store::memory::slot::{CLASS_BITS, CacheLine, OWNER_AT, Slot};
use crate::sync::{AtomicU64, Ordering};

/// Lines of an empty table.
const FIRST_LINES: usize = if cfg!(shuttle) { 1 } else { 8 };

pub(super) struct ShardTable {
    /// The number of lines in use in the low bits, and the mask of a line number in the high bits.
    size: AtomicU64,
}

/// A consistent read of the table's size.
#[derive(Clone, Copy)]
pub(super) struct TableSize {
    lines: u32,
    mask: u32,
}

impl TableSize {
    fn of(lines: u32) -> TableSize {
        TableSize { lines, mask: u32::MAX >> ((lines - 1) | 1).leading_zeros() }
    }

    /// The line that the given bits of a fingerprint select.
    #[inline]
    fn line_of(self, bits: u64) -> usize {
        let line = bits as u32 & self.mask;
        // Beyond the lines in use: this line is not split yet.
        (if line < self.lines { line } else { line & (self.mask >> 1) }) as usize
    }

    /// The two candidate lines of a key. They are made of bits that a tag stores and that do not choose the shard;
    /// while a shard has less than 2^18 lines the two use different bits.
    #[inline]
    pub(super) fn candidate_lines(self, fingerprint: Fingerprint) -> [usize; 2] {
        [self.line_of(fingerprint.0 >> DISCARDED_BITS), self.line_of(fingerprint.0 >> 26)]
    }

    pub(super) fn lines(self) -> usize {
        self.lines as usize
    }

    /// With one line more.
    pub(super) fn grown(self) -> TableSize {
        TableSize::of(self.lines + 1)
    }
}

impl ShardTable {
    pub(super) fn new(max_lines: usize) -> ShardTable {
        let table = ShardTable { size: AtomicU64::new(0) };
        table.set_size(TableSize::of(FIRST_LINES.min(max_lines) as u32));
        table
    }

    #[inline]
    pub(super) fn size(&self) -> TableSize {
        let packed = self.size.load(Ordering::Acquire);
        TableSize { lines: packed as u32, mask: (packed >> 32) as u32 }
    }

    /// Publishes the number of lines in use; the entries of new lines were moved before.
    pub(super) fn set_size(&self, TableSize { lines, mask }: TableSize) {
        self.size.store(u64::from(mask) << 32 | u64::from(lines), Ordering::Release);
    }

    /// The candidate lines of a key, prefetched.
    #[inline(always)]
    pub(super) fn candidates<'l>(
        &self,
        lines: ShardLines<'l>,
        fingerprint: Fingerprint,
    ) -> CandidateLines<'l> {
        // SAFETY: candidates are lines in use, and a table never uses more lines than were reserved.
        let lines_of_key =
            self.size().candidate_lines(fingerprint).map(|line| unsafe { lines.at_unchecked(line) });
        lines_of_key.into_iter().for_each(|line| {
            prefetch::prefetch_range(std::ptr::from_ref(line).addr(), size_of::<CacheLine>())
        });
        CandidateLines { fingerprint, lines: lines_of_key }
    }

    /// The slot of a key, if it is in one of its lines.
    pub(super) fn find<'l>(&self, lines: ShardLines<'l>, fingerprint: Fingerprint) -> Option<&'l Slot> {
        self.candidates(lines, fingerprint).slot()
    }
}

/// The candidate lines of a key. While the table grows they may be stale.
#[derive(Clone, Copy)]
pub(crate) struct CandidateLines<'l> {
    fingerprint: Fingerprint,
    lines: [&'l CacheLine; 2],
}

impl<'l> CandidateLines<'l> {
    #[inline]
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The slot of the key, if it is in one of the lines.
    #[inline(always)]
    pub(super) fn slot(&self) -> Option<&'l Slot> {
        self.find_in_either(|line| line.find(|tag| tag_matches(tag, self.fingerprint)))
    }

    #[inline(always)]
    pub(super) fn owner(&self) -> u64 {
        owner(self.fingerprint)
    }

    /// The slot with this tag and its spilled bits, if it is in one of the lines.
    #[inline(always)]
    pub(super) fn slot_with_raw_tag(&self, raw_tag: u64) -> Option<&'l Slot> {
        self.find_in_either(|line| line.find_raw_tag(raw_tag))
    }

    /// Most keys are in their first line, so the second is read only on a miss: one cache miss instead of two.
    #[inline(always)]
    fn find_in_either(&self, find: impl Fn(&'l CacheLine) -> Option<&'l Slot>) -> Option<&'l Slot> {
        let [first, second] = self.lines;
        find(first).or_else(|| find(second))
    }
}

/// The bits of a fingerprint that are not stored.
const DISCARDED_BITS: u32 = 8;
pub(super) const DISCARDED_MASK: u64 = (1 << DISCARDED_BITS) - 1;

/// The owner field of a tag: the 45 stored bits of the fingerprint. With the six bits that choose the shard, two of n
/// keys collide with a probability of n² / 2^52.
#[inline]
fn owner(fingerprint: Fingerprint) -> u64 {
    fingerprint.0 >> DISCARDED_BITS << OWNER_AT
}

#[inline]
pub(super) fn tag(fingerprint: Fingerprint, class_no: u16) -> u64 {
    owner(fingerprint) | class_bits(class_no)
}

/// The class field of a tag; never zero, because a tag of zero means empty.
#[inline]
pub(super) fn class_bits(class_no: u16) -> u64 {
    u64::from(class_no) + 1
}

/// Whether a tag has this owner, whatever its class and its spilled bits are.
#[inline]
pub(super) fn tag_matches(tag: u64, fingerprint: Fingerprint) -> bool {
    // The tags of an owner are a contiguous range: class and spilled bits are the low bits, and a class is never zero.
    // An empty tag is in no range.
    tag.wrapping_sub(owner(fingerprint) + 1) < (1 << OWNER_AT) - 1
}

/// The fingerprint of a tag, without the bits that are known from the shard or not stored.
pub(super) fn fingerprint_of(tag: u64) -> Fingerprint {
    Fingerprint(tag >> OWNER_AT << DISCARDED_BITS)
}

#[inline]
pub(super) fn class_number(tag: u64) -> u16 {
    ((tag & ((1 << CLASS_BITS) - 1)) as u16).wrapping_sub(1)
}

/// The line whose keys are split when line `lines` is added.
pub(super) fn split_line(lines: usize) -> usize {
    lines - (lines + 1).next_power_of_two() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adding_a_line_splits_one_line_only() {
        for lines in 1..600 {
            for key in 0..2_000u64 {
                let bits = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let size = TableSize::of(lines as u32);
                let before = size.line_of(bits);
                let after = size.grown().line_of(bits);
                assert!(before < lines && after <= lines);
                assert!(after == before || (before == split_line(lines) && after == lines), "{lines}");
            }
        }
    }
}
