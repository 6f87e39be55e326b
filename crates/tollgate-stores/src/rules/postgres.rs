//! The database in PostgreSQL: changes go to the primary, reads to the nearest live replica.
//!
//! Changes are made one after the other, under a lock on the log, so that a reader who has seen a number has
//! seen all before it. A change whose fate is unknown is told as such and never sent again.

mod address;
mod fleet;
mod link;
mod load;
mod log;
mod schema;
mod things;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::Transaction;
use tollgate::Time;

use self::address::Node;
pub use self::address::PostgresAddress;
use self::fleet::Fleet;
pub use self::fleet::Lag;
use self::link::Failure;
use crate::rules::edit::next_batch;
use crate::rules::{
    Author, Change, Current, DbError, Edit, Edited, Feed, Item, Logged, Page, Stored, Version, plan,
};

/// How long a change may take; an import of a million rules too.
const WRITE_DEADLINE: Duration = Duration::from_secs(120);
const COMMIT_DEADLINE: Duration = Duration::from_secs(10);
/// How often a node looks for changes; a notification makes it look at once.
const POLL: Duration = Duration::from_millis(400);
/// How often it looks after a notification, until what was told has reached the replica that it reads.
const EAGER_POLL: Duration = Duration::from_millis(20);
/// A listener that has lost its primary tries again after this.
const LISTEN_AGAIN: Duration = Duration::from_millis(300);

#[derive(Clone, Debug)]
pub struct PostgresDb {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    fleet: Arc<Fleet>,
    bell: watch::Receiver<u64>,
    listener: AbortHandle,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl PostgresDb {
    /// Brings the schema up to date. While no primary can be written, a replica that has the schema will do.
    pub async fn open(address: PostgresAddress) -> Result<PostgresDb, DbError> {
        let fleet = Arc::new(Fleet::new(address)?);
        match fleet.writer().await {
            Ok(mut writer) => schema::migrate(writer.client()).await?,
            Err(unwritable) => {
                let reader = fleet.reader().await?;
                if schema::found(&reader.client).await.map_err(|error| reader.unreadable(error))? == 0 {
                    return Err(unwritable);
                }
            }
        }
        let (ring, bell) = watch::channel(0);
        let listener = tokio::spawn(listen(Arc::clone(&fleet), ring)).abort_handle();
        Ok(PostgresDb { inner: Arc::new(Inner { fleet, bell, listener }) })
    }

    pub async fn edit(&self, author: &Author, edits: Vec<Edit>) -> Result<Vec<Change>, DbError> {
        plan::check_items(&edits)?;
        self.write(async |transaction, timeline| make(transaction, timeline, author, edits, None).await).await
    }

    /// Makes all of very many edits, or none, without ever holding all of them. Each is about another thing.
    pub async fn edit_all(
        &self,
        author: &Author,
        mut edits: impl Iterator<Item = Result<Edit, DbError>>,
    ) -> Result<Edited, DbError> {
        self.write(async |transaction, timeline| {
            let mut edited = Edited::default();
            loop {
                let batch = next_batch(&mut edits, &edited)?;
                if batch.is_empty() {
                    return Ok(edited);
                }
                let count = batch.len();
                edited.add(count, &make(transaction, timeline, author, batch, None).await?);
            }
        })
        .await
    }

    pub async fn rollback(&self, author: &Author, version: Version) -> Result<Vec<Change>, DbError> {
        self.write(async |transaction, timeline| {
            let logged = log::find(transaction, version).await?.ok_or(DbError::NoChange(version))?;
            make(transaction, timeline, author, vec![plan::undo(logged)?], Some(version)).await
        })
        .await
    }

    pub async fn remove_expired(&self, now: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(things::remove_expired(transaction, now, batch).await?)).await
    }

