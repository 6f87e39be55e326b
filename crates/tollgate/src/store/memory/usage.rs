//! What the store holds, and what it had to do when it was full.

use std::sync::atomic::Ordering;

use crate::store::memory::{MemoryStore, SHARDS};
use crate::time::Time;

/// What the store holds and has let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    pub keys: u64,
    pub bytes: u64,
    pub cap_bytes: u64,
    /// Live entries that made room for one that has used a larger share of its limit.
    pub evicted: u64,
    /// Charges of new keys that found no room, because nothing around them had used clearly less of its limit.
    pub unstored: u64,
    /// Times that a state found no room to grow and was coarsened: it denies a little longer than it should.
    pub coarsened: u64,
    /// Charges of new keys that were denied because memory is full: by the state that such keys share, or at once.
    pub denied_full: u64,
}

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

    /// How many limits have new keys that share a state at `now`, because memory is full.
    pub fn aggregated_limits(&self, now: Time) -> usize {
        (0..SHARDS).map(|n| self.lock(n).aggregate.in_use(now)).max().unwrap_or(0)
    }
}
