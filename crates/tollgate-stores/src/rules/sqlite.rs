//! The rules database in an SQLite file, which several processes of one machine may share.
//!
//! One connection writes and another reads, so the process sees its own writes as changes like any other. An
//! acknowledged change is on disk.

mod items;
mod load;
mod log;
mod nodes;
mod ramp;
mod schema;
mod word_codes;

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tollgate::Time;
use tollgate::internal::lock;

use crate::rules::change_set::{OpenSet, REVERT_BATCH, SetRollback};
use crate::rules::edit::next_batch;
use crate::rules::plan::{self, CurrentItems};
use crate::rules::{
    AnnouncedNode, Author, ChangeFeed, ChangeLogEntry, ChangeSet, DbError, Edit, EditSummary, ItemChange,
    ItemId, OnConflict, PageQuery, RampRow, RampWrite, Reverted, StoredItem, Version,
};

/// After this many changes the write-ahead log is truncated, because it is as long as they are.
const WAL_TRUNCATE_CHANGES: usize = 10_000;

#[derive(Debug)]
pub struct SqliteDb {
    path: PathBuf,
    // After a panic a lock may still be taken: the transaction of that thread is rolled back.
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
}

impl SqliteDb {
    /// Opens or creates the file.
    pub fn open(path: &Path) -> Result<SqliteDb, DbError> {
        let writer = schema::open(path)?;
        let reader = schema::connect(path)?;
        Ok(SqliteDb { path: path.to_owned(), writer: Mutex::new(writer), reader: Mutex::new(reader) })
    }

    /// Applies all edits, or none.
    pub fn edit(&self, author: &Author, edits: Vec<Edit>) -> Result<Vec<ItemChange>, DbError> {
        plan::check_items(&edits)?;
        self.write_set(author, None, |transaction, set| apply_edits(transaction, set, edits))
    }

    /// Applies very many edits, all or none, in batches: they are never all in memory. Each must be about another
    /// item.
    pub fn edit_all(
        &self,
        author: &Author,
        mut edits: impl Iterator<Item = Result<Edit, DbError>>,
    ) -> Result<EditSummary, DbError> {
        self.write_set(author, None, |transaction, set| {
            loop {
                let batch = next_batch(&mut edits, &set.summary)?;
                if batch.is_empty() {
                    return Ok(set.summary.clone());
                }
                apply_edits(transaction, set, batch)?;
            }
        })
    }

    /// Reverts one change by a new change.
    pub fn rollback(&self, author: &Author, version: Version) -> Result<Vec<ItemChange>, DbError> {
        self.write_set(author, Some(version), |transaction, set| {
            let logged = log::find(transaction, version)?.ok_or(DbError::UnknownVersion(version))?;
            apply_edits(transaction, set, vec![plan::revert_edit(logged)?])
        })
    }

    /// Reverts a set of changes by a new one, and writes the ramp in the same transaction.
    pub fn rollback_set(
        &self,
        author: &Author,
        changes: &ChangeSet,
        on_conflict: OnConflict,
        write: Option<RampWrite>,
    ) -> Result<Reverted, DbError> {
        self.write_set(author, Some(changes.last), |transaction, set| {
            if !log::is_whole(transaction, changes)? {
                return Err(DbError::PrunedSet(changes.last));
            }
            let mut rollback = SetRollback::new(changes, on_conflict);
            loop {
                let entries = log::entries_of(transaction, changes, rollback.after(), REVERT_BATCH)?;
                if entries.is_empty() {
                    break;
                }
                let touched = entries.iter().map(|entry| &entry.change.item);
                let current = items::find(transaction, touched)?;
                let edits = rollback.edits(entries, &current)?;
                let made = apply_edits(transaction, set, edits)?;
                rollback.add(made, current);
            }
            if let Some(write) = write {
                ramp::write(transaction, write, Version::ZERO)?;
            }
            rollback.finish()
        })
    }

    /// Writes the ramp, and edits in the same transaction.
    pub fn edit_ramp(
        &self,
        author: &Author,
        edits: Vec<Edit>,
        write: RampWrite,
    ) -> Result<Vec<ItemChange>, DbError> {
        plan::check_items(&edits)?;
        self.write_set(author, None, |transaction, set| {
            let changes = apply_edits(transaction, set, edits)?;
            ramp::write(transaction, write, set.summary.version.unwrap_or_default())?;
            Ok(changes)
        })
    }

    pub fn ramp(&self) -> Result<Option<RampRow>, DbError> {
        ramp::read(&lock(&self.reader))
    }

    pub fn put_ramp_counts(&self, ramp: &str, node: &str, counts: &str) -> Result<(), DbError> {
        self.write(|transaction| ramp::put_counts(transaction, ramp, node, counts))
    }

