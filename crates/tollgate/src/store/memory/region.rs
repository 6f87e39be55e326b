//! The memory of the table: reserved once at its cap, taken from the system as it is touched.
//!
//! It never moves and is given back only with the store, so readers need no protection from it going
//! away.

use std::io;
use std::ops::Deref;

use crate::store::memory::slot::Line;

/// `shards` runs of lines, all empty.
pub(super) struct Region {
    #[cfg(not(shuttle))]
    memory: memmap2::MmapMut,
    #[cfg(shuttle)]
    memory: Vec<Line>,
    lines_per_shard: usize,
}

/// The lines of one shard.
pub(super) struct Lines {
    first: *const Line,
    count: usize,
}

impl Region {
    /// Fails where the system does not give that much address space.
    pub(super) fn reserve(shards: usize, lines_per_shard: usize) -> io::Result<Region> {
        let lines = shards * lines_per_shard;
        #[cfg(not(shuttle))]
        let memory =
            memmap2::MmapOptions::new().len(lines * size_of::<Line>()).no_reserve_swap().map_anon()?;
        #[cfg(shuttle)]
        let memory = (0..lines).map(|_| Line::default()).collect();
        Ok(Region { memory, lines_per_shard })
    }

    /// The lines of shard `n`.
    ///
    /// # Safety
    ///
    /// They must not be used after the region is gone.
    pub(super) unsafe fn shard(&self, n: usize) -> Lines {
        assert!((n + 1) * self.lines_per_shard * size_of::<Line>() <= size_of_val(&self.memory[..]));
        let first = self.memory.as_ptr().cast::<Line>();
        // SAFETY: the memory holds that many lines, as was just asserted.
        Lines { first: unsafe { first.add(n * self.lines_per_shard) }, count: self.lines_per_shard }
    }
}

impl Deref for Lines {
    type Target = [Line];

    #[inline]
    fn deref(&self) -> &[Line] {
        // SAFETY: the memory is aligned to pages, zeroed, never resized, still there (as whoever made this
        // has promised), and accessed through this function only; a line of zeroes is a valid empty line,
        // and lines change through shared references by atomic operations only.
        unsafe { std::slice::from_raw_parts(self.first, self.count) }
    }
}

// SAFETY: lines are made of atomics; the pointer is never written through but by them.
unsafe impl Send for Lines {}
// SAFETY: as above.
unsafe impl Sync for Lines {}
