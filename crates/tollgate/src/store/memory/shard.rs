//! What changes the shape of a shard, under its lock: new keys, growth, eviction, and wide states.
//!
//! Others may charge any packed slot meanwhile, so a slot changes hands only as it was seen, and is
//! looked at again if that fails. At the cap the entry that has used the least share of its limit goes
//! first, if the newcomer has used clearly more of its own; else that one is not kept (I8). An entry is never
//! dropped by its own charge: a state that finds no room to grow is coarsened.

use crate::algorithm::{Algorithm, Quota, State};
use crate::fingerprint::Fingerprint;
use crate::store::memory::aggregate::Aggregate;
use crate::store::memory::classes::{Classes, Recent, WIDE};
use crate::store::memory::moves::{fill, take};
use crate::store::memory::packed::Class;
use crate::store::memory::region::{Lines, Region};
use crate::store::memory::share::Share;
use crate::store::memory::slab::{Slab, Wide};
use crate::store::memory::slot::{EMPTY, Entry, Line, SLOTS_PER_LINE, Seen, Slot};
use crate::store::memory::table::{Table, divided_by, fingerprint_of, kind_of, tag};
#[cfg(shuttle)]
use crate::sync::seeded;
use crate::time::Time;

/// The share of its slots that a shard fills before it grows: 20 bytes a key.
const FULL: (usize, usize) = (4, 5);
/// One part in this many of the cap is kept for the table, and one for the slab.
const RESERVE: usize = 8;

/// The part of a shard that its lock protects.
pub(super) struct Shape {
    pub(super) slab: Slab,
    pub(super) entries: usize,
    cap_bytes: usize,
    pub(super) aggregate: Aggregate,
    pub(super) recent: Recent,
}

/// Which slots a new entry may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vacancy {
    /// Those of entries that have expired.
    Expired,
    /// Those and empty ones.
    Any,
}

/// What keeping a state has cost others.
#[derive(Default)]
pub(super) struct Kept {
    pub(super) evicted: u64,
    pub(super) unstored: u64,
    pub(super) coarsened: u64,
}

/// What became of a state that another form of it should replace.
pub(super) enum Replaced {
    Done,
    /// The slot was changed meanwhile.
    Raced,
    /// The slab has no room for it.
    NoRoom,
}

/// A shard as its lock's holder sees it.
pub(super) struct Held<'s> {
    pub(super) region: &'s Region,
    pub(super) table: &'s Table,
    pub(super) lines: Lines<'s>,
    pub(super) classes: &'s Classes,
    pub(super) now: Time,
}

/// An entry as it is read back from a snapshot.
pub(super) enum Saved {
    Packed(u16, u64),
    Wide(Wide),
}

impl Held<'_> {
    /// The slot of a key that was not found without the lock: it may have been on the move.
    pub(super) fn look_again(&self, fingerprint: Fingerprint) -> Option<&Slot> {
        #[cfg(shuttle)]
        if seeded::is(seeded::NO_SECOND_LOOK) {
            return None;
        }
        self.table.find(self.lines, fingerprint)
    }

    /// Every entry that is still worth keeping.
    pub(super) fn live(&self, shape: &Shape) -> impl Iterator<Item = Entry> {
        let in_use = (0..self.table.extent().lines()).map(|n| self.lines.at(n));
        let entries = in_use.flat_map(|line| &line.0).map(|slot| slot.load().entry());
        entries.filter(|entry| shape.fresh_at(self, *entry) > self.now)
    }
}

impl Shape {
    /// What is there from the beginning.
    const FIXED_BYTES: usize = Aggregate::BYTES + Recent::BYTES;

    pub(super) fn new(cap_bytes: usize) -> Shape {
        Shape {
            slab: Slab::default(),
            entries: 0,
            cap_bytes: cap_bytes.saturating_sub(Self::FIXED_BYTES),
            aggregate: Aggregate::default(),
            recent: Recent::default(),
        }
    }

