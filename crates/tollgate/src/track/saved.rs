//! Tracked keys of a restored state: moved to a rule when it is first hit or inspected.
//!
//! Rules of a database come into force after the state was restored, so tracks wait for their rule.

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

/// The initial tracks of a rule.
#[derive(Default)]
pub(crate) struct FirstTracks {
    pub(crate) tracks: Arc<Vec<SavedTrack>>,
    pub(crate) changes: Changes,
}

/// Restored tracks of rules that were not used yet.
#[derive(Default)]
pub(crate) struct SavedTracks {
    waiting: Mutex<HashMap<Box<str>, Arc<Vec<SavedTrack>>>>,
    changes: Changes,
}

impl SavedTracks {
    pub(crate) fn new(changes: Changes) -> SavedTracks {
        SavedTracks { changes, ..SavedTracks::default() }
    }

    /// Takes the restored tracks of a rule; empty the second time.
    pub(crate) fn take(&self, rule: &str) -> FirstTracks {
        let tracks = lock(&self.waiting).remove(rule).unwrap_or_default();
        FirstTracks { tracks, changes: self.changes }
    }

    pub(crate) fn put(&self, rule: &str, tracks: Vec<SavedTrack>) {
        lock(&self.waiting).insert(rule.into(), Arc::new(tracks));
    }

    /// The tracks that were not taken yet.
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

    /// Whether any valid setting would still keep it.
    pub(crate) fn matters(&self, now: Time) -> bool {
        self.track.last_seen + Tracking::MAX_KEEP > now
    }
}
