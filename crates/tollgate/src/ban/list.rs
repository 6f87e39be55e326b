//! Bans that change at run time.
//!
//! A Bloom filter answers for nearly all keys that are not banned, without a lock and whatever the number of bans; a
//! possible match is looked up in one of many shards. Writers are serialised.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use arc_swap::ArcSwap;

use crate::ban::bloom_filter::BloomFilter;
use crate::ban::list::upkeep::{NextFilter, PurgeRound};
use crate::ban::offenders::Offenders;
use crate::ban::shard::BanShard;
use crate::ban::{Ban, BanConditions, FleetBanSet, PendingBanQueue, Strikes, ViolationQueue};
use crate::changes::ChangedKeys;
use crate::fingerprint::{Fingerprint, Secret};
use crate::identity::{Attribute, Key};
use crate::key_list::{KeyKinds, TooManyCombinations};
use crate::sync::{Mutex, begin_section, lock};
use crate::time::Time;

/// Maximum number of bans: a further automatic one evicts others, because an attacker can invent keys.
const MAX_BANS: usize = 1_000_000;
/// Maximum bytes of the keys of all bans: a further automatic one evicts others.
const MAX_KEY_BYTES: usize = 64 << 20;
const SHARDS: usize = 256;

mod changed;
mod fleet;
mod upkeep;

pub(crate) struct BanList {
    secret: Secret,
    read_view: ArcSwap<ReadView>,
    shards: Vec<RwLock<BanShard>>,
    /// Held by writers; readers never take it.
    writer: Mutex<WriterState>,
    /// The length of the list, so that an empty one costs one load.
    len: AtomicUsize,
    /// Bytes of all keys as text.
    key_bytes: AtomicUsize,
    /// Number of changes so far.
    changes: AtomicU64,
    offenders: Offenders,
    pub(crate) pending_bans: PendingBanQueue,
    pub(crate) violation_queue: ViolationQueue,
    pub(crate) fleet_bans: FleetBanSet,
    dropped: AtomicU64,
    capacity: usize,
    key_capacity: usize,
    /// What has changed since the state log was last written.
    changed: Option<Mutex<ChangedKeys>>,
}

/// Result of adding a ban.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InsertResult {
    New,
    /// The key is already banned for at least as long.
    AlreadyBanned,
    Full,
}

/// The data that most lookups read.
struct ReadView {
    kinds: KeyKinds,
    filter: Arc<BloomFilter>,
}

#[derive(Default)]
struct WriterState {
    kinds: KeyKinds,
    /// Keys in the filter.
    filter_len: usize,
    next_filter: Option<NextFilter>,
    purge: PurgeRound,
    /// The shard from which bans are evicted next.
    next_eviction: usize,
}

impl BanList {
    pub(crate) fn new(secret: Secret) -> BanList {
        BanList::with_capacity(secret, MAX_BANS, MAX_KEY_BYTES)
    }

    fn with_capacity(secret: Secret, capacity: usize, key_capacity: usize) -> BanList {
        let front = ReadView { kinds: KeyKinds::default(), filter: BloomFilter::new(0).into() };
        BanList {
            secret,
            read_view: ArcSwap::from_pointee(front),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            writer: Mutex::default(),
            len: AtomicUsize::new(0),
            key_bytes: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            offenders: Offenders::default(),
            pending_bans: PendingBanQueue::default(),
            violation_queue: ViolationQueue::default(),
            fleet_bans: FleetBanSet::default(),
            dropped: AtomicU64::new(0),
            capacity,
            key_capacity,
            changed: None,
        }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }

    /// The ban in force for a request. An error if none is found, but there are more combinations of values than are
    /// looked up.
    #[inline]
    pub(crate) fn check<'h, V: IntoIterator<Item = Cow<'h, str>>>(
        &self,
        ip: Option<IpAddr>,
        values: impl Fn(&Attribute) -> V,
        now: Time,
    ) -> Result<Option<(Key, Ban)>, TooManyCombinations> {
        if self.is_empty() {
            return Ok(None);
        }
        let front = self.read_view.load();
        front.kinds.find(&self.secret, ip, values, |fingerprint, is| {
            front.filter.may_contain(fingerprint).then(|| self.lookup_shard(fingerprint, is, now)).flatten()
        })
    }

