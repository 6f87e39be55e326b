//! Errors of a local copy.

use thiserror::Error;

use crate::rules::Version;

#[derive(Debug, Error)]
pub enum CopyError {
    #[error("there is no local copy")]
    Missing,
    /// It must not be used; a reload from the database replaces it.
    #[error("the local copy is damaged: {0}")]
    Damaged(String),
    #[error("the local copy belongs to another database, {found}")]
    OtherDatabase { found: String },
    #[error("the changes do not follow version {version} of the local copy")]
    Gap { version: Version },
    /// The file cannot be read or written now, for example on a full disk; its content is intact.
    #[error("the local copy cannot be used now: {0}")]
    Unusable(String),
}

impl From<rusqlite::Error> for CopyError {
    fn from(error: rusqlite::Error) -> CopyError {
        use rusqlite::ErrorCode::*;
        let why = error.to_string();
        match error.sqlite_error_code() {
            Some(
                DatabaseBusy
                | DatabaseLocked
                | DiskFull
                | PermissionDenied
                | ReadOnly
                | CannotOpen
                | SystemIoFailure
                | OutOfMemory
                | OperationInterrupted
                | FileLockingProtocolFailed,
            ) => CopyError::Unusable(why),
            // Wrong types, invalid UTF-8, missing tables and rows: the content is not what was written.
            _ => CopyError::Damaged(why),
        }
    }
}
