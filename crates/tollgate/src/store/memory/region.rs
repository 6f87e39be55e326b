//! The memory of the table: reserved once at its cap, committed by the system as it is touched.
//!
//! It never moves and is freed only with the store, so lock-free readers need no reclamation scheme.

use std::io;
use std::marker::PhantomData;

use crate::fingerprint::Fingerprint;
use crate::store::memory::SHARDS;
use crate::store::memory::changes::ChangedLines;
#[cfg(not(shuttle))]
use crate::store::memory::slot::supported;
use crate::store::memory::slot::{CacheLine, SLOTS_PER_LINE, Slot};
use crate::sync::count_steps;
#[cfg(shuttle)]
use crate::sync::seeded;

/// An array of lines for each shard, all empty, interleaved: the first line of each shard, then the second of each,
/// and so on. Shards grow alike, so the lines in use are contiguous at the start, where huge pages avoid most TLB
/// misses of a table that is larger than the caches.
pub(super) struct Region {
    #[cfg(not(shuttle))]
    memory: memmap2::MmapMut,
    #[cfg(shuttle)]
    memory: Vec<CacheLine>,
    lines_per_shard: usize,
    /// `None` if no state log is written.
    pub(super) changed: Option<ChangedLines>,
}

/// The lines of one shard.
#[derive(Clone, Copy)]
pub(super) struct ShardLines<'r> {
    first: *const CacheLine,
    count: usize,
    region: PhantomData<&'r Region>,
}

impl Region {
    /// Smaller regions do not benefit from huge pages.
    #[cfg(not(shuttle))]
    const HUGE_PAGE_MIN_BYTES: usize = 64 << 20;

    /// Fails where the system does not grant that much address space, and where slots are not supported.
    pub(super) fn reserve(lines_per_shard: usize) -> io::Result<Region> {
        #[cfg(not(shuttle))]
        if !supported() {
            let why = "the processor lacks CMPXCHG16B";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let lines = SHARDS * lines_per_shard;
        #[cfg(not(shuttle))]
        let memory = map(lines * size_of::<CacheLine>())?;
        #[cfg(shuttle)]
        let memory = (0..lines).map(|_| CacheLine::default()).collect();
        Ok(Region { memory, lines_per_shard, changed: None })
    }

    /// The lines of shard `n`.
    #[inline]
    pub(super) fn shard_lines(&self, n: usize) -> ShardLines<'_> {
        assert!(n < SHARDS);
        // Within the memory: there are at least as many lines as shards.
        let first = self.memory.as_ptr().cast::<CacheLine>().wrapping_add(n);
        ShardLines { first, count: self.lines_per_shard, region: PhantomData }
    }
}

impl Region {
    /// A slot by its number in the whole region.
    #[inline]
    pub(super) fn slot(&self, number: usize) -> Option<&Slot> {
        let line = number / SLOTS_PER_LINE;
        let n = number % SLOTS_PER_LINE;
        if line >= self.lines_per_shard * SHARDS {
            return None;
        }
        // SAFETY: the line is part of the region; see `ShardLines::at_unchecked`.
        let line = unsafe { &*self.memory.as_ptr().cast::<CacheLine>().add(line) };
        Some(&line.0[n])
    }

    /// Records which lines change from now on.
    pub(super) fn record_changes(&mut self) {
        self.changed = ChangedLines::of(self.lines_per_shard * SHARDS);
    }

    /// Marks the line of a slot as changed, if changes are recorded.
    #[inline]
    pub(super) fn mark(&self, slot: &Slot) {
        #[cfg(shuttle)]
        if seeded::is(seeded::MARK_FIRST) {
            return; // it was marked before the change
        }
        self.mark_line(slot);
    }

    /// Changes a slot, and then marks its line.
    #[inline]
    pub(super) fn change<E>(&self, slot: &Slot, change: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        #[cfg(shuttle)]
        if seeded::is(seeded::MARK_FIRST) {
            self.mark_line(slot);
        }
        change().inspect(|()| self.mark(slot))
    }

    #[inline]
    fn mark_line(&self, slot: &Slot) {
        if let Some(changed) = &self.changed {
            changed.mark(self.slot_number(slot) / SLOTS_PER_LINE);
        }
    }

    pub(super) fn note_removed(&self, fingerprint: Fingerprint) {
        if let Some(changed) = &self.changed {
            changed.note_removed(fingerprint);
        }
    }

    /// A line by its number in the whole region: line `n` of shard `s` is number `n * SHARDS + s`.
    pub(super) fn line(&self, number: usize) -> &CacheLine {
        self.shard_lines(number % SHARDS).at(number / SHARDS)
    }

    /// The number of a slot of this region.
    #[inline]
    pub(super) fn slot_number(&self, slot: &Slot) -> usize {
        (std::ptr::from_ref(slot).addr() - self.memory.as_ptr().addr()) / size_of::<Slot>()
    }
}

impl<'r> ShardLines<'r> {
    #[inline]
    pub(super) fn len(self) -> usize {
        self.count
    }

    #[inline]
    pub(super) fn at(self, n: usize) -> &'r CacheLine {
        assert!(n < self.count);
        // SAFETY: `n` was just asserted to be in range.
        unsafe { self.at_unchecked(n) }
    }

    /// # Safety
    ///
    /// `n` is less than the number of lines.
    #[inline]
    pub(super) unsafe fn at_unchecked(self, n: usize) -> &'r CacheLine {
        count_steps(1);
        // SAFETY: the region has that many lines for each shard. Its memory is page-aligned, zeroed, never resized,
        // and accessed through this function only; a line of zeroes is a valid empty line, and lines change by atomic
        // operations only.
        unsafe { &*self.first.add(n * SHARDS) }
    }
}

/// Memory that is committed as it is touched, in huge pages where the system has them.
#[cfg(not(shuttle))]
fn map(bytes: usize) -> io::Result<memmap2::MmapMut> {
    let memory = memmap2::MmapOptions::new().len(bytes).no_reserve_swap().map_anon()?;
    #[cfg(target_os = "linux")]
    if bytes >= Region::HUGE_PAGE_MIN_BYTES {
        // Huge pages are an optimisation only.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    Ok(memory)
}
