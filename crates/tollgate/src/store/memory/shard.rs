//! Operations of a shard that need its lock: inserts, growth, eviction, and wide states.
//!
//! Other threads may charge any packed slot meanwhile, so a slot is reused only by a CAS on the value that was loaded,
//! and loaded again if that fails. At the cap the entry that has used the smallest fraction of its limit is evicted,
//! if the new one has used clearly more of its own; otherwise the new one is not stored (I8). A charge never drops its
//! own entry: a state that finds no room to grow is coarsened.

use crate::algorithm::{Algorithm, Quota, QuotaState};
use crate::fingerprint::Fingerprint;
use crate::store::memory::aggregate::AggregateCells;
use crate::store::memory::classes::{Classes, RecentNumbers, WIDE};
use crate::store::memory::evicted_fractions::EvictedFractions;
use crate::store::memory::growth::GrowthBudget;
use crate::store::memory::packed::Class;
use crate::store::memory::region::{Region, ShardLines};
use crate::store::memory::relocation::take_entry;
use crate::store::memory::slab::{Slab, WideEntry};
use crate::store::memory::slot::{CacheLine, EMPTY, Slot, SlotEntry, SlotValue};
use crate::store::memory::table::{ShardTable, class_number, tag};
use crate::store::memory::used_fraction::UsedFraction;
#[cfg(shuttle)]
use crate::sync::seeded;
use crate::time::Time;

/// Table and slab are each guaranteed the cap divided by this.
const RESERVE_DIVISOR: usize = 8;

/// The part of a shard that its lock protects.
pub(super) struct ShardInner {
    pub(super) slab: Slab,
    pub(super) entries: usize,
    cap_bytes: usize,
    pub(super) aggregate: AggregateCells,
    pub(super) evicted_fractions: EvictedFractions,
    pub(super) recent_numbers: RecentNumbers,
}

/// Which slots a new entry may take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Vacancy {
    /// Slots of expired entries.
    Expired,
    /// Empty slots, and slots of expired entries.
    Any,
}

/// The evictions that storing a state has caused.
#[derive(Default)]
pub(super) struct PressureCounts {
    pub(super) evicted: u64,
    pub(super) unstored: u64,
    pub(super) coarsened: u64,
}

/// Result of replacing a state by another form of it.
pub(super) enum ReplaceResult {
    Done,
    /// The slot was changed concurrently.
    Raced,
    /// The slab has no room for the state.
    NoRoom,
}

/// A shard as seen by the thread that holds its lock.
pub(super) struct ShardContext<'s> {
    pub(super) region: &'s Region,
    pub(super) table: &'s ShardTable,
    pub(super) lines: ShardLines<'s>,
    pub(super) classes: &'s Classes,
    pub(super) now: Time,
}

/// An entry read from a saved state.
pub(super) enum SavedEntry {
    Packed(u16, u64),
    Wide(WideEntry),
}

impl ShardContext<'_> {
    /// Looks up, under the lock, a key that a lock-free lookup missed: it may have been moving.
    pub(super) fn find_locked(&self, fingerprint: Fingerprint) -> Option<&Slot> {
        #[cfg(shuttle)]
        if seeded::is(seeded::NO_RECHECK) {
            return None;
        }
        self.table.find(self.lines, fingerprint)
    }

    /// All entries that have not expired.
    pub(super) fn live_entries(&self, inner: &ShardInner) -> impl Iterator<Item = SlotEntry> {
        let in_use = (0..self.table.size().lines()).map(|n| self.lines.at(n));
        let entries = in_use.flat_map(|line| &line.0).map(|slot| slot.load().entry());
        entries.filter(|entry| inner.expires_at(self, *entry) > self.now)
    }
}

impl ShardInner {
    /// Bytes that a shard uses from the start.
    const FIXED_BYTES: usize = AggregateCells::BYTES + RecentNumbers::BYTES + EvictedFractions::BYTES;

    pub(super) fn new(cap_bytes: usize) -> ShardInner {
        ShardInner {
            slab: Slab::default(),
            entries: 0,
            cap_bytes: cap_bytes.saturating_sub(Self::FIXED_BYTES),
            aggregate: AggregateCells::default(),
            evicted_fractions: EvictedFractions::default(),
            recent_numbers: RecentNumbers::default(),
        }
    }