    /// Removes the oldest entries of the log from before a time, at most `batch`.
    pub async fn prune_log(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(log::prune(transaction, before, batch).await?)).await
    }

    /// Removes automatic bans from the log; see [`RulesDb::prune_automatic_bans`](crate::rules::RulesDb::prune_automatic_bans).
    pub async fn prune_automatic_bans(&self, before: Time, batch: usize) -> Result<usize, DbError> {
        self.write(async |transaction, _| Ok(log::prune_automatic_bans(transaction, before, batch).await?))
            .await
    }

    pub async fn version(&self) -> Result<Version, DbError> {
        self.inner.fleet.read(|link| async move { log::last(&link.client).await }).await
    }

    pub async fn get(&self, item: &Item) -> Result<Option<Stored>, DbError> {
        let found =
            self.inner.fleet.read(|link| async move { things::find(&link.client, [item]).await }).await?;
        Ok(found.into_values().next())
    }

    pub async fn find(&self, items: &[Item]) -> Result<Current, DbError> {
        let mut current = Current::new();
        for chunk in items.chunks(things::CHUNK) {
            let found = self.inner.fleet.read(|link| async move { things::find(&link.client, chunk).await });
            current.extend(found.await?);
        }
        Ok(current)
    }

    pub async fn page(&self, page: &Page) -> Result<Vec<Stored>, DbError> {
        self.inner.fleet.read(|link| async move { things::page(&link.client, page).await }).await
    }

    pub async fn changes_since(&self, version: Version, limit: usize) -> Result<Feed, DbError> {
        self.inner.fleet.read(|link| async move { log::since(&link.client, version, limit).await }).await
    }

    pub async fn log(&self, before: Option<Version>, limit: usize) -> Result<Vec<Logged>, DbError> {
        self.inner.fleet.read(|link| async move { log::page(&link.client, before, limit).await }).await
    }

    pub async fn history(
        &self,
        item: &Item,
        before: Option<Version>,
        limit: usize,
    ) -> Result<Vec<Logged>, DbError> {
        let fleet = &self.inner.fleet;
        fleet.read(|link| async move { log::history(&link.client, item, before, limit).await }).await
    }

    pub async fn logged(&self, version: Version) -> Result<Option<Logged>, DbError> {
        self.inner.fleet.read(|link| async move { log::find(&link.client, version).await }).await
    }

    /// Streams everything from a connection of its own, as of one version.
    pub async fn load(&self, each: impl FnMut(Vec<Stored>, u64)) -> Result<Version, DbError> {
        let link = self.inner.fleet.new_reader().await?;
        load::all(&link.client, each).await.map_err(|failure| link.told(failure))
    }

    /// Returns once there is a change after `known`, or once `known` is not in the past any more.
    pub async fn changed_since(&self, known: Version) -> Result<(), DbError> {
        let mut bell = self.inner.bell.clone();
        let mut eager_until = None;
        loop {
            bell.mark_unchanged();
            match self.changes_since(known, 1).await? {
                Feed::Changes(changes) if changes.is_empty() => {}
                _ => return Ok(()),
            }
            let now = tokio::time::Instant::now();
            let pause = if eager_until.is_some_and(|until| now < until) { EAGER_POLL } else { POLL };
            if timeout(pause, bell.changed()).await.is_ok_and(|rung| rung.is_ok()) {
                eager_until = Some(now + POLL);
            }
        }
    }

    /// How far the node that is read is behind the primary.
    pub async fn lag(&self) -> Result<Lag, DbError> {
        self.inner.fleet.lag().await
    }

    async fn write<T>(
        &self,
        job: impl AsyncFnOnce(&Transaction<'_>, u32) -> Result<T, Failure>,
    ) -> Result<T, DbError> {
        let mut writer = self.inner.fleet.writer().await?;
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
            Err(_) => Err(Failure::Slow),
        };
        match outcome {
            Ok((Ok(Ok(())), done)) => Ok(done),
            Ok((Ok(Err(error)), _)) if error.as_db_error().is_some() && !error.is_closed() => {
                Err(writer.lost(Failure::Server(error)))
            }
            Ok(_) => Err(writer.unknown()),
            Err(failure) => Err(writer.lost(failure)),
        }
    }
}

async fn make(
    transaction: &Transaction<'_>,
    timeline: u32,
    author: &Author,
    edits: Vec<Edit>,
    undoes: Option<Version>,
) -> Result<Vec<Change>, Failure> {
    let current = things::find(transaction, edits.iter().map(Edit::item)).await?;
    let changes = plan::plan(edits, &current, log::last(transaction).await?, timeline)?;
    things::put(transaction, &changes).await?;
    log::append(transaction, author, &changes, undoes).await?;
    Ok(changes)
}

/// Rings the bell at every notification of the primary, whichever it is.
async fn listen(fleet: Arc<Fleet>, ring: watch::Sender<u64>) {
    loop {
        if let Ok(mut link) = fleet.new_writer().await
            && link.client.batch_execute(&format!("LISTEN {}", log::CHANNEL)).await.is_ok()
        {
            while link.heard.recv().await.is_some() {
                ring.send_modify(|rings| *rings += 1);
            }
        }
        tokio::time::sleep(LISTEN_AGAIN).await;
    }
}
