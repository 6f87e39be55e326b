//! The bans that come and go while traffic flows.
//!
//! Who is not banned is told so by a filter, without a lock, whatever the number of bans; who may be banned is
//! looked up in one of many shards. Changes are made one at a time.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use arc_swap::ArcSwap;

use crate::ban::filter::Filter;
use crate::ban::offenders::Offenders;
use crate::ban::shard::Shard;
use crate::ban::{Ban, BanTerms, Earned, FleetBans, Strikes, Waiting};
use crate::changes::ChangedKeys;
use crate::fingerprint::{Fingerprint, Secret};
use crate::identity::{Attribute, Key};
use crate::key_list::Shapes;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// Bans at once: an automatic one beyond them is not kept. Offenders may be made up.
const MAX_BANS: usize = 1_000_000;
/// Bytes of the keys of all bans: an automatic one beyond them is not kept.
const MAX_KEY_BYTES: usize = 64 << 20;
/// A full list is searched for bans that are over this often.
const PURGE_PAUSE: Duration = Duration::from_secs(1);
const SHARDS: usize = 256;

mod changed;
mod fleet;

pub(crate) struct BanList {
    secret: Secret,
    front: ArcSwap<Front>,
    shards: Vec<RwLock<Shard>>,
    /// Held by whoever changes the list; readers never ask for it.
    census: Mutex<Census>,
    /// The length of the list, so that an empty one costs nothing.
    len: AtomicUsize,
    /// Bytes of all keys as text.
    key_bytes: AtomicUsize,
    /// How often the list has changed.
    changes: AtomicU64,
    offenders: Offenders,
    pub(crate) earned: Earned,
    pub(crate) waiting: Waiting,
    pub(crate) fleet: FleetBans,
    dropped: AtomicU64,
    capacity: usize,
    key_capacity: usize,
    /// What has changed since a state log was last written.
    changed: Option<Mutex<ChangedKeys>>,
}

/// What came of a ban that was to be entered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Inserted {
    New,
    /// The key is banned for as long already.
    Known,
    Full,
}

/// What most requests need to see.
struct Front {
    shapes: Shapes,
    filter: Arc<Filter>,
}

#[derive(Default)]
struct Census {
    shapes: Shapes,
    /// What was put into the filter since it was made.
    filtered: usize,
    purged_at: Time,
}

impl BanList {
    pub(crate) fn new(secret: Secret) -> BanList {
        BanList::with_capacity(secret, MAX_BANS, MAX_KEY_BYTES)
    }

