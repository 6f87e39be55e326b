//! The memory store's part of a snapshot: its classes and every entry still worth keeping.
//!
//! States are in Unix time, so downtime counts as elapsed.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::algorithm::State;
use crate::algorithm::fixed_window::Window;
use crate::algorithm::gcra::Flow;
use crate::algorithm::sliding_compact::Pairs;
use crate::algorithm::sliding_counter::Counts;
use crate::algorithm::tiered_window::Tiers;
use crate::codec::{Decoder, Encoder};
use crate::fingerprint::Fingerprint;
use crate::limit::{Levels, Limit};
use crate::store::memory::packed::{Class, Form};
use crate::store::memory::shard::Saved;
use crate::store::memory::slab::Wide;
use crate::store::memory::table::{fingerprint_of, kind_of};
use crate::store::memory::{MemoryStore, SHARDS, first_fingerprint, shard_of};
use crate::time::{Period, Time, Unit};

const END: u64 = u64::MAX;
const PACKED: u64 = 0;
const WIDE: u64 = 1;
/// Above the number of a class's form: how much there is of it.
const CAPACITY_AT: u32 = 8;

impl MemoryStore {
    pub(crate) fn save(&self, out: &mut Encoder<impl Write>, now: Time) -> io::Result<()> {
        let _numbers_stay = self.classes.pause();
        let mut places = HashMap::new();
        for (place, (number, class)) in (0u64..).zip(self.classes.iter()) {
            places.insert(number, place);
            write_words(out, &class_words(&class))?;
        }
        out.word(END)?;
        for n in 0..SHARDS {
            let (shape, held) = (self.lock(n), self.held(n, now));
            for (tag, word) in held.live(&shape) {
                let fingerprint = fingerprint_of(tag).0 | first_fingerprint(n).0;
                match shape.wide((tag, word)) {
                    None => {
                        let Some(place) = places.get(&kind_of(tag)) else { continue };
                        write_words(out, &[PACKED, fingerprint, *place, word])?;
                    }
                    Some(wide) => {
                        write_words(out, &[WIDE, wide.key(), wide.fresh_at.nanos()])?;
                        write_state(out, &wide.state)?;
                    }
                }
            }
        }
        out.word(END)
    }

    /// Takes up what was saved; `None` if it makes no sense, with nothing promised about the rest.
    pub(crate) fn load(&self, from: &mut Decoder<'_>, now: Time) -> Option<u64> {
        let mut classes = Vec::new();
        while let Some(class) = read_class(from)? {
            classes.push(class);
        }
        let mut entries = 0;
        loop {
            let kind = from.word()?;
            if kind == END {
                return Some(entries);
            }
            let fingerprint = Fingerprint(from.word()?);
            let n = shard_of(fingerprint);
            let held = self.held(n, now);
            let mut shape = self.lock(n);
            let saved = match kind {
                PACKED => {
                    let class: &Class = classes.get(usize::try_from(from.word()?).ok()?)?;
                    let word = from.word().filter(|word| class.form.accepts(*word))?;
                    let number = self.classes.number(*class, &mut shape.recent);
                    number.map(|number| Saved::Packed(number, class.clamped(word, now)))
                }
                WIDE => {
                    let fresh_at = Time::from_nanos(from.word()?);
                    Some(Saved::Wide(Wide::saved(fingerprint.0, read_state(from)?, fresh_at)))
                }
                _ => return None,
            };
            entries += u64::from(saved.is_some_and(|saved| shape.restore(&held, fingerprint, saved)));
        }
    }
}

fn write_words(out: &mut Encoder<impl Write>, words: &[u64]) -> io::Result<()> {
    words.iter().try_for_each(|word| out.word(*word))
}

fn class_words(class: &Class) -> [u64; 4] {
    let [kind, rest @ ..] = form_words(&class.form);
    let [a, b, c] = rest;
    [kind | u64::from(class.capacity_log2) << CAPACITY_AT, a, b, c]
}

pub(super) fn form_words(form: &Form) -> [u64; 4] {
    match *form {
        Form::Instant(Flow::Nanos) => [0, 0, 0, 0],
        Form::Instant(Flow::Ticks { ticks, period_ns }) => [1, ticks, period_ns, 0],
        Form::Instant(Flow::Steps { tick_ns, share }) => [2, tick_ns, share, 0],
        Form::Instant(Flow::Calendar { period, refill }) => {
            [3, u64::from(period.count()), unit_word(period.unit()), refill]
        }
        Form::Window { period, .. } => [4, u64::from(period.count()), unit_word(period.unit()), 0],
        Form::Counts { window_ns, .. } => [5, window_ns, 0, 0],
    }
}

