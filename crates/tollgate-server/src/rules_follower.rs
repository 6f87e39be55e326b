//! The rules database as this node sees it: its contents, and how far they are in force here.
//!
//! Edits go to the database and come back through the change feed; an edit is answered once it is in force on this
//! node. While the database cannot be reached the last good rules stay in force (I10). For a database on another
//! machine the node maintains a local copy on its own disk, so that it can start while the database is down.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tollgate::Time;
use tollgate::internal::PolicySnapshot;
use tollgate::internal::identity::Key;
use tollgate::internal::lock;
use tollgate::internal::rule::Rule;
use tollgate_stores::rules::local_copy::{ChangeDigest, CopyError, LocalCopy};
use tollgate_stores::rules::{
    Author, ChangeSet, DbError, Edit, EditSummary, ItemChange, ItemId, OnConflict, Reverted, RulesDb,
    StoredItem, Version,
};

use crate::config::{AuditConfig, OnRulesError, RulesDbConfig};
use crate::ramp::{self, RampInForce};

mod apply;
mod cold_start;
mod follow;
mod load;
mod local_copy;
mod pending_bans;
mod pending_edits;
mod ramped_rules;
mod status;

pub use apply::{NodeCapabilities, parse_rule};
pub use follow::follow;
use local_copy::CopyWriter;
pub use pending_edits::DeferredEdit;
use pending_edits::{EditsLog, PendingEdits};
pub use status::{CopyStatus, RulesDbStatus, RulesSource};

/// An edit is answered after this even if it is not in force here yet: it is committed in the database.
const APPLY_TIMEOUT: Duration = Duration::from_secs(2);

pub struct RulesFollower {
    address: String,
    folder: PathBuf,
    /// The URL without credentials and options, for messages.
    pub name: String,
    on_error: OnRulesError,
    audit: AuditConfig,
    db: OnceLock<RulesDb>,
    /// The local copy, if the database is not a file itself.
    copy: Option<CopyWriter>,
    in_force: watch::Sender<Option<Version>>,
    state: Mutex<FollowerState>,
    /// Changes applied since free memory was last returned to the system.
    changes_since_trim: AtomicU64,
    edits_log: EditsLog,
    /// Notified when items that were left out may fit now.
    reload_requested: Notify,
    capabilities: NodeCapabilities,
    /// The name of this process, for the lease of a ramp.
    pub node: String,
}

#[derive(Default)]
struct FollowerState {
    ramp: Option<Arc<RampInForce>>,
    read_error: Option<String>,
    /// How a start continues despite the error.
    startup_outcome: Option<String>,
    source: RulesSource,
    /// The last change of the copy that the node started from.
    copy_position: ChangeDigest,
    copy: Option<CopyStatus>,
    copy_error: Option<String>,
    write_error: Option<String>,
    /// Items of the database that cannot be in force here, and why.
    left_out: BTreeMap<ItemId, String>,
    lag: Option<u64>,
    /// Bans that were lifted on other nodes and may still be in the database.
    lifted_bans: VecDeque<(Key, Time)>,
    pending_edits: PendingEdits,
}

impl RulesFollower {
    pub fn new(config: &RulesDbConfig, capabilities: NodeCapabilities) -> RulesFollower {
        RulesFollower {
            address: config.address.clone(),
            folder: config.folder.clone(),
            name: config.name.clone(),
            on_error: config.on_error,
            audit: config.audit,
            db: OnceLock::new(),
            copy: config.copy.clone().map(|path| CopyWriter::new(path, config.name.clone())),
            in_force: watch::Sender::new(None),
            state: Mutex::default(),
            changes_since_trim: AtomicU64::new(0),
            edits_log: EditsLog::new(config.pending_edits.clone()),
            reload_requested: Notify::new(),
            capabilities,
            node: ramp::node_name(),
        }
    }

    /// The ramp in force on this node.
    pub fn ramp(&self) -> Option<Arc<RampInForce>> {
        self.state().ramp.clone()
    }

    fn set_ramp(&self, ramp: Option<RampInForce>) {
        self.state().ramp = ramp.map(Arc::new);
    }

    /// Opens the database, or returns the open one.
    pub async fn open(&self) -> Result<&RulesDb, DbError> {
        if let Some(db) = self.db.get() {
            return Ok(db);
        }
        let db = RulesDb::open(&self.address, &self.folder).await?;
        Ok(self.db.get_or_init(|| db))
    }

    /// Makes all edits, or none. When this returns they are on disk, and in force on this node unless it has lost the
    /// database.
    pub async fn edit(
        &self,
        author_name: &str,
        edits: Vec<Edit>,
        now: Time,
    ) -> Result<Vec<ItemChange>, DbError> {
        let author = Author::new(author_name, now);
        let result = self.db_for_edits()?.edit(author, edits).await;
        let changes = self.record_write(result)?;
        self.wait_until_applied(&changes).await;
        Ok(changes)
    }