    /// The minimum memory of a shard whose slab has room for a state with `heap_bytes` on the heap.
    pub(super) fn min_bytes_for(heap_bytes: usize) -> usize {
        let slab = heap_bytes.saturating_add(Slab::INITIAL_BYTES);
        slab.saturating_add(slab / (RESERVE_DIVISOR - 1)).saturating_add(Self::FIXED_BYTES + RESERVE_DIVISOR)
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    pub(super) fn bytes(&self, table: &ShardTable) -> usize {
        table.size().lines() * size_of::<CacheLine>() + self.slab.bytes() + Self::FIXED_BYTES
    }

    /// The wide state of an entry, if it is a wide one.
    pub(super) fn wide(&self, (tag, word): SlotEntry) -> Option<&WideEntry> {
        if class_number(tag) == WIDE { self.slab.get(word) } else { None }
    }

    /// The state of a key.
    pub(super) fn state(&self, shard: &ShardContext<'_>, fingerprint: Fingerprint) -> Option<QuotaState> {
        let entry = shard.table.find(shard.lines, fingerprint)?.load().entry();
        match self.wide(entry) {
            Some(wide) => Some(wide.state.clone()),
            None => Some(shard.classes.get(class_number(entry.0))?.encoding.layout().unpack(entry.1)),
        }
    }

    /// Removes the state of a key and returns it, with every charge up to then.
    pub(super) fn take_state(
        &mut self,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
    ) -> Option<QuotaState> {
        let slot = shard.table.find(shard.lines, fingerprint)?;
        let wide = self.wide(slot.load().entry()).map(|wide| wide.state.clone());
        let class_no = class_number(slot.tag());
        let word = self.take(slot)?;
        shard.region.note_removed(fingerprint);
        wide.or_else(|| Some(shard.classes.get(class_no)?.encoding.layout().unpack(word)))
    }

    /// Empties a slot; returns its last word.
    pub(super) fn take(&mut self, slot: &Slot) -> Option<u64> {
        let entry = take_entry(slot);
        self.free_wide_entry(entry);
        self.entries -= usize::from(entry != EMPTY);
        (entry != EMPTY).then_some(entry.1)
    }

    /// Writes another form of a key's state into its slot, if the slot is unchanged.
    pub(super) fn replace(
        &mut self,
        shard: &ShardContext<'_>,
        (slot, loaded): (&Slot, SlotValue),
        fingerprint: Fingerprint,
        quota: &Quota,
        state: QuotaState,
        pressure: &mut PressureCounts,
    ) -> ReplaceResult {
        let entry = match self.pack_state(shard, quota, &state) {
            Some((class_no, word)) => (tag(fingerprint, class_no), word),
            None => {
                let wide = WideEntry::new(fingerprint, state, quota, shard.now);
                if !self.make_room(shard, &wide, pressure) {
                    return ReplaceResult::NoRoom;
                }
                (tag(fingerprint, WIDE), self.slab.insert(wide))
            }
        };
        if slot.cas_entry(loaded, entry).is_ok() {
            shard.region.mark(slot);
            return ReplaceResult::Done;
        }
        self.free_wide_entry(entry);
        ReplaceResult::Raced
    }

    /// Stores the state of a key that has no slot yet; grows or evicts if there is no room.
    pub(super) fn insert(
        &mut self,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
        quota: &Quota,
        state: QuotaState,
    ) -> PressureCounts {
        let expires_at = quota.expires_at(&state);
        let fraction = UsedFraction::of(quota.used_upper_bound(&state, shard.now), quota.capacity());
        let saved = match self.pack_state(shard, quota, &state) {
            Some((class_no, word)) => SavedEntry::Packed(class_no, word),
            None => SavedEntry::Wide(WideEntry::new(fingerprint, state, quota, shard.now)),
        };
        let mut pressure = PressureCounts::default();
        if expires_at > shard.now && !self.add(shard, fingerprint, saved, fraction, &mut pressure) {
            pressure.unstored += 1;
        }
        pressure
    }

    /// Writes a new entry; `false` if there is no room.
    fn add(
        &mut self,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
        saved: SavedEntry,
        fraction: UsedFraction,
        pressure: &mut PressureCounts,
    ) -> bool {
        let entry = match saved {
            SavedEntry::Packed(class_no, word) => (tag(fingerprint, class_no), word),
            SavedEntry::Wide(wide) => {
                self.sweep(shard, fingerprint);
                if !self.make_room(shard, &wide, pressure) {
                    return false;
                }
                (tag(fingerprint, WIDE), self.slab.insert(wide))
            }
        };
        let placed = self.insert_entry(shard, fingerprint, entry, fraction, pressure);
        if !placed {
            self.free_wide_entry(entry);
        }
        placed
    }

    /// Restores a saved entry if there is room; returns whether it was stored.
    pub(super) fn restore(
        &mut self,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
        saved: SavedEntry,
    ) -> bool {
        let (expires_at, fraction) = match &saved {
            SavedEntry::Packed(class_no, word) => {
                let entry = (tag(fingerprint, *class_no), *word);
                (self.expires_at(shard, entry), self.used_fraction(shard, entry))
            }
            SavedEntry::Wide(wide) => (wide.expires_at(), wide.used_fraction()),
        };
        let known = shard.table.find(shard.lines, fingerprint).is_some();
        !known
            && expires_at > shard.now
            && self.add(shard, fingerprint, saved, fraction, &mut PressureCounts::default())
    }

    /// Removes a key; returns whether it was stored.
    pub(super) fn remove(&mut self, shard: &ShardContext<'_>, fingerprint: Fingerprint) -> bool {
        let slot = shard.table.find(shard.lines, fingerprint);
        slot.is_some_and(|slot| self.take(slot).is_some())
    }

    /// Frees the slab item of an entry, if it has one.
    pub(super) fn free_wide_entry(&mut self, (tag, word): SlotEntry) {
        if tag != 0 && class_number(tag) == WIDE {
            self.slab.remove(word);
        }
    }

    pub(super) fn expires_at(&self, shard: &ShardContext<'_>, (tag, word): SlotEntry) -> Time {
        match class_number(tag) {
            _ if tag == 0 => Time::EPOCH,
            WIDE => self.slab.get(word).map_or(Time::EPOCH, WideEntry::expires_at),
            class_no => {
                shard.classes.get(class_no).map_or(Time::EPOCH, |class| class.encoding.expires_at(word))
            }
        }
    }

    /// The fraction of its limit that an entry has used.
    fn used_fraction(&self, shard: &ShardContext<'_>, (tag, word): SlotEntry) -> UsedFraction {
        match class_number(tag) {
            _ if self.expires_at(shard, (tag, word)) <= shard.now => UsedFraction::NONE,
            WIDE => self.slab.get(word).map_or(UsedFraction::NONE, WideEntry::used_fraction),
            class_no => shard
                .classes
                .get(class_no)
                .map_or(UsedFraction::NONE, |class| class.used_fraction(word, shard.now)),
        }
    }

    /// Finds a slot for a new entry and writes it there; `false` if there is no room. The first of these that works:
    ///
    /// 1. `claim_slot` of an expired entry, in the emptier of the two candidate lines, then in the other; if there is
    ///    none, `grow_if_full`;
    /// 2. `claim_slot`, vacant or expired, in the first candidate line; every later step that makes room returns here;
    /// 3. `move_one_to_first_line`: an entry of the first line moves to its own first line;
    /// 4. `claim_slot` in the second candidate line;
    /// 5. `displace`: entries move along a path to a free slot;
    /// 6. `grow`, if `can_grow_for_one` and the [`GrowthBudget`] permit it;
    /// 7. the `least_used` entry of the two lines is evicted, if the new one has used clearly more of its limit; if it
    ///    was charged meanwhile, the loop begins again.
    fn insert_entry(
        &mut self,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
        entry: SlotEntry,
        fraction: UsedFraction,
        pressure: &mut PressureCounts,
    ) -> bool {
        let [first, second] = shard.table.size().candidate_lines(fingerprint);
        // The emptier candidate: full lines next to lines with room would make the table grow.
        let second_is_emptier = self.free_slots(shard, first) < self.free_slots(shard, second);
        let order = if second_is_emptier { [second, first] } else { [first, second] };
        if self.claim_slot(shard, &order, entry, Vacancy::Expired) {
            return true; // without growing
        }
        self.grow_if_full(shard);
        let mut budget = GrowthBudget::new();
        loop {
            let candidates = shard.table.size().candidate_lines(fingerprint);
            if self.claim_slot(shard, &candidates[..1], entry, Vacancy::Any) {
                return true;
            }
            if self.move_one_to_first_line(shard, candidates[0]) {
                continue;
            }
            if self.claim_slot(shard, &candidates[1..], entry, Vacancy::Any) {
                return true;
            }
            let Err(reached) = self.displace(shard, candidates) else { continue };
            if self.can_grow_for_one(shard) && budget.pay(reached) {
                self.grow(shard);
                continue;
            }
            let Some((other, slot, loaded)) = self.least_used(shard, candidates) else { return false };
            if !other.is_evictable_by(fraction) {
                return false;
            }
            if slot.cas_entry(loaded, entry).is_ok() {
                shard.region.mark(slot);
                self.remember_evicted(shard, loaded.entry(), other);
                self.free_wide_entry(loaded.entry());
                pressure.evicted += 1;
                return true;
            }
        }
    }

    /// Remembers the used fraction of an entry that is evicted.
    #[cold]
    fn remember_evicted(&mut self, shard: &ShardContext<'_>, evicted: SlotEntry, fraction: UsedFraction) {
        let expires_at = self.expires_at(shard, evicted);
        match class_number(evicted.0) {
            WIDE => {
                let Some(wide) = self.slab.get(evicted.1) else { return };
                self.evicted_fractions.add_wide(&wide.state, fraction, expires_at, shard.now);
            }
            class_no => {
                let Some(class) = shard.classes.get(class_no) else { return };
                self.evicted_fractions.add_packed(&class, fraction, expires_at, shard.now);
            }
        }
    }

    /// Writes an entry to a vacant slot, in the first line that has one.
    fn claim_slot(
        &mut self,
        shard: &ShardContext<'_>,
        lines: &[usize],
        entry: SlotEntry,
        vacancy: Vacancy,
    ) -> bool {
        for slot in lines.iter().flat_map(|line| &shard.lines.at(*line).0) {
            let loaded = slot.load();
            let old = loaded.entry();
            let vacant =
                self.expires_at(shard, old) <= shard.now && (old != EMPTY || vacancy == Vacancy::Any);
            if vacant && slot.cas_entry(loaded, entry).is_ok() {
                shard.region.mark(slot);
                self.free_wide_entry(old);
                self.entries += usize::from(old == EMPTY);
                return true;
            }
        }
        false
    }

    fn free_slots(&self, shard: &ShardContext<'_>, line: usize) -> usize {
        shard
            .lines
            .at(line)
            .0
            .iter()
            .filter(|slot| self.expires_at(shard, slot.load().entry()) <= shard.now)
            .count()
    }

    pub(super) fn expired_slot<'l>(
        &self,
        shard: &ShardContext<'l>,
        line: usize,
    ) -> Option<(&'l Slot, SlotValue)> {
        let mut slots = shard.lines.at(line).0.iter().map(|slot| (slot, slot.load()));
        slots.find(|(_, loaded)| self.expires_at(shard, loaded.entry()) <= shard.now)
    }

