//! Tracking: attempts and denials of a key, with timestamps.
//!
//! Recorded after the decision: losing data here changes no verdict. A node stores its own observations; with a
//! central store, the [`Outbox`] sends them to the record that all nodes share.

use std::collections::{HashSet, VecDeque};
use std::sync::OnceLock;

use crate::fingerprint::Fingerprint;
use crate::rule::Tracking;
use crate::sampled_lru::SampledLru;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::time::Time;

pub mod central;
mod outbox;
pub(crate) mod saved;

pub use outbox::{Delta, Outbox};
use saved::{FirstTracks, SavedTrack};

/// Maximum number of keys per rule; fewer if more than 16 timestamps are stored for each.
pub const MAX_KEYS: usize = 100_000;
/// Maximum number of timestamps per rule, over all keys.
const MAX_TIMES: usize = 16 * MAX_KEYS;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Track {
    pub tries: u64,
    pub denials: u64,
    pub last_seen: Time,
    /// The latest attempts, oldest first.
    pub latest: VecDeque<Time>,
}

impl Track {
    /// Counts an attempt, denied `denials` times, and keeps the latest `times` timestamps.
    pub(crate) fn count(&mut self, now: Time, denials: u64, times: usize) {
        self.tries += 1;
        self.denials += denials;
        self.last_seen = self.last_seen.max(now);
        while self.latest.len() >= times.max(1) {
            self.latest.pop_front();
        }
        self.latest.push_back(now);
    }

    /// Adds another track; the latest `times` timestamps of both are kept, in order.
    pub fn add(&mut self, other: &Track, times: usize) {
        self.tries = self.tries.saturating_add(other.tries);
        self.denials = self.denials.saturating_add(other.denials);
        self.last_seen = self.last_seen.max(other.last_seen);
        self.latest.extend(&other.latest);
        self.latest.make_contiguous().sort_unstable();
        let surplus = self.latest.len().saturating_sub(times);
        self.latest.drain(..surplus);
    }

    fn is_expired(&self, tracking: Tracking, now: Time) -> bool {
        self.last_seen + tracking.keep() <= now
    }
}

/// The tracked keys of one rule on this node; a rule that does not track takes no memory for them.
#[derive(Default)]
pub(crate) struct RuleTracks(OnceLock<Box<Mutex<TrackTable>>>);

struct TrackTable {
    table: SampledLru<Track>,
    tracking: Tracking,
}

impl RuleTracks {
    /// Counts an attempt. `saved` returns the tracks of the rule in a restored state and is called once. Returns
    /// whether it is the first change since [`take_changed`](Self::take_changed).
    pub(crate) fn count(
        &self,
        key: Fingerprint,
        now: Time,
        denials: u64,
        tracking: Tracking,
        saved: impl FnOnce() -> FirstTracks,
    ) -> FirstChange {
        let mut tracks = self.initialized(tracking, saved);
        let first = tracks.first_change();
        let track = tracks.table.touch(key, now);
        if track.is_expired(tracking, now) {
            *track = Track::default();
        }
        track.count(now, denials, tracking.times());
        first
    }

    pub(crate) fn get(
        &self,
        key: Fingerprint,
        now: Time,
        tracking: Tracking,
        saved: impl FnOnce() -> FirstTracks,
    ) -> Option<Track> {
        let tracks = self.initialized(tracking, saved);
        tracks.table.get(key).filter(|track| !track.is_expired(tracking, now)).cloned()
    }

    pub(crate) fn forget(&self, key: Fingerprint) -> FirstChange {
        let Some(tracks) = self.0.get() else { return FirstChange::No };
        let mut tracks = lock(tracks);
        let first = tracks.first_change();
        tracks.table.remove(key);
        first
    }

    /// The live tracks among at most `most` rows from index `from`; `None` beyond the last.
    pub(crate) fn rows(&self, from: usize, most: usize, now: Time) -> Option<Vec<SavedTrack>> {
        let tracks = lock(self.0.get()?);
        if from >= tracks.table.len() {
            return None;
        }
        let live =
            tracks.table.rows(from, most).filter(|(.., track)| !track.is_expired(tracks.tracking, now));
        Some(live.map(|(key, _, track)| SavedTrack { key, track: track.clone() }).collect())
    }

