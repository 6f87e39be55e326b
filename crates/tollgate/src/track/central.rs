//! The records of tracked keys that nodes share: what is asked of the store that keeps the counters.
//!
//! A node sends what it has seen since the last time, as a [`Delta`] with its own id and a number that only grows. The
//! record remembers the last number of each writer, so a delta whose fate is unknown is sent again and counted once.

use std::future::Future;

use crate::store::central::{CounterId, StoreError};
use crate::track::{Delta, Track};

/// A store with one record for each tracked key.
pub trait CentralTrackStore: Sync {
    /// Adds a delta to the record of its key, once, however often it is sent.
    fn add_track(&self, delta: &Delta) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The record of a key, as far as `writer` is concerned; empty if there is none.
    fn read_track(
        &self,
        counter: &CounterId,
        writer: u64,
    ) -> impl Future<Output = Result<SharedTrack, StoreError>> + Send;

    fn forget_track(&self, counter: &CounterId) -> impl Future<Output = Result<(), StoreError>> + Send;
}

/// What all nodes have seen of a key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SharedTrack {
    pub track: Track,
    /// The last delta of the writer who asks that is part of it; zero if none is.
    pub applied: u64,
}
