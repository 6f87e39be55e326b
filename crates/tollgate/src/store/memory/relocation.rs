//! Moves of entries to another slot, under the lock of their shard.
//!
//! A move is two CAS: the first empties the old slot and returns its last value, the second fills the new slot. A
//! concurrent charge either precedes the first one, and its effect moves along, or its own CAS fails because the
//! generation changed. Between the two the entry is in neither slot: a lookup misses, takes the slow path, and waits
//! for the lock that the moving thread holds. An entry is never in both slots, so no charge is made twice.

use smallvec::SmallVec;

use crate::store::memory::shard::{ShardContext, ShardInner};
use crate::store::memory::slot::{EMPTY, SLOTS_PER_LINE, Slot, SlotEntry, SlotValue};
use crate::store::memory::table::{class_number, fingerprint_of};
#[cfg(shuttle)]
use crate::sync::seeded;

/// Lines that one search reaches to make room for a new key. With fewer, large tables would have keys without a path.
pub(super) const MAX_SEARCHED_LINES: usize = 192;
/// The usual number.
const SEARCHED_LINES: usize = 48;

/// A line that the search has reached.
struct PathStep {
    line: usize,
    /// The entry that would move to this line; `None` for the lines where the search begins.
    from: Option<StepOrigin>,
}

/// An entry on the path: the index of the step that reached its line, and its slot there.
#[derive(Clone, Copy)]
struct StepOrigin {
    step: usize,
    slot: usize,
}

impl ShardInner {
    /// Moves one entry for which this line is the second candidate to its first, where lookups find it with one cache
    /// miss. `false` if no entry can be moved.
    pub(super) fn move_one_to_first_line(&mut self, shard: &ShardContext<'_>, line: usize) -> bool {
        (0..SLOTS_PER_LINE).any(|n| self.move_to_first_line(shard, line, n))
    }

    /// Moves the entry in slot `n` of a line to its first candidate line. `false` if it is there already, or if that line
    /// has no free slot. After `true` the caller looks for a slot again; the move may have lost a race, see
    /// [`shift_along_path`](Self::shift_along_path).
    fn move_to_first_line(&mut self, shard: &ShardContext<'_>, line: usize, n: usize) -> bool {
        let tag = shard.lines.at(line).0[n].tag();
        let [first, _] = shard.table.size().candidate_lines(fingerprint_of(tag));
        if tag == 0 || first == line {
            return false;
        }
        let Some((free, loaded)) = self.expired_slot(shard, first) else { return false };
        let path = [
            PathStep { line, from: None },
            PathStep { line: first, from: Some(StepOrigin { step: 0, slot: n }) },
        ];
        self.shift_along_path(shard, &path, free, loaded);
        true
    }

    /// Makes room in one of two full lines by cuckoo displacement: a breadth-first search, bounded, for a path of
    /// entries that can each move to their other line. After `Ok` the caller looks for a slot again, see
    /// [`shift_along_path`](Self::shift_along_path); the error is how many lines a search in vain has reached.
    pub(super) fn displace(
        &mut self,
        shard: &ShardContext<'_>,
        new_candidates: [usize; 2],
    ) -> Result<(), usize> {
        let mut reached: SmallVec<[PathStep; SEARCHED_LINES]> =
            new_candidates.iter().map(|line| PathStep { line: *line, from: None }).collect();
        let mut at = 0;
        while at < reached.len() && reached.len() < MAX_SEARCHED_LINES {
            let line = reached[at].line;
            for (n, slot) in shard.lines.at(line).0.iter().enumerate() {
                let candidates = shard.table.size().candidate_lines(fingerprint_of(slot.tag()));
                let Some(other) = candidates.into_iter().find(|candidate| *candidate != line) else {
                    continue;
                };
                if reached.iter().any(|step| step.line == other) {
                    continue;
                }
                reached.push(PathStep { line: other, from: Some(StepOrigin { step: at, slot: n }) });
                if let Some((free, loaded)) = self.expired_slot(shard, other) {
                    self.shift_along_path(shard, &reached, free, loaded);
                    return Ok(());
                }
            }
            at += 1;
        }
        Err(reached.len())
    }

    /// Moves every entry on a path one step towards the free slot at its end, the last entry first. This frees a slot in
    /// the line where the path begins.
    ///
    /// `loaded` is the value of the free slot when it was found: empty, or an expired entry. If that entry was charged
    /// since, the slot is in use and nothing is moved. The caller need not know: it looks at its lines again, and finds
    /// the freed slot or searches for another path.
    fn shift_along_path<'l>(
        &mut self,
        shard: &ShardContext<'l>,
        reached: &[PathStep],
        mut free: &'l Slot,
        loaded: SlotValue,
    ) {
        if free.cas_entry(loaded, EMPTY).is_err() {
            return; // charged again meanwhile
        }
        self.free_wide_entry(loaded.entry());
        self.entries -= usize::from(loaded.entry() != EMPTY);
        let mut step = reached.last();
        while let Some(from) = step.and_then(|step| step.from) {
            let slot = &shard.lines.at(reached[from.step].line).0[from.slot];
            let entry = take_entry(slot);
            shard.classes.mark(class_number(entry.0));
            fill_slot(free, entry);
            shard.region.mark(free);
            free = slot;
            step = reached.get(from.step);
        }
    }
}

/// Removes an entry from its slot, with every charge up to then.
pub(super) fn take_entry(slot: &Slot) -> SlotEntry {
    let mut loaded = slot.load();
    #[cfg(shuttle)]
    if seeded::is(seeded::LOST_UPDATE) {
        slot.overwrite(EMPTY);
        return loaded.entry();
    }
    while let Err(changed) = slot.cas_entry(loaded, EMPTY) {
        loaded = changed;
    }
    loaded.entry()
}

/// Writes an entry to an empty slot. Only the lock's holder does that.
pub(super) fn fill_slot(slot: &Slot, entry: SlotEntry) {
    slot.cas_entry(slot.load(), entry).expect("an empty slot stays empty under the lock");
}
