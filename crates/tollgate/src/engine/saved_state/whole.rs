//! Saved states in the formats before state logs, written in one piece at a clean shutdown.
//!
//! Version 4: magic, version, secret, hash, time, rules as text, counters, bans, offenders, tracked keys, checksum.
//! Version 3 has no tracked keys. Version 5 adds used fractions of limits: entries of version 4 are treated as being
//! at their limit.

use crate::ban::{Ban, BanSource, Offender, RuleDenials, Strikes};
use crate::codec::Decoder;
use crate::engine::saved_state::{MAGIC, Restored, SavedStateError};
use crate::engine::{EngineCore, EngineSetup};
use crate::fingerprint::{Fingerprint, Secret};
use crate::identity::Key;
use crate::policy::PolicySnapshot;
use crate::store::memory::EntryReader;
use crate::time::Time;
use crate::track::saved::SavedTrack;

/// The last version without tracked keys.
const UNTRACKED_VERSION: u64 = 3;

impl EngineCore {
    pub(super) fn restore_whole(
        policy: PolicySnapshot,
        setup: EngineSetup,
        bytes: &[u8],
        version: u64,
        former: impl FnOnce(&str) -> Option<PolicySnapshot>,
        now: Time,
    ) -> Result<(EngineCore, Restored), SavedStateError> {
        let mut from = Decoder::verified(bytes).ok_or(SavedStateError::Checksum)?;
        let contents = SavedStateError::Contents;
        from.raw::<{ MAGIC.len() + size_of::<u64>() }>().ok_or(contents)?;
        let secret = from.raw().ok_or(contents)?;
        let secret = Secret::of_saved(secret, from.text().ok_or(contents)?).ok_or(SavedStateError::Hash)?;
        let saved_at = Time::from_nanos(from.word().ok_or(contents)?);
        let rules = from.text().ok_or(contents)?;
        let engine = Self::succeeding(policy, setup, secret, former(rules), saved_at);
        let counters = EntryReader::new(&engine.store, now).read_whole(&mut from).ok_or(contents)?;
        let bans = engine.restore_bans(&mut from, now).ok_or(contents)?;
        engine.restore_offenders(&mut from).ok_or(contents)?;
        let tracked_keys = match version {
            UNTRACKED_VERSION => 0,
            _ => engine.restore_tracks(&mut from, now).ok_or(contents)?,
        };
        let counters = u64::try_from(counters).unwrap_or(0);
        Ok((engine, Restored { counters, bans, tracked_keys, saved_at, unused_bytes: 0, end: None }))
    }

    fn restore_bans(&self, from: &mut Decoder<'_>, now: Time) -> Option<u64> {
        let mut restored = 0;
        for _ in 0..from.word()? {
            let key = Key::parse(from.text()?).ok()?;
            let reason = from.text()?.to_owned();
            let source = BanSource::parse(from.text()?)?;
            let until = Time::from_nanos(from.word()?);
            let strikes = u32::try_from(from.word()?).ok()?;
            if until > now {
                self.bans.insert(key, Ban { until, reason, source, strikes }, now);
                restored += 1;
            }
        }
        Some(restored)
    }

    fn restore_offenders(&self, from: &mut Decoder<'_>) -> Option<()> {
        for _ in 0..from.word()? {
            let key = Fingerprint(from.word()?);
            let touched = Time::from_nanos(from.word()?);
            let count = u32::try_from(from.word()?).ok()?;
            let until = Time::from_nanos(from.word()?);
            let mut offender = Offender { strikes: Strikes { count, until }, ..Offender::default() };
            for _ in 0..from.word()? {
                let rule = from.word()?;
                // Denials with the same timestamp were written one by one.
                let times = (0..from.word()?).map(|_| Some((Time::from_nanos(from.word()?), 1)));
                offender.denials.push(RuleDenials { rule, times: times.collect::<Option<_>>()? });
            }
            self.bans.offenders().restore(key, touched, offender);
        }
        Some(())
    }

    fn restore_tracks(&self, from: &mut Decoder<'_>, now: Time) -> Option<u64> {
        let mut restored = 0;
        for _ in 0..from.word()? {
            let rule = from.text()?;
            let tracks: Option<Vec<_>> = (0..from.word()?).map(|_| SavedTrack::read(from)).collect();
            let tracks: Vec<_> = tracks?.into_iter().filter(|saved| saved.matters(now)).collect();
            restored += tracks.len() as u64;
            self.saved_tracks.put(rule, tracks);
        }
        Some(restored)
    }
}
