//! Records of tracked keys: one row each in the counter table, in a partition of its own.
//!
//! Transactions of one partition are serialised: in the owner's partition a record would delay decisions.

use tokio::time::Instant;
use tollgate::internal::track::Delta;
use tollgate::internal::track::central::SharedTrack;

use super::CassandraStore;
use crate::counters::track::{TRACK_TIMEOUT, cas_update};
use crate::counters::{CounterId, StoreError};

impl CassandraStore {
    /// Adds a delta to the record of its key. Idempotent: a resent delta counts once.
    pub async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        let name = self.backend.naming.track_name(&delta.counter);
        let rows = &self.backend.rows.store;
        rows.link.breaker.admit()?;
        cas_update::add(rows, &name, &name, delta).await
    }

    /// The record of a key; empty if there is none.
    pub async fn read_track(&self, counter: &CounterId, writer: u64) -> Result<SharedTrack, StoreError> {
        let name = self.backend.naming.track_name(counter);
        let rows = &self.backend.rows.store;
        rows.link.breaker.admit()?;
        Ok(cas_update::read(rows, &name, &name).await?.into_shared(writer))
    }

    pub async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        let name = self.backend.naming.track_name(counter);
        let rows = &self.backend.rows.store;
        rows.link.breaker.admit()?;
        rows.delete(&name, &name, Instant::now() + TRACK_TIMEOUT).await.map(drop)
    }
}
