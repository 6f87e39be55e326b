//! All requests of a sample of clients, so that live traffic can be replayed with other rules.
//!
//! A client is sampled by a hash of its identity, so the rate of a sampled client is its true rate. At first every client
//! is; when there is no room, one in 2, 4, 8 …. The sample has two generations of ten minutes: the last one, and the one
//! that is being recorded.

use std::hash::RandomState;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::internal::hit::{OwnedHit, client_hash};
use tollgate::{Hit, Time};

use super::lock;

/// Bytes of the requests of a generation.
const MAX_GENERATION_BYTES: usize = 2 << 20;
const GENERATION_SECS: u64 = 600;
/// If fewer of the requests would remain, a few clients send most of them: then recording stops until the next generation.
const LEAST_REMAINING: usize = 16;
/// No hash has so many zero bits.
const NO_CLIENT: u32 = u64::BITS + 1;
/// A longer request is not recorded: a few of them would be the whole sample.
const MAX_REQUEST_BYTES: usize = 16 << 10;

pub struct ClientSample {
    hasher: RandomState,
    /// A client is sampled if its hash ends with this many zero bits.
    bits: AtomicU32,
    generations: Mutex<Generations>,
}

struct Generations {
    current: Generation,
    last: Generation,
}

#[derive(Default)]
struct Generation {
    since: u64,
    /// Its clients have this many zero bits at the end of their hashes.
    bits: u32,
    requests: Vec<SampledRequest>,
    bytes: usize,
}

#[derive(Clone)]
pub struct SampledRequest {
    /// The hash of the client.
    pub client: u64,
    pub at: Time,
    pub hit: Arc<OwnedHit>,
}

/// A copy of the sample.
pub struct Sampled {
    /// In the order of their times.
    pub requests: Vec<SampledRequest>,
    /// One client in so many is sampled.
    pub one_in: u64,
}

impl ClientSample {
    pub const MAX_BYTES: usize = 2 * (MAX_GENERATION_BYTES + MAX_REQUEST_BYTES);

    pub fn new(now: Time) -> ClientSample {
        let current = Generation { since: now.secs(), ..Generation::default() };
        ClientSample {
            hasher: RandomState::new(),
            bits: AtomicU32::new(0),
            generations: Mutex::new(Generations { current, last: Generation::default() }),
        }
    }

    /// Records a request if its client is sampled.
    #[inline]
    pub fn record(&self, hit: &Hit<'_>, at: Time) {
        let hash = client_hash(hit, &self.hasher);
        if hash.trailing_zeros() >= self.bits.load(Ordering::Relaxed) {
            self.keep(hash, hit, at);
        }
    }

    #[cold]
    fn keep(&self, client: u64, hit: &Hit<'_>, at: Time) {
        let hit = Arc::new(OwnedHit::of(hit));
        let bytes = size_of::<SampledRequest>() + hit.bytes();
        if bytes > MAX_REQUEST_BYTES {
            return;
        }
        let mut generations = lock(&self.generations);
        let current = &mut generations.current;
        while current.bytes + bytes > MAX_GENERATION_BYTES {
            let next = current.bits + 1;
            let remaining = current.requests.iter().filter(|one| one.client.trailing_zeros() >= next).count();
            if remaining * LEAST_REMAINING < current.requests.len() {
                return self.bits.store(NO_CLIENT, Ordering::Relaxed);
            }
            current.retain(next);
            self.bits.store(next, Ordering::Relaxed);
        }
        // Another thread may have changed it since it was read.
        if client.trailing_zeros() >= current.bits {
            current.requests.push(SampledRequest { client, at, hit });
            current.bytes += bytes;
        }
    }

    /// Begins a new generation when the current one is old enough. It begins with more clients: traffic may have become
    /// less.
    pub fn tick(&self, now: Time) {
        let mut generations = lock(&self.generations);
        let since = generations.current.since;
        if now.secs() < since || now.secs() - since >= GENERATION_SECS {
            let bits = generations.current.bits.saturating_sub(1);
            let next = Generation { since: now.secs(), bits, ..Generation::default() };
            generations.last = mem::replace(&mut generations.current, next);
            self.bits.store(bits, Ordering::Relaxed);
        }
    }

    /// The requests of both generations, of clients that are sampled in both.
    pub fn copy(&self) -> Sampled {
        let generations = lock(&self.generations);
        let Generations { current, last } = &*generations;
        let bits = current.bits.max(last.bits);
        let both = last.requests.iter().chain(&current.requests);
        let mut requests: Vec<_> = both.filter(|one| one.client.trailing_zeros() >= bits).cloned().collect();
        drop(generations);
        requests.sort_by_key(|request| request.at);
        Sampled { requests, one_in: 1 << bits }
    }
}

impl Generation {
    fn retain(&mut self, bits: u32) {
        self.bits = bits;
        self.requests.retain(|one| one.client.trailing_zeros() >= bits);
        self.bytes = self.requests.iter().map(|one| size_of::<SampledRequest>() + one.hit.bytes()).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const START: Time = Time::from_secs(1_800_000_000);

    fn clients(sampled: &Sampled) -> usize {
        sampled.requests.iter().map(|request| request.client).collect::<HashSet<_>>().len()
    }

    #[test]
    fn every_request_of_a_sampled_client_is_kept_and_memory_is_bounded() {
        let sample = ClientSample::new(START);
        for n in 0..200_000u32 {
            let user = format!("user-{}", n % 20_000);
            sample.record(&Hit::on("GET", "h", "/").user(&*user), START);
        }
        let sampled = sample.copy();
        assert!(sampled.one_in > 1 && !sampled.requests.is_empty(), "one in {}", sampled.one_in);
        assert_eq!(sampled.requests.len(), 10 * clients(&sampled));
        assert!(lock(&sample.generations).current.bytes <= MAX_GENERATION_BYTES);
        let expected = 20_000 / sampled.one_in as usize;
        assert!((expected / 2..expected * 2).contains(&clients(&sampled)), "{}", clients(&sampled));
    }

    #[test]
    fn one_client_that_sends_everything_leaves_its_first_requests() {
        let sample = ClientSample::new(START);
        let hit = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
        (0..100_000).for_each(|_| sample.record(&hit, START));
        let first = sample.copy().requests.len();
        assert!(first > 1_000);
        let later = Time::from_secs(START.secs() + GENERATION_SECS);
        sample.tick(later);
        sample.record(&hit, later);
        assert_eq!(sample.copy().requests.len(), first + 1, "recording goes on in the next generation");
        sample.tick(Time::from_secs(START.secs() + 2 * GENERATION_SECS));
        assert_eq!(sample.copy().requests.len(), 1);
    }

    #[test]
    fn requests_of_64_kib_are_not_kept() {
        let sample = ClientSample::new(START);
        let long = "x".repeat(64 << 10);
        sample.record(&Hit::by(&long), START);
        assert!(sample.copy().requests.is_empty());
    }
}