    /// The least memory of a shard whose slab has room for a state with so much behind it.
    pub(super) fn least_bytes_for(heap_bytes: usize) -> usize {
        let slab = heap_bytes.saturating_add(Slab::FIRST_BYTES);
        slab.saturating_add(slab / (RESERVE - 1)).saturating_add(Self::FIXED_BYTES + RESERVE)
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    pub(super) fn bytes(&self, table: &Table) -> usize {
        table.extent().lines() * size_of::<Line>() + self.slab.bytes() + Self::FIXED_BYTES
    }

    /// The wide state behind an entry, if it is one.
    pub(super) fn wide(&self, (tag, word): Entry) -> Option<&Wide> {
        if kind_of(tag) == WIDE { self.slab.get(word) } else { None }
    }

    /// The state of a key.
    pub(super) fn state(&self, held: &Held<'_>, fingerprint: Fingerprint) -> Option<State> {
        let entry = held.table.find(held.lines, fingerprint)?.load().entry();
        match self.wide(entry) {
            Some(wide) => Some(wide.state.clone()),
            None => Some(held.classes.get(kind_of(entry.0))?.form.layout().unpack(entry.1)),
        }
    }

    /// Takes the state of a key out, with all that was charged to it.
    pub(super) fn take_state(&mut self, held: &Held<'_>, fingerprint: Fingerprint) -> Option<State> {
        let slot = held.table.find(held.lines, fingerprint)?;
        let wide = self.wide(slot.load().entry()).map(|wide| wide.state.clone());
        let kind = kind_of(slot.tag());
        let word = self.take(slot)?;
        held.region.note_removed(fingerprint);
        wide.or_else(|| Some(held.classes.get(kind)?.form.layout().unpack(word)))
    }

    /// Empties a slot; the word that it held last.
    pub(super) fn take(&mut self, slot: &Slot) -> Option<u64> {
        let entry = take(slot);
        self.release(entry);
        self.entries -= usize::from(entry != EMPTY);
        (entry != EMPTY).then_some(entry.1)
    }

    /// Writes another form of a key's state into its slot, if that is still as it was seen.
    pub(super) fn replace(
        &mut self,
        held: &Held<'_>,
        (slot, seen): (&Slot, Seen),
        fingerprint: Fingerprint,
        quota: &Quota,
        state: State,
        kept: &mut Kept,
    ) -> Replaced {
        let entry = match self.packed(held, quota, &state) {
            Some((kind, word)) => (tag(fingerprint, kind), word),
            None => {
                let wide = Wide::new(fingerprint, state, quota, held.now);
                if !self.make_room(held, &wide, kept) {
                    return Replaced::NoRoom;
                }
                (tag(fingerprint, WIDE), self.slab.insert(wide))
            }
        };
        if slot.hand_over(seen, entry).is_ok() {
            held.region.mark(slot);
            return Replaced::Done;
        }
        self.release(entry);
        Replaced::Raced
    }

    /// Keeps the state of a key that has no slot yet, growing or evicting where there is no room.
    pub(super) fn insert(
        &mut self,
        held: &Held<'_>,
        fingerprint: Fingerprint,
        quota: &Quota,
        state: State,
    ) -> Kept {
        let fresh_at = quota.fresh_at(&state);
        let share = Share::of(quota.held(&state, held.now), quota.capacity());
        let saved = match self.packed(held, quota, &state) {
            Some((kind, word)) => Saved::Packed(kind, word),
            None => Saved::Wide(Wide::new(fingerprint, state, quota, held.now)),
        };
        let mut kept = Kept::default();
        if fresh_at > held.now && !self.add(held, fingerprint, saved, share, &mut kept) {
            kept.unstored += 1;
        }
        kept
    }

    /// Writes a new entry; `false` if there is no room for it.
    fn add(
        &mut self,
        held: &Held<'_>,
        fingerprint: Fingerprint,
        saved: Saved,
        share: Share,
        kept: &mut Kept,
    ) -> bool {
        let entry = match saved {
            Saved::Packed(kind, word) => (tag(fingerprint, kind), word),
            Saved::Wide(wide) => {
                self.sweep(held, fingerprint);
                if !self.make_room(held, &wide, kept) {
                    return false;
                }
                (tag(fingerprint, WIDE), self.slab.insert(wide))
            }
        };
        let placed = self.place(held, fingerprint, entry, share, kept);
        if !placed {
            self.release(entry);
        }
        placed
    }

    /// Puts back what was saved, as far as there is room; says whether it was kept.
    pub(super) fn restore(&mut self, held: &Held<'_>, fingerprint: Fingerprint, saved: Saved) -> bool {
        let (fresh_at, share) = match &saved {
            Saved::Packed(kind, word) => {
                let entry = (tag(fingerprint, *kind), *word);
                (self.fresh_at(held, entry), self.share_of(held, entry))
            }
            Saved::Wide(wide) => (wide.fresh_at, wide.share()),
        };
        let known = held.table.find(held.lines, fingerprint).is_some();
        !known && fresh_at > held.now && self.add(held, fingerprint, saved, share, &mut Kept::default())
    }

    /// Forgets a key; says whether it was there.
    pub(super) fn remove(&mut self, held: &Held<'_>, fingerprint: Fingerprint) -> bool {
        let slot = held.table.find(held.lines, fingerprint);
        slot.is_some_and(|slot| self.take(slot).is_some())
    }

    /// Gives up what an entry holds beside its slot.
    pub(super) fn release(&mut self, (tag, word): Entry) {
        if tag != 0 && kind_of(tag) == WIDE {
            self.slab.remove(word);
        }
    }

    pub(super) fn fresh_at(&self, held: &Held<'_>, (tag, word): Entry) -> Time {
        match kind_of(tag) {
            _ if tag == 0 => Time::EPOCH,
            WIDE => self.slab.get(word).map_or(Time::EPOCH, |wide| wide.fresh_at),
            kind => held.classes.get(kind).map_or(Time::EPOCH, |class| class.form.fresh_at(word)),
        }
    }

    /// The share of its limit that an entry has used.
    fn share_of(&self, held: &Held<'_>, (tag, word): Entry) -> Share {
        match kind_of(tag) {
            _ if self.fresh_at(held, (tag, word)) <= held.now => Share::NONE,
            WIDE => self.slab.get(word).map_or(Share::NONE, Wide::share),
            kind => held.classes.get(kind).map_or(Share::NONE, |class| class.share(word, held.now)),
        }
    }

    /// Finds a slot for a new entry and writes it there.
    fn place(
        &mut self,
        held: &Held<'_>,
        fingerprint: Fingerprint,
        entry: Entry,
        share: Share,
        kept: &mut Kept,
    ) -> bool {
        let [first, second] = held.table.extent().homes(fingerprint);
        // The emptier home: full lines beside others that have room would make the table grow.
        let crowded = self.room(held, first) < self.room(held, second);
        let order = if crowded { [second, first] } else { [first, second] };
        if self.take_over(held, &order, entry, Vacancy::Expired) {
            return true; // and nothing has grown
        }
        self.grow_if_full(held);
        loop {
            let homes = held.table.extent().homes(fingerprint);
            if self.take_over(held, &homes[..1], entry, Vacancy::Any) {
                return true;
            }
            if self.send_home(held, homes[0]) {
                continue;
            }
            if self.take_over(held, &homes[1..], entry, Vacancy::Any) {
                return true;
            }
            if self.displace(held, homes) || self.grow(held) {
                continue;
            }
            let Some((theirs, slot, seen)) = self.least_used(held, homes) else { return false };
            if !theirs.gives_way_to(share) {
                return false;
            }
            if slot.hand_over(seen, entry).is_ok() {
                held.region.mark(slot);
                self.release(seen.entry());
                kept.evicted += 1;
                return true;
            }
        }
    }

    /// Writes an entry over a vacant slot, in the first line that has one.
    fn take_over(&mut self, held: &Held<'_>, lines: &[usize], entry: Entry, vacancy: Vacancy) -> bool {
        for slot in lines.iter().flat_map(|line| &held.lines.at(*line).0) {
            let seen = slot.load();
            let old = seen.entry();
            let vacant = self.fresh_at(held, old) <= held.now && (old != EMPTY || vacancy == Vacancy::Any);
            if vacant && slot.hand_over(seen, entry).is_ok() {
                held.region.mark(slot);
                self.release(old);
                self.entries += usize::from(old == EMPTY);
                return true;
            }
        }
        false
    }

    fn room(&self, held: &Held<'_>, line: usize) -> usize {
        held.lines
            .at(line)
            .0
            .iter()
            .filter(|slot| self.fresh_at(held, slot.load().entry()) <= held.now)
            .count()
    }

    pub(super) fn expired_slot<'l>(&self, held: &Held<'l>, line: usize) -> Option<(&'l Slot, Seen)> {
        let mut slots = held.lines.at(line).0.iter().map(|slot| (slot, slot.load()));
        slots.find(|(_, seen)| self.fresh_at(held, seen.entry()) <= held.now)
    }

