//! A clean stop saved, and taken up again: counters, bans and strikes, and the rules they were under.
//!
//! Version 4: magic, version, secret, hash, when, rules as text, counters, bans, offenders, tracked keys, checksum.
//! Version 3 has no tracked keys and is read as well. Times are Unix time: what passed while the process was down has
//! passed.

use std::io::{self, Write};

use thiserror::Error;

use crate::ban::{Ban, BanSource, Offender, RuleDenials, Strikes};
use crate::codec::{Decoder, Encoder};
use crate::engine::{Engine, EngineSetup};
use crate::fingerprint::{Fingerprint, Secret};
use crate::identity::Key;
use crate::policy::Policy;
use crate::time::Time;

const MAGIC: [u8; 8] = *b"TOLLGATE";
/// Version 4 knew no shares of limits: what it saved counts as being at its limit.
const VERSION: u64 = 5;
/// The last version without tracked keys.
const UNTRACKED_VERSION: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SnapshotError {
    #[error("it is not a snapshot")]
    NotASnapshot,
    #[error("it has format version {0}, this program reads versions {UNTRACKED_VERSION} to {VERSION}")]
    Version(u64),
    #[error("it was made on a machine with another kind of processor")]
    Hash,
    #[error("it is damaged: its checksum does not fit its contents")]
    Checksum,
    #[error("it is damaged: its contents make no sense")]
    Contents,
}

/// What a snapshot brought back, that was not over by then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    pub counters: u64,
    pub bans: u64,
    pub tracked_keys: u64,
    pub saved_at: Time,
}

impl Engine {
    /// Writes all that should outlive the process; `rules` is the text of the policy in force.
    pub fn save(&self, out: impl Write, rules: &str, now: Time) -> io::Result<()> {
        let mut out = Encoder::new(out);
        out.raw(&MAGIC)?;
        out.word(VERSION)?;
        out.raw(self.secret.bytes())?;
        out.text(self.secret.hash_name())?;
        out.word(now.nanos())?;
        out.text(rules)?;
        self.store.save(&mut out, now)?;
        let bans = self.bans.page(std::iter::empty(), None, usize::MAX, now);
        out.word(bans.len() as u64)?;
        for (key, ban) in bans {
            out.text(&key.to_string())?;
            out.text(&ban.reason)?;
            out.text(ban.source.name())?;
            out.word(ban.until.nanos())?;
            out.word(u64::from(ban.strikes))?;
        }
        let offenders = self.bans.offenders().all();
        out.word(offenders.len() as u64)?;
        for (Fingerprint(key), touched, Offender { strikes, denials }) in offenders {
            let words = [key, touched.nanos(), u64::from(strikes.count), strikes.until.nanos()];
            words.into_iter().chain([denials.len() as u64]).try_for_each(|word| out.word(word))?;
            for RuleDenials { rule, times } in denials {
                out.word(rule)?;
                // Denials of one moment are written one by one.
                let each = times.iter().flat_map(|(at, count)| std::iter::repeat_n(at, *count as usize));
                out.word(each.clone().count() as u64)?;
                each.clone().try_for_each(|at| out.word(at.nanos()))?;
            }
        }
        self.save_tracks(&mut out, now)?;
        out.finish()
    }

    /// An engine that goes on where a snapshot ended; an error leaves nothing half-restored behind.
    ///
    /// `former` reads the rules under which the snapshot was made, so that limits changed meanwhile
    /// keep what their keys have used.
    pub fn restore(
        policy: Policy,
        setup: EngineSetup,
        bytes: &[u8],
        former: impl FnOnce(&str) -> Option<Policy>,
        now: Time,
    ) -> Result<(Engine, Restored), SnapshotError> {
        let version = check_version(bytes)?;
        let mut from = Decoder::verified(bytes).ok_or(SnapshotError::Checksum)?;
        let contents = SnapshotError::Contents;
        from.raw::<{ MAGIC.len() + size_of_val(&VERSION) }>().ok_or(contents)?;
        let secret = Secret::from_bytes(from.raw().ok_or(contents)?);
        if from.text().ok_or(contents)? != secret.hash_name() {
            return Err(SnapshotError::Hash);
        }
        let saved_at = Time::from_nanos(from.word().ok_or(contents)?);
        let rules = from.text().ok_or(contents)?;
        let policy = match former(rules) {
            Some(old) => policy.succeed(&old, saved_at),
            None => policy,
        };
        let engine = Engine::with_setup(policy, EngineSetup { secret, ..setup });
        let counters = engine.store.load(&mut from, now).ok_or(contents)?;
        let bans = engine.restore_bans(&mut from, now).ok_or(contents)?;
        engine.restore_offenders(&mut from).ok_or(contents)?;
        let tracked_keys = match version {
            UNTRACKED_VERSION => 0,
            _ => engine.saved_tracks.load(&mut from, now).ok_or(contents)?,
        };
        Ok((engine, Restored { counters, bans, tracked_keys, saved_at }))
    }

    fn restore_bans(&self, from: &mut Decoder<'_>, now: Time) -> Option<u64> {
        let mut kept = 0;
        for _ in 0..from.word()? {
            let key = Key::parse(from.text()?).ok()?;
            let (reason, source) = (from.text()?.to_owned(), BanSource::parse(from.text()?)?);
            let (until, strikes) = (Time::from_nanos(from.word()?), u32::try_from(from.word()?).ok()?);
            if until > now {
                self.bans.insert(key, Ban { until, reason, source, strikes }, now);
                kept += 1;
            }
        }
        Some(kept)
    }

    fn restore_offenders(&self, from: &mut Decoder<'_>) -> Option<()> {
        for _ in 0..from.word()? {
            let (key, touched) = (Fingerprint(from.word()?), Time::from_nanos(from.word()?));
            let (count, until) = (u32::try_from(from.word()?).ok()?, Time::from_nanos(from.word()?));
            let mut offender = Offender { strikes: Strikes { count, until }, ..Offender::default() };
            for _ in 0..from.word()? {
                let rule = from.word()?;
                let times = (0..from.word()?).map(|_| Some((Time::from_nanos(from.word()?), 1)));
                offender.denials.push(RuleDenials { rule, times: times.collect::<Option<_>>()? });
            }
            self.bans.offenders().restore(key, touched, offender);
        }
        Some(())
    }
}

/// Magic and version come first in every version; what else is checked, and how, is up to each.
fn check_version(bytes: &[u8]) -> Result<u64, SnapshotError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(SnapshotError::NotASnapshot)?;
    match rest.first_chunk().map(|word| u64::from_le_bytes(*word)) {
        Some(version @ UNTRACKED_VERSION..=VERSION) => Ok(version),
        Some(other) => Err(SnapshotError::Version(other)),
        None => Ok(VERSION), // its checksum will not fit
    }
}
