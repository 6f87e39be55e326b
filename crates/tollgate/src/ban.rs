//! The ban list: `{key: until}`, set by hand or by repeated denials; bans end by themselves.
//!
//! A banned key is denied before any rule is looked at. The n-th ban of a key lasts
//! `for × 2^(n−1)`, at most `max`; a key that stays clean for `max` starts over.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::fingerprint::Fingerprint;
use crate::identity::{Attribute, Key};
use crate::key_list::KeyList;
use crate::rule::BanPolicy;
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::time::Time;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ban {
    /// The first instant at which it no longer holds; [`Time::MAX`] for ever.
    pub until: Time,
    pub reason: String,
    pub source: BanSource,
    /// How many automatic bans in a row the key has had.
    pub strikes: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BanSource {
    /// Written in the configuration; a change of the file changes it.
    File,
    Manual,
    Automatic,
}

impl BanSource {
    pub const fn name(self) -> &'static str {
        match self {
            BanSource::File => "file",
            BanSource::Manual => "manual",
            BanSource::Automatic => "automatic",
        }
    }

    pub fn parse(name: &str) -> Option<BanSource> {
        [BanSource::File, BanSource::Manual, BanSource::Automatic]
            .into_iter()
            .find(|source| source.name() == name)
    }
}

/// A key's denials under one rule, and the bans they have led to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Offence {
    pub(crate) denials: VecDeque<Time>,
    pub(crate) strikes: u32,
    pub(crate) banned_until: Time,
}

/// The offenders remembered at once.
const MAX_OFFENDERS: usize = 100_000;
/// Bans at once: an automatic one beyond them is not kept. Offenders may be made up.
const MAX_BANS: usize = 100_000;
/// A list shorter than this is not searched for bans that are over.
const MIN_PURGE: usize = 1_024;
/// A full list is searched for them this often.
const PURGE_PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct BanList {
    list: RwLock<List>,
    /// The length of the list, so that an empty one costs nothing.
    len: AtomicUsize,
    /// How often the list has changed.
    changes: AtomicU64,
    offences: Mutex<Table<Offence>>,
    dropped: AtomicU64,
    capacity: usize,
}

#[derive(Default)]
struct List {
    keys: KeyList<Ban>,
    /// The length at which bans that are over are dropped: twice what the last time left.
    purge_len: usize,
    purged_at: Time,
}

impl List {
    fn purge(&mut self, now: Time) {
        self.keys.retain(|_, ban| ban.until > now);
        self.purge_len = (2 * self.keys.len()).max(MIN_PURGE);
        self.purged_at = now;
    }

    fn insert(&mut self, key: Key, ban: Ban, now: Time) -> Option<Ban> {
        if self.keys.len() >= self.purge_len {
            self.purge(now);
        }
        self.keys.insert(key, ban).filter(|old| old.until > now)
    }
}

impl Default for BanList {
    fn default() -> Self {
        BanList::with_capacity(MAX_BANS)
    }
}

impl BanList {
    fn with_capacity(capacity: usize) -> BanList {
        BanList {
            list: RwLock::default(),
            len: AtomicUsize::new(0),
            changes: AtomicU64::new(0),
            offences: Mutex::new(Table::new(MAX_OFFENDERS)),
            dropped: AtomicU64::new(0),
            capacity,
        }
    }

