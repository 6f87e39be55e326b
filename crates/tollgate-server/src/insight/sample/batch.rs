//! The sampled requests of one thread since they were last merged. Equal requests of a client share one copy.

use std::sync::Arc;

use tollgate::internal::hit::{OwnedHit, cost};
use tollgate::{Hit, Time};

use super::super::batch::SlotIndex;
use super::{MAX_REQUEST_BYTES, SampledClient};

/// Different requests in a batch.
const MAX_HITS: usize = 128;
const MAX_REQUESTS: usize = 512;
/// Bytes of the different requests from which on a batch is full.
const FULL_BYTES: usize = 8 << 10;

#[derive(Default)]
pub struct SampleBatch {
    pub hits: Vec<BatchHit>,
    pub requests: Vec<BatchRequest>,
    bytes: usize,
    index: SlotIndex<{ 2 * MAX_HITS }>,
}

pub struct BatchHit {
    pub client: u64,
    pub mark: u64,
    pub hit: Arc<OwnedHit>,
}

pub struct BatchRequest {
    pub at: Time,
    pub cost: u32,
    /// Its index among the different requests.
    pub hit: u16,
}

impl SampleBatch {
    /// Bytes of a full batch, beside its own.
    pub const MAX_BYTES: usize = MAX_HITS * size_of::<BatchHit>()
        + MAX_REQUESTS * size_of::<BatchRequest>()
        + FULL_BYTES
        + MAX_REQUEST_BYTES;

    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.requests.len() == MAX_REQUESTS || self.hits.len() == MAX_HITS || self.bytes >= FULL_BYTES
    }

    pub fn clear(&mut self) {
        if self.is_empty() {
            return;
        }
        self.hits.clear();
        self.requests.clear();
        self.bytes = 0;
        self.index.clear();
    }

    /// Records a request. The batch must not be full.
    pub fn record(&mut self, SampledClient { client, mark }: SampledClient, hit: &Hit<'_>, at: Time) {
        let known = |n: usize| {
            self.hits[n].mark == mark && self.hits[n].client == client && self.hits[n].hit.is_of(hit)
        };
        let n = match self.index.find(mark, known) {
            Ok(n) => n,
            Err(slot) => {
                let Some(copy) = OwnedHit::of(hit, MAX_REQUEST_BYTES) else { return };
                self.bytes += copy.bytes();
                if self.hits.capacity() == 0 {
                    self.hits.reserve_exact(MAX_HITS);
                    self.requests.reserve_exact(MAX_REQUESTS);
                }
                self.hits.push(BatchHit { client, mark, hit: Arc::new(copy) });
                self.index.note(slot, self.hits.len() - 1);
                self.hits.len() - 1
            }
        };
        let cost = u32::try_from(cost(hit)).unwrap_or(u32::MAX);
        self.requests.push(BatchRequest { at, cost, hit: n as u16 });
    }
}
