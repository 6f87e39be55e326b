//! One shard: a table of 16-byte slots in 64-byte lines, and a slab for what needs more.
//!
//! A key lives in one of two runs of four lines. Nothing is ever made empty again but by rebuilding,
//! so the first empty slot ends a search; expired entries are taken over in place. At the cap the
//! entry nearest to "never seen" goes first, and a newcomer that does not owe clearly more than one of
//! its neighbours is not kept (I8). Table and slab each keep a share of the cap that the other cannot
//! take, so that a flood of one kind of key does not switch the limits of the other kind off.

use crate::algorithm::{Algorithm, Quota, State};
use crate::fingerprint::Fingerprint;
use crate::store::memory::packed::{Class, Classes};
use crate::store::memory::slab::{Slab, Wide};
use crate::time::Time;

const SLOTS_PER_LINE: usize = 4;
const LINES_PER_RUN: usize = 4;
/// Kinds of a slot beside the classes, in the lowest byte of its tag.
const WIDE: u8 = 254;
const VACANT: u8 = 255;
/// Wide entries looked at with every write of one, so that what has expired does not pile up.
const SWEEP: usize = 2;
/// Wide entries looked at when the slab has no room.
const ROOM_SEARCH: usize = 64;
/// A resident makes room if it owes less than one part in this many of what a newcomer owes. Any flood
/// of fresh keys owes a little more than an offender who has waited a little: that is not enough.
const CLEARLY_MORE: u32 = 4;
/// One part in this many of the cap is kept for the table, and one for the slab.
const RESERVE: usize = 8;

#[derive(Clone, Copy, Default)]
struct Slot {
    /// 56 bits of fingerprint and the kind; zero is empty.
    tag: u64,
    word: u64,
}

#[repr(align(64))]
#[derive(Clone, Copy, Default)]
struct Line([Slot; SLOTS_PER_LINE]);

pub(crate) struct Shard {
    lines: Vec<Line>,
    slab: Slab,
    cap_bytes: usize,
    entries: usize,
}

/// What keeping a state has cost others.
#[derive(Default)]
pub(crate) struct Kept {
    pub(crate) evicted: u64,
    pub(crate) unstored: u64,
}

impl Slot {
    fn is_empty(&self) -> bool {
        self.tag == 0
    }

    fn kind(&self) -> u8 {
        self.tag as u8
    }

    fn holds(&self, fingerprint: Fingerprint) -> bool {
        self.tag >> 8 == tag(fingerprint, 0) >> 8 && self.kind() != VACANT
    }
}

fn tag(fingerprint: Fingerprint, kind: u8) -> u64 {
    // A fingerprint whose kept bits are all zero would look empty.
    ((fingerprint.0 >> 8).max(1) << 8) | u64::from(kind)
}

impl Shard {
    pub(crate) fn new(cap_bytes: usize) -> Shard {
        Shard { lines: vec![Line::default(); LINES_PER_RUN], slab: Slab::default(), cap_bytes, entries: 0 }
    }

    pub(crate) fn entries(&self) -> usize {
        self.entries
    }

    pub(crate) fn bytes(&self) -> usize {
        self.line_bytes() + self.slab.bytes()
    }

    fn line_bytes(&self) -> usize {
        self.lines.len() * size_of::<Line>()
    }

    /// What one of the two parts may take while the other takes `other`.
    fn share(&self, other: usize) -> usize {
        self.cap_bytes.saturating_sub(other.max(self.cap_bytes / RESERVE))
    }

    /// The state of a key.
    pub(crate) fn get(&self, classes: &Classes, fingerprint: Fingerprint) -> Option<State> {
        let slot = self.slot(self.find(fingerprint)?);
        match slot.kind() {
            WIDE => Some(self.slab.get(slot.word as usize)?.state.clone()),
            kind => Some(classes.get(kind)?.unpack(slot.word)),
        }
    }

    /// Forgets a key; says whether it was there.
    pub(crate) fn remove(&mut self, fingerprint: Fingerprint) -> bool {
        let Some(at) = self.find(fingerprint) else { return false };
        self.vacate(at);
        true
    }

    /// Keeps a state, growing or evicting where there is no room.
    pub(crate) fn put(
        &mut self,
        classes: &Classes,
        fingerprint: Fingerprint,
        quota: &Quota,
        state: &State,
        now: Time,
    ) -> Kept {
        let mut kept = Kept::default();
        let fresh_at = quota.fresh_at(state);
        let packed = Class::of(quota).and_then(|class| Some((classes.number(class)?, class.pack(state)?)));
        let at = match self.find(fingerprint) {
            Some(at) => Some(at),
            None if fresh_at <= now => return kept, // nothing to remember
            None => self.claim(classes, fingerprint, fresh_at, now, &mut kept),
        };
        let Some(at) = at else {
            kept.unstored += 1;
            return kept;
        };
        match packed {
            Some((kind, word)) => self.write_packed(at, fingerprint, kind, word),
            None => {
                let wide = Wide { fingerprint, state: state.clone(), fresh_at };
                self.write_wide(at, wide, now, &mut kept);
            }
        }
        kept
    }

