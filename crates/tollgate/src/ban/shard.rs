//! A shard of the ban list: bans stored consecutively in one byte buffer, indexed by fingerprint.
//!
//! A ban is a header of fixed length, the key as text and, unless it is a shared one, the reason. Removed bans stay in
//! the buffer until a quarter of it is unused.

use std::mem;

use hashbrown::HashTable;

use crate::ban::{Ban, BanSource};
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::sync::count_steps;
use crate::time::Time;

/// Maximum number of shared reasons. Any other is stored with its ban.
const MAX_REASONS: usize = 64;
/// A shard shorter than this is not purged of ended bans.
const MIN_PURGE: usize = 256;
/// With fewer unused bytes the buffer is not compacted.
const MIN_WASTE: usize = 1 << 10;
const MIN_GROWTH: usize = 128;

#[derive(Default)]
pub(super) struct BanShard {
    /// Offsets of bans in the buffer.
    offsets: HashTable<u32>,
    bytes: Vec<u8>,
    wasted: usize,
    reasons: Vec<Box<str>>,
    /// The length at which ended bans are purged: twice the length after the last purge.
    purge_len: usize,
}

/// The header of a ban.
#[derive(Clone, Copy)]
struct BanHeader {
    fingerprint: Fingerprint,
    until: Time,
    strikes: u16,
    source: BanSource,
    /// The number of a shared reason, or a marker for a text of its own.
    reason: u8,
    key_len: u16,
    reason_len: u16,
}

const OWN_REASON: u8 = u8::MAX;
/// Numbers of reasons, with the marker.
const REASON_NUMBERS: usize = 256;
/// Of the automatic bans of a rule in a shard, so many are evicted together, and one more.
const EVICTION_DIVISOR: usize = 32;

/// A ban in its stored form.
pub(super) struct StoredBan<'s> {
    shard: &'s BanShard,
    at: u32,
    head: BanHeader,
    key: &'s str,
    own_reason: &'s str,
}

impl BanShard {
    pub(super) fn len(&self) -> usize {
        self.offsets.len()
    }

    pub(super) fn get(
        &self,
        fingerprint: Fingerprint,
        is: impl Fn(&StoredBan<'_>) -> bool,
    ) -> Option<StoredBan<'_>> {
        let same = |at: &&u32| {
            count_steps(1);
            let stored = self.ban_at(**at);
            stored.head.fingerprint == fingerprint && is(&stored)
        };
        self.offsets.iter_hash(hash_of(fingerprint)).find(same).map(|at| self.ban_at(*at))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = StoredBan<'_>> {
        self.offsets.iter().inspect(|_| count_steps(1)).map(|at| self.ban_at(*at))
    }

    /// Stores a ban and returns the one that it replaces. The key is not longer than the maximum.
    pub(super) fn insert(&mut self, fingerprint: Fingerprint, key: &str, ban: &Ban) -> Option<Ban> {
        let old = self.get(fingerprint, |stored| stored.key == key).map(|stored| stored.ban());
        if old.as_ref() == Some(ban) {
            return old;
        }
        self.remove(fingerprint, key);
        self.append(fingerprint, key, ban);
        old
    }

    pub(super) fn remove(&mut self, fingerprint: Fingerprint, key: &str) -> Option<Ban> {
        let stored = self.get(fingerprint, |stored| stored.key == key)?;
        let ban = stored.ban();
        let len = stored.len();
        let at = stored.at;
        if let Ok(entry) = self.offsets.find_entry(hash_of(fingerprint), |offset| *offset == at) {
            entry.remove();
        }
        self.wasted += len;
        if self.wasted >= MIN_WASTE.max(self.bytes.len() / 4) {
            let offsets: Vec<u32> = self.offsets.iter().copied().collect();
            self.rewrite(&offsets);
        }
        Some(ban)
    }

    /// Whether ended bans should be purged.
    pub(super) fn needs_purge(&self) -> bool {
        self.len() >= self.purge_len.max(MIN_PURGE)
    }

    /// Removes the bans that `keep` rejects.
    pub(super) fn drain(&mut self, keep: impl Fn(&StoredBan<'_>) -> bool) -> Vec<(Key, Ban)> {
        let mut drained = Vec::new();
        let mut stay = Vec::new();
        for stored in self.iter() {
            match keep(&stored) {
                true => stay.push(stored.at),
                false => drained.extend(stored.entry()),
            }
        }
        if !drained.is_empty() {
            self.rewrite(&stay);
        }
        self.purge_len = 2 * self.len();
        drained
    }

    /// Removes some automatic bans of the reason that takes most bytes here, which names a rule: those with the fewest strikes
    /// that end first. So keys that are invented under one rule do not evict the bans of another.
    pub(super) fn evict(&mut self) -> Vec<(Key, Ban)> {
        let mut bytes = [0; REASON_NUMBERS];
        for stored in self.iter().filter(StoredBan::is_automatic) {
            bytes[usize::from(stored.head.reason)] += stored.len();
        }
        let Some((reason, _)) = bytes.iter().enumerate().max_by_key(|(_, bytes)| **bytes) else {
            return Vec::new();
        };
        let rank = |stored: &StoredBan<'_>| {
            let may_go = stored.is_automatic() && usize::from(stored.head.reason) == reason;
            may_go.then_some((stored.strikes(), stored.until(), stored.at))
        };
        let mut ranks: Vec<_> = self.iter().filter_map(|stored| rank(&stored)).collect();
        if ranks.is_empty() {
            return Vec::new();
        }
        let last = ranks.len() / EVICTION_DIVISOR;
        let (_, last, _) = ranks.select_nth_unstable(last);
        let last = *last;
        self.drain(|stored| rank(stored).is_none_or(|rank| rank > last))
    }