    /// Like [`edit`](Self::edit), for very many edits.
    pub async fn edit_all(
        &self,
        author_name: &str,
        edits: impl Iterator<Item = Result<Edit, DbError>> + Send + 'static,
        now: Time,
    ) -> Result<EditSummary, DbError> {
        let author = Author::new(author_name, now);
        let edited = self.db()?.edit_all(author, edits).await?;
        if let Some(last) = edited.version {
            self.wait_for_version(last, APPLY_TIMEOUT).await;
        }
        Ok(edited)
    }

    /// Reverts one change, as a new change.
    pub async fn rollback(
        &self,
        author_name: &str,
        version: Version,
        now: Time,
    ) -> Result<Vec<ItemChange>, DbError> {
        let author = Author::new(author_name, now);
        let result = self.db_for_edits()?.rollback(author, version).await;
        let changes = self.record_write(result)?;
        self.wait_until_applied(&changes).await;
        Ok(changes)
    }

    /// Reverts a set of changes, as one new set.
    pub async fn rollback_set(
        &self,
        author_name: &str,
        set: ChangeSet,
        now: Time,
    ) -> Result<Reverted, DbError> {
        let author = Author::new(author_name, now);
        let result = self.db_for_edits()?.rollback_set(author, set, OnConflict::Refuse, None).await;
        let reverted = self.record_write(result)?;
        if let Some(last) = reverted.summary.version {
            self.wait_for_version(last, APPLY_TIMEOUT).await;
        }
        Ok(reverted)
    }

    /// The folder for files of this node.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub async fn get(&self, item: ItemId) -> Result<Option<StoredItem>, DbError> {
        self.db()?.get(item).await
    }

    /// Why a rule cannot be in force on this node.
    pub fn unsupported_reason(&self, policy: &PolicySnapshot, rule: &Rule) -> Option<String> {
        apply::unsupported_reason(policy, &self.capabilities, rule)
    }

    /// Waits until a change is in force here; returns whether it is.
    pub async fn wait_for_version(&self, version: Version, within: Duration) -> bool {
        let mut in_force = self.in_force.subscribe();
        let applied = in_force.wait_for(|seen| seen.is_some_and(|seen| seen >= version));
        matches!(timeout(within, applied).await, Ok(Ok(_)))
    }

    /// Waits until requests may be decided: the first rules are in force, or the node starts without them.
    pub async fn wait_for_first_rules(&self) {
        let mut in_force = self.in_force.subscribe();
        let starts_without_rules =
            || self.on_error == OnRulesError::Open && self.state().read_error.is_some();
        in_force.wait_for(|seen| seen.is_some() || starts_without_rules()).await.ok();
    }

    /// Waits until the first rules are in force.
    async fn first_version(&self) {
        self.in_force.subscribe().wait_for(Option::is_some).await.ok();
    }

    /// Whether the first rules were loaded.
    pub fn is_ready(&self) -> bool {
        self.in_force.borrow().is_some()
    }

    /// The rules of the file have changed: items that did not fit beside them may fit now.
    pub fn file_rules_changed(&self) {
        if !self.state().left_out.is_empty() {
            self.reload_requested.notify_one();
        }
    }

    /// Why an item of the database is not in force here.
    pub fn left_out_reason(&self, item: &ItemId) -> Option<String> {
        self.state().left_out.get(item).cloned()
    }

    async fn wait_until_applied(&self, changes: &[ItemChange]) {
        if let Some(last) = changes.iter().map(|change| change.version).max() {
            self.wait_for_version(last, APPLY_TIMEOUT).await;
        }
    }

    /// The database, once it is open.
    pub fn db(&self) -> Result<&RulesDb, DbError> {
        self.db.get().ok_or_else(|| {
            let why = self.state().read_error.clone().unwrap_or_else(|| "it is being opened".to_owned());
            DbError::Unreadable { location: self.name.clone(), why }
        })
    }

    fn db_for_edits(&self) -> Result<&RulesDb, DbError> {
        self.db().map_err(|error| DbError::Unwritable { location: self.name.clone(), why: error.to_string() })
    }

    /// Records whether the database is writable.
    fn record_write<T>(&self, result: Result<T, DbError>) -> Result<T, DbError> {
        match &result {
            Ok(_) => self.state().write_error = None,
            Err(error @ DbError::Unwritable { .. }) => {
                self.state().write_error = Some(error.to_string());
            }
            Err(_) => {}
        }
        result
    }

    /// Records the state of the local copy, and the error that keeps it from being up to date.
    fn record_copy(&self, copy: Option<&LocalCopy>, trouble: Option<&CopyError>) {
        let trouble = trouble.map(ToString::to_string);
        let mut state = self.state();
        if let Some(copy) = copy {
            state.copy = Some(CopyStatus::of(copy));
        }
        if state.copy_error == trouble {
            return;
        }
        match (&trouble, &self.copy) {
            (Some(trouble), Some(copy)) => tracing::error!(file = %copy.path().display(), "{trouble}"),
            (None, _) => tracing::info!("the local copy of the rules can be used again"),
            _ => {}
        }
        state.copy_error = trouble;
    }

    fn state(&self) -> MutexGuard<'_, FollowerState> {
        lock(&self.state)
    }
}
