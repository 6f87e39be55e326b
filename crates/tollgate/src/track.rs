//! Tracking: how often a key tried, how often it was denied, and when.
//!
//! Kept beside the counters, outside the step that decides; what is forgotten here changes no verdict.

use std::collections::VecDeque;
use std::sync::OnceLock;

use crate::fingerprint::Fingerprint;
use crate::sync::{Mutex, lock};
use crate::table::Table;
use crate::time::Time;

/// The keys remembered per rule, and the times per key.
pub const MAX_KEYS: usize = 100_000;
pub const LATEST: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Track {
    pub tries: u64,
    pub denials: u64,
    pub last_seen: Time,
    /// The latest tries, oldest first.
    pub latest: VecDeque<Time>,
}

/// The tracked keys of one rule; one that does not track takes no memory for them.
#[derive(Default)]
pub(crate) struct Tracks(OnceLock<Box<Mutex<Table<Track>>>>);

impl Tracks {
    pub(crate) fn tried(&self, key: Fingerprint, now: Time) {
        self.record(key, now, 0);
    }

    pub(crate) fn denied(&self, key: Fingerprint, now: Time) {
        self.record(key, now, 1);
    }

    fn record(&self, key: Fingerprint, now: Time, denials: u64) {
        let mut table = lock(self.0.get_or_init(|| Box::new(Mutex::new(Table::new(MAX_KEYS)))));
        let track = table.touch(key, now);
        track.tries += 1;
        track.denials += denials;
        track.last_seen = track.last_seen.max(now);
        if track.latest.len() == LATEST {
            track.latest.pop_front();
        }
        track.latest.push_back(now);
    }

    pub(crate) fn get(&self, key: Fingerprint) -> Option<Track> {
        lock(self.0.get()?).get(key).cloned()
    }

    pub(crate) fn forget(&self, key: Fingerprint) {
        if let Some(table) = self.0.get() {
            lock(table).remove(key);
        }
    }
}
