//! Sliding window log: the timestamps of the last window, to ten microseconds.
//!
//! A log is a sliding window whose step is the resolution of time itself. Its memory grows with the limit, so each hit
//! is stored as the distance from the previous one, in as few nibbles as possible: six for a few hundred hits an hour.

use smallvec::SmallVec;

use crate::algorithm::sliding_compact::{StepCounts, StepStorage, StepWindow};
use crate::time::Period;

/// The unit of a log, in nanoseconds.
pub const STEP_NS: u64 = 10_000;

pub type SlidingLog = StepWindow<NibbleStorage>;

/// A window over steps of ten microseconds.
pub fn window(limit: u64, period: Period) -> SlidingLog {
    StepWindow::new(limit, period.nanos() / STEP_NS, STEP_NS)
}

/// The maximum bytes of the entries of a full log.
///
/// A distance d takes at most log16(d) + 1 nibbles, which is concave: the sum is largest where hits are evenly spread.
/// One more nibble for each is the length of the number, and another covers the counts of hits in one step.
pub(crate) fn max_bytes(window: &SlidingLog) -> u64 {
    let half_bytes = |number: u64| u64::from((u64::BITS - number.leading_zeros()).div_ceil(4));
    let entries = window.limit.clamp(1, window.steps);
    let distance = half_bytes(window.steps / entries) + 1;
    let count = if window.limit > entries { 2 + half_bytes(window.limit / entries) + 1 } else { 1 };
    let bytes = entries.saturating_mul(1 + distance + count) / 2;
    let slack = 2 * (bytes / SLACK as u64 + MAX_ENTRY_BYTES as u64 + 1);
    bytes.saturating_add(slack)
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NibbleStorage;

impl StepStorage for NibbleStorage {
    type Container = Log;
}

/// Steps and their counts, oldest first, in nibbles.
///
/// A number is its length in nibbles, followed by the nibbles. An entry is its distance from the previous one (unused
/// for the oldest) and, after a marker, its count if that is not one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Log {
    bytes: SmallVec<[u8; INLINE_BYTES]>,
    /// The start of the oldest entry, the start of the newest, and its end, in nibbles.
    head: u32,
    last: u32,
    end: u32,
    oldest: u64,
    newest: u64,
    total: u64,
}

struct LogEntry {
    distance: u64,
    count: u64,
    /// The start of the next entry.
    next: u32,
}

/// The nibbles of a number, or of a marker and a number, lowest first.
#[derive(Clone, Copy)]
struct Nibbles {
    bits: u64,
    len: u32,
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
fn nibbles_of(number: u64) -> u32 {
    (u64::BITS - number.leading_zeros()).div_ceil(4)
}

/// The nibbles of an entry.
#[inline]
fn entry_nibbles(distance: u64, count: u64) -> [Nibbles; 3] {
    let one_count = if count == 1 { Nibbles::NONE } else { Nibbles::count(count & MAX_NUMBER) };
    let rest = if count > MAX_NUMBER { Nibbles::count(count >> NUMBER_BITS) } else { Nibbles::NONE };
    [Nibbles::number(distance), one_count, rest]
}

impl Log {
    fn is_empty(&self) -> bool {
        self.head == self.end
    }

