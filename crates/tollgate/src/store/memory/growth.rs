//! Growth of a shard's table: line by line, as linear hashing does.
//!
//! A shard grows when it is full, and for a key that finds no slot although it is not. The latter is bounded, by a
//! [`GrowthBudget`] and [`MIN_LOAD`]: keys whose lines are the same by chance, or by a secret that has leaked, neither hold
//! the lock for long nor take the memory of others.

use crate::store::memory::relocation::{fill_slot, take_entry};
use crate::store::memory::shard::{ShardContext, ShardInner};
use crate::store::memory::slot::{CacheLine, EMPTY, SLOTS_PER_LINE};
use crate::store::memory::table::{class_number, fingerprint_of, split_line};

/// The load factor above which a shard grows: 20 bytes per key.
const MAX_LOAD: (usize, usize) = (4, 5);
/// The load factor below which a shard does not grow for a key that finds no slot. In a table with so much room, such a
/// key has the same candidate lines as many others, and splitting lines would hardly separate them.
const MIN_LOAD: (usize, usize) = (1, 4);

/// The lines that may still be visited to find a slot for one new key. Small tables may have to grow
/// early: five keys whose two candidate lines coincide need that line to be split, and lines are split in turn.
pub(super) struct GrowthBudget(usize);

/// The lines that a growth visits at the most: two, and those that their entries may move to.
const GROWTH_LINES: usize = 74;

impl GrowthBudget {
    const MAX_LINES: usize = 2_048;

    pub(super) fn new() -> GrowthBudget {
        GrowthBudget(Self::MAX_LINES)
    }

    /// Subtracts the lines visited by a search in vain, and by the growth that follows it. The search has looked at each
    /// line that it reached twice: for a free slot, and for entries that can move on. `false` if the budget was used up
    /// before; the last search may exceed it.
    pub(super) fn pay(&mut self, reached: usize) -> bool {
        let left = self.0;
        self.0 = left.saturating_sub(2 * reached + GROWTH_LINES);
        left > 0
    }
}

impl ShardInner {
    pub(super) fn grow_if_full(&mut self, shard: &ShardContext<'_>) {
        let slots = shard.table.size().lines() * SLOTS_PER_LINE;
        if self.entries * MAX_LOAD.1 >= slots * MAX_LOAD.0 {
            self.grow(shard);
        }
    }

    fn can_grow(&self, shard: &ShardContext<'_>) -> bool {
        let lines = shard.table.size().lines();
        lines < shard.lines.len()
            && (lines + 1) * size_of::<CacheLine>() <= self.byte_budget(self.slab.bytes())
    }

    /// Whether it may grow for a key that finds no slot, though it is not full.
    pub(super) fn can_grow_for_one(&self, shard: &ShardContext<'_>) -> bool {
        let slots = shard.table.size().lines() * SLOTS_PER_LINE;
        self.entries * MIN_LOAD.1 >= slots * MIN_LOAD.0 && self.can_grow(shard)
    }

    /// Adds a line and splits the keys of another one with it; `false` at the cap.
    pub(super) fn grow(&mut self, shard: &ShardContext<'_>) -> bool {
        if !self.can_grow(shard) {
            return false;
        }
        let lines = shard.table.size().lines();
        let grown = shard.table.size().grown();
        let split = split_line(lines);
        let mut free = shard.lines.at(lines).0.iter();
        for slot in &shard.lines.at(split).0 {
            let loaded = slot.load();
            let entry = loaded.entry();
            if entry == EMPTY {
                continue;
            }
            let expired = self.expires_at(shard, entry) <= shard.now;
            let stays = grown.candidate_lines(fingerprint_of(entry.0)).contains(&split);
            if expired && slot.cas_entry(loaded, EMPTY).is_ok() {
                self.free_wide_entry(entry);
                self.entries -= 1;
            } else if !stays {
                let to = free.next().expect("a new line has room for all of an old one");
                shard.classes.mark(class_number(entry.0));
                fill_slot(to, take_entry(slot));
                shard.region.mark(to);
            }
        }
        shard.table.set_size(grown);
        for line in [split, lines] {
            for _ in 0..SLOTS_PER_LINE {
                if !self.move_one_to_first_line(shard, line) {
                    break;
                }
            }
        }
        true
    }
}
