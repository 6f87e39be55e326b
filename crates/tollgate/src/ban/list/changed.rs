//! The ban list in a state log: all bans, part by part, and those that have changed.

use std::collections::HashSet;

use crate::ban::Ban;
use crate::ban::list::{BanList, SHARDS, read_shard};
use crate::ban::shard::StoredBan;
use crate::changes::{ChangedKeys, Changes};
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// Changed bans that are recorded between two writes of the log.
const MAX_CHANGED: usize = 1 << 16;

impl BanList {
    /// Number of parts for [`part`](Self::part).
    pub(crate) const PARTS: usize = SHARDS;

    /// If enabled, records which bans and offenders change from now on.
    pub(crate) fn recording(mut self, changes: Changes) -> BanList {
        self.changed = ChangedKeys::recorded(changes, MAX_CHANGED).map(Mutex::new);
        self.offenders.record(changes);
        self
    }

    pub(super) fn note_changed(&self, fingerprint: Fingerprint) {
        if let Some(changed) = &self.changed {
            lock(changed).add(fingerprint);
        }
    }

    /// Records bans again that were taken but not written.
    pub(crate) fn note_all_changed(&self, fingerprints: impl Iterator<Item = Fingerprint>) {
        fingerprints.for_each(|fingerprint| self.note_changed(fingerprint));
    }

    /// The bans that have changed since the last call, and whether some were lost.
    pub(crate) fn take_changed(&self) -> (HashSet<Fingerprint>, bool) {
        let Some(changed) = &self.changed else { return Default::default() };
        let mut changed = lock(changed);
        (changed.take(), changed.take_overflow())
    }

    /// The bans in force in one part. Other threads may read and change the list meanwhile.
    pub(crate) fn part(&self, number: usize, now: Time) -> Vec<(Fingerprint, Key, Ban)> {
        let shard = read_shard(&self.shards[number]);
        shard.iter().filter(|stored| stored.until() > now).filter_map(|stored| entry(&stored)).collect()
    }

    /// The ban in force with a fingerprint.
    pub(crate) fn by_fingerprint(
        &self,
        fingerprint: Fingerprint,
        now: Time,
    ) -> Option<(Fingerprint, Key, Ban)> {
        self.read(fingerprint)
            .get(fingerprint, |stored| stored.until() > now)
            .and_then(|stored| entry(&stored))
    }
}

fn entry(stored: &StoredBan<'_>) -> Option<(Fingerprint, Key, Ban)> {
    stored.entry().map(|(key, ban)| (stored.fingerprint(), key, ban))
}
