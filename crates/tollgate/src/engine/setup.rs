//! Settings of an engine that are fixed for its lifetime.

use crate::changes::Changes;
use crate::fingerprint::Secret;
use crate::limit::Limit;
use crate::store::MemoryStore;
use crate::store::memory::MemoryFull;

/// Whether logs show keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LogKeys {
    #[default]
    Redacted,
    Plain,
}

/// Settings of an engine, fixed for its lifetime.
#[derive(Clone, Debug)]
pub struct EngineSetup {
    pub memory_bytes: usize,
    pub memory_full: MemoryFull,
    pub secret: Secret,
    pub log_keys: LogKeys,
    /// Distinguishes this node's verdicts from those of other nodes.
    pub node: u32,
    /// Whether changes are recorded for a [state log](crate::engine::log).
    pub changes: Changes,
}

impl EngineSetup {
    pub const DEFAULT_MEMORY_BYTES: usize = 1 << 30;

    /// With less memory, some part of the store could not store a key.
    pub const MIN_MEMORY_BYTES: usize = MemoryStore::MIN_BYTES;

    /// The memory that a key of this limit needs at its limit, in whole mebibytes.
    pub fn min_memory_for(limit: &Limit) -> usize {
        MemoryStore::min_bytes_for(limit)
    }

    /// Checks that the system grants that much address space; an engine panics if it does not.
    pub fn check_memory(&self) -> std::io::Result<()> {
        MemoryStore::try_new(self.memory_bytes).map(drop)
    }
}

impl Default for EngineSetup {
    fn default() -> Self {
        let secret = Secret::random();
        let node = secret.digest().part(b"node").finish().0 as u32;
        let memory_full = MemoryFull::default();
        EngineSetup {
            memory_bytes: Self::DEFAULT_MEMORY_BYTES,
            memory_full,
            secret,
            log_keys: LogKeys::Redacted,
            node,
            changes: Changes::Ignored,
        }
    }
}
