//! The database that an address names. What blocks runs on threads made for it.

use std::path::Path;
#[cfg(feature = "sqlite")]
use std::sync::Arc;
#[cfg(feature = "sqlite")]
use std::time::Duration;

use tollgate::Time;

#[cfg(feature = "postgres")]
use crate::rules::postgres::{PostgresAddress, PostgresDb};
#[cfg(feature = "sqlite")]
use crate::rules::sqlite::SqliteDb;
use crate::rules::{
    Author, ChangeFeed, ChangeLogEntry, CurrentItems, DbError, Edit, EditSummary, ItemChange, ItemId,
    PageQuery, StoredItem, Version, plan,
};

/// How often a node looks for changes of others.
#[cfg(feature = "sqlite")]
const POLL_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub enum RulesDb {
    #[cfg(feature = "sqlite")]
    Sqlite(Arc<SqliteDb>),
    #[cfg(feature = "postgres")]
    Postgres(PostgresDb),
}

/// How far a database can be read and written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Access {
    /// How many changes the server that is read is behind the primary; `None` where that is not known.
    pub lag: Option<u64>,
    /// Why edits are not possible.
    pub write_trouble: Option<String>,
}

/// The same call on either; SQLite's on a thread that may block.
macro_rules! ask {
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

    /// Whether an address can be opened, as far as that can be told without opening it.
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

    /// What can be done with the database now.
    pub async fn access(&self) -> Access {
        match self {
            #[cfg(feature = "sqlite")]
            RulesDb::Sqlite(_) => Access { lag: Some(0), write_trouble: None },
            #[cfg(feature = "postgres")]
            RulesDb::Postgres(db) => match db.lag().await {
                Ok(lag) => Access { lag: lag.changes, write_trouble: lag.write_trouble },
                Err(error) => Access { lag: None, write_trouble: Some(error.to_string()) },
            },
        }
    }

    /// Makes all of the edits, or none; what comes back is on the disk.
    pub async fn edit(&self, author: Author, edits: Vec<Edit>) -> Result<Vec<ItemChange>, DbError> {
        ask!(self, edit(&author, edits))
    }

    /// Makes all of very many edits, or none, without ever holding all of them. Each is about another thing.
    pub async fn edit_all(
        &self,
        author: Author,
        edits: impl Iterator<Item = Result<Edit, DbError>> + Send + 'static,
    ) -> Result<EditSummary, DbError> {
        ask!(self, edit_all(&author, edits))
    }

    /// Takes one change back, as a new change; a conflict if the thing was changed again since.
    pub async fn rollback(&self, author: Author, version: Version) -> Result<Vec<ItemChange>, DbError> {
        ask!(self, rollback(&author, version))
    }

    /// Removes bans that are over, at most `batch`, and says how many.
    pub async fn remove_expired(&self, now: Time, batch: usize) -> Result<usize, DbError> {
        ask!(self, remove_expired(now, batch))
    }

    /// Removes the oldest entries of the log that were written before `before`, at most `batch`, and says how many. The
    /// last entry stays. A node that knows none of the entries that are left reads everything again.
    pub async fn prune_log(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        ask!(self, prune_log(before, batch))
    }

    /// Removes automatic bans from the log that were written before `before`. It goes on where it stopped, looks at `batch`
    /// entries at most, and says at how many it has looked. A node that is further behind reads everything again.
    pub async fn prune_automatic_bans(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        ask!(self, prune_automatic_bans(before, batch))
    }

    pub async fn version(&self) -> Result<Version, DbError> {
        ask!(self, version())
    }

    pub async fn get(&self, item: ItemId) -> Result<Option<StoredItem>, DbError> {
        ask!(self, get(&item))
    }

    /// What some items are, as far as they are there.
    pub async fn find(&self, items: Vec<ItemId>) -> Result<CurrentItems, DbError> {
        ask!(self, find(&items))
    }

    /// What edits would lead to, each with what was there before; nothing is written.
    pub async fn preview(&self, edits: Vec<Edit>) -> Result<Vec<(ItemChange, Option<String>)>, DbError> {
        plan::check_items(&edits)?;
        let mut current = self.find(edits.iter().map(|edit| edit.item().clone()).collect()).await?;
        let last = self.version().await?;
        let changes = plan::plan_changes(edits, &current, last, last.timeline())?;
        let with_before = changes.into_iter().map(|change| {
            let before = current.remove(&change.item).map(|stored| stored.text);
            (change, before)
        });
        Ok(with_before.collect())
    }

    /// What [`rollback`](Self::rollback) would do.
    pub async fn preview_rollback(
        &self,
        version: Version,
    ) -> Result<Vec<(ItemChange, Option<String>)>, DbError> {
        let logged = self.logged(version).await?.ok_or(DbError::UnknownVersion(version))?;
        self.preview(vec![plan::revert_edit(logged)?]).await
    }

    pub async fn page(&self, page: PageQuery) -> Result<Vec<StoredItem>, DbError> {
        ask!(self, page(&page))
    }

    pub async fn changes_since(&self, version: Version, limit: usize) -> Result<ChangeFeed, DbError> {
        ask!(self, changes_since(version, limit))
    }

    /// The log, latest first, before a version.
    pub async fn log(&self, before: Option<Version>, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        ask!(self, log(before, limit))
    }

    /// The changes of one thing, latest first, before a version.
    pub async fn history(
        &self,
        item: ItemId,
        before: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        ask!(self, history(&item, before, limit))
    }

    /// One change of the log.
    pub async fn logged(&self, version: Version) -> Result<Option<ChangeLogEntry>, DbError> {
        ask!(self, logged(version))
    }

    /// Gives out everything in batches, each with the number of things in all; the version that they are of.
    pub async fn load(
        &self,
        each: impl FnMut(Vec<StoredItem>, u64) + Send + 'static,
    ) -> Result<Version, DbError> {
        ask!(self, load(each))
    }

    /// Returns once there is a change after `known`, or once `known` is not in the past any more.
    pub async fn changed_since(&self, known: Version) -> Result<(), DbError> {
        match self {
            #[cfg(feature = "sqlite")]
            RulesDb::Sqlite(db) => {
                let mut seen = None;
                loop {
                    let asked = Arc::clone(db);
                    let data = blocking(move || asked.data_version()).await?;
                    // The version is read only where the file has changed.
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
    done.map_err(|error| DbError::Unreadable { place: "SQLite".to_owned(), why: error.to_string() })?
}