    /// Every entry that is still worth keeping at `now`.
    pub(crate) fn live(&self, classes: &Classes, now: Time) -> impl Iterator<Item = (u64, Entry<'_>)> {
        let slots = self.lines.iter().flat_map(|line| line.0);
        slots.filter(|slot| !slot.is_empty() && slot.kind() != VACANT).filter_map(move |slot| {
            let fingerprint = slot.tag & !0xff;
            match slot.kind() {
                WIDE => {
                    let wide = self.slab.get(slot.word as usize)?;
                    (wide.fresh_at > now).then_some((fingerprint, Entry::Wide(&wide.state, wide.fresh_at)))
                }
                kind => {
                    let live = classes.get(kind)?.fresh_at(slot.word) > now;
                    live.then_some((fingerprint, Entry::Packed(kind, slot.word)))
                }
            }
        })
    }

    /// Puts back what `live` gave, as far as there is room; says whether it was kept.
    pub(crate) fn restore(
        &mut self,
        classes: &Classes,
        fingerprint: Fingerprint,
        entry: Restored,
        now: Time,
    ) -> bool {
        let fresh_at = match &entry {
            Restored::Packed(kind, word) => {
                classes.get(*kind).map_or(Time::EPOCH, |class| class.fresh_at(*word))
            }
            Restored::Wide(_, fresh_at) => *fresh_at,
        };
        let mut kept = Kept::default();
        if fresh_at <= now || self.find(fingerprint).is_some() {
            return false;
        }
        let Some(at) = self.claim(classes, fingerprint, fresh_at, now, &mut kept) else { return false };
        match entry {
            Restored::Packed(kind, word) => self.write_packed(at, fingerprint, kind, word),
            Restored::Wide(state, fresh_at) => {
                self.write_wide(at, Wide { fingerprint, state, fresh_at }, now, &mut kept);
            }
        }
        kept.unstored == 0
    }

    fn slot(&self, (line, slot): Place) -> Slot {
        self.lines[line].0[slot]
    }

