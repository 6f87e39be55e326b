//! Ten minutes of the sample. A request takes 16 bytes beside the copy that all equal requests of a client share.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Time;
use tollgate::internal::hit::OwnedHit;

use super::super::space_saving::FingerprintMap;
use super::batch::BatchHit;
use super::{SampleBatch, SampledRequest};

/// Bytes of the requests of a generation.
pub const MAX_GENERATION_BYTES: usize = 2 << 20;
/// Bytes of the requests of a client that are recorded one by one.
const CLIENT_SHARE_BYTES: usize = MAX_GENERATION_BYTES / 16;
/// Different requests that are counted in each second of a client that has filled its share.
const MAX_OF_SECOND: usize = 8;

/// Bytes of a table's entry at a load of at least 7/16.
const fn entry_bytes<T>() -> usize {
    (size_of::<T>() + 1) * 16 / 7
}

/// An array that is full grows by an eighth.
const REQUEST_BYTES: usize = size_of::<SampleRecord>() * 9 / 8;
const CLIENT_BYTES: usize = entry_bytes::<(u64, ClientShare)>();
const HIT_BYTES: usize = size_of::<KnownHit>() * 9 / 8 + entry_bytes::<(u64, u32)>() + ARC_BYTES;
/// The counts of an `Arc`.
const ARC_BYTES: usize = 16;
const BUSY_BYTES: usize = size_of::<BusySecond>();

pub struct Generation {
    since: Time,
    /// Its clients have this many zero bits at the end of their hashes.
    bits: u32,
    hits: Vec<KnownHit>,
    records: Vec<SampleRecord>,
    /// The indexes of requests by their marks, of several the last one.
    known: FingerprintMap<u32>,
    clients: FingerprintMap<ClientShare>,
    bytes: usize,
}

/// A request of a client without its time and cost.
struct KnownHit {
    client: u64,
    mark: u64,
    hit: Arc<OwnedHit>,
    /// The index of another one with the same mark.
    previous: Option<u32>,
}

/// Requests with the same mark that are compared.
const MAX_COMPARED: usize = 8;

/// The key in a table: sampled clients have the lower bits in common, which select the place in it.
fn table_key(hash: u64) -> u64 {
    hash.rotate_left(20)
}

/// A request, or several equal ones of the same second.
#[derive(Clone, Copy)]
struct SampleRecord {
    /// Microseconds since the generation began.
    at_us: u32,
    /// Its index among the different requests.
    hit: u32,
    cost: u32,
    count: u32,
}

/// What a client has of a generation.
#[derive(Default)]
struct ClientShare {
    bytes: u32,
    /// If it has filled its share.
    busy: Option<Box<BusySecond>>,
}

/// The last second of a busy client.
#[derive(Default)]
struct BusySecond {
    second: u32,
    /// The indexes of its records.
    records: [u32; MAX_OF_SECOND],
    len: usize,
    /// Requests of all seconds that are counted as another one.
    substituted: u64,
}

impl Generation {
    /// A generation that begins with the second of `since`.
    pub fn new(since: Time, bits: u32) -> Generation {
        Generation {
            since: Time::from_secs(since.secs()),
            bits,
            hits: Vec::new(),
            records: Vec::new(),
            known: FingerprintMap::default(),
            clients: FingerprintMap::default(),
            bytes: 0,
        }
    }

    pub fn since(&self) -> Time {
        self.since
    }

    pub fn bits(&self) -> u32 {
        self.bits
    }

    pub fn merge(&mut self, batch: &SampleBatch) {
        // Most batches have the same request several times.
        let mut places: Vec<Option<u32>> = vec![None; batch.hits.len()];
        let mut bits = self.bits;
        for request in &batch.requests {
            if self.bits != bits {
                // Indexes change when clients are dropped.
                places.fill(None);
                bits = self.bits;
            }
            let one = &batch.hits[usize::from(request.hit)];
            if one.client.trailing_zeros() < bits {
                continue;
            }
            let at_us = u32::try_from(request.at.since(self.since).as_micros()).unwrap_or(u32::MAX);
            let place = &mut places[usize::from(request.hit)];
            let known = place.or_else(|| self.find(one));
            let record = SampleRecord { at_us, hit: 0, cost: request.cost, count: 1 };
            *place = self.add(one, known, record);
        }
    }

    fn find(&self, hit: &BatchHit) -> Option<u32> {
        let last = self.known.get(&table_key(hit.mark)).copied();
        let same_mark = std::iter::successors(last, |place| self.hits[*place as usize].previous);
        same_mark.take(MAX_COMPARED).find(|place| {
            let one = &self.hits[*place as usize];
            one.client == hit.client && *one.hit == *hit.hit
        })
    }

