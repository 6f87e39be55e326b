//! The state of the rules database as this node sees it.

use std::time::Duration;

use tollgate::Time;
use tollgate_stores::rules::local_copy::{ChangeDigest, LocalCopy};
use tollgate_stores::rules::{Access, ItemId, Version};

use crate::rules_follower::RulesFollower;

/// The source of the rules in force beside those of the file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RulesSource {
    /// None loaded yet.
    #[default]
    None,
    /// The local copy, until the database is reachable again.
    Copy,
    /// The database, though it may be unreachable by now.
    Database,
}

impl RulesSource {
    pub const ALL: [RulesSource; 3] = [RulesSource::None, RulesSource::Copy, RulesSource::Database];

    pub const fn name(self) -> &'static str {
        match self {
            RulesSource::None => "none",
            RulesSource::Copy => "copy",
            RulesSource::Database => "database",
        }
    }
}

/// State of the local copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyStatus {
    pub version: Version,
    confirmed_at: Time,
}

impl CopyStatus {
    pub(super) fn of(copy: &LocalCopy) -> CopyStatus {
        CopyStatus { version: copy.version(), confirmed_at: copy.confirmed_at() }
    }

    /// Time since the copy was last known to equal the database.
    pub fn age(&self, now: Time) -> Duration {
        now.since(self.confirmed_at)
    }
}

pub struct RulesDbStatus {
    pub source: RulesSource,
    /// `None` until the first rules were loaded.
    pub version: Option<Version>,
    pub read_error: Option<String>,
    /// Why edits are not possible.
    pub write_error: Option<String>,
    /// Whether a local copy is configured.
    pub has_copy: bool,
    pub copy: Option<CopyStatus>,
    pub copy_error: Option<String>,
    /// Changes that the replica which is read lacks; `None` if unknown.
    pub lag: Option<u64>,
    pub left_out: Vec<(ItemId, String)>,
}

impl RulesDbStatus {
    pub fn is_impaired(&self) -> bool {
        let troubles = [&self.read_error, &self.write_error, &self.copy_error];
        self.source != RulesSource::Database
            || !self.left_out.is_empty()
            || troubles.into_iter().any(Option::is_some)
    }
}

impl RulesFollower {
    pub fn status(&self) -> RulesDbStatus {
        let version = *self.in_force.borrow();
        let state = self.state();
        let left_out = state.left_out.iter().map(|(item, why)| (item.clone(), why.clone())).collect();
        RulesDbStatus {
            source: state.source,
            version,
            read_error: state.read_error.clone(),
            write_error: state.write_error.clone(),
            has_copy: self.copy.is_some(),
            copy: state.copy,
            copy_error: state.copy_error.clone(),
            lag: state.lag,
            left_out,
        }
    }

    pub fn source(&self) -> RulesSource {
        self.state().source
    }

    /// Why no request is decided yet.
    pub fn waiting_reason(&self) -> String {
        let state = self.state();
        match (&state.read_error, &state.startup_outcome) {
            (Some(trouble), Some(outcome)) => format!("{trouble}; {outcome}"),
            (Some(trouble), None) => trouble.clone(),
            (None, _) => "the rules database is being read".to_owned(),
        }
    }

    /// The version in force, if it is from the database.
    pub(super) fn followed_version(&self) -> Option<Version> {
        let version = *self.in_force.borrow();
        version.filter(|_| self.state().source == RulesSource::Database)
    }

    pub(super) fn has_read_error(&self) -> bool {
        self.state().read_error.is_some()
    }

    pub(super) fn record_access(&self, access: Access) {
        let Access { lag, write_trouble } = access;
        let mut state = self.state();
        if let Some(trouble) = write_trouble.as_ref().filter(|_| state.write_error.is_none()) {
            tracing::error!("rules database: {trouble}");
        }
        state.lag = lag;
        state.write_error = write_trouble;
    }

    pub(super) fn started_from_copy(&self, version: Version, copy: CopyStatus, last: ChangeDigest) {
        let mut state = self.state();
        state.source = RulesSource::Copy;
        state.copy_position = last;
        state.copy = Some(copy);
        state.copy_error = None;
        drop(state);
        self.in_force.send_replace(Some(version));
    }

    /// Records why the database cannot be followed; logs it once.
    pub(super) fn record_read_error(&self, trouble: String, outcome: Option<String>) {
        let mut state = self.state();
        if state.read_error.as_ref() == Some(&trouble) {
            return;
        }
        let consequence = outcome.as_deref().unwrap_or("the rules in force stay");
        tracing::error!("rules database: {trouble}; {consequence}");
        state.read_error = Some(trouble);
        state.startup_outcome = outcome;
        drop(state);
        self.in_force.send_modify(|_| {}); // wakes tasks that wait for the first rules
    }

    /// Records that a version of the database is in force, and that the database is readable.
    pub(super) fn record_version(&self, version: Version) {
        let mut state = self.state();
        if state.read_error.take().is_some() {
            tracing::info!("rules database: it can be read again");
        }
        state.startup_outcome = None;
        state.source = RulesSource::Database;
        drop(state);
        self.in_force.send_if_modified(|seen| seen.replace(version) != Some(version));
        if let Some(copy) = &self.copy {
            copy.wake();
        }
    }
}