fn read_class(from: &mut Decoder<'_>) -> Option<Option<Class>> {
    let first = from.word()?;
    if first == END {
        return Some(None);
    }
    // Versions that knew no capacities wrote zero there: their entries count as ones at their limit.
    let (kind, capacity_log2) = (first & ((1 << CAPACITY_AT) - 1), u8::try_from(first >> CAPACITY_AT).ok()?);
    if u32::from(capacity_log2) >= u64::BITS {
        return None;
    }
    let words = [from.word()?, from.word()?, from.word()?];
    let period = || Period::new(words[0], unit_of(words[1])?);
    let up_to = |n: u64, most: u64| (1..=most).contains(&n).then_some(n);
    const LONGEST_NS: u64 = Time::from_secs(Period::MAX_SECONDS).nanos();
    let form = match kind {
        0 => Form::Instant(Flow::Nanos),
        1 => {
            let period_ns = up_to(words[1], LONGEST_NS)?;
            Form::Instant(Flow::Ticks { ticks: up_to(words[0], period_ns)?, period_ns })
        }
        2 => {
            let tick_ns = up_to(words[0], u64::MAX)?;
            let ticks = (Limit::HORIZON.nanos() / tick_ns).max(1);
            let share = up_to(words[1], Limit::MAX_UNITS / ticks)?;
            Form::Instant(Flow::Steps { tick_ns, share })
        }
        3 => {
            let refill = up_to(words[2], Limit::MAX_BURST)?;
            Form::Instant(Flow::Calendar { period: period()?, refill })
        }
        4 => Form::window(period()?),
        5 => Form::counts(up_to(words[0], LONGEST_NS)?),
        _ => return None,
    };
    Some(Some(Class { form, capacity_log2 }))
}

const UNITS: [Unit; 7] =
    [Unit::Second, Unit::Minute, Unit::Hour, Unit::Day, Unit::Week, Unit::Month, Unit::Year];

fn unit_word(unit: Unit) -> u64 {
    UNITS.iter().position(|known| *known == unit).expect("every unit is listed") as u64
}

pub(super) fn unit_of(word: u64) -> Option<Unit> {
    UNITS.get(usize::try_from(word).ok()?).copied()
}

fn write_state(out: &mut Encoder<impl Write>, state: &State) -> io::Result<()> {
    match state {
        State::Instant(instant) => write_words(out, &[0, *instant]),
        State::Window(window) => write_words(out, &[1, window.name, window.count]),
        State::Counts(counts) => write_words(out, &[2, counts.window, counts.current, counts.previous]),
        State::Steps(steps) => {
            out.word(3)?;
            write_pairs(out, steps)
        }
        State::Tiers(tiers) => {
            write_words(out, &[4, tiers.levels().len() as u64])?;
            tiers.levels().iter().try_for_each(|steps| write_pairs(out, steps))
        }
        State::Log(log) => {
            out.word(5)?;
            write_pairs(out, &**log)
        }
    }
}

fn read_state(from: &mut Decoder<'_>) -> Option<State> {
    Some(match from.word()? {
        0 => State::Instant(from.word()?),
        1 => State::Window(Window { name: from.word()?, count: from.word()? }),
        2 => State::Counts(Counts { window: from.word()?, current: from.word()?, previous: from.word()? }),
        3 => State::Steps(read_pairs(from)?),
        4 => {
            let levels = from.word().filter(|levels| *levels <= Levels::MAX as u64)?;
            State::Tiers(Tiers::from_levels((0..levels).map(|_| read_pairs(from)).collect::<Option<_>>()?))
        }
        5 => State::Log(Box::new(read_pairs(from)?)),
        _ => return None,
    })
}

fn write_pairs(out: &mut Encoder<impl Write>, pairs: &impl Pairs) -> io::Result<()> {
    out.word(pairs.pairs().count() as u64)?;
    pairs.pairs().try_for_each(|(step, count)| write_words(out, &[step, count]))
}

fn read_pairs<P: FromIterator<(u64, u64)>>(from: &mut Decoder<'_>) -> Option<P> {
    let pairs = from.word()?;
    let pairs: Option<Vec<_>> = (0..pairs).map(|_| Some((from.word()?, from.word()?))).collect();
    let pairs = pairs?;
    pairs.iter().try_fold(0u64, |sum, (_, count)| sum.checked_add(*count))?;
    Some(pairs.into_iter().collect())
}
