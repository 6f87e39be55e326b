//! The bans in force: manual ones, those of the file, automatic ones of this node, and those published by other nodes.

use crate::ban::{Ban, BanLoad};
use crate::engine::EngineCore;
use crate::identity::{Attribute, Key};
use crate::time::Time;

impl EngineCore {
    /// Bans a key; returns the ban that it replaces. A ban of the same key by the file stays.
    pub fn ban(&self, key: Key, ban: Ban, now: Time) -> Option<Ban> {
        self.bans.insert(self.as_banned(key), ban, now)
    }

    /// Lifts a ban and forgives the violations and strikes of the key; returns the lifted ban. A ban by the file
    /// stays.
    pub fn unban(&self, key: Key, now: Time) -> Option<Ban> {
        self.bans.lift(&self.as_banned(key), now)
    }

    /// Applies a ban read from a database. Idempotent. Of a ban that has ended only the strikes matter.
    pub fn put_ban(&self, key: Key, ban: Ban, now: Time) {
        self.bans.put(self.as_banned(key), ban, now);
    }

    /// Applies the removal of a ban from a database. A ban that was still in force is forgiven, as by
    /// [`unban`](Self::unban); of one that has ended, the strikes are kept. So a database must delete ended bans only
    /// after they have ended on every node's clock.
    pub fn remove_ban(&self, key: Key, now: Time) -> Option<Ban> {
        self.bans.remove(&self.as_banned(key), now)
    }

    /// Starts to load all bans of a database, in place of those that are not from the file.
    pub fn load_bans(&self) -> BanLoad<'_> {
        BanLoad::new(&self.bans, self.policy.load().settings().ipv6_prefix)
    }

    /// Replaces all bans that are not from the file, except [pending](Self::take_pending_bans) bans of this node.
    /// After a saved state was restored, this lifts the bans that were lifted meanwhile. Returns how many were dropped.
    pub fn replace_bans(&self, bans: impl IntoIterator<Item = (Key, Ban)>, now: Time) -> usize {
        let mut load = self.load_bans();
        bans.into_iter().for_each(|(key, ban)| load.put(key, ban, now));
        load.finish(now)
    }

    /// Takes the pending bans: automatic bans of this node since the last call, to be published. Queued from the first
    /// call on.
    pub fn take_pending_bans(&self) -> Vec<(Key, Ban)> {
        self.bans.pending_bans.take()
    }

    /// Automatic bans in force here that were dropped from the queue before they were published.
    pub fn unpublished_bans(&self) -> u64 {
        self.bans.pending_bans.dropped()
    }

    /// The ban of exactly this key; if the file has one too, the one that lasts longer.
    pub fn find_ban(&self, key: Key, now: Time) -> Option<Ban> {
        let key = self.as_banned(key);
        let policy = self.policy.load();
        let file = policy.file_bans.get(&key).filter(|ban| ban.until > now);
        let listed = self.bans.get(&key, now);
        match (listed, file) {
            (Some(listed), Some(file)) if file.until > listed.until => Some(file.clone()),
            (listed, file) => listed.or_else(|| file.cloned()),
        }
    }

    /// All bans in force, by key.
    pub fn bans(&self, now: Time) -> Vec<(Key, Ban)> {
        self.bans_page(None, usize::MAX, now)
    }

    /// The bans in force after a key, at most `limit` of them, ordered by the text of their keys. Each page scans all
    /// bans, but sorts and copies only its own.
    pub fn bans_page(&self, after: Option<&Key>, limit: usize, now: Time) -> Vec<(Key, Ban)> {
        self.bans.page(self.policy.load().file_bans.iter(), after, limit, now)
    }

    /// The number of bans in force; a key that is banned by the file and otherwise counts twice.
    pub fn ban_count(&self, now: Time) -> usize {
        let policy = self.policy.load();
        self.bans.count(now) + policy.file_bans.iter().filter(|(_, ban)| ban.until > now).count()
    }

    /// The attributes that bans need of a request, in addition to those of the policy.
    pub fn ban_attributes(&self) -> Vec<Attribute> {
        self.bans.attributes()
    }

    /// Automatic bans that were dropped because the list is full, or the key too long.
    pub fn dropped_bans(&self) -> u64 {
        self.bans.dropped()
    }

    /// Requests of banned keys that were admitted, because the panic switch is set to shadow.
    pub fn shadow_bans(&self) -> u64 {
        self.shadow_bans.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn as_banned(&self, key: Key) -> Key {
        key.as_banned(self.policy.load().settings().ipv6_prefix)
    }
}
