//! Entries that move to another slot, under the lock of their shard.
//!
//! An entry is in neither place for a moment, and takes with it all that was charged until then.

use smallvec::SmallVec;

use crate::store::memory::shard::{Held, Shape};
use crate::store::memory::slot::{EMPTY, Entry, SLOTS_PER_LINE, Seen, Slot};
use crate::store::memory::table::{fingerprint_of, kind_of};
#[cfg(shuttle)]
use crate::sync::seeded;

/// Lines looked at to make room for a new key.
const SEARCH: usize = 48;
/// A line that a search for room has reached, and the step and slot from which.
struct Step {
    line: usize,
    from: Option<(usize, usize)>,
}

impl Shape {
    /// Moves one of those for whom a line is the second to their first, where they are found sooner.
    pub(super) fn send_home(&mut self, held: &Held<'_>, line: usize) -> bool {
        (0..SLOTS_PER_LINE).any(|n| self.move_home(held, line, n))
    }

    /// Moves who stands in a slot of a line to its first line; `false` if that is the line, or full.
    fn move_home(&mut self, held: &Held<'_>, line: usize, n: usize) -> bool {
        let tag = held.lines.at(line).0[n].tag();
        let [first, _] = held.table.extent().homes(fingerprint_of(tag));
        if tag == 0 || first == line {
            return false;
        }
        let Some((free, seen)) = self.expired_slot(held, first) else { return false };
        let path = [Step { line, from: None }, Step { line: first, from: Some((0, n)) }];
        self.shift(held, &path, free, seen)
    }

    /// Makes room in one of two full lines: a resident moves to its other home, if need be after a
    /// resident there has moved to its own, and so on. The search is bounded, nearest lines first.
    pub(super) fn displace(&mut self, held: &Held<'_>, homes_of_new: [usize; 2]) -> bool {
        let mut reached: SmallVec<[Step; SEARCH]> =
            homes_of_new.iter().map(|line| Step { line: *line, from: None }).collect();
        let mut at = 0;
        while at < reached.len() && reached.len() < SEARCH {
            let line = reached[at].line;
            for (n, slot) in held.lines.at(line).0.iter().enumerate() {
                let homes = held.table.extent().homes(fingerprint_of(slot.tag()));
                let Some(other) = homes.into_iter().find(|home| *home != line) else { continue };
                if reached.iter().any(|step| step.line == other) {
                    continue;
                }
                reached.push(Step { line: other, from: Some((at, n)) });
                if let Some((free, seen)) = self.expired_slot(held, other) {
                    return self.shift(held, &reached, free, seen);
                }
            }
            at += 1;
        }
        false
    }

    /// Moves residents along the path that ends at a free slot, the last one first.
    fn shift<'l>(&mut self, held: &Held<'l>, reached: &[Step], mut free: &'l Slot, seen: Seen) -> bool {
        if free.hand_over(seen, EMPTY).is_err() {
            return true; // it was not so expired after all: look again
        }
        self.release(seen.entry());
        self.entries -= usize::from(seen.entry() != EMPTY);
        let mut step = reached.last();
        while let Some((from, n)) = step.and_then(|step| step.from) {
            let slot = &held.lines.at(reached[from].line).0[n];
            let entry = take(slot);
            held.classes.mark(kind_of(entry.0));
            fill(free, entry);
            held.region.mark(free);
            free = slot;
            step = reached.get(from);
        }
        true
    }
}

/// Takes an entry out of its slot with all that was charged to it.
pub(super) fn take(slot: &Slot) -> Entry {
    let mut seen = slot.load();
    #[cfg(shuttle)]
    if seeded::is(seeded::MOVED_AS_SEEN) {
        slot.overwrite(EMPTY);
        return seen.entry();
    }
    while let Err(changed) = slot.hand_over(seen, EMPTY) {
        seen = changed;
    }
    seen.entry()
}

/// Puts an entry into an empty slot. Nobody else does that without the lock.
pub(super) fn fill(slot: &Slot, entry: Entry) {
    slot.hand_over(slot.load(), entry).expect("an empty slot stays empty under the lock");
}
