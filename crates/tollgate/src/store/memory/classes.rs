//! Class numbers: a slot names its class by number.
//!
//! A number is freed when no entry names it, by a collection: mark and sweep, in small steps. A step scans a few lines
//! under the lock of their shard, removes expired entries and marks the classes of the rest. After the last line all
//! unmarked numbers are free. An entry that is written or moved during a collection marks its class, so no number in
//! use is freed:
//!
//! - With the lock: a number is interned, and written to a slot, under the lock of one shard. If the collection scans that
//!   shard later, it finds the entry and marks the class. If it has scanned it already, the thread sees the new
//!   [cycle](Classes::cycle): the shard's [`RecentNumbers`] are stale, so it asks the registry, which marks the class.
//! - Without the lock: a thread may have loaded a slot whose number was freed and given to another class since, so that it
//!   reads the summary of the wrong class ([`ClassSummary`], one word). It acts on that only by a CAS of the slot, which
//!   fails: a number is freed only after every entry that names it was removed.

use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::algorithm::gcra::BucketClock;
use crate::store::memory::layout::{ClassSummary, Layout};
use crate::store::memory::packed::{Class, SlotEncoding};
use crate::store::memory::saved::{encoding_words, unit_of};
use crate::store::memory::slot::CLASS_BITS;
#[cfg(shuttle)]
use crate::sync::seeded;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::Period;

/// The class of a slot whose word is the index of its state in the slab.
pub(super) const WIDE: u16 = Classes::MAX as u16;
const CHUNK: usize = 16;
/// Below this many numbers in use no collection runs.
const COLLECT_ABOVE: usize = Classes::MAX / 2;
/// A collection ends before this many more numbers are assigned.
const CYCLE_NUMBERS: u64 = Classes::MAX as u64 / 4;
/// Lines that a collection scans under one lock.
pub(super) const LINES_PER_LOCK: u64 = 64;
/// Lines that it scans for one request. The remaining due lines are left to the next request.
const LINES_PER_REQUEST: u64 = 1 << 11;

type ClassChunk = Box<[ClassCell; CHUNK]>;

pub(crate) struct Classes {
    cells: Box<[OnceLock<ClassChunk>]>,
    registry: Mutex<Registry>,
    /// One bit per number: whether an entry is known to name it.
    marks: Box<[AtomicU64]>,
    /// Incremented when a collection has cleared the marks.
    cycle: AtomicU64,
    /// Lines that are due to be scanned.
    due_lines: AtomicU64,
    /// Lines that become due with each number assigned.
    lines_per_number: u64,
    collection: Mutex<Collection>,
}

#[derive(Default)]
struct Registry {
    numbers: HashMap<Class, u16>,
    /// Numbers below this one have been assigned at least once.
    next: u16,
    free: Vec<u16>,
    pinned: HashSet<u16>,
}

impl Registry {
    fn next_unused(&mut self) -> Option<u16> {
        let number = self.next;
        self.next += u16::from(number < WIDE);
        (number < WIDE).then_some(number)
    }
}

/// The progress of a collection.
#[derive(Default)]
pub(super) struct Collection {
    pub(super) shard: usize,
    pub(super) line: usize,
    is_running: bool,
}

/// A class in words that can be read while they change. All but the first are read only under the lock of a shard that
/// has an entry of this class, and do not change meanwhile.
#[derive(Default)]
struct ClassCell {
    summary: AtomicU64,
    encoding: [AtomicU64; 4],
}

/// The numbers that a shard interned last in a cycle.
#[derive(Default)]
pub(super) struct RecentNumbers {
    cycle: u64,
    next: usize,
    classes: [Option<(Class, u16)>; Self::SIZE],
}

impl RecentNumbers {
    const SIZE: usize = 4;
    pub(super) const BYTES: usize = size_of::<RecentNumbers>();
}

impl Classes {
    /// As many as the class field of a tag can name, beside wide entries and empty slots; the model checker needs few.
    pub(crate) const MAX: usize = if cfg!(shuttle) { 4 } else { (1 << CLASS_BITS) - 2 };