    fn entry(&self, at: u32) -> LogEntry {
        #[cfg(test)]
        tests::ENTRIES_READ.set(tests::ENTRIES_READ.get() + 1);
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
        let parts = entry_nibbles(distance, count);
        self.make_room(parts.iter().map(|part| part.len as usize).sum::<usize>().div_ceil(2));
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
        let dead_bytes = self.head as usize / 2;
        let size = self.bytes.len();
        if dead_bytes >= (size / SLACK).max(MAX_ENTRY_BYTES) {
            self.bytes.drain(..dead_bytes);
            for offset in [&mut self.head, &mut self.last, &mut self.end] {
                *offset -= 2 * dead_bytes as u32;
            }
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
    fn word(&self, at: u32) -> u64 {
        let from = &self.bytes[at as usize / 2..];
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
        self.bytes.extend_from_slice(&bits.to_le_bytes()[..left.div_ceil(2) as usize]);
        self.end += len;
    }

    /// A number, and the position after it.
    #[inline]
    fn number(&self, at: u32) -> (u64, u32) {
        let word = self.word(at);
        let len = (word & 0xf) as u32;
        (word >> 4 & ((1 << (4 * len)) - 1), at + 1 + len)
    }

    /// Removes the newest entry's bytes, to write it again.
    fn rewind(&mut self) {
        self.end = self.last;
        self.bytes.truncate((self.end as usize).div_ceil(2));
        if self.end % 2 == 1 {
            *self.bytes.last_mut().expect("its low half belongs to the previous entry") &= 0xf;
        }
    }
}

impl StepCounts for Log {
    fn pairs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut at = self.head;
        let mut step = self.oldest;
        std::iter::from_fn(move || {
            let entry = (at < self.end).then(|| self.entry(at))?;
            step += if at == self.head { 0 } else { entry.distance };
            at = entry.next;
            Some((step, entry.count))
        })
    }

    fn total(&self) -> u64 {
        self.total
    }

    #[inline]
    fn heap_bytes(&self) -> usize {
        if self.bytes.spilled() { self.bytes.capacity() } else { 0 }
    }

    fn forget_before(&mut self, from: u64) {
        while !self.is_empty() && self.oldest < from {
            self.pop();
        }
        if self.bytes.capacity() > 4 * (self.bytes.len() - self.head as usize / 2).max(2 * MAX_ENTRY_BYTES) {
            let kept: Log = self.pairs().collect();
            *self = kept;
        }
    }

    fn add(&mut self, step: u64, count: u64) {
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
            let LogEntry { distance, count: before, .. } = self.entry(self.last);
            self.rewind();
            self.push(distance, before + count);
        }
    }

    fn take(&mut self, step: u64, count: u64) -> u64 {
        let mut taken = 0;
        let kept = self.pairs().map(|(at, units)| {
            let off = if at == step { count.min(units) } else { 0 };
            taken += off;
            (at, units - off)
        });
        let kept: Log = kept.collect();
        if taken > 0 {
            *self = kept;
        }
        taken
    }

    fn take_oldest(&mut self, mut count: u64) {
        while count > 0 && !self.is_empty() {
            let oldest = self.entry(self.head).count;
            if oldest > count {
                self.take(self.oldest, count); // rewritten in place it might be longer
                return;
            }
            self.pop();
            count -= oldest;
        }
    }

    fn newest(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.newest)
    }
}

impl FromIterator<(u64, u64)> for Log {
    fn from_iter<I: IntoIterator<Item = (u64, u64)>>(pairs: I) -> Log {
        let mut log = Log::default();
        pairs.into_iter().for_each(|(step, count)| log.add(step, count));
        log
    }
}

