//! The memory of the table: reserved once at its cap, taken from the system as it is touched.
//!
//! It never moves and is never given back, so readers need no protection from it going away.

use crate::store::memory::slot::Line;

/// `shards` runs of `lines_per_shard` lines, all empty.
pub(super) struct Region {
    #[cfg(not(shuttle))]
    map: memmap2::MmapMut,
    #[cfg(shuttle)]
    lines: Vec<Line>,
    lines_per_shard: usize,
}

impl Region {
    pub(super) fn reserve(shards: usize, lines_per_shard: usize) -> Region {
        #[cfg(not(shuttle))]
        {
            let bytes = shards * lines_per_shard * size_of::<Line>();
            let map = memmap2::MmapOptions::new().len(bytes).no_reserve_swap().map_anon();
            let map = map.expect("the address space has room for the memory cap");
            Region { map, lines_per_shard }
        }
        #[cfg(shuttle)]
        {
            let lines = (0..shards * lines_per_shard).map(|_| Line::default()).collect();
            Region { lines, lines_per_shard }
        }
    }

    pub(super) fn shard(&self, n: usize) -> &[Line] {
        &self.lines()[n * self.lines_per_shard..][..self.lines_per_shard]
    }

    #[cfg(not(shuttle))]
    fn lines(&self) -> &[Line] {
        let count = self.map.len() / size_of::<Line>();
        // SAFETY: the map is page-aligned, as long as `count` lines, zeroed, never resized, and only ever
        // accessed through this function; a line of zeroes is a valid empty line, and lines change
        // through shared references by atomic operations only.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().cast::<Line>(), count) }
    }

    #[cfg(shuttle)]
    fn lines(&self) -> &[Line] {
        &self.lines
    }
}
