//! A shard's table: lines of four slots that grow one at a time (linear hashing).
//!
//! A key has two home lines. While `n` lines are in use, a home is the lowest bits of one half of the
//! fingerprint; when line `n` is added, the keys of just one line are divided between the two. So
//! growth never moves more than four entries, and nothing ever pauses for it.
//!
//! Finding is lock-free. An entry that is being moved is in neither place for a moment: who does not
//! find a key asks again under the shard's lock.

use crate::fingerprint::Fingerprint;
use crate::prefetch;
use crate::store::memory::region::ShardLines;
use crate::store::memory::slot::{CLASS_BITS, CacheLine, OWNER_AT, Slot};
use crate::sync::{AtomicU64, Ordering};

/// Lines in use at the beginning.
const FIRST_LINES: usize = if cfg!(shuttle) { 1 } else { 8 };

pub(super) struct ShardTable {
    /// The lines in use below, and above them the mask of bits that name one.
    size: AtomicU64,
}

/// How many lines are in use, at one moment.
#[derive(Clone, Copy)]
pub(super) struct TableSize {
    lines: u32,
    mask: u32,
}

impl TableSize {
    fn of(lines: u32) -> TableSize {
        TableSize { lines, mask: u32::MAX >> ((lines - 1) | 1).leading_zeros() }
    }

    /// The line that bits of a fingerprint name.
    #[inline]
    fn line_of(self, bits: u64) -> usize {
        let line = bits as u32 & self.mask;
        // Beyond what is in use: not divided yet.
        (if line < self.lines { line } else { line & (self.mask >> 1) }) as usize
    }

    /// The two home lines of a key. They come from bits that a tag keeps, which do not choose the shard; as long as
    /// a shard has less than 2^18 lines they are different ones for each.
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
        let both = self.size.load(Ordering::Acquire);
        TableSize { lines: both as u32, mask: (both >> 32) as u32 }
    }

    /// Says how many lines are in use; what belongs into new ones has been moved there.
    pub(super) fn set_size(&self, TableSize { lines, mask }: TableSize) {
        self.size.store(u64::from(mask) << 32 | u64::from(lines), Ordering::Release);
    }

    /// Where a key stands if it is known; the processor is asked to bring it nearer.
    #[inline(always)]
    pub(super) fn candidates<'l>(
        &self,
        lines: ShardLines<'l>,
        fingerprint: Fingerprint,
    ) -> CandidateLines<'l> {
        // SAFETY: homes are lines in use, and a table never uses more lines than there are.
        let homes = self.size().candidate_lines(fingerprint).map(|line| unsafe { lines.at_unchecked(line) });
        homes.into_iter().for_each(|line| {
            prefetch::prefetch_range(std::ptr::from_ref(line).addr(), size_of::<CacheLine>())
        });
        CandidateLines { fingerprint, lines: homes }
    }

    /// The slot of a key, if it stands where it belongs.
    pub(super) fn find<'l>(&self, lines: ShardLines<'l>, fingerprint: Fingerprint) -> Option<&'l Slot> {
        self.candidates(lines, fingerprint).slot()
    }
}

/// The home lines of a key. While a table grows they may be those it had a moment ago.
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

    /// The slot of the key, if it stands here.
    #[inline(always)]
    pub(super) fn slot(&self) -> Option<&'l Slot> {
        self.find_in_either(|line| line.find(|tag| tag_matches(tag, self.fingerprint)))
    }

    #[inline(always)]
    pub(super) fn owner(&self) -> u64 {
        owner(self.fingerprint)
    }

    /// The slot with this tag and its lent bits, if it stands here.
    #[inline(always)]
    pub(super) fn slot_with_raw_tag(&self, whole_tag: u64) -> Option<&'l Slot> {
        self.find_in_either(|line| line.find_raw_tag(whole_tag))
    }

    /// Most keys stand in their first line, so the second is looked at only if they do not: who waits for one
    /// line waits less than who waits for two.
    #[inline(always)]
    fn find_in_either(&self, find: impl Fn(&'l CacheLine) -> Option<&'l Slot>) -> Option<&'l Slot> {
        let [first, second] = self.lines;
        find(first).or_else(|| find(second))
    }
}

/// The bits of a fingerprint that are not kept at all.
const DISCARDED_BITS: u32 = 8;
pub(super) const DISCARDED_MASK: u64 = (1 << DISCARDED_BITS) - 1;

/// What is the owner's of a tag: the 45 bits of a fingerprint that are kept. The highest six choose the shard, so two
/// of n keys are taken for one another with a probability of n² / 2^52.
#[inline]
fn owner(fingerprint: Fingerprint) -> u64 {
    fingerprint.0 >> DISCARDED_BITS << OWNER_AT
}

#[inline]
pub(super) fn tag(fingerprint: Fingerprint, kind: u16) -> u64 {
    owner(fingerprint) | class_bits(kind)
}

/// What is the kind's of a tag; never zero, for a tag of zero is empty.
#[inline]
pub(super) fn class_bits(kind: u16) -> u64 {
    u64::from(kind) + 1
}

/// Whether a tag is of this owner, whatever its kind and its lent bits are.
#[inline]
pub(super) fn tag_matches(tag: u64, fingerprint: Fingerprint) -> bool {
    // It is above the owner, but not as far as the next one: an empty one never is.
    tag.wrapping_sub(owner(fingerprint) + 1) < (1 << OWNER_AT) - 1
}

/// The fingerprint that a tag stands for, but for the bits that are known from the shard, or not kept.
pub(super) fn fingerprint_of(tag: u64) -> Fingerprint {
    Fingerprint(tag >> OWNER_AT << DISCARDED_BITS)
}

#[inline]
pub(super) fn class_number(tag: u64) -> u16 {
    ((tag & ((1 << CLASS_BITS) - 1)) as u16).wrapping_sub(1)
}

/// The line whose keys are divided when line `lines` is added.
pub(super) fn split_line(lines: usize) -> usize {
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
                let before = TableSize::of(lines as u32);
                let (before, after) = (before.line_of(bits), before.grown().line_of(bits));
                assert!(before < lines && after <= lines);
                assert!(after == before || (before == split_line(lines) && after == lines), "{lines}");
            }
        }
    }
}
