//! Tracked keys in a snapshot: saved by rule, and handed to a rule when it is first hit or looked at.
//!
//! Rules of a database come into force after the snapshot was read, so what was saved waits for its rule.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::codec::{Decoder, Encoder};
use crate::fingerprint::Fingerprint;
use crate::rule::Tracking;
use crate::sync::{Mutex, lock};
use crate::time::Time;
use crate::track::Track;

pub(crate) struct SavedTrack {
    pub(crate) key: Fingerprint,
    pub(crate) track: Track,
}

/// What a snapshot had of rules that nobody has asked for yet.
#[derive(Default)]
pub(crate) struct SavedTracks(Mutex<HashMap<Box<str>, Vec<SavedTrack>>>);

impl SavedTracks {
    /// What was saved of a rule; nothing the second time.
    pub(crate) fn take(&self, rule: &str) -> Vec<SavedTrack> {
        lock(&self.0).remove(rule).unwrap_or_default()
    }

    /// Writes the rules in force, and those that were not asked for since the last snapshot.
    pub(crate) fn save(
        &self,
        in_force: &[(&str, Vec<SavedTrack>)],
        out: &mut Encoder<impl Write>,
    ) -> io::Result<()> {
        let waiting = lock(&self.0);
        let waiting: Vec<_> = waiting.iter().map(|(rule, tracks)| (&**rule, tracks)).collect();
        let all = in_force.iter().map(|(rule, tracks)| (*rule, tracks)).chain(waiting.iter().copied());
        out.word((in_force.len() + waiting.len()) as u64)?;
        for (rule, tracks) in all {
            out.text(rule)?;
            out.word(tracks.len() as u64)?;
            for SavedTrack { key, track } in tracks {
                let words = [key.0, track.tries, track.denials, track.last_seen.nanos()];
                words.into_iter().chain([track.latest.len() as u64]).try_for_each(|word| out.word(word))?;
                track.latest.iter().try_for_each(|at| out.word(at.nanos()))?;
            }
        }
        Ok(())
    }

    /// Reads what [`save`](Self::save) has written; `None` if it has not. A key that no setting would keep is left out.
    pub(crate) fn load(&self, from: &mut Decoder<'_>, now: Time) -> Option<u64> {
        let mut kept = 0;
        for _ in 0..from.word()? {
            let rule = from.text()?;
            let mut tracks = Vec::new();
            for _ in 0..from.word()? {
                let key = Fingerprint(from.word()?);
                let (tries, denials) = (from.word()?, from.word()?);
                let last_seen = Time::from_nanos(from.word()?);
                let times = from.word().filter(|times| *times <= u64::from(Tracking::MAX_TIMES))?;
                let latest = (0..times).map(|_| from.word().map(Time::from_nanos)).collect::<Option<_>>()?;
                if last_seen + Tracking::MAX_KEEP > now {
                    tracks.push(SavedTrack { key, track: Track { tries, denials, last_seen, latest } });
                }
            }
            kept += tracks.len() as u64;
            lock(&self.0).insert(rule.into(), tracks);
        }
        Some(kept)
    }
}
