//! The requests of a sample of clients, so that live traffic can be replayed with other rules.
//!
//! A client is sampled by a hash of its identity, so the rate of a sampled client is its true rate. At first every client
//! is; when there is no room, one in 2, 4, 8 …. Threads record into their batches (`batch`), which are merged into a
//! generation. The sample has two generations of ten minutes: the last one, and the one that is being recorded.
//!
//! Every request is recorded with its time and cost. A client that has filled its share of a generation goes on with the
//! counts of each second by request and cost: an attacker that sends most of the requests is in the sample, and displaces
//! no other client.

use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::internal::fingerprint::Secret;
use tollgate::internal::hit::{OwnedHit, client_hash, target_hash};
use tollgate::{Hit, Time};

use super::lock;

mod batch;
mod generation;

pub use batch::SampleBatch;
use generation::{Generation, MAX_GENERATION_BYTES};

const GENERATION_SECS: u64 = 600;
/// A longer request is not recorded: a few of them would be the whole sample.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Bound on the replay of a sample. Where more requests are counted, those of busy clients are reduced in proportion.
const MAX_REPLAYED: u64 = 5_000_000;

pub struct ClientSample {
    secret: Secret,
    /// A client is sampled if its hash ends with this many zero bits.
    bits: AtomicU32,
    generations: Mutex<Generations>,
}

struct Generations {
    current: Generation,
    last: Generation,
}

/// A client that is sampled, and what it has asked for.
#[derive(Clone, Copy)]
pub struct SampledClient {
    /// The hash of the client.
    client: u64,
    /// A hash of the client, and of the method, host, path and query.
    mark: u64,
}

#[derive(Clone)]
pub struct SampledRequest {
    pub at: Time,
    /// How many equal requests of the client this stands for: those of the second that began with it.
    pub count: u32,
    cost: u64,
    hit: Arc<OwnedHit>,
}

impl SampledRequest {
    pub fn hit(&self) -> Hit<'_> {
        self.hit.hit(self.cost)
    }
}

/// A copy of the sample.
pub struct Sampled {
    /// In the order of their times.
    pub requests: Vec<SampledRequest>,
    /// One client in so many is sampled.
    pub one_in: u64,
    /// Requests of busy clients that were counted by the second.
    pub merged: u64,
    /// Of these, requests that are counted as another one of their client.
    pub substituted: u64,
}

impl Sampled {
    /// What a reader of a replay should know about the sample.
    pub fn notes(&self) -> Vec<String> {
        let merged = || {
            format!(
                "{} requests of clients that sent very many are replayed at the start of their second: their times within \
                 it are not recorded",
                grouped(self.merged)
            )
        };
        let substituted = || {
            format!(
                "{} of them are replayed with the path and the cost of another request of the same client and second",
                grouped(self.substituted)
            )
        };
        let merged = (self.merged > 0).then(merged);
        merged.into_iter().chain((self.substituted > 0).then(substituted)).collect()
    }

    /// Each request, as often as it was sent.
    pub fn each(&self) -> impl Iterator<Item = &SampledRequest> {
        self.requests.iter().flat_map(|request| std::iter::repeat_n(request, request.count as usize))
    }
}

/// A number with a comma after each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

impl ClientSample {
    pub const MAX_BYTES: usize = 2 * MAX_GENERATION_BYTES;

    pub fn new(now: Time) -> ClientSample {
        let generations = Generations { current: Generation::new(now, 0), last: Generation::new(now, 0) };
        ClientSample {
            secret: Secret::random(),
            bits: AtomicU32::new(0),
            generations: Mutex::new(generations),
        }
    }

    /// The same text has the same mark during the lifetime of the process.
    pub fn mark(&self, text: &str) -> u64 {
        self.secret.fingerprint([text]).to_bits()
    }

    /// The client of a request, if it is sampled.
    #[inline]
    pub fn client(&self, hit: &Hit<'_>) -> Option<SampledClient> {
        let client = client_hash(hit, &self.secret);
        // Another thread may be changing it: the merge decides.
        let is_sampled = client.trailing_zeros() >= self.bits.load(Ordering::Relaxed);
        is_sampled.then(|| SampledClient { client, mark: client ^ target_hash(hit, &self.secret) })
    }

    /// Adds the requests of a batch to the current generation.
    pub fn merge(&self, batch: &mut SampleBatch) {
        if batch.is_empty() {
            return;
        }
        let mut generations = lock(&self.generations);
        let current = &mut generations.current;
        current.merge(batch);
        self.bits.store(current.bits(), Ordering::Relaxed);
    }

    /// Begins a new generation when the current one is old enough. It begins with more clients: traffic may have become
    /// less.
    pub fn tick(&self, now: Time) {
        let mut generations = lock(&self.generations);
        let since = generations.current.since().secs();
        if now.secs() < since || now.secs() - since >= GENERATION_SECS {
            let bits = generations.current.bits().saturating_sub(1);
            generations.last = mem::replace(&mut generations.current, Generation::new(now, bits));
            self.bits.store(bits, Ordering::Relaxed);
        }
    }

    /// The requests of both generations, of clients that are sampled in both.
    pub fn copy(&self) -> Sampled {
        let generations = lock(&self.generations);
        let Generations { current, last } = &*generations;
        let bits = current.bits().max(last.bits());
        let mut requests: Vec<_> = last.requests(bits).chain(current.requests(bits)).collect();
        let substituted = last.substituted(bits) + current.substituted(bits);
        drop(generations);
        requests.sort_by_key(|request| request.at);
        let total: u64 = requests.iter().map(|request| u64::from(request.count)).sum();
        for request in requests.iter_mut().filter(|_| total > MAX_REPLAYED) {
            let reduced = u128::from(request.count) * u128::from(MAX_REPLAYED) / u128::from(total);
            request.count = u32::try_from(reduced).unwrap_or(u32::MAX).max(1);
        }
        let merged = total - requests.len() as u64;
        Sampled { merged, substituted, requests, one_in: 1 << bits.min(u64::BITS - 1) }
    }
}

#[cfg(test)]
mod tests;
