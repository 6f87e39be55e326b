//! Usage of the store, and its actions when it was full.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::store::memory::{MemoryFull, MemoryStore, SHARDS};
use crate::time::Time;

/// Entries and bytes of the store, and counts of what it dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[deny(missing_docs)]
#[non_exhaustive]
pub struct Usage {
    /// Entries, expired ones included.
    pub keys: u64,
    /// Memory in use.
    pub bytes: u64,
    /// Memory that may be used.
    pub cap_bytes: u64,
    /// Live entries evicted for one that has used a larger fraction of its limit.
    pub evicted: u64,
    /// Charges of new keys that found no room, because no entry in their lines had used clearly less of its limit.
    pub unstored: u64,
    /// States that found no room to grow and were coarsened: they deny a little longer than exact ones.
    pub coarsened: u64,
    /// Charges of new keys that were denied because memory is full: by their aggregate cell, or unconditionally.
    pub denied_full: u64,
}

/// Memory counts as full for this long after a new key found no room.
const FULL_FOR: Duration = Duration::from_secs(60);
const NOTED_EVERY: Duration = Duration::from_secs(1);

impl MemoryStore {
    pub fn usage(&self) -> Usage {
        let mut usage = Usage {
            cap_bytes: self.cap_bytes as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            unstored: self.unstored.load(Ordering::Relaxed),
            coarsened: self.coarsened.load(Ordering::Relaxed),
            denied_full: self.denied_full.load(Ordering::Relaxed),
            ..Usage::default()
        };
        for (n, table) in self.tables.iter().enumerate() {
            let inner = self.lock(n);
            usage.keys += inner.entries() as u64;
            usage.bytes += inner.bytes(table) as u64;
        }
        usage
    }

    /// What becomes of new keys that find no room, if there were any lately.
    pub fn full_now(&self, now: Time) -> Option<MemoryFull> {
        let is_full = match self.full {
            MemoryFull::Aggregate => self.aggregated_limits(now) > 0,
            MemoryFull::Open | MemoryFull::Closed => {
                let at = Time::from_nanos(self.unlimited_at.load(Ordering::Relaxed));
                at != Time::default() && now.since(at) < FULL_FOR
            }
        };
        is_full.then_some(self.full)
    }

    /// Written at most once a second: a flood would otherwise pass the line from core to core.
    pub(super) fn note_unlimited(&self, now: Time) {
        // Relaxed: a time for operators; nothing is ordered by it.
        let noted = Time::from_nanos(self.unlimited_at.load(Ordering::Relaxed));
        if now.since(noted) >= NOTED_EVERY {
            self.unlimited_at.store(now.nanos(), Ordering::Relaxed);
        }
    }

    /// The number of limits with an aggregate cell in use at `now`, because memory is full.
    pub fn aggregated_limits(&self, now: Time) -> usize {
        (0..SHARDS).map(|n| self.lock(n).aggregate.in_use(now)).max().unwrap_or(0)
    }
}
