//! Why a local copy cannot be used.

use thiserror::Error;

use crate::rules::Version;

#[derive(Debug, Error)]
pub enum CopyError {
    #[error("there is no local copy")]
    Missing,
    /// It must not be used; the database can replace it.
    #[error("the local copy is damaged: {0}")]
    Damaged(String),
    #[error("the local copy is of {found}, another database")]
    OtherDatabase { found: String },
    #[error("the changes do not follow version {version} of the local copy")]
    Gap { version: Version },
    /// The file cannot be read or written now, as on a full disk; what it holds is untouched.
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
            // Wrong types, text that is not UTF-8, missing tables and rows: the file is not what was written.
            _ => CopyError::Damaged(why),
        }
    }
}