    /// A key's track, if it has not expired.
    pub(crate) fn live(&self, key: Fingerprint, now: Time) -> Option<Track> {
        let tracks = lock(self.0.get()?);
        tracks.table.get(key).filter(|track| !track.is_expired(tracks.tracking, now)).cloned()
    }

    /// Records keys again that were taken but not written.
    pub(crate) fn note_changed(&self, keys: impl Iterator<Item = Fingerprint>) {
        let Some(tracks) = self.0.get() else { return };
        if let Some(changed) = lock(tracks).table.changed() {
            keys.for_each(|key| changed.add(key));
        }
    }

    /// The keys that have changed since the last call, and whether some were lost.
    pub(crate) fn take_changed(&self) -> (HashSet<Fingerprint>, bool) {
        let Some(tracks) = self.0.get() else { return Default::default() };
        lock(tracks).table.changed().map(|keys| (keys.take(), keys.take_overflow())).unwrap_or_default()
    }

    /// Whether the rule's part of a restored state was already requested.
    pub(crate) fn is_initialized(&self) -> bool {
        self.0.get().is_some()
    }

    fn initialized(
        &self,
        tracking: Tracking,
        saved: impl FnOnce() -> FirstTracks,
    ) -> MutexGuard<'_, TrackTable> {
        let tracks = self.0.get_or_init(|| Box::new(Mutex::new(TrackTable::of(&saved(), tracking))));
        let mut tracks = lock(tracks);
        tracks.tracking = tracking;
        tracks.table.shrink_towards(capacity(tracking));
        tracks
    }
}

/// The maximum number of keys for these settings.
fn capacity(tracking: Tracking) -> usize {
    MAX_KEYS.min(MAX_TIMES / tracking.times())
}

/// Whether a change is the first one since changes were last taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstChange {
    Yes,
    No,
}

impl TrackTable {
    fn of(first: &FirstTracks, tracking: Tracking) -> TrackTable {
        let mut table = SampledLru::new(capacity(tracking));
        for SavedTrack { key, track } in first.tracks.iter() {
            let key = *key;
            let mut track = track.clone();
            let surplus = track.latest.len().saturating_sub(tracking.times());
            track.latest.drain(..surplus);
            let seen = track.last_seen;
            *table.touch(key, seen) = track;
        }
        table.record(first.changes);
        TrackTable { table, tracking }
    }

    fn first_change(&mut self) -> FirstChange {
        match self.table.changed() {
            Some(changed) if changed.is_empty() => FirstChange::Yes,
            _ => FirstChange::No,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(seconds: &[u64]) -> VecDeque<Time> {
        seconds.iter().map(|second| Time::from_secs(*second)).collect()
    }

    #[test]
    fn records_of_other_nodes_are_merged_and_the_latest_times_stay_in_order() {
        let mut track = Track { tries: 3, denials: 1, last_seen: Time::from_secs(7), latest: at(&[1, 4, 7]) };
        let other = Track { tries: 2, denials: 2, last_seen: Time::from_secs(5), latest: at(&[2, 5]) };
        track.add(&other, 4);
        let merged = Track { tries: 5, denials: 3, last_seen: Time::from_secs(7), latest: at(&[2, 4, 5, 7]) };
        assert_eq!(track, merged);
    }

    #[test]
    fn a_key_expires_after_its_retention() {
        let tracks = RuleTracks::default();
        let key = Fingerprint(1);
        let tracking = Tracking::new(2, Duration::from_secs(10)).expect("in range");
        let count = |second| tracks.count(key, Time::from_secs(second), 0, tracking, FirstTracks::default);
        let tries = |second| {
            tracks.get(key, Time::from_secs(second), tracking, FirstTracks::default).map(|it| it.tries)
        };
        count(100);
        count(105);
        assert_eq!((tries(114), tries(115)), (Some(2), None));
        count(120);
        assert_eq!(tries(120), Some(1), "it begins anew");
        let more = Tracking::new(3, Duration::from_secs(20)).expect("in range");
        tracks.count(key, Time::from_secs(139), 1, more, FirstTracks::default);
        let track = tracks.get(key, Time::from_secs(139), more, FirstTracks::default).expect("it is kept");
        assert_eq!((track.tries, track.latest), (2, at(&[120, 139])), "an edit of the settings keeps it");
    }
}
