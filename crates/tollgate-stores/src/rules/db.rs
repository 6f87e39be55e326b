//! The database that an address names. Blocking calls run on the blocking thread pool.

use std::path::Path;
#[cfg(feature = "sqlite")]
use std::sync::Arc;
#[cfg(feature = "sqlite")]
use std::time::Duration;

use tollgate::Time;

use crate::rules::change_set::{REVERT_BATCH, SetRollback, with_before};
#[cfg(feature = "postgres")]
use crate::rules::postgres::{PostgresAddress, PostgresDb};
#[cfg(feature = "sqlite")]
use crate::rules::sqlite::SqliteDb;
use crate::rules::{
    AnnouncedNode, Author, ChangeFeed, ChangeLogEntry, ChangeSet, CurrentItems, DbError, Edit, EditSummary,
    ItemChange, ItemId, OnConflict, PageQuery, RampRow, RampWrite, Reverted, StoredItem, Version, plan,
};
use crate::server_time::ClockReading;

/// Interval at which a node polls for changes of other processes.
#[cfg(feature = "sqlite")]
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Entries read at once when sets are listed as one entry each.
const SETS_PAGE: usize = 32;

#[derive(Clone, Debug)]
pub enum RulesDb {
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<SqliteDb>),
    #[cfg(feature = "postgres")]
    Postgres(PostgresDb),
}

/// Whether a database can be read and written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// Changes by which the server that is read lags behind the primary; `None` if unknown.
    pub lag: Option<u64>,
    /// Why edits are not possible; `None` if they are.
    pub write_trouble: Option<String>,
}

/// Calls a method of the database; for SQLite on a thread that may block.
macro_rules! dispatch {
    ($db:expr, $name:ident($($argument:expr),*)) => {
        match $db {
            #[cfg(feature = "sqlite")]
            RulesDb::Sqlite(db) => { let db = Arc::clone(db); blocking(move || db.$name($($argument),*)).await }
            #[cfg(feature = "postgres")]
            RulesDb::Postgres(db) => db.$name($($argument),*).await,
        }
    };
}

