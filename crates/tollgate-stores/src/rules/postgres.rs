//! The rules database in PostgreSQL: writes go to the primary, reads to the nearest live replica.
//!
//! Changes are serialised by a lock on the log, so a reader that has seen a number has seen all lower ones. A change
//! whose outcome is unknown is reported as such and never retried.

mod address;
mod cluster;
mod connection;
mod items;
mod load;
mod log;
mod schema;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::Transaction;
use tollgate::Time;

use self::address::PgServer;
pub use self::address::PostgresAddress;
use self::cluster::PgCluster;
pub use self::cluster::ReplicaLag;
use self::connection::PgFailure;
use crate::rules::edit::next_batch;
use crate::rules::{
    Author, ChangeFeed, ChangeLogEntry, CurrentItems, DbError, Edit, EditSummary, ItemChange, ItemId,
    PageQuery, StoredItem, Version, plan,
};

/// For a change, also for an import of a million rules.
const WRITE_DEADLINE: Duration = Duration::from_secs(120);
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
/// Interval at which a node polls for changes; a notification triggers a poll at once.
const POLL_INTERVAL: Duration = Duration::from_millis(400);
/// Poll interval after a notification, until the replica that is read has the change.
const NOTIFIED_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Delay before a listener without a primary reconnects.
const LISTEN_RETRY_DELAY: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
pub struct PostgresDb {
    inner: Arc<PostgresInner>,
}

#[derive(Debug)]
struct PostgresInner {
    cluster: Arc<PgCluster>,
    notified: watch::Receiver<u64>,
    listener: AbortHandle,
}

impl Drop for PostgresInner {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl PostgresDb {
    /// Migrates the schema. While no primary is writable, a replica that has the schema is enough.
    pub async fn open(address: PostgresAddress) -> Result<PostgresDb, DbError> {
        let cluster = Arc::new(PgCluster::new(address)?);
        match cluster.writer().await {
            Ok(mut writer) => schema::migrate(writer.client()).await?,
            Err(unwritable) => {
                let reader = cluster.reader().await?;
                if schema::schema_version(&reader.client).await.map_err(|error| reader.unreadable(error))?
                    == 0
                {
                    return Err(unwritable);
                }
            }
        }
        let (notify, notified) = watch::channel(0);
        let listener = tokio::spawn(listen(Arc::clone(&cluster), notify)).abort_handle();
        Ok(PostgresDb { inner: Arc::new(PostgresInner { cluster, notified, listener }) })
    }

    pub async fn edit(&self, author: &Author, edits: Vec<Edit>) -> Result<Vec<ItemChange>, DbError> {
        plan::check_items(&edits)?;
        self.write(async |transaction, timeline| {
            apply_edits(transaction, timeline, author, edits, None).await
        })
        .await
    }

    /// Applies very many edits, all or none, in batches: they are never all in memory. Each must be about another
    /// item.
    pub async fn edit_all(
        &self,
        author: &Author,
        mut edits: impl Iterator<Item = Result<Edit, DbError>>,
    ) -> Result<EditSummary, DbError> {
        self.write(async |transaction, timeline| {
            let mut edited = EditSummary::default();
            loop {
                let batch = next_batch(&mut edits, &edited)?;
                if batch.is_empty() {
                    return Ok(edited);
                }
                let count = batch.len();
                edited.add(count, &apply_edits(transaction, timeline, author, batch, None).await?);
            }
        })
        .await
    }

    pub async fn rollback(&self, author: &Author, version: Version) -> Result<Vec<ItemChange>, DbError> {
        self.write(async |transaction, timeline| {
            let logged = log::find(transaction, version).await?.ok_or(DbError::UnknownVersion(version))?;
            apply_edits(transaction, timeline, author, vec![plan::revert_edit(logged)?], Some(version)).await
        })
        .await
    }

    pub async fn remove_expired(&self, now: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(items::remove_expired(transaction, now, batch).await?)).await
    }