    /// The slots where a key may be, in the order in which they are filled.
    fn places(&self, fingerprint: Fingerprint) -> impl Iterator<Item = Place> + use<> {
        let lines = self.lines.len();
        // Bits that neither choose the shard nor each other's run.
        let halves =
            [fingerprint.0 << 6 >> 32, (fingerprint.0 >> 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32];
        halves.into_iter().flat_map(move |half| {
            let first = ((half * lines as u64) >> 32) as usize;
            (0..LINES_PER_RUN)
                .flat_map(move |n| (0..SLOTS_PER_LINE).map(move |slot| ((first + n) % lines, slot)))
        })
    }

    fn find(&self, fingerprint: Fingerprint) -> Option<Place> {
        for place in self.places(fingerprint) {
            let slot = self.slot(place);
            if slot.holds(fingerprint) {
                return Some(place);
            }
            if slot.is_empty() {
                return None;
            }
        }
        None
    }

    fn fresh_at(&self, classes: &Classes, slot: Slot) -> Time {
        match slot.kind() {
            VACANT => Time::EPOCH,
            WIDE => self.slab.get(slot.word as usize).map_or(Time::EPOCH, |wide| wide.fresh_at),
            kind => classes.get(kind).map_or(Time::EPOCH, |class| class.fresh_at(slot.word)),
        }
    }

    /// A slot for a key that is not there yet, made vacant.
    fn claim(
        &mut self,
        classes: &Classes,
        fingerprint: Fingerprint,
        fresh_at: Time,
        now: Time,
        kept: &mut Kept,
    ) -> Option<Place> {
        loop {
            let mut nearest: Option<(Time, Place)> = None;
            for place in self.places(fingerprint) {
                let slot = self.slot(place);
                let theirs = if slot.is_empty() { Time::EPOCH } else { self.fresh_at(classes, slot) };
                if theirs <= now {
                    self.vacate(place);
                    return Some(place);
                }
                if nearest.is_none_or(|(time, _)| theirs < time) {
                    nearest = Some((theirs, place));
                }
            }
            if self.grow(classes, now, kept) {
                continue;
            }
            let (_, place) = nearest.filter(|(theirs, _)| gives_way(*theirs, fresh_at, now))?;
            self.vacate(place);
            kept.evicted += 1;
            return Some(place);
        }
    }

    /// Rebuilds the table half as large again, leaving out what has expired; `false` at the cap.
    fn grow(&mut self, classes: &Classes, now: Time, kept: &mut Kept) -> bool {
        self.slab.shrink();
        let room = self.share(self.slab.bytes()) / size_of::<Line>();
        let lines = (self.lines.len() + self.lines.len() / 2).min(room);
        if lines < self.lines.len() + self.lines.len() / 8 + 1 {
            return false; // so little more would not hold all that are to move
        }
        let old = std::mem::replace(&mut self.lines, vec![Line::default(); lines]);
        for slot in old.iter().flat_map(|line| line.0).filter(|slot| !slot.is_empty()) {
            let fingerprint = Fingerprint(slot.tag & !0xff);
            let live = self.fresh_at(classes, slot) > now;
            let place = self.places(fingerprint).find(|place| self.slot(*place).is_empty()).filter(|_| live);
            match place {
                Some((line, n)) => self.lines[line].0[n] = slot,
                None => {
                    self.release(slot);
                    kept.evicted += u64::from(live);
                }
            }
        }
        true
    }

    fn write_packed(&mut self, (line, slot): Place, fingerprint: Fingerprint, kind: u8, word: u64) {
        let old = self.lines[line].0[slot];
        if old.kind() == WIDE && old.holds(fingerprint) {
            self.slab.remove(old.word as usize);
        }
        self.count_in(old);
        self.lines[line].0[slot] = Slot { tag: tag(fingerprint, kind), word };
    }

    /// Writes a wide state if the slab has or can make room for it, else forgets the key.
    fn write_wide(&mut self, (line, slot): Place, wide: Wide, now: Time, kept: &mut Kept) {
        let old = self.lines[line].0[slot];
        let resident = old.holds(wide.fingerprint);
        if resident && old.kind() == WIDE {
            self.slab.remove(old.word as usize); // its place is the first to be taken again
        }
        for _ in 0..SWEEP.min(self.slab.len()) {
            self.drop_next(|theirs| theirs <= now);
        }
        // A resident that has grown goes before those that owe no more; a newcomer must owe clearly more.
        let goes = |theirs: Time| {
            gives_way(theirs, wide.fresh_at, now) || (resident && theirs <= wide.fresh_at) || theirs <= now
        };
        if !self.make_room(&wide.state, goes, now, kept) {
            kept.unstored += 1;
            if resident {
                self.entries -= 1;
                self.lines[line].0[slot] = Slot { tag: old.tag | u64::from(VACANT), word: 0 };
            }
            return;
        }
        self.count_in(old);
        let tag = tag(wide.fingerprint, WIDE);
        self.lines[line].0[slot] = Slot { tag, word: self.slab.insert(wide) as u64 };
    }

    fn count_in(&mut self, old: Slot) {
        self.entries += usize::from(old.is_empty() || old.kind() == VACANT);
    }

    /// Lets the entry at a place go; the slot stays taken, so that searches pass over it.
    fn vacate(&mut self, place: Place) {
        let slot = self.slot(place);
        if !slot.is_empty() {
            self.release(slot);
            self.lines[place.0].0[place.1] = Slot { tag: slot.tag | u64::from(VACANT), word: 0 };
        }
    }

    /// Gives up what an entry holds.
    fn release(&mut self, slot: Slot) {
        if slot.kind() == WIDE {
            self.slab.remove(slot.word as usize);
        }
        self.entries -= usize::from(slot.kind() != VACANT);
    }

    /// Whether a wide state fits, after dropping those of a bounded number that are to go.
    fn make_room(&mut self, state: &State, goes: impl Fn(Time) -> bool, now: Time, kept: &mut Kept) -> bool {
        let share = self.share(self.line_bytes());
        for _ in 0..ROOM_SEARCH.min(self.slab.len()) {
            if self.slab.fits(state, share) {
                return true;
            }
            kept.evicted += u64::from(self.drop_next(&goes).is_some_and(|theirs| theirs > now));
        }
        self.slab.fits(state, share)
    }

    /// Looks at the next wide entry and drops it if it is to go; returns when it would have been fresh.
    fn drop_next(&mut self, goes: impl Fn(Time) -> bool) -> Option<Time> {
        let Wide { fingerprint, fresh_at, .. } = *self.slab.next()?;
        goes(fresh_at).then(|| {
            self.remove(fingerprint);
            fresh_at
        })
    }
}

/// Whether a resident that is fresh at `theirs` makes room for a newcomer that is fresh at `ours`.
fn gives_way(theirs: Time, ours: Time, now: Time) -> bool {
    theirs.since(now).saturating_mul(CLEARLY_MORE) < ours.since(now)
}

/// Line and slot.
type Place = (usize, usize);

/// An entry as it is saved.
pub(crate) enum Entry<'a> {
    Packed(u8, u64),
    Wide(&'a State, Time),
}

/// An entry as it is read back.
pub(crate) enum Restored {
    Packed(u8, u64),
    Wide(State, Time),
}