    /// The resident of two lines that has used the least share of its limit.
    fn least_used<'l>(&self, held: &Held<'l>, homes: [usize; 2]) -> Option<(Share, &'l Slot, Seen)> {
        let slots = homes.into_iter().flat_map(|line| &held.lines.at(line).0);
        let used = slots.map(|slot| {
            let seen = slot.load();
            (self.share_of(held, seen.entry()), slot, seen)
        });
        used.min_by_key(|(share, _, _)| *share)
    }

    fn grow_if_full(&mut self, held: &Held<'_>) {
        let slots = held.table.extent().lines() * SLOTS_PER_LINE;
        if self.entries * FULL.1 >= slots * FULL.0 {
            self.grow(held);
        }
    }

    fn can_grow(&self, held: &Held<'_>) -> bool {
        let lines = held.table.extent().lines();
        lines < held.lines.len() && (lines + 1) * size_of::<Line>() <= self.share(self.slab.bytes())
    }

    /// Whether a new key has a slot in its lines, or would get one.
    pub(super) fn has_slot_for(&self, held: &Held<'_>, fingerprint: Fingerprint, share: Share) -> bool {
        let homes = held.table.extent().homes(fingerprint);
        let is_least = |(theirs, ..): (Share, &Slot, Seen)| theirs.gives_way_to(share);
        self.can_grow(held)
            || homes.into_iter().any(|line| self.room(held, line) > 0)
            || self.least_used(held, homes).is_some_and(is_least)
    }

    /// Adds a line and divides the keys of another one with it; `false` at the cap.
    fn grow(&mut self, held: &Held<'_>) -> bool {
        if !self.can_grow(held) {
            return false;
        }
        let (lines, grown) = (held.table.extent().lines(), held.table.extent().grown());
        let divided = divided_by(lines);
        let mut free = held.lines.at(lines).0.iter();
        for slot in &held.lines.at(divided).0 {
            let seen = slot.load();
            let entry = seen.entry();
            if entry == EMPTY {
                continue;
            }
            let expired = self.fresh_at(held, entry) <= held.now;
            let stays = grown.homes(fingerprint_of(entry.0)).contains(&divided);
            if expired && slot.hand_over(seen, EMPTY).is_ok() {
                self.release(entry);
                self.entries -= 1;
            } else if !stays {
                let to = free.next().expect("a new line has room for all of an old one");
                held.classes.mark(kind_of(entry.0));
                fill(to, take(slot));
                held.region.mark(to);
            }
        }
        held.table.set(grown);
        for line in [divided, lines] {
            for _ in 0..SLOTS_PER_LINE {
                if !self.send_home(held, line) {
                    break;
                }
            }
        }
        true
    }

    /// What one of table and slab may take while the other takes `other`.
    fn share(&self, other: usize) -> usize {
        self.cap_bytes.saturating_sub(other.max(self.cap_bytes / RESERVE))
    }

    /// The state of a quota as a slot keeps it, if it does.
    fn packed(&mut self, held: &Held<'_>, quota: &Quota, state: &State) -> Option<(u16, u64)> {
        let class = Class::of(quota)?;
        let word = class.form.layout().pack(state)?;
        Some((held.classes.number(class, &mut self.recent)?, word))
    }

    /// Marks the classes that the entries of a line name. What has expired is removed: it names none.
    pub(super) fn mark_classes(&mut self, held: &Held<'_>, line: usize) {
        for slot in &held.lines.at(line).0 {
            let seen = slot.load();
            let entry = seen.entry();
            if entry == EMPTY || kind_of(entry.0) == WIDE {
                continue;
            }
            if self.fresh_at(held, entry) <= held.now && slot.hand_over(seen, EMPTY).is_ok() {
                self.entries -= 1;
            } else {
                held.classes.mark(kind_of(entry.0));
            }
        }
    }

    /// What the slab may take while the table is as large as it is.
    pub(super) fn slab_share(&self, held: &Held<'_>) -> usize {
        self.share(held.table.extent().lines() * size_of::<Line>())
    }
}