    fn with_capacity(secret: Secret, capacity: usize, key_capacity: usize) -> BanList {
        let front = Front { shapes: Shapes::default(), filter: Filter::new(0).into() };
        BanList {
            secret,
            front: ArcSwap::from_pointee(front),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            census: Mutex::default(),
            len: AtomicUsize::new(0),
            key_bytes: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            offenders: Offenders::default(),
            earned: Earned::default(),
            waiting: Waiting::default(),
            fleet: FleetBans::default(),
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

    /// The ban in force for a request.
    #[inline]
    pub(crate) fn check<'h, V: IntoIterator<Item = Cow<'h, str>>>(
        &self,
        ip: Option<IpAddr>,
        values: impl Fn(&Attribute) -> V,
        now: Time,
    ) -> Option<(Key, Ban)> {
        if self.is_empty() {
            return None;
        }
        let front = self.front.load();
        front.shapes.find(&self.secret, ip, values, |print, is| {
            front.filter.may_have(print).then(|| self.look(print, is, now)).flatten()
        })
    }

    #[cold]
    fn look(&self, print: Fingerprint, is: &dyn Fn(&Key) -> bool, now: Time) -> Option<(Key, Ban)> {
        let shard = self.read(print);
        shard.get(print, |kept| kept.until() > now)?.entry().filter(|(key, _)| is(key))
    }

    /// Bans a key; an earlier ban of the same key is replaced and returned if it was still in force.
    pub(crate) fn insert(&self, key: Key, ban: Ban, now: Time) -> Option<Ban> {
        self.enter(&mut lock(&self.census), &key, &ban, now).filter(|old| old.until > now)
    }

    /// Takes over a ban from elsewhere; of one that is over only the strikes matter.
    pub(crate) fn put(&self, key: Key, ban: Ban, now: Time) {
        if ban.until > now {
            self.insert(key, ban, now);
        } else {
            self.strike_off(&mut lock(&self.census), &key);
            self.offenders.remember(self.print(&key), ban.strikes());
        }
    }

    /// Bans a key as it has earned, unless it is banned for as long already; `false` if the list is full.
    pub(crate) fn insert_earned(&self, key: &Key, ban: &Ban, now: Time) -> bool {
        let inserted = self.insert_longer(key, ban, now);
        if inserted == Inserted::New {
            self.earned.push(key, ban);
        }
        inserted != Inserted::Full
    }

    fn insert_longer(&self, key: &Key, ban: &Ban, now: Time) -> Inserted {
        let mut census = lock(&self.census);
        let listed = self.strikes(self.print(key)).until;
        if listed >= ban.until {
            return Inserted::Known;
        }
        let is_full = self.is_full_for(key);
        if is_full && now >= census.purged_at + PURGE_PAUSE {
            census.purged_at = now;
            (0..SHARDS).for_each(|shard| self.purge(&mut census, shard, now));
        }
        if is_full && self.is_full_for(key) && listed == Time::EPOCH {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return Inserted::Full;
        }
        self.enter(&mut census, key, ban, now);
        Inserted::New
    }

    /// Whether an automatic ban of a key finds no room.
    fn is_full_for(&self, key: &Key) -> bool {
        self.len.load(Ordering::Relaxed) >= self.capacity
            || self.key_bytes.load(Ordering::Relaxed) + key.to_string().len() > self.key_capacity
    }

    /// Tells whether the list has changed between two calls.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Bans that were earned and found the list full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Lifts a ban, forgives what automatic ones are built on, and returns what was lifted.
    pub(crate) fn lift(&self, key: &Key, now: Time) -> Option<Ban> {
        let removed = self.strike_off(&mut lock(&self.census), key);
        self.offenders.forgive(self.print(key));
        self.fleet.remove(self.print(key));
        removed.filter(|ban| ban.until > now)
    }

    /// Follows a removal elsewhere: of a ban in force it is a pardon, of one that is over only tidying up.
    pub(crate) fn remove(&self, key: &Key, now: Time) -> Option<Ban> {
        let removed = self.strike_off(&mut lock(&self.census), key)?;
        self.let_go(key, &removed, now);
        self.fleet.remove(self.print(key));
        Some(removed).filter(|ban| ban.until > now)
    }

    pub(crate) fn get(&self, key: &Key, now: Time) -> Option<Ban> {
        let print = self.print(key);
        let text = key.to_string();
        let ban = self.read(print).get(print, |kept| kept.key_text() == text)?.ban();
        Some(ban).filter(|ban| ban.until > now)
    }

    /// How many bans are in force.
    pub(crate) fn count(&self, now: Time) -> usize {
        let in_force = |shard: &Shard| shard.iter().filter(|kept| kept.until() > now).count();
        self.shards.iter().map(|shard| in_force(&shard.read().unwrap_or_else(PoisonError::into_inner))).sum()
    }

    /// The attributes that requests are asked for.
    pub(crate) fn attributes(&self) -> Vec<Attribute> {
        self.front.load().shapes.attributes().cloned().collect()
    }

    /// The first bans in force after a key, in the order of the keys' texts, together with some `others`. All
    /// bans are looked at; no more than those asked for are kept.
    pub(crate) fn page<'o>(
        &self,
        others: impl Iterator<Item = &'o (Key, Ban)>,
        after: Option<&Key>,
        limit: usize,
        now: Time,
    ) -> Vec<(Key, Ban)> {
        let after = after.map(ToString::to_string);
        let mut page = Page { after, limit, bans: BTreeMap::new() };
        for (key, ban) in others.filter(|(_, ban)| ban.until > now) {
            page.offer(&key.to_string(), ban.until, || ban.clone());
        }
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            for kept in shard.iter().filter(|kept| kept.until() > now) {
                page.offer(kept.key_text(), kept.until(), || kept.ban());
            }
        }
        page.bans.into_iter().filter_map(|(key, ban)| Some((Key::parse(&key).ok()?, ban))).collect()
    }

    /// Drops all but some; returns how many bans those were.
    pub(crate) fn retain(&self, seen: &HashSet<Fingerprint>, now: Time) -> usize {
        let mut census = lock(&self.census);
        let mut dropped = 0;
        for number in 0..SHARDS {
            let gone = self.write(number).drain(|kept| seen.contains(&kept.print()));
            dropped += gone.len();
            self.gone(&mut census, &gone, now);
        }
        dropped
    }

    /// Counts denials by a rule, all of one moment, and bans the key where they were too many; says whether it did.
    /// While the key is banned nothing counts.
    pub(crate) fn denied(&self, key: &Key, rule: &str, terms: &BanTerms, at: Time, count: u32) -> bool {
        let print = self.print(key);
        let by = self.secret.digest().part(rule.as_bytes()).finish();
        let earned = self.offenders.denied(print, by, terms, self.strikes(print), at, count);
        let Some(ban) = earned else { return false };
        let ban = Ban { reason: terms.reason(rule), ..ban };
        let is_listed = self.insert_earned(key, &ban, at);
        if !is_listed {
            self.offenders.withdraw(print, &ban, at);
        }
        is_listed
    }

