//! Records of tracked keys, on the store that has the counters.

use tollgate::internal::track::Delta;
use tollgate::internal::track::central::{CentralTrackStore, SharedTrack};

use super::CentralStore;
use crate::counters::{CounterId, StoreError};

impl CentralTrackStore for CentralStore {
    async fn add_track(&self, delta: &Delta) -> Result<(), StoreError> {
        with_store!(self, |store| store.add_track(delta).await)
    }

    async fn read_track(&self, counter: &CounterId, writer: u64) -> Result<SharedTrack, StoreError> {
        with_store!(self, |store| store.read_track(counter, writer).await)
    }

    async fn forget_track(&self, counter: &CounterId) -> Result<(), StoreError> {
        with_store!(self, |store| store.forget_track(counter).await)
    }
}
