//! Keeps the node's local copy of the database up to date, apart from requests and from the change feed.
//!
//! The follower passes on changes that are in force; if some are missing they are read from the database again. A write
//! error is a health problem: the copy then stays at its version.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tollgate::Time;
use tollgate::internal::lock;
use tollgate_stores::rules::local_copy::{self, ChangeDigest, CopyError, LocalCopy, MAX_PAST, NewCopy};
use tollgate_stores::rules::{ChangeFeed, DbError, ItemChange, RulesDb, StoredItem, Version};

use crate::gate::Gate;
use crate::rules_follower::RulesFollower;
use crate::rules_follower::follow::{CHANGES_PAGE, MAX_CLOCK_SKEW, contiguous_changes};

/// How often the copy is confirmed while nothing changes; one small write.
const CONFIRM_EVERY: Duration = Duration::from_secs(60);
/// Bound on changes that are not yet written; beyond it they are read from the database again.
const MAX_PENDING_CHANGES: usize = 10_000;
/// Delay of the first retry after a failure; it doubles each time.
const MIN_RETRY_DELAY: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(300);
/// How long a complete rewrite of the copy may take.
const REWRITE_TIMEOUT: Duration = Duration::from_secs(600);
/// Expired bans: how many are removed per batch, and the number of batches in a row.
const EXPIRED_BATCH: usize = 2_000;
const EXPIRED_BATCHES: usize = 25;

pub(super) struct CopyWriter {
    path: PathBuf,
    /// The name of the database that this is a copy of.
    source: String,
    pending: Mutex<PendingChanges>,
    wake: Notify,
}

/// Consecutive changes after a version.
#[derive(Default)]
struct PendingChanges {
    after: Version,
    changes: Vec<ItemChange>,
}

/// Why the copy is not up to date.
enum CopyUpdateError {
    /// The copy is writable, but the missing changes cannot be read now.
    Db(DbError),
    Copy(CopyError),
}

impl From<DbError> for CopyUpdateError {
    fn from(error: DbError) -> CopyUpdateError {
        CopyUpdateError::Db(error)
    }
}

impl From<CopyError> for CopyUpdateError {
    fn from(error: CopyError) -> CopyUpdateError {
        CopyUpdateError::Copy(error)
    }
}

impl CopyWriter {
    pub(super) fn new(path: PathBuf, source: String) -> CopyWriter {
        CopyWriter { path, source, pending: Mutex::default(), wake: Notify::new() }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the copy; a damaged one is quarantined.
    pub(super) async fn open(&self) -> Result<LocalCopy, CopyError> {
        let path = self.path.clone();
        let source = self.source.clone();
        let opened = run_blocking(move || LocalCopy::open(&path, &source)).await;
        self.quarantine_if_damaged(opened)
    }

    pub(super) fn quarantine_if_damaged<T>(&self, done: Result<T, CopyError>) -> Result<T, CopyError> {
        if let Err(error @ CopyError::Damaged(_)) = &done {
            match local_copy::quarantine(&self.path) {
                Ok(damaged) => tracing::error!(file = %damaged.display(), "{error}; it was renamed"),
                Err(failed) => tracing::error!("{error}; it could not be renamed: {failed}"),
            }
        }
        done
    }

    /// Passes on changes that came into force after a version.
    pub(super) fn push_changes(&self, after: Version, changes: &[ItemChange]) {
        let mut pending = self.lock_pending();
        let follows = pending.changes.last().is_some_and(|last| last.version == after);
        if !follows || pending.changes.len() + changes.len() > MAX_PENDING_CHANGES {
            *pending = PendingChanges { after, changes: Vec::new() };
        }
        pending.changes.extend_from_slice(changes);
    }

    /// Wakes the writer: another version is in force.
    pub(super) fn wake(&self) {
        self.wake.notify_one();
    }

    fn lock_pending(&self) -> MutexGuard<'_, PendingChanges> {
        lock(&self.pending)
    }
}

