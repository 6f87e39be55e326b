//! The ban list: `{key: until}`, set by hand or by repeated denials; bans end by themselves.
//!
//! A banned key is denied before any rule is looked at. The n-th ban of a key lasts
//! `for × 2^(n−1)`, at most `max`; a key that stays clean for `max` starts over.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLockReadGuard, RwLockWriteGuard};

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
/// Bans that are over are dropped when the list has grown by this many.
const PURGE_EVERY: usize = 1024;

pub struct BanList {
    list: RwLock<KeyList<Ban>>,
    /// The length of the list, so that an empty one costs nothing.
    len: AtomicUsize,
    offences: Mutex<Table<Offence>>,
}

impl Default for BanList {
    fn default() -> Self {
        let (list, len) = (RwLock::default(), AtomicUsize::new(0));
        BanList { list, len, offences: Mutex::new(Table::new(MAX_OFFENDERS)) }
    }
}

impl BanList {
    /// The ban in force for a request.
    pub fn check<'h>(
        &self,
        ip: Option<IpAddr>,
        value: impl Fn(&Attribute) -> Option<Cow<'h, str>>,
        now: Time,
    ) -> Option<(Key, Ban)> {
        if self.len.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.read().find(ip, value, |ban| ban.until > now).cloned()
    }

    /// Bans a key; an earlier ban of the same key is replaced and returned if it was still in force.
    pub fn insert(&self, key: Key, ban: Ban, now: Time) -> Option<Ban> {
        let mut list = self.write();
        let old = list.insert(key, ban).filter(|old| old.until > now);
        if list.len().is_multiple_of(PURGE_EVERY) {
            list.retain(|_, ban| ban.until > now);
        }
        self.len.store(list.len(), Ordering::Release);
        old
    }

    /// Lifts a ban and returns what was lifted; the key's strikes are forgiven with it.
    pub fn remove(&self, key: &Key, now: Time) -> Option<Ban> {
        let mut list = self.write();
        let removed = list.remove(key);
        self.len.store(list.len(), Ordering::Release);
        removed.filter(|ban| ban.until > now)
    }

    pub fn get(&self, key: &Key, now: Time) -> Option<Ban> {
        self.read().get(key).filter(|ban| ban.until > now).cloned()
    }

    /// All bans in force, by key.
    pub fn all(&self, now: Time) -> Vec<(Key, Ban)> {
        let mut all: Vec<_> = self.read().iter().filter(|(_, ban)| ban.until > now).cloned().collect();
        all.sort_by_cached_key(|(key, _)| key.to_string());
        all
    }

    /// Takes the configuration's bans in place of those it had before.
    pub fn replace_file_bans(&self, bans: &[(Key, Ban)], now: Time) {
        let mut list = self.write();
        list.retain(|_, ban| ban.source != BanSource::File && ban.until > now);
        for (key, ban) in bans {
            let stays = list.get(key).is_some_and(|other| other.until >= ban.until);
            if !stays && ban.until > now {
                list.insert(key.clone(), ban.clone());
            }
        }
        self.len.store(list.len(), Ordering::Release);
    }

    /// Counts a denial of an offender; returns the ban that it earns.
    pub(crate) fn denied(
        &self,
        offender: Fingerprint,
        policy: &BanPolicy,
        reason: &str,
        now: Time,
    ) -> Option<Ban> {
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
        Some(Ban { until, reason: reason.to_owned(), source: BanSource::Automatic, strikes })
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

    fn read(&self) -> RwLockReadGuard<'_, KeyList<Ban>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, KeyList<Ban>> {
        self.list.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
            let first = bans.denied(offender, &policy(), "", now);
            let second = bans.denied(offender, &policy(), "", now);
            assert_eq!((first, second), (None, None));
            bans.denied(offender, &policy(), "", now).expect("the third denial bans")
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
            assert_eq!(bans.denied(Fingerprint(1), &policy(), "", now), None);
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
}
