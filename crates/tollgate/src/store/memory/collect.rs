//! The collection of classes that no entry names, a few lines at a time.

use crate::store::memory::classes::LINES_PER_LOCK;
use crate::store::memory::{MemoryStore, SHARDS};
use crate::time::Time;

impl MemoryStore {
    /// Scans the lines that are due. The caller holds no lock.
    #[cold]
    pub(super) fn collect_classes(&self, now: Time) {
        let Some((mut collection, due)) = self.classes.collect() else { return };
        let mut scanned = 0;
        while scanned < due {
            if collection.shard == SHARDS {
                return self.classes.sweep(&mut collection);
            }
            let shard = self.shard_context(collection.shard, now);
            let mut inner = self.lock(collection.shard);
            let lines = shard.table.size().lines();
            let end = lines.min(collection.line + LINES_PER_LOCK as usize);
            (collection.line..end).for_each(|line| inner.mark_classes(&shard, line));
            scanned += (end - collection.line) as u64 + 1; // a lock costs at least as much as a line
            collection.line = end;
            if end == lines {
                collection.shard += 1;
                collection.line = 0;
            }
        }
        self.classes.note_scanned(scanned);
    }
}
