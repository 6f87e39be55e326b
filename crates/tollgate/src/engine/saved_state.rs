//! Restoring a saved state: counters, bans and strikes, tracked keys, and the rules they were under.
//!
//! Version 6 is a [state log](super::log). Versions 3 to 5 can be read as well; see `whole`. Times are Unix time:
//! downtime counts as elapsed.

use thiserror::Error;

use crate::codec::Decoder;
use crate::engine::log::{Frames, Replay, open};
use crate::engine::{EngineCore, EngineSetup};
use crate::fingerprint::Secret;
use crate::policy::PolicySnapshot;
use crate::time::Time;

mod whole;

pub(super) const MAGIC: [u8; 8] = *b"TOLLGATE";
pub(super) const LOG_VERSION: u64 = 6;
/// The oldest version that can be read.
const FIRST_VERSION: u64 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum SavedStateError {
    #[error("not a saved state")]
    NotASavedState,
    #[error(
        "format version {0} is not supported: this program reads versions {FIRST_VERSION} to {LOG_VERSION}"
    )]
    Version(u64),
    #[error("written on a machine whose processor hashes keys differently")]
    Hash,
    #[error("damaged: the checksum does not match the contents")]
    Checksum,
    #[error("damaged: the contents are inconsistent")]
    Contents,
}

/// What was restored from a saved state and had not expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restored {
    pub counters: u64,
    pub bans: u64,
    pub tracked_keys: u64,
    pub saved_at: Time,
    /// Bytes at the end that were not used: an incomplete or damaged frame, and everything after it.
    pub unused_bytes: u64,
    /// Where the file can be appended to, and its length up to there. `None` for older formats.
    pub end: Option<(Frames, u64)>,
}

impl EngineCore {
    /// An engine that continues from a saved state; an error leaves nothing half-restored.
    ///
    /// `former` parses the rules under which the state was saved, so that keys keep their state under limits that were
    /// changed meanwhile.
    pub fn restore(
        policy: PolicySnapshot,
        setup: EngineSetup,
        bytes: &[u8],
        former: impl FnOnce(&str) -> Option<PolicySnapshot>,
        now: Time,
    ) -> Result<(EngineCore, Restored), SavedStateError> {
        match check_version(bytes)? {
            LOG_VERSION => Self::restore_log(policy, setup, bytes, former, now),
            version => Self::restore_whole(policy, setup, bytes, version, former, now),
        }
    }

    fn restore_log(
        policy: PolicySnapshot,
        setup: EngineSetup,
        bytes: &[u8],
        former: impl FnOnce(&str) -> Option<PolicySnapshot>,
        now: Time,
    ) -> Result<(EngineCore, Restored), SavedStateError> {
        // Two passes: the first reads the time and the rules, which the engine is made with, the second the records.
        let mut first_pass = open(bytes)?;
        let mut saved_at = Time::EPOCH;
        let mut rules = "";
        while let Some(chunk) = first_pass.next() {
            let Some((at, text)) = Replay::peek(chunk) else { break };
            saved_at = saved_at.max(at);
            rules = text.unwrap_or(rules);
            first_pass.advance(chunk);
        }
        let mut second_pass = open(bytes)?;
        let engine = Self::succeeding(policy, setup, second_pass.secret.clone(), former(rules), saved_at);
        let mut replay = Replay::new(&engine, now);
        while let Some(chunk) = second_pass.next() {
            if replay.read(chunk).is_none() {
                break;
            }
            second_pass.advance(chunk);
        }
        let replayed = replay.finish();
        engine.forget_changes();
        let (frames, length) = second_pass.end();
        let restored = Restored {
            counters: replayed.counters,
            bans: replayed.bans,
            tracked_keys: replayed.tracked_keys,
            saved_at,
            unused_bytes: bytes.len() as u64 - length,
            end: Some((frames, length)),
        };
        Ok((engine, restored))
    }

    /// An engine with the secret of a saved state, whose policy succeeds the one that was in force then.
    fn succeeding(
        policy: PolicySnapshot,
        setup: EngineSetup,
        secret: Secret,
        former: Option<PolicySnapshot>,
        saved_at: Time,
    ) -> EngineCore {
        let policy = match former {
            Some(old) => policy.inherit(&old, saved_at),
            None => policy,
        };
        EngineCore::with_setup(policy, EngineSetup { secret, ..setup })
    }
}

/// Magic and version come first in every version; all other checks depend on the version.
fn check_version(bytes: &[u8]) -> Result<u64, SavedStateError> {
    let rest = bytes.strip_prefix(&MAGIC).ok_or(SavedStateError::NotASavedState)?;
    match Decoder::new(rest).word() {
        Some(version @ FIRST_VERSION..=LOG_VERSION) => Ok(version),
        Some(other) => Err(SavedStateError::Version(other)),
        None => Ok(LOG_VERSION), // its checksum will not match
    }
}
