//! Tracked keys in a saved state: handed to a rule when it is first hit or looked at.
//!
//! Rules of a database come into force after the state was read, so what was saved waits for its rule.

use std::collections::HashMap;
use std::sync::Arc;

use crate::changes::Changes;
use crate::codec::{Decoder, Encoder};
use crate::fingerprint::Fingerprint;
use crate::rule::Tracking;
use crate::sync::{Mutex, lock};
use crate::time::Time;
use crate::track::Track;

#[derive(Clone)]
pub(crate) struct SavedTrack {
    pub(crate) key: Fingerprint,
    pub(crate) track: Track,
}

/// What the tracks of a rule begin with.
#[derive(Default)]
pub(crate) struct FirstTracks {
    pub(crate) tracks: Arc<Vec<SavedTrack>>,
    pub(crate) changes: Changes,
}

/// What was saved of rules that nobody has asked for yet.
#[derive(Default)]
pub(crate) struct SavedTracks {
    waiting: Mutex<HashMap<Box<str>, Arc<Vec<SavedTrack>>>>,
    changes: Changes,
}

impl SavedTracks {
    pub(crate) fn new(changes: Changes) -> SavedTracks {
        SavedTracks { changes, ..SavedTracks::default() }
    }

    /// What was saved of a rule; nothing the second time.
    pub(crate) fn take(&self, rule: &str) -> FirstTracks {
        let tracks = lock(&self.waiting).remove(rule).unwrap_or_default();
        FirstTracks { tracks, changes: self.changes }
    }

    pub(crate) fn put(&self, rule: &str, tracks: Vec<SavedTrack>) {
        lock(&self.waiting).insert(rule.into(), Arc::new(tracks));
    }

    /// Those that nobody has asked for.
    pub(crate) fn waiting(&self) -> Vec<(Box<str>, Arc<Vec<SavedTrack>>)> {
        lock(&self.waiting).iter().map(|(rule, tracks)| (rule.clone(), Arc::clone(tracks))).collect()
    }
}

impl SavedTrack {
    pub(crate) fn write(key: Fingerprint, track: &Track, out: &mut Encoder) {
        out.words([key.0, track.tries, track.denials, track.last_seen.nanos(), track.latest.len() as u64]);
        out.words(track.latest.iter().map(|at| at.nanos()));
    }

    pub(crate) fn read(from: &mut Decoder<'_>) -> Option<SavedTrack> {
        let key = Fingerprint(from.word()?);
        let tries = from.word()?;
        let denials = from.word()?;
        let last_seen = Time::from_nanos(from.word()?);
        let times = from.word().filter(|times| *times <= u64::from(Tracking::MAX_TIMES))?;
        let latest = (0..times).map(|_| from.word().map(Time::from_nanos)).collect::<Option<_>>()?;
        Some(SavedTrack { key, track: Track { tries, denials, last_seen, latest } })
    }

    /// Whether some setting would keep it.
    pub(crate) fn matters(&self, now: Time) -> bool {
        self.track.last_seen + Tracking::MAX_KEEP > now
    }
}