    pub fn ramp_counts(&self, ramp: &str) -> Result<Vec<String>, DbError> {
        ramp::counts(&lock(&self.reader), ramp)
    }

    /// Removes up to `batch` expired bans. Nodes expire bans themselves, so this is not logged as a change.
    pub fn remove_expired(&self, now: Time, batch: usize) -> Result<usize, DbError> {
        self.write(|transaction| items::remove_expired(transaction, now, batch))
    }

    /// Removes up to `batch` of the oldest log entries from before a time.
    pub fn prune_log(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(|transaction| log::prune(transaction, before, batch))
    }

    /// Removes automatic bans from the log; see [`RulesDb::prune_automatic_bans`](crate::rules::RulesDb::prune_automatic_bans).
    pub fn prune_automatic_bans(&self, before: Time, kept: usize, batch: usize) -> Result<usize, DbError> {
        self.write(|transaction| log::prune_automatic_bans(transaction, before, kept, batch))
    }

    pub fn version(&self) -> Result<Version, DbError> {
        log::last_version(&lock(&self.reader))
    }

    /// A number that differs after any change of the file by any process; cheaper than the version.
    pub fn data_version(&self) -> Result<i64, DbError> {
        Ok(lock(&self.reader).pragma_query_value(None, "data_version", |row| row.get(0))?)
    }

    pub fn get(&self, item: &ItemId) -> Result<Option<StoredItem>, DbError> {
        items::get(&lock(&self.reader), item)
    }

    /// The current state of some items; missing ones are left out.
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

    /// Log entries before a version, latest first.
    pub fn log(&self, before: Option<Version>, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::page(&transaction, before, limit)
    }

    /// The last change of each call within a time, latest first, without those of the nodes themselves.
    pub fn calls(&self, from: Time, to: Time, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::calls(&transaction, from, to, limit)
    }

    /// Changes of one item before a version, latest first.
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

    /// Entries of a set after a version, in their order.
    pub fn entries_of(
        &self,
        set: &ChangeSet,
        after: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::entries_of(&transaction, set, after, limit)
    }

    pub fn logged(&self, version: Version) -> Result<Option<ChangeLogEntry>, DbError> {
        let mut reader = lock(&self.reader);
        let transaction = reader.transaction()?;
        log::find(&transaction, version)
    }

    /// Loads all items in batches, each with the total number of items, as of one version.
    pub fn load(&self, each: impl FnMut(Vec<StoredItem>, u64)) -> Result<Version, DbError> {
        load::load_all(schema::connect(&self.path)?, each)
    }

    /// Announces a node; see [`RulesDb::announce_node`](crate::rules::RulesDb::announce_node).
    pub fn announce_node(&self, node: &AnnouncedNode, forget_before: Time) -> Result<(), DbError> {
        self.write(|transaction| nodes::announce(transaction, node, forget_before))
    }

    pub fn forget_node(&self, address: &str, id: u32) -> Result<(), DbError> {
        self.write(|transaction| nodes::forget(transaction, address, id))
    }

    pub fn nodes(&self) -> Result<Vec<AnnouncedNode>, DbError> {
        nodes::list(&lock(&self.reader))
    }

    /// Makes all changes of a job as one set.
    fn write_set<T>(
        &self,
        author: &Author,
        undoes: Option<Version>,
        job: impl FnOnce(&Transaction<'_>, &mut OpenSet<'_>) -> Result<T, DbError>,
    ) -> Result<T, DbError> {
        let mut set = OpenSet::new(author, undoes);
        let done = self.write(|transaction| {
            let done = job(transaction, &mut set)?;
            log::close(transaction, &set)?;
            Ok(done)
        })?;
        if set.summary.changes() >= WAL_TRUNCATE_CHANGES {
            schema::truncate_wal(&lock(&self.writer));
        }
        Ok(done)
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
    set: &mut OpenSet<'_>,
    edits: Vec<Edit>,
) -> Result<Vec<ItemChange>, DbError> {
    let count = edits.len();
    let current = items::find(transaction, edits.iter().map(Edit::item))?;
    let changes = plan::plan_changes(edits, &current, log::last_version(transaction)?, 0)?;
    log::append(transaction, set, &changes, &current)?;
    for change in &changes {
        items::put(transaction, change)?;
    }
    set.summary.add(count, &changes);
    Ok(changes)
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> DbError {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked, DiskFull, PermissionDenied, ReadOnly};
        let location = "the SQLite file".to_owned();
        let why = error.to_string();
        match error.sqlite_error_code() {
            Some(DatabaseBusy | DatabaseLocked | DiskFull | PermissionDenied | ReadOnly) => {
                DbError::Unwritable { location, why }
            }
            Some(_) => DbError::Unreadable { location, why },
            None => DbError::Corrupt(why),
        }
    }
}