    /// Adds a request, which is that of `known` if it is known. Returns the place of its copy.
    fn add(&mut self, hit: &BatchHit, known: Option<u32>, record: SampleRecord) -> Option<u32> {
        let second = record.at_us / 1_000_000;
        let share = self.clients.get_mut(&table_key(hit.client));
        let is_new_client = share.is_none();
        if let Some(busy) = share.and_then(|share| share.busy.as_deref_mut()) {
            if busy.second != second {
                busy.second = second;
                busy.len = 0;
            }
            let of_second = &busy.records[..busy.len];
            let records = &mut self.records;
            let is_equal = |at: &&u32| {
                let one = &records[**at as usize];
                Some(one.hit) == known && one.cost == record.cost
            };
            let equal = of_second.iter().find(is_equal).copied();
            // Another request of a second is recorded if it costs nothing but a record.
            let is_recorded = busy.len == 0 || known.is_some() && busy.len < MAX_OF_SECOND;
            if let Some(at) = equal.or_else(|| (!is_recorded).then(|| of_second[0])) {
                busy.substituted += u64::from(equal.is_none());
                let counted = &mut records[at as usize];
                counted.count = counted.count.saturating_add(1);
                return known;
            }
        }
        let needed = REQUEST_BYTES
            + if known.is_some() { 0 } else { HIT_BYTES + hit.hit.bytes() }
            + if is_new_client { CLIENT_BYTES } else { 0 };
        if self.bytes + needed <= MAX_GENERATION_BYTES {
            return Some(self.push(hit, known, record));
        }
        while self.bytes + needed > MAX_GENERATION_BYTES && self.bits < u64::BITS {
            self.retain(self.bits + 1);
        }
        let is_sampled = hit.client.trailing_zeros() >= self.bits;
        is_sampled.then(|| self.push(hit, self.find(hit), record))
    }

    fn push(&mut self, hit: &BatchHit, known: Option<u32>, record: SampleRecord) -> u32 {
        let before = self.bytes;
        let place = known.unwrap_or_else(|| {
            reserve_eighth(&mut self.hits);
            let place = self.hits.len() as u32;
            let BatchHit { client, mark, hit } = hit;
            let previous = self.known.insert(table_key(*mark), place);
            self.hits.push(KnownHit { client: *client, mark: *mark, hit: Arc::clone(hit), previous });
            self.bytes += HIT_BYTES + hit.bytes();
            place
        });
        let at = self.records.len() as u32;
        reserve_eighth(&mut self.records);
        self.records.push(SampleRecord { hit: place, ..record });
        self.bytes += REQUEST_BYTES;
        let share = self.clients.entry(table_key(hit.client)).or_insert_with(|| {
            self.bytes += CLIENT_BYTES;
            ClientShare::default()
        });
        share.bytes += (self.bytes - before) as u32;
        if share.busy.is_none() && share.bytes as usize >= CLIENT_SHARE_BYTES {
            share.busy = Some(Box::default());
            self.bytes += BUSY_BYTES;
        }
        if let Some(busy) = &mut share.busy {
            busy.second = record.at_us / 1_000_000;
            busy.records[busy.len] = at;
            busy.len += 1;
        }
        place
    }

    /// Drops the clients whose hashes have fewer zero bits.
    fn retain(&mut self, bits: u32) {
        let former = std::mem::replace(self, Generation::new(self.since, bits));
        let mut clients = former.clients;
        for record in former.records {
            let KnownHit { client, mark, hit, previous: _ } = &former.hits[record.hit as usize];
            if client.trailing_zeros() >= bits {
                self.push_again(&BatchHit { client: *client, mark: *mark, hit: Arc::clone(hit) }, record);
            }
        }
        for (client, share) in &mut self.clients {
            let substituted =
                clients.remove(client).and_then(|share| share.busy).map_or(0, |busy| busy.substituted);
            if let Some(busy) = &mut share.busy {
                busy.substituted = substituted;
            }
        }
    }

    fn push_again(&mut self, hit: &BatchHit, record: SampleRecord) {
        let client = table_key(hit.client);
        if let Some(busy) = self.clients.get_mut(&client).and_then(|share| share.busy.as_deref_mut()) {
            // Its last second goes on; earlier ones need no index.
            if busy.second != record.at_us / 1_000_000 || busy.len == MAX_OF_SECOND {
                busy.len = 0;
            }
        }
        self.push(hit, self.find(hit), record);
    }

    fn is_of(&self, record: &SampleRecord, bits: u32) -> bool {
        self.hits[record.hit as usize].client.trailing_zeros() >= bits
    }

    /// The requests of the clients whose hashes have so many zero bits.
    pub fn requests(&self, bits: u32) -> impl Iterator<Item = SampledRequest> + '_ {
        self.records.iter().filter(move |record| self.is_of(record, bits)).map(|record| SampledRequest {
            at: self.since + Duration::from_micros(record.at_us.into()),
            count: record.count,
            cost: record.cost.into(),
            hit: Arc::clone(&self.hits[record.hit as usize].hit),
        })
    }

    /// Requests of these clients that are counted as another one.
    pub fn substituted(&self, bits: u32) -> u64 {
        let is_sampled = |key: u64| key.rotate_right(20).trailing_zeros() >= bits;
        let sampled = self.clients.iter().filter(|(key, _)| is_sampled(**key));
        sampled.filter_map(|(_, share)| share.busy.as_ref()).map(|busy| busy.substituted).sum()
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    #[cfg(test)]
    pub fn set_counts(&mut self, count: u32) {
        self.records.iter_mut().for_each(|record| record.count = count);
    }
}

fn reserve_eighth<T>(array: &mut Vec<T>) {
    if array.len() == array.capacity() {
        array.reserve_exact(array.len() / 8 + 16);
    }
}
