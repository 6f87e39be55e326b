//! Errors of a rules database.

use thiserror::Error;

use crate::rules::{ItemId, Version};

#[derive(Debug, Error)]
pub enum DbError {
    /// The item has changed since the author read it.
    #[error("{item} is {} now, not what the edit expects: read it again (edit {})", shown(*.found), .edit + 1)]
    Conflict { edit: usize, item: ItemId, found: Option<Version> },
    #[error("{item} exists already (edit {})", .edit + 1)]
    Exists { edit: usize, item: ItemId },
    #[error("there is no {item} (edit {})", .edit + 1)]
    Missing { edit: usize, item: ItemId },
    #[error("{item} is edited twice in one batch (edit {})", .edit + 1)]
    DuplicateItem { edit: usize, item: ItemId },
    #[error("{count} edits in one batch are too many: at most {max}")]
    TooManyEdits { count: usize, max: usize },
    #[error("PostgreSQL stores no text with a NUL character (U+0000): leave it out")]
    NulCharacter,
    #[error("there is no change {0} in the log")]
    UnknownVersion(Version),
    /// An item of a set has changed since.
    #[error("{item} is {} now, not as the change left it: nothing was reverted", shown(*.found))]
    ChangedSince { item: ItemId, found: Option<Version> },
    #[error("a part of change {0} is no longer in the log (audit.keep): it cannot be reverted as a whole")]
    PrunedSet(Version),
    #[error("nothing is left to revert of change {0}: everything is as it was before")]
    NothingToRevert(Version),
    /// Another node has advanced the ramp, or it has ended.
    #[error("the ramp was changed meanwhile, by another node or an operator")]
    RampMoved,
    #[error("'{text}' is not a valid address of a rules database: {why}")]
    InvalidAddress { text: String, why: String },
    #[error(
        "the rules database has schema version {found}, this program supports {known}: upgrade the program"
    )]
    UnsupportedSchema { found: i64, known: i64 },
    /// Nothing was written.
    #[error("edits are not possible, and nothing was changed: {location} cannot be written: {why}")]
    Unwritable { location: String, why: String },
    /// The connection was lost during the commit.
    #[error(
        "the connection to {location} was lost during a change, which may have been committed: read before trying again"
    )]
    OutcomeUnknown { location: String },
    #[error("{location} cannot be read now: {why}")]
    Unreadable { location: String, why: String },
    #[error("unexpected data in the rules database: {0}")]
    Corrupt(String),
}

impl DbError {
    /// Whether the same call may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unwritable { .. } | Self::OutcomeUnknown { .. } | Self::Unreadable { .. })
    }
}

fn shown(found: Option<Version>) -> String {
    found.map_or_else(|| "deleted".to_owned(), |version| format!("at version {version}"))
}
