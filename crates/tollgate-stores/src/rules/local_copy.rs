//! A node's local copy of the rules database, for a cold start while the database is unreachable.
//!
//! It is a separate SQLite file. Changes and the resulting version are written in one transaction, so the file always
//! equals the database at some version. Its head has a digest of all rows, maintained incrementally: a change costs
//! only its own rows, and any damage is found before anything is used. A full reload writes a new file and renames it
//! over the old one.

mod error;
mod head;
mod items;
mod new_copy;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use rusqlite::InterruptHandle;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};
use tollgate::Time;

pub use self::error::CopyError;
pub use self::head::ChangeDigest;
use self::head::CopyHead;
pub use self::new_copy::NewCopy;
use crate::rules::{ChangeLogEntry, ItemChange, StoredItem, Version};

/// Format of the file; a file of another format is replaced.
const FORMAT: i64 = 1;
/// Past changes of rules that are kept: they define the predecessors of limits.
pub const MAX_PAST: usize = 1_000;
/// How long to wait for a lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const CACHE_PRAGMA: &str = "PRAGMA cache_size = -8000";

#[derive(Debug)]
pub struct LocalCopy {
    connection: Connection,
    head: CopyHead,
}

impl LocalCopy {
    /// Opens the copy of a database, without verifying its rows.
    pub fn open(path: &Path, source: &str) -> Result<LocalCopy, CopyError> {
        match fs::metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(CopyError::Missing),
            Err(error) => return Err(CopyError::Unusable(error.to_string())),
            Ok(found) if !found.is_file() => return Err(CopyError::Unusable("it is not a file".to_owned())),
            Ok(_) => {}
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.execute_batch("PRAGMA synchronous = FULL")?;
        connection.execute_batch(CACHE_PRAGMA)?;
        let format: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if format != FORMAT {
            return Err(CopyError::Damaged(format!("its format is {format}, not {FORMAT}")));
        }
        let head = CopyHead::read(&connection)?;
        if head.source != source {
            return Err(CopyError::OtherDatabase { found: head.source });
        }
        Ok(LocalCopy { connection, head })
    }

    pub fn version(&self) -> Version {
        self.head.version
    }

    /// When the copy was last known to equal the database.
    pub fn confirmed_at(&self) -> Time {
        self.head.confirmed_at
    }

    /// Digest of the change that led to the version. A database with another change there has another history.
    pub fn last_change(&self) -> ChangeDigest {
        self.head.last
    }

    /// Interrupts an operation on another thread, which then fails as unusable.
    pub fn interrupt_handle(&self) -> InterruptHandle {
        self.connection.get_interrupt_handle()
    }

    /// The copy for reading, after all rows are verified against the digest.
    pub fn verified(self) -> Result<VerifiedCopy, CopyError> {
        self.verify_rows()?;
        Ok(VerifiedCopy(self))
    }

    /// Verifies all rows against the digest, and the indexes against their rows.
    pub fn verify(&self) -> Result<(), CopyError> {
        self.verify_rows()?;
        let found: String = self.connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))?;
        if found == "ok" { Ok(()) } else { Err(CopyError::Damaged(found)) }
    }

    fn verify_rows(&self) -> Result<(), CopyError> {
        let transaction = self.connection.unchecked_transaction()?;
        let head = CopyHead::read(&transaction)?;
        if items::digest_of_all(&transaction)? == head.contents {
            return Ok(());
        }
        Err(CopyError::Damaged("its digest does not match its rows".to_owned()))
    }

    /// Applies changes that follow the copy's version, in order. Changes that it already has are skipped.
    pub fn apply(&mut self, changes: &[ItemChange], now: Time) -> Result<(), CopyError> {
        // Only the latest are kept.
        let recent = changes.len().saturating_sub(MAX_PAST);
        self.write(|transaction, head| {
            for (n, change) in changes.iter().enumerate() {
                if change.version <= head.version {
                    continue;
                }
                if change.version.number() != head.version.number() + 1 {
                    return Err(CopyError::Gap { version: head.version });
                }
                let before = items::put(transaction, head, change)?;
                if n >= recent {
                    items::insert_past_change(transaction, head, change, before, now)?;
                }
                head.version = change.version;
                head.last = ChangeDigest::of(change);
            }
            items::trim_past(transaction, head)?;
            head.confirmed_at = now;
            Ok(())
        })
    }

    /// Records that the database is still at the copy's version.
    pub fn confirm(&mut self, now: Time) -> Result<(), CopyError> {
        self.write(|_, head| {
            head.confirmed_at = now;
            Ok(())
        })
    }

    /// Removes up to `batch` expired bans, and returns how many. The database does the same without logging a change.
    pub fn remove_expired(&mut self, now: Time, batch: usize) -> Result<usize, CopyError> {
        if !items::has_expired(&self.connection, now)? {
            return Ok(0);
        }
        self.write(|transaction, head| items::remove_expired(transaction, head, now, batch))
    }

    fn write<T>(
        &mut self,
        job: impl FnOnce(&Transaction<'_>, &mut CopyHead) -> Result<T, CopyError>,
    ) -> Result<T, CopyError> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // As on disk now, not as read before.
        let mut head = CopyHead::read(&transaction)?;
        let done = job(&transaction, &mut head)?;
        head.write(&transaction)?;
        transaction.commit()?;
        self.head = head;
        Ok(done)
    }
}

/// A copy whose rows are verified: no data of a damaged copy is ever used.
#[derive(Debug)]
pub struct VerifiedCopy(LocalCopy);

impl VerifiedCopy {
    pub fn copy(&self) -> &LocalCopy {
        &self.0
    }

    /// Loads all items in batches, each with the total number of items.
    pub fn load(&self, each: impl FnMut(Vec<StoredItem>, u64)) -> Result<Version, CopyError> {
        let transaction = self.0.connection.unchecked_transaction()?;
        items::load_all(&transaction, each)?;
        Ok(CopyHead::read(&transaction)?.version)
    }

    /// Past changes of rules, latest first.
    pub fn past(&self) -> Result<Vec<ChangeLogEntry>, CopyError> {
        items::past(&self.0.connection)
    }
}

/// Renames a damaged copy to `NAME.damaged`, for inspection.
pub fn quarantine(path: &Path) -> Result<PathBuf, CopyError> {
    let damaged = with_suffix(path, ".damaged");
    fs::remove_file(with_suffix(path, "-journal")).ok();
    fs::rename(path, &damaged).map_err(|error| CopyError::Unusable(error.to_string()))?;
    Ok(damaged)
}

fn with_suffix(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}
