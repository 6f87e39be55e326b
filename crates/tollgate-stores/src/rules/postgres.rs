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
mod nodes;
mod ramp;
mod schema;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};
use tokio_postgres::Transaction;
use tollgate::Time;

use self::address::PgServer;
pub use self::address::PostgresAddress;
use self::cluster::PgCluster;
pub use self::cluster::ReplicaLag;
use self::connection::PgFailure;
use crate::rules::change_set::{OpenSet, REVERT_BATCH, SetRollback};
use crate::rules::edit::next_batch;
use crate::rules::{
    AnnouncedNode, Author, ChangeFeed, ChangeLogEntry, ChangeSet, CurrentItems, DbError, Edit, EditSummary,
    ItemChange, ItemId, OnConflict, PageQuery, RampRow, RampWrite, Reverted, StoredItem, Version, plan,
};
use crate::server_time::ClockReading;

/// For a change, also for an import of a million rules.
const WRITE_DEADLINE: Duration = Duration::from_secs(120);
/// For the row of a node.
const NODE_DEADLINE: Duration = Duration::from_secs(5);
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
        self.write_set(author, None, async |transaction, timeline, set| {
            apply_edits(transaction, timeline, set, edits).await
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
        self.write_set(author, None, async |transaction, timeline, set| {
            loop {
                let batch = next_batch(&mut edits, &set.summary)?;
                if batch.is_empty() {
                    return Ok(set.summary.clone());
                }
                apply_edits(transaction, timeline, set, batch).await?;
            }
        })
        .await
    }

    pub async fn rollback(&self, author: &Author, version: Version) -> Result<Vec<ItemChange>, DbError> {
        self.write_set(author, Some(version), async |transaction, timeline, set| {
            let logged = log::find(transaction, version).await?.ok_or(DbError::UnknownVersion(version))?;
            apply_edits(transaction, timeline, set, vec![plan::revert_edit(logged)?]).await
        })
        .await
    }

    /// Reverts a set of changes by a new one, and writes the ramp in the same transaction.
    pub async fn rollback_set(
        &self,
        author: &Author,
        changes: &ChangeSet,
        on_conflict: OnConflict,
        write: Option<RampWrite>,
    ) -> Result<Reverted, DbError> {
        self.write_set(author, Some(changes.last), async |transaction, timeline, set| {
            if !log::is_whole(transaction, changes).await? {
                return Err(DbError::PrunedSet(changes.last).into());
            }
            let mut rollback = SetRollback::new(changes, on_conflict);
            loop {
                let entries = log::entries_of(transaction, changes, rollback.after(), REVERT_BATCH).await?;
                if entries.is_empty() {
                    break;
                }
                let touched = entries.iter().map(|entry| &entry.change.item);
                let current = items::find(transaction, touched).await?;
                let edits = rollback.edits(entries, &current)?;
                let made = apply_edits(transaction, timeline, set, edits).await?;
                rollback.add(made, current);
            }
            if let Some(write) = write {
                ramp::write(transaction, write, Version::ZERO).await?;
            }
            Ok(rollback.finish()?)
        })
        .await
    }

    /// Writes the ramp, and edits in the same transaction.
    pub async fn edit_ramp(
        &self,
        author: &Author,
        edits: Vec<Edit>,
        write: RampWrite,
    ) -> Result<Vec<ItemChange>, DbError> {
        plan::check_items(&edits)?;
        self.write_set(author, None, async |transaction, timeline, set| {
            let changes = apply_edits(transaction, timeline, set, edits).await?;
            ramp::write(transaction, write, set.summary.version.unwrap_or_default()).await?;
            Ok(changes)
        })
        .await
    }

    pub async fn ramp(&self) -> Result<Option<RampRow>, DbError> {
        self.inner.cluster.read(|connection| async move { ramp::read(&connection.client).await }).await
    }

    pub async fn put_ramp_counts(&self, ramp: &str, node: &str, counts: &str) -> Result<(), DbError> {
        self.write(async |transaction, _| ramp::put_counts(transaction, ramp, node, counts).await).await
    }

    pub async fn ramp_counts(&self, ramp: &str) -> Result<Vec<String>, DbError> {
        let cluster = &self.inner.cluster;
        cluster.read(|connection| async move { ramp::counts(&connection.client, ramp).await }).await
    }

    pub async fn remove_expired(&self, now: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(items::remove_expired(transaction, now, batch).await?)).await
    }

    /// Removes up to `batch` of the oldest log entries from before a time.
    pub async fn prune_log(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(log::prune(transaction, before, batch).await?)).await
    }

    /// Removes automatic bans from the log; see [`RulesDb::prune_automatic_bans`](crate::rules::RulesDb::prune_automatic_bans).
    pub async fn prune_automatic_bans(
        &self,
        before: Time,
        kept: usize,
        batch: usize,
    ) -> Result<usize, DbError> {
        self.write(async |transaction, _| {
            Ok(log::prune_automatic_bans(transaction, before, kept, batch).await?)
        })
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

    pub async fn calls(&self, from: Time, to: Time, limit: usize) -> Result<Vec<ChangeLogEntry>, DbError> {
        self.inner
            .cluster
            .read(|connection| async move { log::calls(&connection.client, from, to, limit).await })
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

    /// Entries of a set after a version, in their order.
    pub async fn entries_of(
        &self,
        set: &ChangeSet,
        after: Option<Version>,
        limit: usize,
    ) -> Result<Vec<ChangeLogEntry>, DbError> {
        let cluster = &self.inner.cluster;
        cluster
            .read(|connection| async move { log::entries_of(&connection.client, set, after, limit).await })
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

    /// The time of the server that is read.
    pub async fn server_time(&self) -> Result<ClockReading, DbError> {
        let sql = "SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
        let read = self.inner.cluster.read(|connection| async move {
            let sent = Instant::now();
            let row = connection.client.query_one(sql, &[]).await?;
            let round_trip = sent.elapsed();
            let at = Time::EPOCH + Duration::from_micros(row.get::<_, i64>(0).unsigned_abs());
            Ok(ClockReading::new(connection.name.clone(), at, Duration::from_micros(1), round_trip))
        });
        read.await
    }

    /// Announces a node; see [`RulesDb::announce_node`](crate::rules::RulesDb::announce_node).
    pub async fn announce_node(&self, node: &AnnouncedNode, forget_before: Time) -> Result<(), DbError> {
        let mut writer = self.inner.cluster.writer().await?;
        let announced = nodes::announce(writer.client(), node, forget_before);
        let announced = timeout(NODE_DEADLINE, announced).await;
        announced.unwrap_or(Err(PgFailure::TimedOut)).map_err(|failure| writer.into_write_error(failure))
    }

    pub async fn forget_node(&self, address: &str, id: u32) -> Result<(), DbError> {
        let mut writer = self.inner.cluster.writer().await?;
        let forgotten = timeout(NODE_DEADLINE, nodes::forget(writer.client(), address, id)).await;
        forgotten.unwrap_or(Err(PgFailure::TimedOut)).map_err(|failure| writer.into_write_error(failure))
    }

    pub async fn nodes(&self) -> Result<Vec<AnnouncedNode>, DbError> {
        self.inner.cluster.read(|connection| async move { nodes::list(&connection.client).await }).await
    }

    /// Makes all changes of a job as one set.
    async fn write_set<T>(
        &self,
        author: &Author,
        undoes: Option<Version>,
        job: impl AsyncFnOnce(&Transaction<'_>, u32, &mut OpenSet<'_>) -> Result<T, PgFailure>,
    ) -> Result<T, DbError> {
        self.write(async |transaction, timeline| {
            let mut set = OpenSet::new(author, undoes);
            let done = job(transaction, timeline, &mut set).await?;
            log::close(transaction, &set).await?;
            Ok(done)
        })
        .await
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
    set: &mut OpenSet<'_>,
    edits: Vec<Edit>,
) -> Result<Vec<ItemChange>, PgFailure> {
    let count = edits.len();
    let current = items::find(transaction, edits.iter().map(Edit::item)).await?;
    let changes = plan::plan_changes(edits, &current, log::last_version(transaction).await?, timeline)?;
    items::put(transaction, &changes).await?;
    log::append(transaction, set, &changes).await?;
    set.summary.add(count, &changes);
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
