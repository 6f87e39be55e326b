//! The fields of a slot's eight bytes.
//!
//! This is all of a class that a lock-free charge needs. It fits one word ([`ClassSummary`]), so a load sees either
//! the old or the new class of a number, never a mixture.

use crate::algorithm::QuotaState;
use crate::algorithm::fixed_window::FixedWindowState;
use crate::algorithm::sliding_counter::SlidingCounterState;

/// The fields of a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Layout {
    /// The timestamp at which a bucket is full again.
    Timestamp,
    /// Window number in the high bits, count in the low bits.
    Window { count_bits: u32 },
    /// Window number in the high bits, then the previous and the current count.
    Counts { count_bits: u32 },
}

/// The layout of a class's words and the size of its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClassSummary {
    pub(crate) layout: Layout,
    pub(crate) capacity_log2: u8,
}

impl ClassSummary {
    const BITS_AT: u32 = 8;
    const CAPACITY_AT: u32 = 16;

    /// Never zero.
    pub(super) fn encode(self) -> u64 {
        let (kind, bits) = match self.layout {
            Layout::Timestamp => (1, 0),
            Layout::Window { count_bits } => (2, count_bits),
            Layout::Counts { count_bits } => (3, count_bits),
        };
        kind | u64::from(bits) << Self::BITS_AT | u64::from(self.capacity_log2) << Self::CAPACITY_AT
    }

    /// `None` if the number has no class.
    #[inline]
    pub(super) fn decode(word: u64) -> Option<ClassSummary> {
        let count_bits = u32::from((word >> Self::BITS_AT) as u8);
        let layout = match word as u8 {
            1 => Layout::Timestamp,
            2 => Layout::Window { count_bits },
            3 => Layout::Counts { count_bits },
            _ => return None,
        };
        Some(ClassSummary { layout, capacity_log2: (word >> Self::CAPACITY_AT) as u8 })
    }
}

impl Layout {
    /// The state in eight bytes; `None` if a field would overflow.
    pub(crate) fn pack(self, state: &QuotaState) -> Option<u64> {
        match (self, state) {
            (Layout::Timestamp, QuotaState::Timestamp(timestamp)) => Some(*timestamp),
            (Layout::Window { count_bits }, QuotaState::Window(window)) => pack_window(window, count_bits),
            (Layout::Counts { count_bits }, QuotaState::Counts(counts)) => pack_counts(counts, count_bits),
            _ => None,
        }
    }

    /// As above, with counts saturated to their fields.
    pub(crate) fn pack_saturated(self, state: &QuotaState) -> Option<u64> {
        let saturated = |count: u64, bits: u32| count.min((1 << bits) - 1);
        match (self, state) {
            (Layout::Window { count_bits: bits }, QuotaState::Window(window)) => {
                pack_window(&FixedWindowState { count: saturated(window.count, bits), ..*window }, bits)
            }
            (Layout::Counts { count_bits: bits }, QuotaState::Counts(counts)) => {
                let current = saturated(counts.current, bits);
                let previous = saturated(counts.previous, bits);
                pack_counts(&SlidingCounterState { current, previous, ..*counts }, bits)
            }
            _ => self.pack(state),
        }
    }

    pub(crate) fn unpack(self, word: u64) -> QuotaState {
        match self {
            Layout::Timestamp => QuotaState::Timestamp(word),
            Layout::Window { count_bits } => QuotaState::Window(unpack_window(word, count_bits)),
            Layout::Counts { count_bits } => QuotaState::Counts(unpack_counts(word, count_bits)),
        }
    }
}

pub(super) fn pack_window(window: &FixedWindowState, count_bits: u32) -> Option<u64> {
    pack_fields(window.id, 64 - count_bits, window.count, count_bits)
}

pub(super) fn unpack_window(word: u64, count_bits: u32) -> FixedWindowState {
    FixedWindowState { id: word >> count_bits, count: low_bits(word, count_bits) }
}

pub(super) fn pack_counts(counts: &SlidingCounterState, count_bits: u32) -> Option<u64> {
    let pair = pack_fields(counts.previous, count_bits, counts.current, count_bits)?;
    pack_fields(counts.window, 64 - 2 * count_bits, pair, 2 * count_bits)
}

pub(super) fn unpack_counts(word: u64, count_bits: u32) -> SlidingCounterState {
    SlidingCounterState {
        window: word >> (2 * count_bits),
        previous: low_bits(word >> count_bits, count_bits),
        current: low_bits(word, count_bits),
    }
}

pub(super) fn low_bits(word: u64, bits: u32) -> u64 {
    word & ((1 << bits) - 1)
}

/// Two fields in one word, if both fit.
fn pack_fields(high: u64, high_bits: u32, low: u64, low_bits: u32) -> Option<u64> {
    let fits = |value: u64, bits: u32| bits >= 64 || value >> bits == 0;
    (fits(high, high_bits) && fits(low, low_bits)).then(|| high << low_bits | low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::packed::SlotEncoding;
    use crate::time::Period;

    #[test]
    fn values_that_fit_round_trip_and_others_are_rejected() {
        let minute = SlotEncoding::counts(Period::MINUTE.nanos()).layout();
        let Layout::Counts { count_bits } = minute else { panic!("it is one of counts") };
        let now = 30_000_000;
        let counts =
            |current, previous| QuotaState::Counts(SlidingCounterState { window: now, current, previous });
        let largest = (1 << count_bits) - 1;
        assert!(largest >= 100_000, "a usual limit fits");
        for state in [counts(0, 1), counts(largest, 0), counts(largest, largest)] {
            assert_eq!(minute.pack(&state).map(|word| minute.unpack(word)), Some(state));
        }
        assert_eq!(minute.pack(&counts(60_000_000, 0)), None);
        assert_eq!(minute.pack(&counts(0, largest + 1)), None);
        let window = SlotEncoding::window(Period::MINUTE).layout();
        let state = QuotaState::Window(FixedWindowState { id: now, count: 60_000_000 });
        assert_eq!(window.pack(&state).map(|word| window.unpack(word)), Some(state));
    }

    #[test]
    fn a_brief_round_trips_through_its_word() {
        let layouts =
            [Layout::Timestamp, Layout::Window { count_bits: 40 }, Layout::Counts { count_bits: 17 }];
        for (layout, capacity_log2) in layouts.into_iter().zip([0, 63, 7]) {
            let brief = ClassSummary { layout, capacity_log2 };
            assert_eq!(ClassSummary::decode(brief.encode()), Some(brief));
        }
        assert_eq!(ClassSummary::decode(0), None);
    }
}