    #[cold]
    fn lookup_shard(
        &self,
        fingerprint: Fingerprint,
        is: &dyn Fn(&Key) -> bool,
        now: Time,
    ) -> Option<(Key, Ban)> {
        let shard = self.read(fingerprint);
        shard.get(fingerprint, |stored| stored.until() > now)?.entry().filter(|(key, _)| is(key))
    }

    /// Bans a key; replaces an earlier ban of the same key, which is returned if it was still in force.
    pub(crate) fn insert(&self, key: Key, ban: Ban, now: Time) -> Option<Ban> {
        self.insert_locked(&mut lock(&self.writer), &key, &ban, now).filter(|old| old.until > now)
    }

    /// Applies a ban from elsewhere; of one that has ended only the strikes matter.
    pub(crate) fn put(&self, key: Key, ban: Ban, now: Time) {
        if ban.until > now {
            self.insert(key, ban, now);
        } else {
            self.remove_locked(&mut lock(&self.writer), &key);
            self.offenders.record_strikes(self.fingerprint(&key), ban.strikes());
        }
    }

    /// Adds an automatic ban, unless the key is already banned for at least as long; `false` if the list is full of bans
    /// that are not evicted.
    pub(crate) fn insert_automatic(&self, key: &Key, ban: &Ban, now: Time) -> bool {
        let inserted = self.insert_longer(key, ban, now);
        if inserted == InsertResult::New {
            self.pending_bans.push(key, ban);
        }
        inserted != InsertResult::Full
    }

    fn insert_longer(&self, key: &Key, ban: &Ban, now: Time) -> InsertResult {
        let mut writer = lock(&self.writer);
        let listed = self.strikes(self.fingerprint(key)).until;
        if listed >= ban.until {
            return InsertResult::AlreadyBanned;
        }
        if self.is_nearly_full() {
            self.purge_some(&mut writer, now);
        }
        if listed == Time::EPOCH && self.is_full_for(key) {
            self.evict_some(&mut writer, key, now);
        }
        if self.is_full_for(key) && listed == Time::EPOCH {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return InsertResult::Full;
        }
        self.insert_locked(&mut writer, key, ban, now);
        InsertResult::New
    }

    /// Whether there is no room for an automatic ban of a key.
    fn is_full_for(&self, key: &Key) -> bool {
        self.len.load(Ordering::Relaxed) >= self.capacity
            || self.key_bytes.load(Ordering::Relaxed) + key.to_string().len() > self.key_capacity
    }

    /// A change counter: equal values mean that the list has not changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Automatic bans that were dropped or evicted because the list was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Lifts a ban, forgives the key's violations and strikes, and returns the ban.
    pub(crate) fn lift(&self, key: &Key, now: Time) -> Option<Ban> {
        let removed = self.remove_locked(&mut lock(&self.writer), key);
        self.offenders.forgive(self.fingerprint(key));
        self.fleet_bans.remove(self.fingerprint(key));
        removed.filter(|ban| ban.until > now)
    }

    /// Applies a removal elsewhere: forgives a ban in force; of one that has ended the strikes are kept.
    pub(crate) fn remove(&self, key: &Key, now: Time) -> Option<Ban> {
        let removed = self.remove_locked(&mut lock(&self.writer), key)?;
        self.on_ban_removed(key, &removed, now);
        self.fleet_bans.remove(self.fingerprint(key));
        Some(removed).filter(|ban| ban.until > now)
    }

    pub(crate) fn get(&self, key: &Key, now: Time) -> Option<Ban> {
        let fingerprint = self.fingerprint(key);
        let text = key.to_string();
        let ban = self.read(fingerprint).get(fingerprint, |stored| stored.key_text() == text)?.ban();
        Some(ban).filter(|ban| ban.until > now)
    }

