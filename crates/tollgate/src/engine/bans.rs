//! Who is banned: by hand, by the file, by what was earned here, and by what others have told.

use crate::ban::{Ban, BanLoad};
use crate::engine::Engine;
use crate::identity::{Attribute, Key};
use crate::time::Time;

impl Engine {
    /// Bans a key; returns the ban that it replaces. A ban of the file beside it stays.
    pub fn ban(&self, key: Key, ban: Ban, now: Time) -> Option<Ban> {
        self.bans.insert(self.as_banned(key), ban, now)
    }

    /// Lifts a ban, and forgives what automatic ones were built on; returns what was lifted. A ban of the
    /// file stays.
    pub fn unban(&self, key: Key, now: Time) -> Option<Ban> {
        self.bans.lift(&self.as_banned(key), now)
    }

    /// Takes over a ban as a database has it now. Made twice it is the same as made once; the ban may be over,
    /// then only its strikes matter.
    pub fn put_ban(&self, key: Key, ban: Ban, now: Time) {
        self.bans.put(self.as_banned(key), ban, now);
    }

    /// Follows a ban that is gone from a database. One that was still in force is forgiven, as by
    /// [`unban`](Self::unban); of one that was over, the strikes are kept. Whoever tidies the database up
    /// waits until a ban is over on every node's clock.
    pub fn remove_ban(&self, key: Key, now: Time) -> Option<Ban> {
        self.bans.remove(&self.as_banned(key), now)
    }

    /// Begins to read all bans of a database, in place of those that did not come from the file.
    pub fn load_bans(&self) -> BanLoad<'_> {
        BanLoad::new(&self.bans, self.policy.load().settings().ipv6_prefix)
    }

    /// Takes these bans in place of all that did not come from the file, but for those that this node has
    /// earned somebody and nobody has [taken](Self::take_pending_bans) yet. After a snapshot was read, this is how
    /// a ban that was lifted meanwhile is lifted here, too. Returns how many were dropped.
    pub fn replace_bans(&self, bans: impl IntoIterator<Item = (Key, Ban)>, now: Time) -> usize {
        let mut load = self.load_bans();
        bans.into_iter().for_each(|(key, ban)| load.put(key, ban, now));
        load.finish(now)
    }

    /// The automatic bans that this node has given since the last call, to be told to others. They are kept
    /// from the first call on: without it nobody waits for them.
    pub fn take_pending_bans(&self) -> Vec<(Key, Ban)> {
        self.bans.pending_bans.take()
    }

    /// Automatic bans that hold here, and that nobody took in time to tell others.
    pub fn unpublished_bans(&self) -> u64 {
        self.bans.pending_bans.dropped()
    }

    /// The ban of just this key; of the file's and another the one that holds longer.
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

    /// The bans in force after a key, at most `limit` of them, in the order of their texts. All bans are
    /// looked at for each page, no more than the page is sorted or copied.
    pub fn bans_page(&self, after: Option<&Key>, limit: usize, now: Time) -> Vec<(Key, Ban)> {
        self.bans.page(self.policy.load().file_bans.iter(), after, limit, now)
    }

    /// How many bans are in force; a key that is banned by the file and beside it counts twice.
    pub fn ban_count(&self, now: Time) -> usize {
        let policy = self.policy.load();
        self.bans.count(now) + policy.file_bans.iter().filter(|(_, ban)| ban.until > now).count()
    }

    /// The attributes that bans ask a request for, beside those of the policy.
    pub fn ban_attributes(&self) -> Vec<Attribute> {
        self.bans.attributes()
    }

    /// Automatic bans that found the list full of others, or whose key is too long to be named.
    pub fn dropped_bans(&self) -> u64 {
        self.bans.dropped()
    }

    /// Requests of banned keys that passed, for the switch stood on shadow.
    pub fn shadow_bans(&self) -> u64 {
        self.shadow_bans.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn as_banned(&self, key: Key) -> Key {
        key.as_banned(self.policy.load().settings().ipv6_prefix)
    }
}