    /// The entry of two lines that has used the smallest fraction of its limit.
    fn least_used<'l>(
        &self,
        shard: &ShardContext<'l>,
        candidates: [usize; 2],
    ) -> Option<(UsedFraction, &'l Slot, SlotValue)> {
        let slots = candidates.into_iter().flat_map(|line| &shard.lines.at(line).0);
        let used = slots.map(|slot| {
            let loaded = slot.load();
            (self.used_fraction(shard, loaded.entry()), slot, loaded)
        });
        used.min_by_key(|(fraction, _, _)| *fraction)
    }

    /// Whether a new key would find a slot in its lines, by eviction if need be.
    pub(super) fn has_slot_for(
        &self,
        shard: &ShardContext<'_>,
        fingerprint: Fingerprint,
        fraction: UsedFraction,
    ) -> bool {
        let candidates = shard.table.size().candidate_lines(fingerprint);
        let is_least = |(other, ..): (UsedFraction, &Slot, SlotValue)| other.is_evictable_by(fraction);
        self.can_grow_for_one(shard)
            || candidates.into_iter().any(|line| self.free_slots(shard, line) > 0)
            || self.least_used(shard, candidates).is_some_and(is_least)
    }

    /// The bytes that table or slab may use while the other one uses `other`.
    pub(super) fn byte_budget(&self, other: usize) -> usize {
        self.cap_bytes.saturating_sub(other.max(self.cap_bytes / RESERVE_DIVISOR))
    }

    /// The state of a quota in packed form; `None` if it does not fit.
    fn pack_state(
        &mut self,
        shard: &ShardContext<'_>,
        quota: &Quota,
        state: &QuotaState,
    ) -> Option<(u16, u64)> {
        let class = Class::of(quota)?;
        let word = class.encoding.layout().pack(state)?;
        Some((shard.classes.intern(class, &mut self.recent_numbers)?, word))
    }

    /// Marks the classes that the entries of a line name. Expired entries are removed.
    pub(super) fn mark_classes(&mut self, shard: &ShardContext<'_>, line: usize) {
        for slot in &shard.lines.at(line).0 {
            let loaded = slot.load();
            let entry = loaded.entry();
            if entry == EMPTY || class_number(entry.0) == WIDE {
                continue;
            }
            if self.expires_at(shard, entry) <= shard.now && slot.cas_entry(loaded, EMPTY).is_ok() {
                self.entries -= 1;
            } else {
                shard.classes.mark(class_number(entry.0));
            }
        }
    }

    /// The bytes that the slab may use at the present size of the table.
    pub(super) fn slab_budget(&self, shard: &ShardContext<'_>) -> usize {
        self.byte_budget(shard.table.size().lines() * size_of::<CacheLine>())
    }
}
