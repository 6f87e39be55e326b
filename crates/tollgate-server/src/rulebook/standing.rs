//! How the database and this node stand to each other.

use std::time::Duration;

use tollgate::Time;
use tollgate_stores::rules::copy::{ChangeMark, LocalCopy};
use tollgate_stores::rules::{Access, Item, Version};

use crate::rulebook::Rulebook;

/// Where the rules in force beside those of the file are from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Source {
    /// None could be had yet.
    #[default]
    None,
    /// The local copy, until the database is back.
    Copy,
    /// The database, though it may be out of reach by now.
    Database,
}

impl Source {
    pub const ALL: [Source; 3] = [Source::None, Source::Copy, Source::Database];

    pub const fn name(self) -> &'static str {
        match self {
            Source::None => "none",
            Source::Copy => "copy",
            Source::Database => "database",
        }
    }
}

/// What the local copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyStanding {
    pub version: Version,
    confirmed_at: Time,
}

impl CopyStanding {
    pub(super) fn of(copy: &LocalCopy) -> CopyStanding {
        CopyStanding { version: copy.version(), confirmed_at: copy.confirmed_at() }
    }

    /// How long ago it was known to be what the database is.
    pub fn age(&self, now: Time) -> Duration {
        now.since(self.confirmed_at)
    }
}

pub struct Standing {
    pub source: Source,
    /// `None` until the first rules were read.
    pub version: Option<Version>,
    pub trouble: Option<String>,
    /// Why edits are not possible.
    pub write_trouble: Option<String>,
    /// Whether there is to be a local copy.
    pub has_copy: bool,
    pub copy: Option<CopyStanding>,
    pub copy_trouble: Option<String>,
    /// Changes that the server which is read lacks; `None` where that is not known.
    pub lag: Option<u64>,
    pub left_out: Vec<(Item, String)>,
}

impl Standing {
    pub fn is_impaired(&self) -> bool {
        let troubles = [&self.trouble, &self.write_trouble, &self.copy_trouble];
        self.source != Source::Database
            || !self.left_out.is_empty()
            || troubles.into_iter().any(Option::is_some)
    }
}

impl Rulebook {
    pub fn standing(&self) -> Standing {
        let version = *self.in_force.borrow();
        let state = self.state();
        let left_out = state.left_out.iter().map(|(item, why)| (item.clone(), why.clone())).collect();
        Standing {
            source: state.source,
            version,
            trouble: state.trouble.clone(),
            write_trouble: state.write_trouble.clone(),
            has_copy: self.copy.is_some(),
            copy: state.copy,
            copy_trouble: state.copy_trouble.clone(),
            lag: state.lag,
            left_out,
        }
    }

    pub fn source(&self) -> Source {
        self.state().source
    }

    /// Why no request is decided yet.
    pub fn waits_for(&self) -> String {
        let state = self.state();
        match (&state.trouble, &state.outcome) {
            (Some(trouble), Some(outcome)) => format!("{trouble}; {outcome}"),
            (Some(trouble), None) => trouble.clone(),
            (None, _) => "the rules database is being read".to_owned(),
        }
    }

    /// The version in force, while it is the database's.
    pub(super) fn followed_version(&self) -> Option<Version> {
        let version = *self.in_force.borrow();
        version.filter(|_| self.state().source == Source::Database)
    }

    pub(super) fn is_in_trouble(&self) -> bool {
        self.state().trouble.is_some()
    }

    pub(super) fn note_access(&self, access: Access) {
        let Access { lag, write_trouble } = access;
        let mut state = self.state();
        if let Some(trouble) = write_trouble.as_ref().filter(|_| state.write_trouble.is_none()) {
            tracing::error!("rules database: {trouble}");
        }
        state.lag = lag;
        state.write_trouble = write_trouble;
    }

    pub(super) fn started_from_copy(&self, version: Version, copy: CopyStanding, last: ChangeMark) {
        let mut state = self.state();
        state.source = Source::Copy;
        state.started_from = last;
        state.copy = Some(copy);
        state.copy_trouble = None;
        drop(state);
        self.in_force.send_replace(Some(version));
    }

    /// Keeps in mind why the database cannot be followed; says so once.
    pub(super) fn note_trouble(&self, trouble: String, outcome: Option<String>) {
        let mut state = self.state();
        if state.trouble.as_ref() == Some(&trouble) {
            return;
        }
        let told = outcome.as_deref().unwrap_or("the rules in force stay");
        tracing::error!("rules database: {trouble}; {told}");
        state.trouble = Some(trouble);
        state.outcome = outcome;
        drop(state);
        self.in_force.send_modify(|_| {}); // wakes those that wait for the first rules
    }

    /// Notes that a version of the database is in force, and that the database can be read.
    pub(super) fn note_reached(&self, version: Version) {
        let mut state = self.state();
        if state.trouble.take().is_some() {
            tracing::info!("rules database: it can be read again");
        }
        state.outcome = None;
        state.source = Source::Database;
        drop(state);
        self.in_force.send_if_modified(|seen| seen.replace(version) != Some(version));
        if let Some(copy) = &self.copy {
            copy.wake();
        }
    }
}
