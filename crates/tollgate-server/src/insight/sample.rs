//! The requests of a sample of clients, so that live traffic can be replayed with other rules.
//!
//! A client is sampled by a hash of its identity, so the rate of a sampled client is its true rate. At first every client
//! is; when there is no room, one in 2, 4, 8 …. The sample has two generations of ten minutes: the last one, and the one
//! that is being recorded.
//!
//! A client that has filled its share of a generation goes on with one record a second, which counts the requests of that
//! second: an attacker that sends most of the requests is in the sample, and displaces no other client.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use tollgate::internal::hit::{OwnedHit, client_hash};
use tollgate::{Hit, Time};

use super::lock;

/// Bytes of the requests of a generation.
const MAX_GENERATION_BYTES: usize = 2 << 20;
const GENERATION_SECS: u64 = 600;
/// Bytes of the requests of a client that are recorded one by one.
const CLIENT_SHARE_BYTES: usize = MAX_GENERATION_BYTES / 16;
/// A longer request is not recorded: a few of them would be the whole sample.
const MAX_REQUEST_BYTES: usize = 16 << 10;
/// Bound on the replay of a sample. Where more requests are counted, those of busy clients are reduced in proportion.
const MAX_REPLAYED: u64 = 5_000_000;

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
    clients: HashMap<u64, ClientShare>,
    bytes: usize,
}

/// What a client has of a generation.
#[derive(Default)]
struct ClientShare {
    bytes: usize,
    /// The index of its last request.
    last: usize,
}

#[derive(Clone)]
pub struct SampledRequest {
    /// The hash of the client.
    pub client: u64,
    pub at: Time,
    /// How many requests of the client this stands for: those of the second that began with it.
    pub count: u32,
    pub hit: Arc<OwnedHit>,
}

/// A copy of the sample.
pub struct Sampled {
    /// In the order of their times.
    pub requests: Vec<SampledRequest>,
    /// One client in so many is sampled.
    pub one_in: u64,
    /// Requests of busy clients that were counted by the second.
    pub merged: u64,
}

impl Sampled {
    /// What a reader of a replay should know about the sample.
    pub fn notes(&self) -> Vec<String> {
        let note = || {
            format!(
                "{} requests of clients that sent very many are replayed at the start of their second, as copies of its \
                 first request",
                self.merged
            )
        };
        (self.merged > 0).then(note).into_iter().collect()
    }

    /// Each request, as often as it was sent.
    pub fn each(&self) -> impl Iterator<Item = &SampledRequest> {
        self.requests.iter().flat_map(|request| std::iter::repeat_n(request, request.count as usize))
    }
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

    /// The same text has the same mark during the lifetime of the process.
    pub fn mark(&self, text: &str) -> u64 {
        self.hasher.hash_one(text)
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
        let mut generations = lock(&self.generations);
        let current = &mut generations.current;
        if current.merge(client, at) {
            return;
        }
        let hit = Arc::new(OwnedHit::of(hit));
        let bytes = request_bytes(&hit);
        if bytes > MAX_REQUEST_BYTES {
            return;
        }
        while current.bytes + bytes > MAX_GENERATION_BYTES && current.bits < u64::BITS {
            current.retain(current.bits + 1);
            self.bits.store(current.bits, Ordering::Relaxed);
        }
        // Another thread may have changed it since it was read.
        if client.trailing_zeros() >= current.bits {
            current.push(SampledRequest { client, at, count: 1, hit });
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
        let total: u64 = requests.iter().map(|request| u64::from(request.count)).sum();
        for request in requests.iter_mut().filter(|_| total > MAX_REPLAYED) {
            let reduced = u128::from(request.count) * u128::from(MAX_REPLAYED) / u128::from(total);
            request.count = u32::try_from(reduced).unwrap_or(u32::MAX).max(1);
        }
        Sampled { merged: total - requests.len() as u64, requests, one_in: 1 << bits.min(u64::BITS - 1) }
    }
}

impl Generation {
    /// Counts a request of a client that has filled its share, if it is of the same second as the last one.
    fn merge(&mut self, client: u64, at: Time) -> bool {
        let Some(share) = self.clients.get(&client).filter(|share| share.bytes >= CLIENT_SHARE_BYTES) else {
            return false;
        };
        let last = &mut self.requests[share.last];
        let is_same_second = last.at.secs() == at.secs();
        if is_same_second {
            last.count = last.count.saturating_add(1);
        }
        is_same_second
    }

    fn push(&mut self, request: SampledRequest) {
        let bytes = request_bytes(&request.hit);
        let share = self.clients.entry(request.client).or_default();
        share.bytes += bytes;
        share.last = self.requests.len();
        self.bytes += bytes;
        self.requests.push(request);
    }

    fn retain(&mut self, bits: u32) {
        let requests = mem::take(&mut self.requests);
        let since = self.since;
        *self = Generation { since, bits, ..Generation::default() };
        let sampled = |one: &SampledRequest| one.client.trailing_zeros() >= bits;
        requests.into_iter().filter(sampled).for_each(|request| self.push(request));
    }
}

/// What a request takes, with its client's share.
fn request_bytes(hit: &OwnedHit) -> usize {
    size_of::<SampledRequest>() + size_of::<(u64, ClientShare)>() + hit.bytes()
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
    fn a_client_that_sends_nearly_everything_displaces_no_other_and_keeps_its_rate() {
        const PER_SECOND: u64 = 1_000;
        let sample = ClientSample::new(START);
        let attacker = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
        let users: Vec<String> = (0..10).map(|n| format!("user-{n}")).collect();
        for second in 0..GENERATION_SECS / 2 {
            let at = Time::from_secs(START.secs() + second);
            users.iter().for_each(|user| sample.record(&Hit::on("GET", "h", "/").user(&**user), at));
            (0..PER_SECOND).for_each(|_| sample.record(&attacker, at));
        }
        let sampled = sample.copy();
        assert_eq!((sampled.one_in, clients(&sampled)), (1, users.len() + 1));
        let last = Time::from_secs(START.secs() + GENERATION_SECS / 2 - 1);
        let in_last = sampled.each().filter(|request| request.at == last).count() as u64;
        assert_eq!(in_last, PER_SECOND + users.len() as u64);
        assert_eq!(sampled.each().count() as u64, (PER_SECOND + users.len() as u64) * GENERATION_SECS / 2);
        assert!(sampled.merged > 0 && sampled.notes().len() == 1);
        assert!(lock(&sample.generations).current.bytes <= MAX_GENERATION_BYTES);
    }

    #[test]
    fn a_replay_is_bounded() {
        let sample = ClientSample::new(START);
        let hit = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
        (0..5_000).for_each(|_| sample.record(&hit, START));
        let mut generations = lock(&sample.generations);
        generations.current.requests.iter_mut().for_each(|request| request.count = u32::MAX);
        drop(generations);
        let replayed = sample.copy().each().count() as u64;
        assert!((MAX_REPLAYED / 2..=MAX_REPLAYED).contains(&replayed), "{replayed}");
    }

    #[test]
    fn a_generation_ends_after_ten_minutes() {
        let sample = ClientSample::new(START);
        let hit = Hit::on("GET", "h", "/").ip([192, 0, 2, 1].into());
        let at = |generation: u64| Time::from_secs(START.secs() + generation * GENERATION_SECS);
        sample.record(&hit, START);
        sample.tick(at(1));
        sample.record(&hit, at(1));
        assert_eq!(sample.copy().requests.len(), 2);
        sample.tick(at(2));
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
