//! Upkeep of the list: ended bans are removed, others are evicted if it is full, and the filter grows with it.
//!
//! All visit all bans. They are spread over the changes that follow, so that no change holds the writers' lock for longer
//! than it takes to visit [`STEP_BANS`] bans and those of one shard.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::ban::Strikes;
use crate::ban::bloom_filter::BloomFilter;
use crate::ban::list::{BanList, ReadView, SHARDS, WriterState, read_shard};
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::time::Time;

/// Bans that one change visits, beside those of its last shard.
pub(super) const STEP_BANS: usize = 1_024;
/// The list is purged of ended bans once less than one in this many is free: all are visited long before it is full.
const PURGE_MARGIN: usize = 16;
/// A round over all shards begins at most this often.
const PURGE_PAUSE: Duration = Duration::from_secs(1);

/// A filter for twice as many bans that is not complete yet.
pub(super) struct NextFilter {
    filter: BloomFilter,
    /// Shards whose bans it has.
    shards: usize,
}

/// The progress of a round over all shards.
#[derive(Default)]
pub(super) struct PurgeRound {
    /// Shards that are left in this round: the last ones.
    left: usize,
    begun_at: Time,
}

impl BanList {
    /// Whether automatic bans are about to find no room.
    pub(super) fn is_nearly_full(&self) -> bool {
        let is_near = |used: usize, capacity: usize| used >= capacity - capacity / PURGE_MARGIN;
        is_near(self.len.load(Ordering::Relaxed), self.capacity)
            || is_near(self.key_bytes.load(Ordering::Relaxed), self.key_capacity)
    }

    /// Purges the next shards of ended bans.
    pub(super) fn purge_some(&self, writer: &mut WriterState, now: Time) {
        let PurgeRound { left, begun_at } = writer.purge;
        if left == 0 {
            let is_paused = begun_at <= now && now < begun_at + PURGE_PAUSE; // a clock that was set back ends it
            if is_paused {
                return;
            }
            writer.purge = PurgeRound { left: SHARDS, begun_at: now };
        }
        let mut visited = 0;
        while writer.purge.left > 0 && visited < STEP_BANS {
            let number = SHARDS - writer.purge.left;
            visited += read_shard(&self.shards[number]).len();
            self.purge(writer, number, now);
            writer.purge.left -= 1;
        }
    }

    /// Purges one shard of ended bans.
    pub(super) fn purge(&self, writer: &mut WriterState, number: usize, now: Time) {
        let removed = self.write(number).drain(|stored| stored.until() > now);
        self.on_bans_removed(writer, &removed, now);
    }

    /// Evicts automatic bans from the next shards until there is room for one more. Their keys keep their strikes.
    pub(super) fn evict_some(&self, writer: &mut WriterState, key: &Key, now: Time) {
        let mut visited = 0;
        for _ in 0..SHARDS {
            if !self.is_full_for(key) || visited >= STEP_BANS {
                return;
            }
            let number = writer.next_eviction;
            writer.next_eviction = (number + 1) % SHARDS;
            visited += read_shard(&self.shards[number]).len();
            let evicted = self.write(number).evict();
            for (key, ban) in &evicted {
                let strikes = Strikes { count: ban.strikes, until: ban.until.min(now) };
                self.offenders.record_strikes(self.fingerprint(key), strikes);
            }
            self.dropped.fetch_add(evicted.len() as u64, Ordering::Relaxed);
            self.uncount_keys(writer, evicted.iter().map(|(key, _)| key));
        }
    }

    /// Makes a new key visible to readers.
    pub(super) fn publish_key(&self, writer: &mut WriterState, key: &Key, fingerprint: Fingerprint) {
        let front = self.read_view.load();
        let is_new_shape = writer.kinds.add(key);
        writer.filter_len += 1;
        front.filter.add(fingerprint);
        let larger = self.grow_filter(writer, &front.filter, fingerprint);
        if is_new_shape || larger.is_some() {
            let filter = larger.unwrap_or_else(|| Arc::clone(&front.filter));
            self.read_view.store(Arc::new(ReadView { kinds: writer.kinds.clone(), filter }));
        }
    }

    /// Builds the next filter once the present one is full; returns it when it is complete. Until then the present one
    /// has a few more keys than it is made for.
    fn grow_filter(
        &self,
        writer: &mut WriterState,
        present: &BloomFilter,
        added: Fingerprint,
    ) -> Option<Arc<BloomFilter>> {
        if writer.next_filter.is_none() && writer.filter_len <= present.capacity() {
            return None;
        }
        let len = self.len.load(Ordering::Relaxed);
        let mut next = writer
            .next_filter
            .take()
            .unwrap_or_else(|| NextFilter { filter: BloomFilter::new(len), shards: 0 });
        next.filter.add(added); // its shard may have been copied before
        let mut visited = 0;
        while next.shards < SHARDS && visited < STEP_BANS {
            let shard = read_shard(&self.shards[next.shards]);
            shard.iter().for_each(|stored| next.filter.add(stored.fingerprint()));
            visited += shard.len();
            next.shards += 1;
        }
        if next.shards < SHARDS {
            writer.next_filter = Some(next);
            return None;
        }
        writer.filter_len = len;
        Some(next.filter.into())
    }
}