    /// For a table of at most `max_lines` lines.
    pub(super) fn new(max_lines: usize) -> Classes {
        Classes {
            cells: (0..Self::MAX.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect(),
            registry: Mutex::new(Registry::default()),
            marks: (0..Self::MAX.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            cycle: AtomicU64::new(1),
            due_lines: AtomicU64::new(0),
            lines_per_number: max_lines as u64 / CYCLE_NUMBERS + 1,
            collection: Mutex::new(Collection::default()),
        }
    }

    /// The number of a class, assigned on first use; `None` while all are in use. The caller holds the lock of the
    /// shard that owns `recent`, and keeps it until an entry names the number.
    pub(super) fn intern(&self, class: Class, recent: &mut RecentNumbers) -> Option<u16> {
        // Acquire: a thread that sees the new cycle sees the cleared marks.
        let cycle = self.cycle.load(Ordering::Acquire);
        #[cfg(shuttle)]
        let cycle = if seeded::is(seeded::STALE_NUMBERS) { recent.cycle } else { cycle };
        if recent.cycle != cycle {
            *recent = RecentNumbers { cycle, ..RecentNumbers::default() };
        }
        if let Some((_, number)) = recent.classes.iter().flatten().find(|(known, _)| *known == class) {
            return Some(*number);
        }
        let number = self.intern_locked(&mut lock(&self.registry), class)?;
        recent.classes[recent.next] = Some((class, number));
        recent.next = (recent.next + 1) % RecentNumbers::SIZE;
        Some(number)
    }

    /// The number of a class that is never freed.
    pub(super) fn intern_pinned(&self, class: Class) -> Option<u16> {
        let mut registry = lock(&self.registry);
        let number = self.intern_locked(&mut registry, class)?;
        registry.pinned.insert(number);
        Some(number)
    }

    fn intern_locked(&self, registry: &mut Registry, class: Class) -> Option<u16> {
        let known = registry.numbers.get(&class).copied();
        let number = known.or_else(|| {
            let number = registry.free.pop().or_else(|| registry.next_unused());
            if registry.numbers.len() >= COLLECT_ABOVE {
                let lines = number.map_or(LINES_PER_LOCK, |_| self.lines_per_number);
                self.due_lines.fetch_add(lines, Ordering::Relaxed);
            }
            let number = number?;
            self.chunk(number)[usize::from(number) % CHUNK].write(&class);
            registry.numbers.insert(class, number);
            Some(number)
        })?;
        self.mark(number);
        Some(number)
    }

    /// Marks a number as named by an entry.
    pub(super) fn mark(&self, number: u16) {
        let word = usize::from(number) / 64;
        let bit = 1u64 << (number % 64);
        if let Some(marks) = self.marks.get(word)
            && marks.load(Ordering::Relaxed) & bit == 0
        {
            // Relaxed: the locks of the shard or of the registry order a mark before the sweep that reads it.
            marks.fetch_or(bit, Ordering::Relaxed);
        }
    }

    fn is_marked(&self, number: u16) -> bool {
        self.marks[usize::from(number) / 64].load(Ordering::Relaxed) & 1 << (number % 64) != 0
    }

    /// The part of a class that a lock-free charge needs. The number may be reassigned concurrently.
    #[inline]
    pub(crate) fn summary(&self, number: u16) -> Option<ClassSummary> {
        // Acquire: the class was written before an entry named it.
        ClassSummary::decode(self.cell(number)?.summary.load(Ordering::Acquire))
    }

    /// The class that an entry names, in a shard whose lock the caller holds.
    pub(crate) fn get(&self, number: u16) -> Option<Class> {
        self.cell(number)?.read()
    }

    #[inline]
    fn cell(&self, number: u16) -> Option<&ClassCell> {
        let number = usize::from(number);
        Some(&self.cells.get(number / CHUNK)?.get()?[number % CHUNK])
    }

    fn chunk(&self, number: u16) -> &ClassChunk {
        self.cells[usize::from(number) / CHUNK].get_or_init(Default::default)
    }

    /// Whether a step of a collection is due.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.due_lines.load(Ordering::Relaxed) > 0
    }

    /// The collection, started if none is in progress, and the due lines; `None` if another thread has it.
    pub(super) fn collect(&self) -> Option<(MutexGuard<'_, Collection>, u64)> {
        let mut collection = self.collection.try_lock().ok()?;
        if !collection.is_running {
            *collection = Collection { is_running: true, ..Collection::default() };
            self.marks.iter().for_each(|marks| marks.store(0, Ordering::Relaxed));
            // Release: after the marks were cleared. What is marked in a cycle stays marked in it.
            self.cycle.fetch_add(1, Ordering::Release);
        }
        Some((collection, self.due_lines.load(Ordering::Relaxed).min(LINES_PER_REQUEST)))
    }

    /// Subtracts scanned lines from those that are due.
    pub(super) fn note_scanned(&self, lines: u64) {
        let less = |due: u64| Some(due.saturating_sub(lines));
        let _ = self.due_lines.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Ends a collection that has scanned all lines.
    pub(super) fn sweep(&self, collection: &mut Collection) {
        let mut registry = lock(&self.registry);
        let Registry { numbers, free, pinned, .. } = &mut *registry;
        numbers.retain(|_, number| {
            let is_used = self.is_marked(*number) || pinned.contains(number);
            if !is_used {
                self.chunk(*number)[usize::from(*number) % CHUNK].summary.store(0, Ordering::Release);
                free.push(*number);
            }
            is_used
        });
        self.due_lines.store(0, Ordering::Relaxed);
        collection.is_running = false;
    }
}

impl ClassCell {
    fn write(&self, class: &Class) {
        self.encoding
            .iter()
            .zip(encoding_words(&class.encoding))
            .for_each(|(at, word)| at.store(word, Ordering::Relaxed));
        self.summary.store(class.summary().encode(), Ordering::Release);
    }

    fn read(&self) -> Option<Class> {
        let ClassSummary { layout, capacity_log2 } =
            ClassSummary::decode(self.summary.load(Ordering::Acquire))?;
        let [clock, a, b, c] = self.encoding.each_ref().map(|word| word.load(Ordering::Relaxed));
        let encoding = match layout {
            Layout::Window { count_bits } => {
                SlotEncoding::Window { period: Period::new(a, unit_of(b)?)?, count_bits }
            }
            Layout::Counts { count_bits } => SlotEncoding::Counts { window_ns: a, count_bits },
            Layout::Timestamp => SlotEncoding::Timestamp(match clock {
                0 => BucketClock::Nanos,
                1 => BucketClock::Ticks { ticks: a, period_ns: b },
                2 => BucketClock::Steps { tick_ns: a, units_per_tick: b },
                _ => BucketClock::Calendar { period: Period::new(a, unit_of(b)?)?, refill: c },
            }),
        };
        Some(Class { encoding, capacity_log2 })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::time::Unit;

    const LINES: usize = 1_000;

    fn class(n: u64) -> Class {
        Class { encoding: SlotEncoding::counts(n * 1_000_000_000), capacity_log2: 3 }
    }

    #[test]
    fn classes_are_numbered_once_and_run_out() {
        let classes = Classes::new(LINES);
        let mut recent = RecentNumbers::default();
        let all = 1..=Classes::MAX as u64;
        let numbers: Vec<u16> = all.map_while(|n| classes.intern(class(n), &mut recent)).collect();
        let different: std::collections::HashSet<_> = numbers.iter().collect();
        assert_eq!((numbers.len(), different.len()), (Classes::MAX, Classes::MAX));
        for (n, number) in (1..).zip(&numbers) {
            assert_eq!(classes.get(*number), Some(class(n)));
        }
        assert_eq!(classes.intern(class(1), &mut recent), Some(numbers[0]));
        assert_eq!(classes.intern(class(99_999), &mut recent), None);
        assert_eq!(Classes::new(LINES).get(0), None);
        assert!(numbers.iter().all(|number| *number < WIDE));
    }

    #[test]
    fn numbers_that_no_entry_names_are_given_again() {
        let classes = Classes::new(LINES);
        let mut recent = RecentNumbers::default();
        let pinned = classes.intern_pinned(class(1));
        let named = classes.intern(class(2), &mut recent).expect("there are free numbers");
        let unnamed = classes.intern(class(3), &mut recent).expect("there are free numbers");
        let (mut collection, _) = classes.collect().expect("no other thread has it");
        classes.mark(named);
        let during = classes.intern(class(4), &mut recent).expect("there are free numbers");
        classes.sweep(&mut collection);
        assert_eq!((classes.get(unnamed), classes.summary(unnamed)), (None, None));
        assert_eq!(classes.get(named), Some(class(2)));
        assert_eq!(classes.intern(class(4), &mut recent), Some(during));
        assert_eq!(classes.intern_pinned(class(1)), pinned);
        // A shard's recent numbers are valid for one cycle only.
        assert_eq!(classes.intern(class(5), &mut recent), Some(unnamed));
        assert_ne!(classes.intern(class(3), &mut recent), Some(unnamed));
    }

    #[test]
    fn every_class_round_trips_through_its_words() {
        let period = Period::new(3, Unit::Month).expect("a valid period");
        let forms = [
            SlotEncoding::Timestamp(BucketClock::Nanos),
            SlotEncoding::Timestamp(BucketClock::Ticks { ticks: 7, period_ns: 11 }),
            SlotEncoding::Timestamp(BucketClock::Steps { tick_ns: 5, units_per_tick: 3 }),
            SlotEncoding::Timestamp(BucketClock::Calendar { period, refill: 9 }),
            SlotEncoding::window(period),
            SlotEncoding::counts(60_000_000_000),
        ];
        let classes = Classes::new(LINES);
        for (encoding, capacity_log2) in forms.into_iter().zip(40..) {
            let class = Class { encoding, capacity_log2 };
            let number =
                classes.intern(class, &mut RecentNumbers::default()).expect("there are free numbers");
            assert_eq!(classes.get(number), Some(class));
        }
    }
}