    /// Rewrites the buffer with only the bans at the given offsets.
    fn rewrite(&mut self, offsets: &[u32]) {
        count_steps(offsets.len());
        let whole = mem::take(self);
        let stored = || offsets.iter().map(|at| whole.ban_at(*at));
        self.bytes.reserve_exact(stored().map(|stored| stored.len()).sum());
        self.offsets.reserve(offsets.len(), |_| 0); // the table is empty: nothing to rehash
        stored().for_each(|stored| self.append(stored.head.fingerprint, stored.key, &stored.ban()));
        self.purge_len = whole.purge_len;
    }

    fn append(&mut self, fingerprint: Fingerprint, key: &str, ban: &Ban) {
        let reason = self.intern_reason(&ban.reason);
        let own_reason = if reason == OWN_REASON { clipped(&ban.reason) } else { "" };
        let head = BanHeader {
            fingerprint,
            until: ban.until,
            strikes: u16::try_from(ban.strikes).unwrap_or(u16::MAX),
            source: ban.source,
            reason,
            key_len: key.len() as u16,
            reason_len: own_reason.len() as u16,
        };
        let at = self.bytes.len();
        let len = BanHeader::LEN + key.len() + own_reason.len();
        if self.bytes.capacity() - at < len {
            self.bytes.reserve_exact(len + MIN_GROWTH.max(at / 16)); // doubling could leave half of the buffer unused
        }
        self.bytes.extend_from_slice(&head.to_bytes());
        self.bytes.extend_from_slice(key.as_bytes());
        self.bytes.extend_from_slice(own_reason.as_bytes());
        let bytes = &self.bytes;
        self.offsets.insert_unique(hash_of(fingerprint), at as u32, |at| {
            hash_of(BanHeader::read(bytes, *at).fingerprint)
        });
    }

    /// The number of a reason, shared if there is room.
    fn intern_reason(&mut self, reason: &str) -> u8 {
        let known = self.reasons.iter().position(|known| **known == *reason);
        if known.is_none() && self.reasons.len() < MAX_REASONS && reason.len() <= u16::MAX as usize {
            self.reasons.push(reason.into());
            return (self.reasons.len() - 1) as u8;
        }
        known.map_or(OWN_REASON, |number| number as u8)
    }

    fn ban_at(&self, at: u32) -> StoredBan<'_> {
        let head = BanHeader::read(&self.bytes, at);
        let key = at as usize + BanHeader::LEN;
        let reason = key + usize::from(head.key_len);
        let text = |from: usize, len: u16| {
            std::str::from_utf8(&self.bytes[from..from + usize::from(len)]).unwrap_or_default()
        };
        StoredBan {
            shard: self,
            at,
            head,
            key: text(key, head.key_len),
            own_reason: text(reason, head.reason_len),
        }
    }
}

impl<'s> StoredBan<'s> {
    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.head.fingerprint
    }

    pub(super) fn key_text(&self) -> &'s str {
        self.key
    }

    pub(super) fn until(&self) -> Time {
        self.head.until
    }

    pub(super) fn strikes(&self) -> u32 {
        u32::from(self.head.strikes)
    }

    pub(super) fn ban(&self) -> Ban {
        let shared = self.shard.reasons.get(usize::from(self.head.reason));
        let reason = shared.map_or(self.own_reason, AsRef::as_ref).to_owned();
        Ban { until: self.until(), reason, source: self.head.source, strikes: self.strikes() }
    }

    pub(super) fn entry(&self) -> Option<(Key, Ban)> {
        Some((Key::parse(self.key).ok()?, self.ban()))
    }

    fn is_automatic(&self) -> bool {
        self.head.source == BanSource::Automatic
    }

    fn len(&self) -> usize {
        BanHeader::LEN + self.key.len() + self.own_reason.len()
    }
}

impl BanHeader {
    const LEN: usize = 24;

    fn to_bytes(self) -> [u8; BanHeader::LEN] {
        let mut bytes = [0; BanHeader::LEN];
        bytes[..8].copy_from_slice(&self.fingerprint.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.until.nanos().to_le_bytes());
        bytes[16..18].copy_from_slice(&self.strikes.to_le_bytes());
        bytes[18] = self.source as u8;
        bytes[19] = self.reason;
        bytes[20..22].copy_from_slice(&self.key_len.to_le_bytes());
        bytes[22..].copy_from_slice(&self.reason_len.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8], at: u32) -> BanHeader {
        let bytes = &bytes[at as usize..][..BanHeader::LEN];
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        BanHeader {
            fingerprint: Fingerprint(word(0)),
            until: Time::from_nanos(word(8)),
            strikes: short(16),
            source: BanSource::ALL[usize::from(bytes[18])],
            reason: bytes[19],
            key_len: short(20),
            reason_len: short(22),
        }
    }
}

/// The hash within a shard, mixed over all bits of the fingerprint.
fn hash_of(fingerprint: Fingerprint) -> u64 {
    fingerprint.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The reason, truncated to the stored length.
fn clipped(reason: &str) -> &str {
    let mut end = reason.len().min(u16::MAX as usize);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}
