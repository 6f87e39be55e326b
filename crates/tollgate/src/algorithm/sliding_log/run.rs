//! A run of a sliding log: steps and their counts, oldest first, in nibbles, in one piece of memory.
//!
//! A number is its length in nibbles, followed by the nibbles. An entry is its distance from the previous one (unused
//! for the oldest) and, after a marker, its count if that is not one.

use smallvec::SmallVec;

use crate::sync::count_steps;

#[derive(Clone, Debug, Default)]
pub(super) struct LogRun {
    bytes: SmallVec<[u8; INLINE_BYTES]>,
    /// The start of the oldest entry, the start of the newest, and its end, in nibbles.
    head: u16,
    last: u16,
    end: u16,
    /// The first and the last step; stale if there is none.
    oldest: u64,
    newest: u64,
    total: u64,
}

struct LogEntry {
    distance: u64,
    count: u64,
    /// The start of the next entry.
    next: u16,
}

/// The nibbles of a number, or of a marker and a number, lowest first.
#[derive(Clone, Copy)]
struct Nibbles {
    bits: u64,
    len: u16,
}

impl Nibbles {
    const NONE: Nibbles = Nibbles { bits: 0, len: 0 };

    #[inline]
    fn number(number: u64) -> Nibbles {
        let len = nibbles_of(number);
        Nibbles { bits: number << 4 | u64::from(len), len: len + 1 }
    }

    #[inline]
    fn count(count: u64) -> Nibbles {
        let Nibbles { bits, len } = Nibbles::number(count);
        Nibbles { bits: bits << 4 | COUNT_MARKER, len: len + 1 }
    }
}

#[inline]
fn nibbles_of(number: u64) -> u16 {
    (u64::BITS - number.leading_zeros()).div_ceil(4) as u16
}

/// The nibbles of an entry.
#[inline]
fn entry_nibbles(distance: u64, count: u64) -> [Nibbles; 3] {
    let one_count = if count == 1 { Nibbles::NONE } else { Nibbles::count(count & MAX_NUMBER) };
    let rest = if count > MAX_NUMBER { Nibbles::count(count >> NUMBER_BITS) } else { Nibbles::NONE };
    [Nibbles::number(distance), one_count, rest]
}