    pub(crate) fn offenders(&self) -> &Offenders {
        &self.offenders
    }

    /// What a key is known by.
    pub(crate) fn print(&self, key: &Key) -> Fingerprint {
        Shapes::print(&self.secret, key)
    }

    /// What the list knows of the bans of a key, be they over or not.
    fn strikes(&self, print: Fingerprint) -> Strikes {
        let shard = self.read(print);
        let kept = shard.get(print, |_| true);
        kept.map_or_else(Strikes::default, |kept| Strikes { count: kept.strikes(), until: kept.until() })
    }

    fn enter(&self, census: &mut Census, key: &Key, ban: &Ban, now: Time) -> Option<Ban> {
        let (print, text) = (self.print(key), key.to_string());
        if text.len() > Key::MAX_LEN {
            self.dropped.fetch_add(1, Ordering::Relaxed); // nobody could name it to lift the ban
            return None;
        }
        let number = shard_of(print);
        if self.read(print).is_crowded() {
            self.purge(census, number, now);
        }
        let old = self.write(number).insert(print, &text, ban);
        if old.as_ref() != Some(ban) {
            self.note_changed(print);
        }
        if let Some(old) = old.as_ref().filter(|old| old.strikes > ban.strikes) {
            self.offenders.remember(print, old.strikes());
        }
        if old.is_none() {
            self.len.fetch_add(1, Ordering::Release);
            self.key_bytes.fetch_add(text.len(), Ordering::Relaxed);
            self.announce(census, key, print);
        }
        self.changes.fetch_add(1, Ordering::Release);
        old
    }

    /// Lets readers see a new key.
    fn announce(&self, census: &mut Census, key: &Key, print: Fingerprint) {
        let front = self.front.load();
        let is_new_shape = census.shapes.add(key);
        census.filtered += 1;
        let mut filter = Arc::clone(&front.filter);
        let is_full = census.filtered > filter.room();
        if is_full {
            (filter, census.filtered) = (self.filter().into(), self.len.load(Ordering::Relaxed));
        }
        filter.add(print);
        if is_new_shape || is_full {
            self.front.store(Arc::new(Front { shapes: census.shapes.clone(), filter }));
        }
    }

    /// A filter of all that is there.
    fn filter(&self) -> Filter {
        let filter = Filter::new(self.len.load(Ordering::Relaxed));
        for shard in &self.shards {
            let shard = shard.read().unwrap_or_else(PoisonError::into_inner);
            shard.iter().for_each(|kept| filter.add(kept.print()));
        }
        filter
    }

    fn strike_off(&self, census: &mut Census, key: &Key) -> Option<Ban> {
        let print = self.print(key);
        let removed = self.write(shard_of(print)).remove(print, &key.to_string())?;
        self.forget(census, [key]);
        Some(removed)
    }

    fn purge(&self, census: &mut Census, number: usize, now: Time) {
        let gone = self.write(number).drain(|kept| kept.until() > now);
        self.gone(census, &gone, now);
    }

    fn gone(&self, census: &mut Census, gone: &[(Key, Ban)], now: Time) {
        gone.iter().for_each(|(key, ban)| self.let_go(key, ban, now));
        self.forget(census, gone.iter().map(|(key, _)| key));
    }

    /// What becomes of an offender whose ban is no longer listed.
    fn let_go(&self, key: &Key, ban: &Ban, now: Time) {
        match ban.until > now {
            true => self.offenders.forgive(self.print(key)),
            false => self.offenders.remember(self.print(key), ban.strikes()),
        }
    }

    fn forget<'k>(&self, census: &mut Census, keys: impl IntoIterator<Item = &'k Key>) {
        let (mut count, mut is_shape_gone) = (0, false);
        for key in keys {
            count += 1;
            self.key_bytes.fetch_sub(key.to_string().len(), Ordering::Relaxed);
            self.note_changed(self.print(key));
            is_shape_gone |= census.shapes.remove(key);
        }
        if is_shape_gone {
            let filter = Arc::clone(&self.front.load().filter);
            self.front.store(Arc::new(Front { shapes: census.shapes.clone(), filter }));
        }
        self.len.fetch_sub(count, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn read(&self, print: Fingerprint) -> RwLockReadGuard<'_, Shard> {
        self.shards[shard_of(print)].read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, number: usize) -> RwLockWriteGuard<'_, Shard> {
        self.shards[number].write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// By bits that the filter does not look at.
fn shard_of(print: Fingerprint) -> usize {
    (print.0 >> 24) as usize % SHARDS
}

/// The first so many bans after a key.
struct Page {
    after: Option<String>,
    limit: usize,
    bans: BTreeMap<String, Ban>,
}

impl Page {
    /// Takes a ban if it belongs here; of two of one key the later stays.
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