/// Runs for ever.
pub(super) async fn run(follower: &RulesFollower, gate: &Gate) {
    let Some(writer) = &follower.copy else { return std::future::pending().await };
    let mut ticks = interval(CONFIRM_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut copy = None;
    let mut retry = MIN_RETRY_DELAY;
    loop {
        tokio::select! {
            () = writer.wake.notified() => {}
            _ = ticks.tick() => {}
        }
        let (Some(db), Some(version)) = (follower.db.get(), follower.followed_version()) else { continue };
        let updated = update(writer, db, &mut copy, version, gate.now()).await;
        let result = match updated {
            Ok(()) => confirm_and_clean(follower, &mut copy, version, gate.now()).await,
            Err(CopyUpdateError::Copy(error)) => Err(error),
            Err(CopyUpdateError::Db(error)) => {
                tracing::debug!(%error, "the local copy waits for the rules database");
                continue;
            }
        };
        follower.record_copy(copy.as_ref(), result.as_ref().err());
        if result.is_ok() {
            retry = MIN_RETRY_DELAY;
        } else {
            sleep(retry).await;
            retry = (retry * 2).min(MAX_RETRY_DELAY);
            writer.wake();
        }
    }
}

/// Updates the copy to at least a version.
async fn update(
    writer: &CopyWriter,
    db: &RulesDb,
    copy: &mut Option<LocalCopy>,
    version: Version,
    now: Time,
) -> Result<(), CopyUpdateError> {
    if copy.is_none() {
        *copy = open_verified(writer, db).await?;
    }
    let PendingChanges { after, changes } = std::mem::take(&mut *writer.lock_pending());
    if !changes.is_empty() && copy.as_ref().is_some_and(|copy| copy.version() == after) {
        with_copy(copy, move |copy| copy.apply(&changes, now)).await?;
    }
    while let Some(at) = copy.as_ref().map(LocalCopy::version).filter(|at| *at != version) {
        match db.changes_since(at, CHANGES_PAGE).await? {
            ChangeFeed::Changes(changes) => {
                let changes = contiguous_changes(at, changes);
                if changes.is_empty() {
                    return Ok(()); // a standby may not have them yet
                }
                with_copy(copy, move |copy| copy.apply(&changes, now)).await?;
            }
            ChangeFeed::Diverged => *copy = None,
        }
    }
    if copy.is_none() {
        *copy = Some(rewrite_copy(writer, db, now).await?);
    }
    Ok(())
}

/// The copy, if it is complete and in this database's history.
async fn open_verified(writer: &CopyWriter, db: &RulesDb) -> Result<Option<LocalCopy>, CopyUpdateError> {
    let copy = match writer.open().await {
        Ok(copy) => copy,
        Err(CopyError::Unusable(why)) => return Err(CopyError::Unusable(why).into()),
        Err(_) => return Ok(None),
    };
    if !is_in_history(db, copy.version(), copy.last_change()).await? {
        tracing::warn!("the history of the local copy differs from that of the rules database: rewriting it");
        return Ok(None);
    }
    // Verifying the whole copy takes a while; a stop interrupts it.
    let _stop = InterruptOnDrop(copy.interrupt_handle());
    let mut copy = Some(copy);
    let verified = with_copy(&mut copy, |copy| copy.verify()).await;
    match writer.quarantine_if_damaged(verified) {
        Err(CopyError::Damaged(_)) => Ok(None),
        verified => Ok(verified.map(|()| copy)?),
    }
}

struct InterruptOnDrop(local_copy::InterruptHandle);

impl Drop for InterruptOnDrop {
    fn drop(&mut self) {
        self.0.interrupt();
    }
}

/// Whether the database has this change at its version. A standby may not have it yet.
pub(super) async fn is_in_history(
    db: &RulesDb,
    version: Version,
    digest: ChangeDigest,
) -> Result<bool, DbError> {
    if version == Version::ZERO {
        return Ok(true);
    }
    match db.logged(version).await? {
        Some(logged) => Ok(ChangeDigest::of(&logged.change) == digest),
        None => Ok(db.changes_since(version, 1).await? != ChangeFeed::Diverged),
    }
}

/// Confirms the copy and removes expired bans, periodically.
async fn confirm_and_clean(
    follower: &RulesFollower,
    copy: &mut Option<LocalCopy>,
    version: Version,
    now: Time,
) -> Result<(), CopyError> {
    let is_due = |copy: &LocalCopy| now.since(copy.confirmed_at()) >= CONFIRM_EVERY / 2;
    if follower.has_read_error()
        || !copy.as_ref().is_some_and(|copy| copy.version() == version && is_due(copy))
    {
        return Ok(());
    }
    // As in the database: by then they have expired on every node's clock.
    let expired_before = now - MAX_CLOCK_SKEW;
    with_copy(copy, move |copy| {
        for _ in 0..EXPIRED_BATCHES {
            if copy.remove_expired(expired_before, EXPIRED_BATCH)? < EXPIRED_BATCH {
                break;
            }
        }
        copy.confirm(now)
    })
    .await
}

/// Runs a job on the copy on a blocking thread. A copy that fails is closed.
async fn with_copy(
    copy: &mut Option<LocalCopy>,
    job: impl FnOnce(&mut LocalCopy) -> Result<(), CopyError> + Send + 'static,
) -> Result<(), CopyError> {
    let Some(mut open_copy) = copy.take() else { return Err(CopyError::Missing) };
    let work = run_blocking(move || {
        let done = job(&mut open_copy);
        Ok((open_copy, done))
    });
    let (open_copy, done) = work.await?;
    if matches!(done, Ok(()) | Err(CopyError::Unusable(_))) {
        *copy = Some(open_copy);
    }
    done
}

/// Rewrites the whole copy, over a connection of its own.
async fn rewrite_copy(writer: &CopyWriter, db: &RulesDb, now: Time) -> Result<LocalCopy, CopyUpdateError> {
    let (cancel_on_drop, cancelled) = oneshot::channel();
    let path = writer.path.clone();
    let source = writer.source.clone();
    let db = db.clone();
    let job = spawn_blocking(move || {
        let new = NewCopy::create(&path, &source)?;
        Handle::current().block_on(copy_all(&db, new, cancelled, now))
    });
    let done = timeout(REWRITE_TIMEOUT, job).await;
    drop(cancel_on_drop); // held until here: dropping this future ends the job, too
    let broken = |why: String| CopyUpdateError::Copy(CopyError::Unusable(why));
    let copy = done.map_err(|_| broken("writing the copy takes too long".to_owned()))?;
    let copy = copy.map_err(|error| broken(error.to_string()))??;
    tracing::info!("the local copy of the rules was written, version {}", copy.version());
    Ok(copy)
}

/// A copy that is being written, and the first error.
struct CopyInProgress {
    new: NewCopy,
    result: Result<(), CopyError>,
}

async fn copy_all(
    db: &RulesDb,
    new: NewCopy,
    cancelled: oneshot::Receiver<()>,
    now: Time,
) -> Result<LocalCopy, CopyUpdateError> {
    let writing = Arc::new(Mutex::new(CopyInProgress { new, result: Ok(()) }));
    let failed = Arc::new(Notify::new());
    let each = {
        let writing = Arc::clone(&writing);
        let failed = Arc::clone(&failed);
        move |batch: Vec<StoredItem>, _| {
            let mut writing = lock(&writing);
            if writing.result.is_ok() {
                writing.result = writing.new.put(batch);
                writing.result.is_err().then(|| failed.notify_one());
            }
        }
    };
    let stop = || CopyUpdateError::Copy(CopyError::Unusable("the node is stopping".to_owned()));
    let loaded = tokio::select! {
        loaded = db.load(each) => Some(loaded?),
        () = failed.notified() => None,
        _ = cancelled => return Err(stop()),
    };
    let writing = Arc::into_inner(writing).ok_or_else(stop)?;
    let CopyInProgress { new, result } = writing.into_inner().unwrap_or_else(PoisonError::into_inner);
    result?;
    let version = loaded.ok_or_else(stop)?;
    let past = db.log(None, MAX_PAST).await?;
    let last = db.logged(version).await?;
    Ok(new.finish(version, last.as_ref().map(|logged| &logged.change), past, now)?)
}

pub(super) async fn run_blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, CopyError> + Send + 'static,
) -> Result<T, CopyError> {
    spawn_blocking(job).await.map_err(|error| CopyError::Unusable(error.to_string()))?
}
