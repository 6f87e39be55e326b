//! The shared records of tracked keys: the interface of the central store.
//!
//! A node sends its observations since the last write as a [`Delta`] with its own id and an increasing sequence
//! number. The record stores the last number of each writer, so a delta whose result is unknown is sent again and
//! counted once.

use std::future::Future;

use crate::store::central::{CounterId, StoreError};
use crate::track::{Delta, Track};

/// A store with one record for each tracked key.
pub trait CentralTrackStore: Sync {
    /// Adds a delta to the record of its key. Idempotent.
    fn add_track(&self, delta: &Delta) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The record of a key, with the sequence of `writer`; empty if there is none.
    fn read_track(
        &self,
        counter: &CounterId,
        writer: u64,
    ) -> impl Future<Output = Result<SharedTrack, StoreError>> + Send;

    fn forget_track(&self, counter: &CounterId) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// Observations of all nodes for a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SharedTrack {
    pub track: Track,
    /// The last delta of the requesting writer that is part of the record; zero if none is.
    pub applied: u64,
}
