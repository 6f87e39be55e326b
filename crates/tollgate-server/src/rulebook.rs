//! The rules database as this node sees it: what is in it, and how far it is in force here.
//!
//! Edits go to the database and come back as changes like anybody's; an edit is answered once it is in
//! force on this node. While the database cannot be reached the last good rules stay in force (I10); a node on a
//! database elsewhere keeps a copy of it on its own disk, for a start in such a time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tollgate::identity::Key;
use tollgate::rule::Rule;
use tollgate::{Policy, Time};
use tollgate_stores::rules::copy::{ChangeMark, CopyError, LocalCopy};
use tollgate_stores::rules::{Author, Change, DbError, Edit, Edited, Item, RulesDb, Stored, Version};

use crate::config::{AuditConfig, OnRulesError, RulesDbConfig};

mod cold_start;
mod earned;
mod follow;
mod lifted;
mod load;
mod local_copy;
mod means;
mod standing;
mod taken;

pub use follow::follow;
use local_copy::CopyKeeper;
pub use means::Means;
pub use standing::{CopyStanding, Source, Standing};
pub use taken::read;

/// An edit is answered after this even if it is not in force here yet: it is in the database.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(2);

pub struct Rulebook {
    address: String,
    folder: PathBuf,
    /// As it is written, without login and options: for messages.
    pub name: String,
    on_error: OnRulesError,
    audit: AuditConfig,
    db: OnceLock<RulesDb>,
    /// The local copy, if the database is not a file itself.
    copy: Option<CopyKeeper>,
    in_force: watch::Sender<Option<Version>>,
    state: Mutex<State>,
    /// Changes taken in since memory was given back.
    taken: AtomicU64,
    /// Rung when what was left out may fit now.
    again: Notify,
    means: Means,
}

#[derive(Default)]
struct State {
    trouble: Option<String>,
    /// What the trouble means for a start: from what it goes on.
    outcome: Option<String>,
    source: Source,
    /// The last change of the copy that the node has started from.
    started_from: ChangeMark,
    copy: Option<CopyStanding>,
    copy_trouble: Option<String>,
    write_trouble: Option<String>,
    /// Things of the database that cannot be in force here, and why.
    left_out: BTreeMap<Item, String>,
    lag: Option<u64>,
    /// Bans that were lifted elsewhere, and may be in the database.
    lifted: VecDeque<(Key, Time)>,
}

impl Rulebook {
    pub fn new(config: &RulesDbConfig, means: Means) -> Rulebook {
        Rulebook {
            address: config.address.clone(),
            folder: config.folder.clone(),
            name: config.name.clone(),
            on_error: config.on_error,
            audit: config.audit,
            db: OnceLock::new(),
            copy: config.copy.clone().map(|path| CopyKeeper::new(path, config.name.clone())),
            in_force: watch::Sender::new(None),
            state: Mutex::default(),
            taken: AtomicU64::new(0),
            again: Notify::new(),
            means,
        }
    }

    /// Opens the database, or finds it open.
    pub async fn open(&self) -> Result<&RulesDb, DbError> {
        if let Some(db) = self.db.get() {
            return Ok(db);
        }
        let db = RulesDb::open(&self.address, &self.folder).await?;
        Ok(self.db.get_or_init(|| db))
    }

    /// Makes all of the edits, or none. When this returns they are on the disk, and in force on this node unless
    /// it is cut off.
    pub async fn edit(&self, who: &str, edits: Vec<Edit>, now: Time) -> Result<Vec<Change>, DbError> {
        let author = Author { who: who.to_owned(), at: now };
        let made = self.db_for_edits()?.edit(author, edits).await;
        let changes = self.note_write(made)?;
        self.settled(&changes).await;
        Ok(changes)
    }

    /// Makes all of very many edits, or none; as [`edit`](Self::edit).
    pub async fn edit_all(
        &self,
        who: &str,
        edits: impl Iterator<Item = Result<Edit, DbError>> + Send + 'static,
        now: Time,
    ) -> Result<Edited, DbError> {
        let author = Author { who: who.to_owned(), at: now };
        let edited = self.db()?.edit_all(author, edits).await?;
        if let Some(last) = edited.version {
            self.reached(last, IN_FORCE_WITHIN).await;
        }
        Ok(edited)
    }

