//! Loads all bans of a database one by one; bans that it does not have are dropped at the end.

use std::collections::HashSet;

use crate::ban::{Ban, BanList};
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::time::Time;

/// Replaces all bans that are not from the file. Each ban is in force as soon as it is put; bans that are not put stay
/// in force until [`finish`](Self::finish), or for good if it is never called.
pub struct BanLoad<'l> {
    list: &'l BanList,
    ipv6_prefix: u8,
    loaded: HashSet<Fingerprint>,
}

impl<'l> BanLoad<'l> {
    pub(crate) fn new(list: &'l BanList, ipv6_prefix: u8) -> BanLoad<'l> {
        BanLoad { list, ipv6_prefix, loaded: HashSet::new() }
    }

    pub fn put(&mut self, key: Key, ban: Ban, now: Time) {
        let key = key.as_banned(self.ipv6_prefix);
        self.loaded.insert(self.list.fingerprint(&key));
        self.list.put(key, ban, now);
    }

    /// Drops the bans that were not put, except pending bans of this node and bans published by the central store. A
    /// ban that was still in force is forgiven, as by [`EngineCore::unban`](crate::Engine::unban). Returns how many were
    /// dropped.
    pub fn finish(mut self, now: Time) -> usize {
        let waiting = self.list.pending_bans.keys();
        self.loaded.extend(waiting.iter().map(|key| self.list.fingerprint(key)));
        self.loaded.extend(self.list.fleet_bans.in_force(now));
        self.list.retain(&self.loaded, now)
    }
}
