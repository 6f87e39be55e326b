//! Classes and states as bytes.

use crate::algorithm::QuotaState;
use crate::algorithm::fixed_window::FixedWindowState;
use crate::algorithm::gcra::BucketClock;
use crate::algorithm::sliding_compact::StepCounts;
use crate::algorithm::sliding_counter::SlidingCounterState;
use crate::codec::{Decoder, Encoder};
use crate::limit::{Levels, Limit};
use crate::store::memory::packed::{Class, SlotEncoding};
use crate::time::{Period, Time, Unit};

/// The bit at which the capacity begins, above the number of the encoding.
const CAPACITY_AT: u32 = 8;

pub(super) fn class_words(class: &Class) -> [u64; 4] {
    let [kind, rest @ ..] = encoding_words(&class.encoding);
    let [a, b, c] = rest;
    [kind | u64::from(class.capacity_log2) << CAPACITY_AT, a, b, c]
}

pub(super) fn encoding_words(encoding: &SlotEncoding) -> [u64; 4] {
    match *encoding {
        SlotEncoding::Timestamp(BucketClock::Nanos) => [0, 0, 0, 0],
        SlotEncoding::Timestamp(BucketClock::Ticks { ticks, period_ns }) => [1, ticks, period_ns, 0],
        SlotEncoding::Timestamp(BucketClock::Steps { tick_ns, units_per_tick: share }) => {
            [2, tick_ns, share, 0]
        }
        SlotEncoding::Timestamp(BucketClock::Calendar { period, refill }) => {
            [3, u64::from(period.count()), unit_word(period.unit()), refill]
        }
        SlotEncoding::Window { period, .. } => [4, u64::from(period.count()), unit_word(period.unit()), 0],
        SlotEncoding::Counts { window_ns, .. } => [5, window_ns, 0, 0],
    }
}

pub(super) fn read_class(words: [u64; 4]) -> Option<Class> {
    let [first, words @ ..] = words;
    // Versions without capacities wrote zero: their entries are treated as being at their limit.
    let kind = first & ((1 << CAPACITY_AT) - 1);
    let capacity_log2 = u8::try_from(first >> CAPACITY_AT).ok()?;
    if u32::from(capacity_log2) >= u64::BITS {
        return None;
    }
    let period = || Period::new(words[0], unit_of(words[1])?);
    let up_to = |n: u64, most: u64| (1..=most).contains(&n).then_some(n);
    const LONGEST_NS: u64 = Time::from_secs(Period::MAX_SECONDS).nanos();
    let encoding = match kind {
        0 => SlotEncoding::Timestamp(BucketClock::Nanos),
        1 => {
            let period_ns = up_to(words[1], LONGEST_NS)?;
            SlotEncoding::Timestamp(BucketClock::Ticks { ticks: up_to(words[0], period_ns)?, period_ns })
        }
        2 => {
            let tick_ns = up_to(words[0], u64::MAX)?;
            let ticks = (Limit::HORIZON.nanos() / tick_ns).max(1);
            let share = up_to(words[1], Limit::MAX_UNITS / ticks)?;
            SlotEncoding::Timestamp(BucketClock::Steps { tick_ns, units_per_tick: share })
        }
        3 => {
            let refill = up_to(words[2], Limit::MAX_BURST)?;
            SlotEncoding::Timestamp(BucketClock::Calendar { period: period()?, refill })
        }
        4 => SlotEncoding::window(period()?),
        5 => SlotEncoding::counts(up_to(words[0], LONGEST_NS)?),
        _ => return None,
    };
    Some(Class { encoding, capacity_log2 })
}

const UNITS: [Unit; 7] =
    [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

fn unit_word(unit: Unit) -> u64 {
    UNITS.iter().position(|known| *known == unit).expect("every unit is listed") as u64
}

pub(super) fn unit_of(word: u64) -> Option<Unit> {
    UNITS.get(usize::try_from(word).ok()?).copied()
}

pub(super) fn write_state(out: &mut Encoder, state: &QuotaState) {
    match state {
        QuotaState::Timestamp(instant) => out.words([0, *instant]),
        QuotaState::Window(window) => out.words([1, window.id, window.count]),
        QuotaState::Counts(counts) => out.words([2, counts.window, counts.current, counts.previous]),
        QuotaState::Steps(steps) => {
            out.word(3);
            write_pairs(out, steps);
        }
        QuotaState::Tiers(tiers) => {
            out.words([4, 1]);
            write_pairs(out, tiers);
        }
        QuotaState::Log(log) => {
            out.word(5);
            write_pairs(out, log);
        }
    }
}

pub(super) fn read_state(from: &mut Decoder<'_>) -> Option<QuotaState> {
    Some(match from.word()? {
        0 => QuotaState::Timestamp(from.word()?),
        1 => QuotaState::Window(FixedWindowState { id: from.word()?, count: from.word()? }),
        2 => QuotaState::Counts(SlidingCounterState {
            window: from.word()?,
            current: from.word()?,
            previous: from.word()?,
        }),
        3 => QuotaState::Steps(read_pairs(from)?),
        4 => {
            let levels = from.word().filter(|levels| *levels <= Levels::MAX as u64)?;
            // Earlier versions also wrote the sums of the coarser levels.
            let levels: Option<Vec<_>> = (0..levels).map(|_| read_pairs(from)).collect();
            QuotaState::Tiers(levels?.into_iter().next().unwrap_or_default())
        }
        5 => QuotaState::Log(read_pairs(from)?),
        _ => return None,
    })
}

fn write_pairs(out: &mut Encoder, pairs: &impl StepCounts) {
    out.word(pairs.pairs().count() as u64);
    pairs.pairs().for_each(|(step, count)| out.words([step, count]));
}

fn read_pairs<P: FromIterator<(u64, u64)>>(from: &mut Decoder<'_>) -> Option<P> {
    let pairs = from.word()?;
    let pairs: Option<Vec<_>> = (0..pairs).map(|_| Some((from.word()?, from.word()?))).collect();
    let pairs = pairs?;
    pairs.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count))?;
    Some(pairs.into_iter().collect())
}