    /// Takes one change back, as a new change.
    pub async fn rollback(&self, who: &str, version: Version, now: Time) -> Result<Vec<Change>, DbError> {
        let author = Author { who: who.to_owned(), at: now };
        let made = self.db_for_edits()?.rollback(author, version).await;
        let changes = self.note_write(made)?;
        self.settled(&changes).await;
        Ok(changes)
    }

    /// Where files of this node may be.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub async fn get(&self, item: Item) -> Result<Option<Stored>, DbError> {
        self.db()?.get(item).await
    }

    /// Why a rule cannot be in force on this node.
    pub fn refusal(&self, policy: &Policy, rule: &Rule) -> Option<String> {
        taken::refusal(policy, &self.means, rule)
    }

    /// Waits until a change is in force here, and says whether it is.
    pub async fn reached(&self, version: Version, within: Duration) -> bool {
        let mut in_force = self.in_force.subscribe();
        let there = in_force.wait_for(|seen| seen.is_some_and(|seen| seen >= version));
        matches!(timeout(within, there).await, Ok(Ok(_)))
    }

    /// Waits until requests may be decided: the first rules are in force, or a start goes without them.
    pub async fn first_rules(&self) {
        let mut in_force = self.in_force.subscribe();
        let goes_without = || self.on_error == OnRulesError::Open && self.state().trouble.is_some();
        in_force.wait_for(|seen| seen.is_some() || goes_without()).await.ok();
    }

    /// Waits until the first rules are in force.
    async fn first_version(&self) {
        self.in_force.subscribe().wait_for(Option::is_some).await.ok();
    }

    /// Whether the first rules were read.
    pub fn is_ready(&self) -> bool {
        self.in_force.borrow().is_some()
    }

    /// The list of the file has changed: what did not fit beside it may fit now.
    pub fn list_changed(&self) {
        if !self.state().left_out.is_empty() {
            self.again.notify_one();
        }
    }

    /// Why a thing of the database is not in force here.
    pub fn left_out(&self, item: &Item) -> Option<String> {
        self.state().left_out.get(item).cloned()
    }

    async fn settled(&self, changes: &[Change]) {
        if let Some(last) = changes.iter().map(|change| change.version).max() {
            self.reached(last, IN_FORCE_WITHIN).await;
        }
    }

    /// The database, once it is open.
    pub fn db(&self) -> Result<&RulesDb, DbError> {
        self.db.get().ok_or_else(|| {
            let why = self.state().trouble.clone().unwrap_or_else(|| "it is being opened".to_owned());
            DbError::Unreadable { place: self.name.clone(), why }
        })
    }

    fn db_for_edits(&self) -> Result<&RulesDb, DbError> {
        self.db().map_err(|error| {
            let why = format!("edits are not possible: {error}");
            DbError::Unwritable { place: self.name.clone(), why }
        })
    }

    /// Keeps in mind whether the database can be written.
    fn note_write<T>(&self, made: Result<T, DbError>) -> Result<T, DbError> {
        match &made {
            Ok(_) => self.state().write_trouble = None,
            Err(error @ DbError::Unwritable { .. }) => {
                self.state().write_trouble = Some(error.to_string());
            }
            Err(_) => {}
        }
        made
    }

    /// What the local copy has come to, and what keeps it from being up to date.
    fn note_copy(&self, copy: Option<&LocalCopy>, trouble: Option<&CopyError>) {
        let trouble = trouble.map(ToString::to_string);
        let mut state = self.state();
        if let Some(copy) = copy {
            state.copy = Some(CopyStanding::of(copy));
        }
        if state.copy_trouble == trouble {
            return;
        }
        match (&trouble, &self.copy) {
            (Some(trouble), Some(copy)) => tracing::error!(file = %copy.path().display(), "{trouble}"),
            (None, _) => tracing::info!("the local copy of the rules can be used again"),
            _ => {}
        }
        state.copy_trouble = trouble;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