    /// The ban in force for a request.
    pub(crate) fn check<'h>(
        &self,
        ip: Option<IpAddr>,
        value: impl Fn(&Attribute) -> Option<Cow<'h, str>>,
        now: Time,
    ) -> Option<(Key, Ban)> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.read().keys.find(ip, value, |ban| ban.until > now).cloned()
    }

    /// Bans a key; an earlier ban of the same key is replaced and returned if it was still in force.
    pub(crate) fn insert(&self, key: Key, ban: Ban, now: Time) -> Option<Ban> {
        let mut list = self.write();
        let old = list.insert(key, ban, now);
        self.changed(list.keys.len());
        old
    }

    /// Bans a key as it has earned, unless it is banned for as long already; `false` if the list is full.
    pub(crate) fn insert_earned(&self, key: Key, ban: Ban, now: Time) -> bool {
        let mut list = self.write();
        let held = list.keys.get(&key);
        if held.is_some_and(|held| held.until >= ban.until) {
            return true;
        }
        if held.is_none() && list.keys.len() >= self.capacity {
            if now >= list.purged_at + PURGE_PAUSE {
                list.purge(now);
            }
            if list.keys.len() >= self.capacity {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        list.insert(key, ban, now);
        self.changed(list.keys.len());
        true
    }

    /// Tells whether the list has changed between two calls.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Bans that were earned and found the list full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Lifts a ban and returns what was lifted.
    pub(crate) fn remove(&self, key: &Key, now: Time) -> Option<Ban> {
        let mut list = self.write();
        let removed = list.keys.remove(key);
        self.changed(list.keys.len());
        removed.filter(|ban| ban.until > now)
    }

    pub(crate) fn get(&self, key: &Key, now: Time) -> Option<Ban> {
        self.read().keys.get(key).filter(|ban| ban.until > now).cloned()
    }

    /// All bans in force, by key.
    pub(crate) fn all(&self, now: Time) -> Vec<(Key, Ban)> {
        let mut all: Vec<_> = self.read().keys.iter().filter(|(_, ban)| ban.until > now).cloned().collect();
        all.sort_by_cached_key(|(key, _)| key.to_string());
        all
    }

    /// Takes the configuration's bans in place of those it had before.
    pub(crate) fn replace_file_bans(&self, bans: &[(Key, Ban)], now: Time) {
        let list = &mut self.write().keys;
        list.retain(|_, ban| ban.source != BanSource::File && ban.until > now);
        for (key, ban) in bans {
            let stays = list.get(key).is_some_and(|other| other.until >= ban.until);
            if !stays && ban.until > now {
                list.insert(key.clone(), ban.clone());
            }
        }
        self.changed(list.len());
    }

    /// Counts a denial of an offender; returns the ban that it earns, for a reason to be filled in.
    pub(crate) fn denied(&self, offender: Fingerprint, policy: &BanPolicy, now: Time) -> Option<Ban> {
        let mut offences = lock(&self.offences);
        let offence = offences.touch(offender, now);
        let oldest = now - policy.within;
        offence.denials.push_back(now);
        while offence.denials.front().is_some_and(|at| *at <= oldest)
            || offence.denials.len() > policy.after as usize
        {
            offence.denials.pop_front();
        }
        if offence.denials.len() < policy.after as usize {
            return None;
        }
        offence.denials.clear();
        if now >= offence.banned_until + policy.max {
            offence.strikes = 0;
        }
        offence.strikes += 1;
        let doubled = policy.first.saturating_mul(1u32.checked_shl(offence.strikes - 1).unwrap_or(u32::MAX));
        offence.banned_until = now + doubled.min(policy.max);
        let (until, strikes) = (offence.banned_until, offence.strikes);
        Some(Ban { until, reason: String::new(), source: BanSource::Automatic, strikes })
    }

    /// Forgets an offender's denials and strikes.
    pub(crate) fn forgive(&self, offender: Fingerprint) {
        lock(&self.offences).remove(offender);
    }

    pub(crate) fn offences(&self) -> Vec<(Fingerprint, Time, Offence)> {
        lock(&self.offences)
            .iter()
            .map(|(print, touched, offence)| (print, touched, offence.clone()))
            .collect()
    }

    pub(crate) fn restore_offence(&self, offender: Fingerprint, touched: Time, offence: Offence) {
        *lock(&self.offences).touch(offender, touched) = offence;
    }

    fn changed(&self, len: usize) {
        self.len.store(len, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
    }

    fn read(&self) -> RwLockReadGuard<'_, List> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, List> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn policy() -> BanPolicy {
        let key = vec![Attribute::Ip];
        BanPolicy { key, after: 3, within: MINUTE * 10, first: MINUTE * 60, max: MINUTE * 180 }
    }

    #[test]
    fn bans_grow_with_each_relapse_up_to_max_and_are_forgotten() {
        let bans = BanList::default();
        let offender = Fingerprint(1);
        let mut now = Time::from_secs(1_800_000_000);
        let offend = |now: Time| {
            let first = bans.denied(offender, &policy(), now);
            let second = bans.denied(offender, &policy(), now);
            assert_eq!((first, second), (None, None));
            bans.denied(offender, &policy(), now).expect("the third denial bans")
        };
        for (strikes, minutes) in [(1, 60), (2, 120), (3, 180), (4, 180)] {
            let ban = offend(now);
            assert_eq!((ban.strikes, ban.until), (strikes, now + MINUTE * minutes));
            now = ban.until;
        }
        assert_eq!(offend(now + MINUTE * 180).strikes, 1, "clean for as long as max");
    }

    #[test]
    fn denials_further_apart_than_within_do_not_ban() {
        let bans = BanList::default();
        for n in 0..100 {
            let now = Time::from_secs(1_800_000_000) + MINUTE * 5 * n;
            assert_eq!(bans.denied(Fingerprint(1), &policy(), now), None);
        }
    }

    #[test]
    fn a_ban_ends_by_itself() {
        let bans = BanList::default();
        let now = Time::from_secs(1_800_000_000);
        let ban = Ban { until: now + MINUTE, reason: "test".into(), source: BanSource::Manual, strikes: 0 };
        bans.insert(Key::parse("ip:10.0.0.0/8").expect("valid"), ban, now);
        let banned = |ip: &str, now| bans.check(ip.parse().ok(), |_| None, now).is_some();
        assert!(banned("10.1.2.3", now));
        assert!(!banned("11.1.2.3", now));
        assert!(!banned("10.1.2.3", now + MINUTE));
        assert!(bans.all(now + MINUTE).is_empty());
    }

    #[test]
    fn made_up_offenders_do_not_fill_the_memory_and_bans_that_are_over_make_room() {
        let bans = BanList::with_capacity(3);
        let now = Time::from_secs(1_800_000_000);
        let key = |n: u32| Key::parse(&format!("user:{n}")).expect("valid");
        let ban = |until| Ban { until, reason: String::new(), source: BanSource::Automatic, strikes: 1 };
        let earn = |n, now| bans.insert_earned(key(n), ban(now + MINUTE), now);
        assert_eq!([0, 1, 2, 3, 0].map(|n| earn(n, now)), [true, true, true, false, true]);
        assert_eq!((bans.all(now).len(), bans.dropped()), (3, 1));
        bans.insert(key(9), Ban { source: BanSource::Manual, ..ban(now + MINUTE) }, now);
        assert_eq!(bans.all(now).len(), 4, "by hand there is always room");
        assert!(earn(4, now + MINUTE));
        assert_eq!(bans.all(now + MINUTE).len(), 1);
    }

    #[test]
    fn bans_that_are_over_do_not_pile_up() {
        let bans = BanList::default();
        let mut now = Time::from_secs(1_800_000_000);
        for n in 0..10 * MIN_PURGE {
            let ban =
                Ban { until: now + MINUTE, reason: String::new(), source: BanSource::Manual, strikes: 0 };
            bans.insert(Key::parse(&format!("user:{n}")).expect("valid"), ban, now);
            now = now + MINUTE;
            assert!(bans.len.load(Ordering::Relaxed) <= MIN_PURGE);
        }
    }
}