    /// The number of bans in force.
    pub(crate) fn count(&self, now: Time) -> usize {
        let in_force = |shard: &BanShard| shard.iter().filter(|stored| stored.until() > now).count();
        self.shards.iter().map(|shard| in_force(&read_shard(shard))).sum()
    }

    /// The attributes that the list needs of requests.
    pub(crate) fn attributes(&self) -> Vec<Attribute> {
        self.read_view.load().kinds.attributes().cloned().collect()
    }

    /// The first bans in force after a key, ordered by the text of their keys, merged with `others`. Scans all bans;
    /// stores no more than the page.
    pub(crate) fn page<'o>(
        &self,
        others: impl Iterator<Item = &'o (Key, Ban)>,
        after: Option<&Key>,
        limit: usize,
        now: Time,
    ) -> Vec<(Key, Ban)> {
        let after = after.map(ToString::to_string);
        let mut page = BanPage { after, limit, bans: BTreeMap::new() };
        for (key, ban) in others.filter(|(_, ban)| ban.until > now) {
            page.offer(&key.to_string(), ban.until, || ban.clone());
        }
        for shard in &self.shards {
            let shard = read_shard(shard);
            for stored in shard.iter().filter(|stored| stored.until() > now) {
                page.offer(stored.key_text(), stored.until(), || stored.ban());
            }
        }
        page.bans.into_iter().filter_map(|(key, ban)| Some((Key::parse(&key).ok()?, ban))).collect()
    }

    /// Drops all bans but the given ones; returns how many were dropped.
    pub(crate) fn retain(&self, seen: &HashSet<Fingerprint>, now: Time) -> usize {
        let mut writer = lock(&self.writer);
        let mut dropped = 0;
        for number in 0..SHARDS {
            let removed = self.write(number).drain(|stored| seen.contains(&stored.fingerprint()));
            dropped += removed.len();
            self.on_bans_removed(&mut writer, &removed, now);
        }
        dropped
    }

    /// Counts denials by a rule, all with the same timestamp, and bans the key if they are too many; returns whether
    /// it did. While the key is banned nothing is counted.
    pub(crate) fn record_denials(
        &self,
        key: &Key,
        rule: &str,
        conditions: &BanConditions,
        at: Time,
        count: u32,
    ) -> bool {
        let fingerprint = self.fingerprint(key);
        let by = self.secret.digest().part(rule.as_bytes()).finish();
        let earned_ban =
            self.offenders.record_denials(fingerprint, by, conditions, self.strikes(fingerprint), at, count);
        let Some(ban) = earned_ban else { return false };
        let ban = Ban { reason: conditions.reason(rule), ..ban };
        let is_listed = self.insert_automatic(key, &ban, at);
        if !is_listed {
            self.offenders.revert_ban(fingerprint, &ban, at);
        }
        is_listed
    }

    pub(crate) fn offenders(&self) -> &Offenders {
        &self.offenders
    }

    /// The fingerprint of a key.
    pub(crate) fn fingerprint(&self, key: &Key) -> Fingerprint {
        KeyKinds::fingerprint(&self.secret, key)
    }

    /// The strikes of a key according to the list, whether its ban has ended or not.
    fn strikes(&self, fingerprint: Fingerprint) -> Strikes {
        let shard = self.read(fingerprint);
        let stored = shard.get(fingerprint, |_| true);
        stored.map_or_else(Strikes::default, |stored| Strikes {
            count: stored.strikes(),
            until: stored.until(),
        })
    }

    fn insert_locked(&self, writer: &mut WriterState, key: &Key, ban: &Ban, now: Time) -> Option<Ban> {
        let fingerprint = self.fingerprint(key);
        let text = key.to_string();
        if text.len() > Key::MAX_LEN {
            self.dropped.fetch_add(1, Ordering::Relaxed); // the ban could not be lifted, because the key has no valid text
            return None;
        }
        let number = shard_of(fingerprint);
        if self.read(fingerprint).needs_purge() {
            self.purge(writer, number, now);
        }
        let old = self.write(number).insert(fingerprint, &text, ban);
        if old.as_ref() != Some(ban) {
            self.note_changed(fingerprint);
        }
        if let Some(old) = old.as_ref().filter(|old| old.strikes > ban.strikes) {
            self.offenders.record_strikes(fingerprint, old.strikes());
        }
        if old.is_none() {
            self.len.fetch_add(1, Ordering::Release);
            self.key_bytes.fetch_add(text.len(), Ordering::Relaxed);
            self.publish_key(writer, key, fingerprint);
        }
        self.changes.fetch_add(1, Ordering::Release);
        old
    }

    fn remove_locked(&self, writer: &mut WriterState, key: &Key) -> Option<Ban> {
        let fingerprint = self.fingerprint(key);
        let removed = self.write(shard_of(fingerprint)).remove(fingerprint, &key.to_string())?;
        self.uncount_keys(writer, [key]);
        Some(removed)
    }

    fn on_bans_removed(&self, writer: &mut WriterState, removed: &[(Key, Ban)], now: Time) {
        removed.iter().for_each(|(key, ban)| self.on_ban_removed(key, ban, now));
        self.uncount_keys(writer, removed.iter().map(|(key, _)| key));
    }

    /// Updates the offender after its ban was removed from the list.
    fn on_ban_removed(&self, key: &Key, ban: &Ban, now: Time) {
        match ban.until > now {
            true => self.offenders.forgive(self.fingerprint(key)),
            false => self.offenders.record_strikes(self.fingerprint(key), ban.strikes()),
        }
    }

    fn uncount_keys<'k>(&self, writer: &mut WriterState, keys: impl IntoIterator<Item = &'k Key>) {
        let mut count = 0;
        let mut is_shape_gone = false;
        for key in keys {
            count += 1;
            self.key_bytes.fetch_sub(key.to_string().len(), Ordering::Relaxed);
            self.note_changed(self.fingerprint(key));
            is_shape_gone |= writer.kinds.remove(key);
        }
        if is_shape_gone {
            let filter = Arc::clone(&self.read_view.load().filter);
            self.read_view.store(Arc::new(ReadView { kinds: writer.kinds.clone(), filter }));
        }
        self.len.fetch_sub(count, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn read(&self, fingerprint: Fingerprint) -> RwLockReadGuard<'_, BanShard> {
        read_shard(&self.shards[shard_of(fingerprint)])
    }

    fn write(&self, number: usize) -> RwLockWriteGuard<'_, BanShard> {
        begin_section();
        self.shards[number].write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_shard(shard: &RwLock<BanShard>) -> RwLockReadGuard<'_, BanShard> {
    begin_section();
    shard.read().unwrap_or_else(PoisonError::into_inner)
}

/// Uses bits that the filter does not use.
fn shard_of(fingerprint: Fingerprint) -> usize {
    (fingerprint.0 >> 24) as usize % SHARDS
}

/// The first bans after a key, up to a limit.
struct BanPage {
    after: Option<String>,
    limit: usize,
    bans: BTreeMap<String, Ban>,
}

impl BanPage {
    /// Adds a ban if it belongs on this page; of two bans of one key the one that ends later wins.
    fn offer(&mut self, key: &str, until: Time, ban: impl FnOnce() -> Ban) {
        let is_before = self.after.as_deref().is_some_and(|after| key <= after);
        let is_full = self.bans.len() >= self.limit;
        let is_beyond = is_full && self.bans.last_key_value().is_none_or(|(last, _)| key > last.as_str());
        if is_before || is_beyond || self.bans.get(key).is_some_and(|known| known.until > until) {
            return;
        }
        self.bans.insert(key.to_owned(), ban());
        if self.bans.len() > self.limit {
            self.bans.pop_last();
        }
    }
}

#[cfg(test)]
mod tests;