impl LogRun {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.head == self.end
    }

    /// Whether no more entries are added to this run.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        usize::from(self.end - self.head) >= 2 * MAX_BYTES
    }

    /// Bytes of the entries.
    pub(super) fn live_bytes(&self) -> usize {
        usize::from(self.end - self.head).div_ceil(2)
    }

    #[inline]
    pub(super) fn heap_bytes(&self) -> usize {
        if self.bytes.spilled() { self.bytes.capacity() } else { 0 }
    }

    #[inline]
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// The first step, of which there is one.
    #[inline]
    pub(super) fn oldest(&self) -> u64 {
        self.oldest
    }

    /// The last step, of which there is one.
    #[inline]
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    fn entry(&self, at: u16) -> LogEntry {
        count_steps(1);
        let (distance, mut next) = self.number(at);
        let mut count = 1;
        let mut bits = 0;
        while next < self.end && self.word(next) & 0xf == COUNT_MARKER {
            let (part, end) = self.number(next + 1);
            count = if bits == 0 { part } else { count | part << bits };
            bits += NUMBER_BITS;
            next = end;
        }
        LogEntry { distance, count, next }
    }

    #[inline]
    fn push(&mut self, distance: u64, count: u64) {
        if count != 1 {
            return self.push_counted(distance, count);
        }
        let number = Nibbles::number(distance);
        self.make_room(usize::from(number.len.div_ceil(2)));
        self.last = self.end;
        self.push_nibbles(number);
    }

    #[inline(never)]
    fn push_counted(&mut self, distance: u64, count: u64) {
        let parts = entry_nibbles(distance, count);
        self.make_room(parts.iter().map(|part| usize::from(part.len)).sum::<usize>().div_ceil(2));
        self.last = self.end;
        parts.into_iter().filter(|part| part.len > 0).for_each(|part| self.push_nibbles(part));
    }

    /// Makes room for `needed` more bytes: at the front, or by growing a little.
    #[inline]
    fn make_room(&mut self, needed: usize) {
        if self.bytes.capacity() - self.bytes.len() < needed {
            self.make_more_room();
        }
    }

    #[cold]
    fn make_more_room(&mut self) {
        let dead_bytes = usize::from(self.head) / 2;
        let size = self.bytes.len();
        if dead_bytes >= (size / SLACK).max(MAX_ENTRY_BYTES) {
            self.drop_dead(dead_bytes);
        } else {
            self.bytes.reserve_exact((size / SLACK).max(MAX_ENTRY_BYTES));
        }
    }

    fn pop(&mut self) {
        let LogEntry { count, next, .. } = self.entry(self.head);
        self.total -= count;
        self.head = next;
        if self.is_empty() {
            self.bytes.clear();
            self.head = 0;
            self.last = 0;
            self.end = 0;
        } else {
            self.oldest += self.entry(self.head).distance;
        }
    }

    /// The nibbles from a position on, up to the end or to sixty bits.
    #[inline]
    fn word(&self, at: u16) -> u64 {
        let from = &self.bytes[usize::from(at) / 2..];
        let word = match from.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => from.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        };
        word >> (4 * (at % 2))
    }

    #[inline]
    fn push_nibbles(&mut self, Nibbles { mut bits, len }: Nibbles) {
        let mut left = len;
        if self.end % 2 == 1 {
            *self.bytes.last_mut().expect("the first half of a byte is there") |= (bits as u8) << 4;
            bits >>= 4;
            left -= 1;
        }
        // Two or three bytes: a call that copies them takes longer.
        while left > 0 {
            self.bytes.push(bits as u8);
            bits >>= 8;
            left = left.saturating_sub(2);
        }
        self.end += len;
    }

    /// A number, and the position after it.
    #[inline]
    fn number(&self, at: u16) -> (u64, u16) {
        let word = self.word(at);
        let len = (word & 0xf) as u16;
        (word >> 4 & ((1 << (4 * len)) - 1), at + 1 + len)
    }

    /// Removes the newest entry's bytes, to write it again.
    fn rewind(&mut self) {
        self.end = self.last;
        self.bytes.truncate(usize::from(self.end.div_ceil(2)));
        if self.end % 2 == 1 {
            *self.bytes.last_mut().expect("its low half belongs to the previous entry") &= 0xf;
        }
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = self.head;
        let mut step = self.oldest;
        std::iter::from_fn(move || {
            let entry = (at < self.end).then(|| self.entry(at))?;
            step += if at == self.head { 0 } else { entry.distance };
            at = entry.next;
            Some((step, entry.count))
        })
    }

    /// The sum of the steps before `from`.
    pub(super) fn sum_before(&self, from: u64) -> u64 {
        self.pairs().take_while(|(step, _)| *step < from).map(|(_, count)| count).sum()
    }

    pub(super) fn forget_before(&mut self, from: u64) {
        while !self.is_empty() && self.oldest < from {
            self.pop();
        }
        self.shrink_if_sparse();
    }

    /// As above, for a run to which nothing is added.
    pub(super) fn forget_before_in_full(&mut self, from: u64) {
        self.forget_before(from);
        let dead_bytes = usize::from(self.head) / 2;
        if dead_bytes >= (self.live_bytes() / FULL_SLACK).max(MAX_ENTRY_BYTES) {
            self.drop_dead(dead_bytes);
            self.shrink();
        }
    }

    /// Frees unused capacity.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    fn drop_dead(&mut self, dead_bytes: usize) {
        self.bytes.drain(..dead_bytes);
        for offset in [&mut self.head, &mut self.last, &mut self.end] {
            *offset -= 2 * dead_bytes as u16;
        }
    }

    fn shrink_if_sparse(&mut self) {
        if self.bytes.capacity()
            > 4 * (self.bytes.len() - usize::from(self.head) / 2).max(2 * MAX_ENTRY_BYTES)
        {
            *self = self.pairs().collect();
        }
    }

    #[inline]
    pub(super) fn add(&mut self, step: u64, count: u64) {
        if count == 0 {
            return;
        }
        let step = step.min(MAX_NUMBER);
        self.total += count;
        if self.is_empty() {
            self.oldest = step;
            self.newest = step;
            self.push(0, count);
        } else if step > self.newest {
            self.push(step - self.newest, count);
            self.newest = step;
        } else {
            self.add_to_newest(count);
        }
    }

    fn add_to_newest(&mut self, count: u64) {
        let LogEntry { distance, count: before, .. } = self.entry(self.last);
        self.rewind();
        self.push(distance, before + count);
    }

    /// Subtracts up to `count` from a step; returns how much was subtracted.
    pub(super) fn take(&mut self, step: u64, count: u64) -> u64 {
        if self.is_empty() || step < self.oldest || step > self.newest {
            return 0;
        }
        let mut taken = 0;
        let mut left = LogRun::with_capacity(self.live_bytes());
        for (at, units) in self.pairs() {
            if at == step {
                taken = count.min(units);
            } else if at > step && taken == 0 {
                return 0;
            }
            left.add(at, if at == step { units - taken } else { units });
        }
        if taken > 0 {
            *self = left;
        }
        taken
    }

    /// Both runs as one.
    pub(super) fn merged(&self, next: &LogRun) -> LogRun {
        let mut merged = LogRun::with_capacity(self.live_bytes() + next.live_bytes() + MAX_ENTRY_BYTES);
        self.pairs().chain(next.pairs()).for_each(|(step, count)| merged.add(step, count));
        merged
    }

    fn with_capacity(bytes: usize) -> LogRun {
        LogRun { bytes: SmallVec::with_capacity(bytes), ..LogRun::default() }
    }

    /// Subtracts `count`, which is at most the total, from the oldest steps.
    pub(super) fn take_oldest(&mut self, mut count: u64) {
        while count > 0 && !self.is_empty() {
            let oldest = self.entry(self.head).count;
            if oldest > count {
                self.take(self.oldest, count); // rewritten in place it might be longer
                return;
            }
            self.pop();
            count -= oldest;
        }
        self.shrink_if_sparse();
    }
}