impl RulesDb {
    /// Opens `sqlite:PATH` or `postgres://primary/db?replica=host2,host3`; paths are relative to `folder`.
    pub async fn open(address: &str, folder: &Path) -> Result<RulesDb, DbError> {
        #[cfg(feature = "sqlite")]
        if let Some(path) = address.strip_prefix("sqlite:").filter(|path| !path.is_empty()) {
            let path = folder.join(path);
            return blocking(move || SqliteDb::open(&path)).await.map(|db| RulesDb::Sqlite(Arc::new(db)));
        }
        #[cfg(feature = "postgres")]
        if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            let address = address.parse::<PostgresAddress>()?.in_folder(folder);
            return PostgresDb::open(address).await.map(RulesDb::Postgres);
        }
        Err(not_an_address(address))
    }

    /// Whether an address is valid, as far as can be checked without opening it.
    pub fn check(address: &str) -> Result<(), DbError> {
        #[cfg(feature = "sqlite")]
        if address.strip_prefix("sqlite:").is_some_and(|path| !path.is_empty()) {
            return Ok(());
        }
        #[cfg(feature = "postgres")]
        if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            return address.parse::<PostgresAddress>().map(|_| ());
        }
        Err(not_an_address(address))
    }

    /// Whether the files that an address names can be read: those of certificates and of the password.
    pub fn check_files(address: &str, folder: &Path) -> Result<(), String> {
        #[cfg(feature = "postgres")]
        if address.starts_with("postgres://") || address.starts_with("postgresql://") {
            let address = address.parse::<PostgresAddress>().map_err(|error| error.to_string())?;
            return address.in_folder(folder).check_files();
        }
        #[cfg(not(feature = "postgres"))]
        let _ = (address, folder);
        Ok(())
    }

    /// Whether the database can be read and written now.
    pub async fn access(&self) -> Access {
        match self {
            #[cfg(feature = "sqlite")]
            RulesDb::Sqlite(_) => Access { lag: Some(0), write_trouble: None },
            #[cfg(feature = "postgres")]
            RulesDb::Postgres(db) => match db.lag().await {
                Ok(lag) => Access { lag: lag.changes, write_trouble: lag.write_trouble },
                Err(error) => {
                    let trouble = format!("edits are not possible: {error}");
                    Access { lag: None, write_trouble: Some(trouble) }
                }
            },
        }
    }

    /// The clock of the server; `None` for a file.
    pub async fn server_time(&self) -> Option<Result<ClockReading, DbError>> {
        match self {
            #[cfg(feature = "sqlite")]
            RulesDb::Sqlite(_) => None,
            #[cfg(feature = "postgres")]
            RulesDb::Postgres(db) => Some(db.server_time().await),
        }
    }

    /// Applies all edits, or none. Returned changes are durable.
    pub async fn edit(&self, author: Author, edits: Vec<Edit>) -> Result<Vec<ItemChange>, DbError> {
        dispatch!(self, edit(&author, edits))
    }

    /// Applies very many edits, all or none, in batches: they are never all in memory. Each must be about another
    /// item.
    pub async fn edit_all(
        &self,
        author: Author,
        edits: impl Iterator<Item = Result<Edit, DbError>> + Send + 'static,
    ) -> Result<EditSummary, DbError> {
        dispatch!(self, edit_all(&author, edits))
    }

    /// Reverts one change by a new change; a conflict if the item has changed since.
    pub async fn rollback(&self, author: Author, version: Version) -> Result<Vec<ItemChange>, DbError> {
        dispatch!(self, rollback(&author, version))
    }

    /// Reverts all changes of a set by one new set, in batches; writes the ramp in the same transaction.
    pub async fn rollback_set(
        &self,
        author: Author,
        set: ChangeSet,
        on_conflict: OnConflict,
        ramp: Option<RampWrite>,
    ) -> Result<Reverted, DbError> {
        dispatch!(self, rollback_set(&author, &set, on_conflict, ramp))
    }

    /// Writes the ramp, and edits in the same transaction.
    pub async fn edit_ramp(
        &self,
        author: Author,
        edits: Vec<Edit>,
        ramp: RampWrite,
    ) -> Result<Vec<ItemChange>, DbError> {
        dispatch!(self, edit_ramp(&author, edits, ramp))
    }

    /// The last ramp, whether or not it has ended.
    pub async fn ramp(&self) -> Result<Option<RampRow>, DbError> {
        dispatch!(self, ramp())
    }

    /// Publishes what a node has counted since it first saw a ramp.
    pub async fn put_ramp_counts(&self, ramp: String, node: String, counts: String) -> Result<(), DbError> {
        dispatch!(self, put_ramp_counts(&ramp, &node, &counts))
    }

    /// The counts of all nodes.
    pub async fn ramp_counts(&self, ramp: String) -> Result<Vec<String>, DbError> {
        dispatch!(self, ramp_counts(&ramp))
    }

    /// Removes up to `batch` expired bans, and returns how many.
    pub async fn remove_expired(&self, now: Time, batch: usize) -> Result<usize, DbError> {
        dispatch!(self, remove_expired(now, batch))
    }

    /// Removes up to `batch` of the oldest log entries that were written before `before`, and returns how many. The
    /// last entry is kept. A node that knows none of the remaining entries loads everything again.
    pub async fn prune_log(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        dispatch!(self, prune_log(before, batch))
    }

    /// Removes automatic bans from the log: those that were written before `before`, and those that `kept` or
    /// more entries follow. Continues where the last call ended, scans up to `batch` entries, and returns the number of
    /// entries scanned. A node that is further behind loads everything again.
    pub async fn prune_automatic_bans(
        &self,
        before: Time,
        kept: usize,
        batch: usize,
    ) -> Result<usize, DbError> {
        dispatch!(self, prune_automatic_bans(before, kept, batch))
    }

    /// Replaces the row of a node, and removes those of nodes that were last seen before `forget_before`. There are at
    /// most [`MAX_NODES`](crate::rules::MAX_NODES) rows. This is not a change of the rules.
    pub async fn announce_node(&self, node: AnnouncedNode, forget_before: Time) -> Result<(), DbError> {
        dispatch!(self, announce_node(&node, forget_before))
    }

    /// Removes the row of a node that stops, unless another one has announced the same address since.
    pub async fn forget_node(&self, address: String, id: u32) -> Result<(), DbError> {
        dispatch!(self, forget_node(&address, id))
    }

    /// The nodes that have announced themselves, by address.
    pub async fn nodes(&self) -> Result<Vec<AnnouncedNode>, DbError> {
        dispatch!(self, nodes())
    }

    pub async fn version(&self) -> Result<Version, DbError> {
        dispatch!(self, version())
    }

    pub async fn get(&self, item: ItemId) -> Result<Option<StoredItem>, DbError> {
        dispatch!(self, get(&item))
    }

    /// The current state of some items; missing ones are left out.
    pub async fn find(&self, items: Vec<ItemId>) -> Result<CurrentItems, DbError> {
        dispatch!(self, find(&items))
    }

    /// The changes that edits would make, each with the text that it would replace; nothing is written.
    pub async fn preview(&self, edits: Vec<Edit>) -> Result<Vec<(ItemChange, Option<String>)>, DbError> {
        plan::check_items(&edits)?;
        let current = self.find(edits.iter().map(|edit| edit.item().clone()).collect()).await?;
        let last = self.version().await?;
        let changes = plan::plan_changes(edits, &current, last, last.timeline())?;
        Ok(with_before(changes, current))
    }

    /// What [`rollback`](Self::rollback) would do.
    pub async fn preview_rollback(
        &self,
        version: Version,
    ) -> Result<Vec<(ItemChange, Option<String>)>, DbError> {
        let logged = self.logged(version).await?.ok_or(DbError::UnknownVersion(version))?;
        self.preview(vec![plan::revert_edit(logged)?]).await
    }

    /// What [`rollback_set`](Self::rollback_set) would do, if nothing else changes meanwhile.
    pub async fn preview_rollback_set(&self, set: ChangeSet) -> Result<Reverted, DbError> {
        let mut rollback = SetRollback::new(&set, OnConflict::Refuse);
        let mut last = self.version().await?;
        loop {
            let entries = self.entries_of(set, rollback.after(), REVERT_BATCH).await?;
            if entries.is_empty() {
                return rollback.finish();
            }
            let items = entries.iter().map(|entry| entry.change.item.clone()).collect();
            let current = self.find(items).await?;
            let edits = rollback.edits(entries, &current)?;
            let changes = plan::plan_changes(edits, &current, last, last.timeline())?;
            last = changes.last().map_or(last, |change| change.version);
            rollback.add(changes, current);
        }
    }

    pub async fn page(&self, page: PageQuery) -> Result<Vec<StoredItem>, DbError> {
        dispatch!(self, page(&page))
    }

    pub async fn changes_since(&self, version: Version, limit: usize) -> Result<ChangeFeed, DbError> {
        dispatch!(self, changes_since(version, limit))
    }

    /// Log entries before a version, latest first.
    pub async fn log(&self, before: Option<Version>, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        dispatch!(self, log(before, limit))
    }

    /// The last change of each call within a time, latest first: an import is one entry. Changes that the nodes make
    /// themselves, such as automatic bans, are left out.
    pub async fn calls(&self, from: Time, to: Time, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        dispatch!(self, calls(from, to, limit))
    }

    /// Changes of one item before a version, latest first.
    pub async fn history(
        &self,
        item: ItemId,
        before: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        dispatch!(self, history(&item, before, limit))
    }

    /// Log entries before a version, latest first. A set is one entry, its last, and is listed only if all of it is
    /// before that version.
    pub async fn log_of_sets(
        &self,
        before: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        let mut listed = Vec::with_capacity(limit.min(SETS_PAGE));
        let mut next = before;
        while listed.len() < limit {
            let page = self.log(next, SETS_PAGE).await?;
            let is_last = page.len() < SETS_PAGE;
            let mut is_set = false;
            for entry in page {
                if listed.len() == limit {
                    return Ok(listed);
                }
                next = Some(entry.set.map_or(entry.change.version, |set| set.first));
                is_set = entry.set.is_some();
                if before.is_none_or(|before| entry.set_version() < before) {
                    listed.push(entry);
                }
                if is_set {
                    break; // the rest of the page may be of the same set
                }
            }
            if is_last && !is_set {
                break;
            }
        }
        Ok(listed)
    }

    /// Entries of a set after a version, in their order.
    pub async fn entries_of(
        &self,
        set: ChangeSet,
        after: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        dispatch!(self, entries_of(&set, after, limit))
    }

    /// One log entry.
    pub async fn logged(&self, version: Version) -> Result<Option<ChangeLogEntry>, DbError> {
        dispatch!(self, logged(version))
    }

    /// Loads all items in batches, each with the total number of items; returns their version.
    pub async fn load(
        &self,
        each: impl FnMut(Vec<StoredItem>, u64) + Send + 'static,
    ) -> Result<Version, DbError> {
        dispatch!(self, load(each))
    }

    /// Returns once there is a change after `known`, or `known` is not in the history of this database.
    pub async fn changed_since(&self, known: Version) -> Result<(), DbError> {
        match self {
            #[cfg(feature = "sqlite")]
            RulesDb::Sqlite(db) => {
                let mut seen = None;
                loop {
                    let db = Arc::clone(db);
                    let data = blocking(move || db.data_version()).await?;
                    // Read the version only if the file has changed.
                    if seen.replace(data) != Some(data) && self.version().await? != known {
                        return Ok(());
                    }
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            }
            #[cfg(feature = "postgres")]
            RulesDb::Postgres(db) => db.changed_since(known).await,
        }
    }
}

fn not_an_address(text: &str) -> DbError {
    let why = "write sqlite:PATH or postgres://primary/db?replica=host2,host3, or none".to_owned();
    DbError::InvalidAddress { text: text.to_owned(), why }
}

#[cfg(feature = "sqlite")]
async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, DbError> + Send + 'static,
) -> Result<T, DbError> {
    let done = tokio::task::spawn_blocking(job).await;
    done.map_err(|error| DbError::Unreadable { location: "SQLite".to_owned(), why: error.to_string() })?
}
