//! Observations of tracked keys that are not written to the central store yet: at most one write per key and second.
//!
//! An entry is in one of two states: queued in its shard until it is due, or taken and being written. A new entry is
//! due at once, one that was taken is due a second later. Attempts counted while a delta is being written go into the
//! next one. A delta that failed is taken again unchanged, with its sequence number, after a second and then with
//! backoff; the next one is made only after it is acknowledged. An entry without new data is removed when it is due.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use crate::fingerprint::{Fingerprint, Secret};
use crate::rule::Tracking;
use crate::store::central::CounterId;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::Time;
use crate::track::Track;

/// Minimum time between two writes of one key.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// Bound of the exponential backoff: the wait doubles at most this often.
const MAX_DOUBLINGS: u32 = 3;
/// A power of two, so that bits of a fingerprint choose the shard.
const SHARDS: usize = 16;
/// Approximate memory of all entries; attempts that find no room are dropped and counted.
const MAX_BYTES: usize = 64 << 20;
/// Bytes of an entry without its texts and timestamps.
const ENTRY_BYTES: usize = 320;

/// Observations of one node for one key since its last delta.
#[derive(Debug)]
pub struct Delta {
    pub counter: Arc<CounterId>,
    pub tracking: Tracking,
    /// The process that made it.
    pub writer: u64,
    /// Increases with each delta of a writer.
    pub sequence: u64,
    pub track: Track,
    key: Fingerprint,
    entry: u64,
}

impl Delta {
    /// A delta that is not from an outbox.
    pub fn new(counter: CounterId, tracking: Tracking, writer: u64, sequence: u64, track: Track) -> Delta {
        let counter = Arc::new(counter);
        Delta { counter, tracking, writer, sequence, track, key: Fingerprint(0), entry: 0 }
    }
}

pub struct Outbox {
    writer: u64,
    sequence: AtomicU64,
    shards: Vec<Mutex<OutboxShard>>,
    /// The shard where the next search for due entries begins.
    next_shard: AtomicUsize,
    dropped: AtomicU64,
}

#[derive(Default)]
struct OutboxShard {
    entries: HashMap<Fingerprint, OutboxEntry>,
    /// Entries by due time and number; one that was removed is skipped.
    due: BinaryHeap<Reverse<(Time, u64, Fingerprint)>>,
    bytes: usize,
}

struct OutboxEntry {
    number: u64,
    counter: Arc<CounterId>,
    tracking: Tracking,
    /// Not yet part of a delta.
    unsent: Track,
    sent: Option<SentDelta>,
    taken_at: Time,
    /// Failures since the last acknowledged delta.
    failures: u32,
}

/// The last delta; kept after its acknowledgement, for readers that read the record before.
struct SentDelta {
    delta: Arc<Delta>,
    is_acknowledged: bool,
}

/// Result of writing a delta.
enum WriteOutcome {
    Written,
    Unknown,
}

impl Default for Outbox {
    fn default() -> Outbox {
        let writer = Secret::random().digest().part(b"writer").finish().0;
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let sequence = AtomicU64::new(1);
        Outbox { writer, sequence, shards, next_shard: AtomicUsize::new(0), dropped: AtomicU64::new(0) }
    }
}

impl Outbox {
    /// Identifies the deltas of this process.
    pub fn writer(&self) -> u64 {
        self.writer
    }