    /// Removes up to `batch` of the oldest log entries from before a time.
    pub async fn prune_log(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(log::prune(transaction, before, batch).await?)).await
    }

    /// Removes automatic bans from the log; see [`RulesDb::prune_automatic_bans`](crate::rules::RulesDb::prune_automatic_bans).
    pub async fn prune_automatic_bans(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(log::prune_automatic_bans(transaction, before, batch).await?))
            .await
    }

    pub async fn version(&self) -> Result<Version, DbError> {
        self.inner.cluster.read(|connection| async move { log::last_version(&connection.client).await }).await
    }

    pub async fn get(&self, item: &ItemId) -> Result<Option<StoredItem>, DbError> {
        let found = self
            .inner
            .cluster
            .read(|connection| async move { items::find(&connection.client, [item]).await })
            .await?;
        Ok(found.into_values().next())
    }

    pub async fn find(&self, items: &[ItemId]) -> Result<CurrentItems, DbError> {
        let mut current = CurrentItems::new();
        for chunk in items.chunks(items::CHUNK) {
            let found = self
                .inner
                .cluster
                .read(|connection| async move { items::find(&connection.client, chunk).await });
            current.extend(found.await?);
        }
        Ok(current)
    }

    pub async fn page(&self, page: &PageQuery) -> Result<Vec<StoredItem>, DbError> {
        self.inner.cluster.read(|connection| async move { items::page(&connection.client, page).await }).await
    }

    pub async fn changes_since(&self, version: Version, limit: usize) -> Result<ChangeFeed, DbError> {
        self.inner
            .cluster
            .read(|connection| async move { log::changes_since(&connection.client, version, limit).await })
            .await
    }

    pub async fn log(&self, before: Option<Version>, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        self.inner
            .cluster
            .read(|connection| async move { log::page(&connection.client, before, limit).await })
            .await
    }

    pub async fn history(
        &self,
        item: &ItemId,
        before: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        let cluster = &self.inner.cluster;
        cluster
            .read(|connection| async move { log::history(&connection.client, item, before, limit).await })
            .await
    }

    pub async fn logged(&self, version: Version) -> Result<Option<ChangeLogEntry>, DbError> {
        self.inner
            .cluster
            .read(|connection| async move { log::find(&connection.client, version).await })
            .await
    }

    /// Streams all items over a separate connection, as of one version.
    pub async fn load(&self, each: impl FnMut(Vec<StoredItem>, u64)) -> Result<Version, DbError> {
        let connection = self.inner.cluster.new_reader().await?;
        load::load_all(&connection.client, each).await.map_err(|failure| connection.read_error(failure))
    }

    /// Returns once there is a change after `known`, or `known` is not in the history of this database.
    pub async fn changed_since(&self, known: Version) -> Result<(), DbError> {
        let mut notified = self.inner.notified.clone();
        let mut eager_until = None;
        loop {
            notified.mark_unchanged();
            match self.changes_since(known, 1).await? {
                ChangeFeed::Changes(changes) if changes.is_empty() => {}
                _ => return Ok(()),
            }
            let now = tokio::time::Instant::now();
            let pause = if eager_until.is_some_and(|until| now < until) {
                NOTIFIED_POLL_INTERVAL
            } else {
                POLL_INTERVAL
            };
            if timeout(pause, notified.changed()).await.is_ok_and(|rung| rung.is_ok()) {
                eager_until = Some(now + POLL_INTERVAL);
            }
        }
    }

    /// How far the server that is read lags behind the primary.
    pub async fn lag(&self) -> Result<ReplicaLag, DbError> {
        self.inner.cluster.lag().await
    }

    async fn write<T>(
        &self,
        job: impl AsyncFnOnce(&Transaction<'_>, u32) -> Result<T, PgFailure>,
    ) -> Result<T, DbError> {
        let mut writer = self.inner.cluster.writer().await?;
        let timeline = writer.timeline();
        let work = async {
            let transaction = writer.client().transaction().await?;
            log::lock(&transaction).await?;
            let done = job(&transaction, timeline).await?;
            Ok((transaction, done))
        };
        let outcome = match timeout(WRITE_DEADLINE, work).await {
            Ok(Ok((transaction, done))) => Ok((timeout(COMMIT_DEADLINE, transaction.commit()).await, done)),
            Ok(Err(failure)) => Err(failure),
            Err(_) => Err(PgFailure::TimedOut),
        };
        match outcome {
            Ok((Ok(Ok(())), done)) => Ok(done),
            Ok((Ok(Err(error)), _)) if error.as_db_error().is_some() && !error.is_closed() => {
                Err(writer.into_write_error(PgFailure::Server(error)))
            }
            Ok(_) => Err(writer.into_unknown_outcome()),
            Err(failure) => Err(writer.into_write_error(failure)),
        }
    }
}

async fn apply_edits(
    transaction: &Transaction<'_>,
    timeline: u32,
    author: &Author,
    edits: Vec<Edit>,
    undoes: Option<Version>,
) -> Result<Vec<ItemChange>, PgFailure> {
    let current = items::find(transaction, edits.iter().map(Edit::item)).await?;
    let changes = plan::plan_changes(edits, &current, log::last_version(transaction).await?, timeline)?;
    items::put(transaction, &changes).await?;
    log::append(transaction, author, &changes, undoes).await?;
    Ok(changes)
}

/// Signals every notification of the current primary.
async fn listen(cluster: Arc<PgCluster>, notify: watch::Sender<u64>) {
    loop {
        if let Ok(mut connection) = cluster.new_writer().await
            && connection.client.batch_execute(&format!("LISTEN {}", log::CHANNEL)).await.is_ok()
        {
            while connection.notifications.recv().await.is_some() {
                notify.send_modify(|rings| *rings += 1);
            }
        }
        tokio::time::sleep(LISTEN_RETRY_DELAY).await;
    }
}
