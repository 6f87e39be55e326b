//! Records of tracked keys: one value each, replaced by compare-and-swap.

use tokio::time::Instant;
use tollgate::internal::track::Delta;
use tollgate::internal::track::central::SharedTrack;

use super::MemcachedStore;
use crate::counters::memcached::wire::MemcachedCommand;
use crate::counters::track::{TRACK_TIMEOUT, cas_update};
use crate::counters::{CounterId, StoreError};

impl MemcachedStore {
    /// Adds a delta to the record of its key. Idempotent: a resent delta counts once.
    pub async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        let name = self.backend.pool.track_name(&delta.counter);
        cas_update::add(&self.backend.values.store, &name, &name, delta).await
    }

    /// The record of a key; empty if there is none.
    pub async fn read_track(&self, counter: &CounterId, writer: u64) -> Result<SharedTrack, StoreError> {
        let name = self.backend.pool.track_name(counter);
        Ok(cas_update::read(&self.backend.values.store, &name, &name).await?.into_shared(writer))
    }

    pub async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        let name = self.backend.pool.track_name(counter);
        let server = self.backend.pool.server(&name);
        server
            .execute_one(MemcachedCommand::Delete { key: name }, Instant::now() + TRACK_TIMEOUT)
            .await
            .map(drop)
    }
}