    /// Attempts that were dropped, because there was no room or they could not be written.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Keys with unwritten data, or written less than a second ago.
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).entries.len()).sum()
    }

    /// Counts an attempt. The counter id is built only for a key without an entry.
    pub(crate) fn count(
        &self,
        key: Fingerprint,
        now: Time,
        denials: u64,
        tracking: Tracking,
        counter: impl FnOnce() -> CounterId,
    ) {
        let mut shard = self.shard(key);
        let shard = &mut *shard;
        if let Some(entry) = shard.entries.get_mut(&key) {
            if entry.tracking != tracking {
                shard.bytes -= entry.bytes();
                entry.tracking = tracking;
                shard.bytes += entry.bytes();
            }
            return entry.unsent.count(now, denials, tracking.times());
        }
        if shard.bytes >= MAX_BYTES / SHARDS {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let number = self.next_number();
        let counter = Arc::new(counter());
        let unsent = Track::default();
        let mut entry =
            OutboxEntry { number, counter, tracking, unsent, sent: None, taken_at: now, failures: 0 };
        entry.unsent.count(now, denials, tracking.times());
        shard.bytes += entry.bytes();
        shard.entries.insert(key, entry);
        shard.due.push(Reverse((now, number, key)));
    }

    /// Takes the next due delta; the caller must report the result. With [`Time::MAX`] all are due.
    pub fn take(&self, now: Time) -> Option<Arc<Delta>> {
        let first = self.next_shard.fetch_add(1, Ordering::Relaxed);
        (0..SHARDS).find_map(|n| self.take_from(&mut lock(&self.shards[(first + n) % SHARDS]), now))
    }

    fn take_from(&self, shard: &mut OutboxShard, now: Time) -> Option<Arc<Delta>> {
        while let Some(Reverse((due, number, key))) = shard.due.peek().copied() {
            if due > now {
                return None;
            }
            shard.due.pop();
            let Some(entry) = shard.entries.get_mut(&key).filter(|entry| entry.number == number) else {
                continue;
            };
            if let Some(delta) = entry.next_delta(key, self, now) {
                return Some(delta);
            }
            shard.remove(key);
        }
        None
    }

    /// When the next delta is due.
    pub fn due(&self) -> Option<Time> {
        let due = |shard: &Mutex<OutboxShard>| lock(shard).due.peek().map(|Reverse((due, ..))| *due);
        self.shards.iter().filter_map(due).min()
    }

    /// The delta is part of the record.
    pub fn acknowledge(&self, delta: &Delta) {
        self.reschedule(delta, WriteOutcome::Written);
    }

    /// The delta may not be part of the record: it is due again a second after it was taken, or later with backoff.
    pub fn retry(&self, delta: &Delta) {
        self.reschedule(delta, WriteOutcome::Unknown);
    }

    fn reschedule(&self, delta: &Delta, outcome: WriteOutcome) {
        let mut shard = self.shard(delta.key);
        let Some(entry) = shard.entries.get_mut(&delta.key).filter(|entry| entry.number == delta.entry)
        else {
            return; // removed meanwhile
        };
        match outcome {
            WriteOutcome::Written => {
                entry.failures = 0;
                entry.sent.iter_mut().for_each(|sent| sent.is_acknowledged = true);
            }
            WriteOutcome::Unknown => entry.failures += 1,
        }
        let due =
            entry.taken_at + WRITE_INTERVAL * (1 << entry.failures.saturating_sub(1).min(MAX_DOUBLINGS));
        shard.due.push(Reverse((due, delta.entry, delta.key)));
    }

    /// Drops the delta and everything counted since.
    pub fn discard(&self, delta: &Delta) {
        let removed = self.shard(delta.key).remove(delta.key);
        let unsent = removed.map_or(0, |entry| entry.unsent.tries);
        self.dropped.fetch_add(delta.track.tries + unsent, Ordering::Relaxed);
    }

    /// The last acknowledged delta of a key; zero if there is none.
    pub(crate) fn acknowledged(&self, key: Fingerprint) -> u64 {
        let shard = self.shard(key);
        let sent = shard.entries.get(&key).and_then(|entry| entry.sent.as_ref());
        sent.filter(|sent| sent.is_acknowledged).map_or(0, |sent| sent.delta.sequence)
    }

    /// Adds what is missing in a record that includes the deltas of this process up to `applied`.
    pub(crate) fn add_unwritten(&self, key: Fingerprint, applied: u64, times: usize, track: &mut Track) {
        let shard = self.shard(key);
        let Some(entry) = shard.entries.get(&key) else { return };
        if let Some(sent) = entry.sent.as_ref().filter(|sent| sent.delta.sequence > applied) {
            track.add(&sent.delta.track, times);
        }
        track.add(&entry.unsent, times);
    }

    pub(crate) fn forget(&self, key: Fingerprint) {
        self.shard(key).remove(key);
    }

    fn shard(&self, key: Fingerprint) -> MutexGuard<'_, OutboxShard> {
        lock(&self.shards[key.0 as usize % SHARDS])
    }

    fn next_number(&self) -> u64 {
        self.sequence.fetch_add(1, Ordering::Relaxed)
    }
}

impl OutboxShard {
    fn remove(&mut self, key: Fingerprint) -> Option<OutboxEntry> {
        let removed = self.entries.remove(&key)?;
        self.bytes -= removed.bytes();
        Some(removed)
    }
}

impl OutboxEntry {
    /// The delta to be written now; `None` if there is nothing new.
    fn next_delta(&mut self, key: Fingerprint, outbox: &Outbox, now: Time) -> Option<Arc<Delta>> {
        let again =
            self.sent.as_ref().filter(|sent| !sent.is_acknowledged).map(|sent| Arc::clone(&sent.delta));
        if again.is_none() && self.unsent.tries == 0 {
            return None;
        }
        self.taken_at = now;
        Some(again.unwrap_or_else(|| {
            let delta = Arc::new(Delta {
                counter: Arc::clone(&self.counter),
                tracking: self.tracking,
                writer: outbox.writer,
                sequence: outbox.next_number(),
                track: std::mem::take(&mut self.unsent),
                key,
                entry: self.number,
            });
            self.sent = Some(SentDelta { delta: Arc::clone(&delta), is_acknowledged: false });
            delta
        }))
    }

    /// Upper bound of its bytes: timestamps are stored twice, sent and unsent.
    fn bytes(&self) -> usize {
        let CounterId { domain, rule, key } = &*self.counter;
        ENTRY_BYTES
            + domain.len()
            + rule.len()
            + key.heap_bytes()
            + 2 * size_of::<Time>() * self.tracking.times().next_power_of_two()
    }
}

#[cfg(test)]
mod tests;