/// Precedes a count, or the rest of a large one. No number has that many nibbles.
const COUNT_MARKER: u64 = 0xf;
const NUMBER_BITS: u32 = 4 * (COUNT_MARKER as u32 - 1);
const MAX_NUMBER: u64 = (1 << NUMBER_BITS) - 1;
/// The fraction of its bytes that a log wastes at either end is at most one in this many.
const SLACK: usize = 32;
/// Bytes of the longest entry.
pub(crate) const MAX_ENTRY_BYTES: usize = 24;
/// Bytes that are stored in place: the longest entry, or six to eight ordinary ones. Most keys never have more, and are
/// read without a further cache miss.
const INLINE_BYTES: usize = MAX_ENTRY_BYTES;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{Admission, Algorithm};
    use crate::time::Time;

    thread_local! {
        pub(super) static ENTRIES_READ: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn a_counted_denial_takes_time_linear_in_the_log() {
        // A regression: one hit of cost 40,000 held the lock of a shard for 21 seconds.
        let read = |limit: u64| {
            let log = window(limit, Period::HOUR);
            let mut state = log.fresh();
            let mut now = Time::from_secs(1_800_000_000);
            for _ in 0..limit {
                now = now + Duration::from_micros(100);
                log.charge(&mut state, now, 1);
            }
            ENTRIES_READ.set(0);
            log.drain(&mut state, now, limit - 1);
            assert_eq!(state.total(), limit);
            log.drain(&mut state, now, limit / 2);
            assert_eq!((state.total(), state.pairs().count()), (limit, 1));
            ENTRIES_READ.get()
        };
        let single = read(20_000);
        let double = read(40_000);
        assert!(double * 10 <= single * 22, "{double} entries read for twice the input of {single}");
    }

    #[test]
    fn a_log_in_half_the_steps_counts_as_much_for_as_long() {
        for len in 2..12 {
            let log: Log = (0..len).map(|n| (1_000 + 10 * n, n + 1)).collect();
            let halved = log.halved().expect("there are two steps");
            assert_eq!((halved.total(), halved.newest()), (log.total(), log.newest()));
            assert_eq!(halved.pairs().count() as u64, len.div_ceil(2));
            for from in 1_000..1_000 + 10 * len {
                assert!(halved.sum_from(from) >= log.sum_from(from), "looser from {from} on");
            }
        }
        assert_eq!(Log::from_iter([(7, 3)]).halved(), None);
    }

    #[test]
    fn the_one_above_the_limit_within_the_window_is_denied() {
        let log = window(3, Period::MINUTE);
        let mut state = log.fresh();
        let start = Time::from_secs(1_800_000_000);
        for n in [0, 10, 10] {
            let now = start + Duration::from_secs(n);
            assert!(log.decide(&state, now, 1).is_allowed());
            log.charge(&mut state, now, 1);
        }
        let retry_after = Duration::from_micros(30_000_010);
        let now = start + Duration::from_micros(29_999_990);
        assert_eq!(log.decide(&state, now, 1).admission, Admission::Deny { retry_after });
        assert!(log.decide(&state, now + retry_after, 1).is_allowed());
        let two_leave_together = Duration::from_micros(40_000_010);
        assert_eq!(log.decide(&state, now, 2).admission, Admission::Deny { retry_after: two_leave_together });
    }

    #[test]
    fn a_log_is_the_pairs_that_were_added_less_what_was_taken_and_forgotten() {
        let mut below = crate::algorithm::repeatable_draws();
        for _ in 0..200 {
            let mut log = Log::default();
            let mut model = BTreeMap::new();
            let mut now = 1_800_000_000_000_000;
            for _ in 0..300 {
                let apart = [3, 100, 10_000_000, 1 << 40][below(4) as usize];
                now += below(apart);
                match below(8) {
                    0 => {
                        let from = now - below(4 * apart);
                        log.forget_before(from);
                        model = model.split_off(&from);
                    }
                    1 => {
                        let nth = below(model.len() as u64 + 1) as usize;
                        let step = model.keys().nth(nth).copied().unwrap_or(7);
                        let taken = log.take(step, 2);
                        let left = model.remove(&step).unwrap_or(0u64);
                        assert_eq!(taken, left.min(2));
                        if left > 2 {
                            model.insert(step, left - 2);
                        }
                    }
                    _ => {
                        let count = [1, 1, 1, 0, 5, 1 << 58][below(6) as usize];
                        log.add(now, count);
                        *model.entry(now).or_default() += count;
                        model.retain(|_, count| *count > 0);
                    }
                }
                assert!(log.pairs().eq(model.iter().map(|(step, count)| (*step, *count))));
                assert_eq!(log.total(), model.values().sum());
                assert_eq!(log.newest(), model.keys().next_back().copied());
            }
        }
    }

    #[test]
    fn a_hit_takes_little_more_than_three_bytes() {
        let log = window(500, Period::HOUR);
        let mut state = log.fresh();
        let mut now = Time::from_secs(1_800_000_000);
        for n in 0..20_000u64 {
            now = now + Duration::from_nanos(7_200_000_000 + n * 7_919_777 % 3_000_000_000);
            if log.decide(&state, now, 1).is_allowed() {
                log.charge(&mut state, now, 1);
            }
            assert!(state.heap_bytes() <= 1_700, "{} bytes", state.heap_bytes());
        }
        assert!(state.total() > 400);
    }
}
