//! The database in an SQLite file, which several processes of one machine may share.
//!
//! One connection writes, one reads, so that what this process has written is seen as a change like any other.
//! A change that was acknowledged is on the disk.

mod items;
mod load;
mod log;
mod schema;
mod word_codes;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tollgate::Time;

use crate::rules::edit::next_batch;
use crate::rules::plan::{self, CurrentItems};
use crate::rules::{
    Author, ChangeFeed, ChangeLogEntry, DbError, Edit, EditSummary, ItemChange, ItemId, PageQuery,
    StoredItem, Version,
};

/// After so many changes the write-ahead log, which is as long as they are, is not kept.
const WAL_TRUNCATE_CHANGES: usize = 10_000;

#[derive(Debug)]
pub struct SqliteDb {
    path: PathBuf,
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
}

impl SqliteDb {
    /// Opens the file, or makes it.
    pub fn open(path: &Path) -> Result<SqliteDb, DbError> {
        let writer = schema::open(path)?;
        let reader = schema::connect(path)?;
        Ok(SqliteDb { path: path.to_owned(), writer: Mutex::new(writer), reader: Mutex::new(reader) })
    }

    /// Makes all of the edits, or none.
    pub fn edit(&self, author: &Author, edits: Vec<Edit>) -> Result<Vec<ItemChange>, DbError> {
        plan::check_items(&edits)?;
        let changes = self.write(|transaction| apply_edits(transaction, author, edits, None))?;
        if changes.len() >= WAL_TRUNCATE_CHANGES {
            schema::truncate_wal(&lock(&self.writer));
        }
        Ok(changes)
    }

    /// Makes all of very many edits, or none, without ever holding all of them. Each is about another thing.
    pub fn edit_all(
        &self,
        author: &Author,
        mut edits: impl Iterator<Item = Result<Edit, DbError>>,
    ) -> Result<EditSummary, DbError> {
        let edited = self.write(|transaction| {
            let mut edited = EditSummary::default();
            loop {
                let batch = next_batch(&mut edits, &edited)?;
                if batch.is_empty() {
                    return Ok(edited);
                }
                let count = batch.len();
                edited.add(count, &apply_edits(transaction, author, batch, None)?);
            }
        })?;
        if edited.changes() >= WAL_TRUNCATE_CHANGES {
            schema::truncate_wal(&lock(&self.writer));
        }
        Ok(edited)
    }

    /// Takes one change back, as a new change.
    pub fn rollback(&self, author: &Author, version: Version) -> Result<Vec<ItemChange>, DbError> {
        self.write(|transaction| {
            let logged = log::find(transaction, version)?.ok_or(DbError::UnknownVersion(version))?;
            apply_edits(transaction, author, vec![plan::revert_edit(logged)?], Some(version))
        })
    }

    /// Removes bans that are over, at most `batch`: nodes let them go by themselves, so that it is no change.
    pub fn remove_expired(&self, now: Time, batch: usize) -> Result<usize, DbError> {
        self.write(|transaction| items::remove_expired(transaction, now, batch))
    }

    /// Removes the oldest entries of the log from before a time, at most `batch`.
    pub fn prune_log(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(|transaction| log::prune(transaction, before, batch))
    }

    /// Removes automatic bans from the log; see [`RulesDb::prune_automatic_bans`](crate::rules::RulesDb::prune_automatic_bans).
    pub fn prune_automatic_bans(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(|transaction| log::prune_automatic_bans(transaction, before, batch))
    }

    pub fn version(&self) -> Result<Version, DbError> {
        log::last_version(&lock(&self.reader))
    }

    /// A number that differs after any change of the file, whoever made it; cheaper than the version.
    pub fn data_version(&self) -> Result<i64, DbError> {
        Ok(lock(&self.reader).pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    pub fn get(&self, item: &ItemId) -> Result<Option<StoredItem>, DbError> {
        items::get(&lock(&self.reader), item)
    }

    /// What some items are, as far as they are there.
    pub fn find(&self, items: &[ItemId]) -> Result<CurrentItems, DbError> {
        items::find(&lock(&self.reader), items)
    }

    pub fn page(&self, page: &PageQuery) -> Result<Vec<StoredItem>, DbError> {
        items::page(&lock(&self.reader), page)
    }

    pub fn changes_since(&self, version: Version, limit: usize) -> Result<ChangeFeed, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::changes_since(&transaction, version, limit)
    }

    /// The log, latest first, before a version.
    pub fn log(&self, before: Option<Version>, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::page(&transaction, before, limit)
    }

    /// The changes of one thing, latest first, before a version.
    pub fn history(
        &self,
        item: &ItemId,
        before: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::history(&transaction, item, before, limit)
    }

    pub fn logged(&self, version: Version) -> Result<Option<ChangeLogEntry>, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::find(&transaction, version)
    }

    /// Gives out everything that there is, in batches with the number of things in all, as of one version.
    pub fn load(&self, each: impl FnMut(Vec<StoredItem>, u64)) -> Result<Version, DbError> {
        load::load_all(schema::connect(&self.path)?, each)
    }

    fn write<T>(&self, job: impl FnOnce(&Transaction<'_>) -> Result<T, DbError>) -> Result<T, DbError> {
        let mut writer = lock(&self.writer);
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = job(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }
}

fn apply_edits(
    transaction: &Transaction<'_>,
    author: &Author,
    edits: Vec<Edit>,
    undoes: Option<Version>,
) -> Result<Vec<ItemChange>, DbError> {
    let current = items::find(transaction, edits.iter().map(Edit::item))?;
    let changes = plan::plan_changes(edits, &current, log::last_version(transaction)?, 0)?;
    log::append(transaction, author, &changes, &current, undoes)?;
    for change in &changes {
        items::put(transaction, change)?;
    }
    Ok(changes)
}

// A thread that panicked has rolled its transaction back.
fn lock(connection: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    connection.lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> DbError {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, PermissionDenied, ReadOnly};
        let place = "the SQLite file".to_owned();
        let why = error.to_string();
        match error.sqlite_error_code() {
            Some(DatabaseBusy | DatabaseLocked | DiskFull | PermissionDenied | ReadOnly) => {
                DbError::Unwritable { place, why }
            }
            Some(_) => DbError::Unreadable { place, why },
            None => DbError::Corrupt(why),
        }
    }
}
