//! Records of tracked keys: one value each, replaced by compare-and-swap.

use tokio::time::Instant;
use tollgate::track::Delta;
use tollgate::track::central::SharedTrack;

use super::MemcachedStore;
use crate::counters::memcached::wire::Command;
use crate::counters::track::{DEADLINE, swap};
use crate::counters::{Counter, StoreError};

impl MemcachedStore {
    /// Adds a delta to the record of its key, once, however often it is sent.
    pub async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        let name = self.inner.fleet.track_name(&delta.counter);
        swap::add(&self.inner.values.cells, &name, &name, delta).await
    }

    /// The record of a key; an empty one if there is none.
    pub async fn read_track(&self, counter: &Counter, writer: u64) -> Result<SharedTrack, StoreError> {
        let name = self.inner.fleet.track_name(counter);
        Ok(swap::read(&self.inner.values.cells, &name, &name).await?.shared(writer))
    }

    pub async fn forget_track(&self, counter: &Counter) -> Result<(), StoreError> {
        let name = self.inner.fleet.track_name(counter);
        let server = self.inner.fleet.server(&name);
        server.ask_one(Command::Delete { key: name }, Instant::now() + DEADLINE).await.map(drop)
    }
}
