//! The whole of a database's bans, read ban by ban: what it does not have is dropped in the end.

use std::collections::HashSet;

use crate::ban::{Ban, BanList};
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::time::Time;

/// Bans in place of all those that did not come from the file. They hold one by one; those that are not
/// among them hold until [`finish`](Self::finish), or for ever if it is never called.
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

    /// Drops what was not put, but for what this node has earned somebody and nobody has taken yet, and what a store
    /// that nodes share has told. What was still in force is forgiven, as by [`Engine::unban`](crate::Engine::unban). Returns how many were dropped.
    pub fn finish(mut self, now: Time) -> usize {
        let waiting = self.list.pending_bans.keys();
        self.loaded.extend(waiting.iter().map(|key| self.list.fingerprint(key)));
        self.loaded.extend(self.list.fleet_bans.in_force(now));
        self.list.retain(&self.loaded, now)
    }
}