impl FromIterator<(u64, u64)> for LogRun {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(pairs: I) -> LogRun {
        let mut run = LogRun::default();
        pairs.into_iter().for_each(|(step, count)| run.add(step, count));
        run
    }
}

/// Precedes a count, or the rest of a large one. No number has that many nibbles.
const COUNT_MARKER: u64 = 0xf;
const NUMBER_BITS: u32 = 4 * (COUNT_MARKER as u32 - 1);
pub(super) const MAX_NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// The fraction of its bytes that a log wastes at either end is at most one in this many.
pub(super) const SLACK: usize = 32;
/// The same of a run to which nothing is added.
const FULL_SLACK: usize = 8;
/// Bytes of the longest entry.
pub(in crate::algorithm) const MAX_ENTRY_BYTES: usize = 24;
/// Bytes that are stored in place: the longest entry, or six to eight ordinary ones. Most keys never have more, and are
/// read without a further cache miss.
const INLINE_BYTES: usize = MAX_ENTRY_BYTES;
/// A run of so many bytes is full. Rewriting it visits at most as many entries: the shortest has two nibbles.
pub(super) const MAX_BYTES: usize = 2048;
/// Offsets in nibbles fit 16 bits, with the bytes that are wasted at either end.
const _: () = assert!(2 * (MAX_BYTES + MAX_ENTRY_BYTES) <= u16::MAX as usize / 4);
