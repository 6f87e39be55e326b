//! The rules database as this node sees it: what is in it, and how far it is in force here.
//!
//! Edits go to the database and come back as changes like anybody's; an edit is answered once it is in
//! force on this node. While the database cannot be reached the last good rules stay in force (I10).

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use tollgate::identity::Key;
use tollgate::rule::Rule;
use tollgate::{Policy, Time};
use tollgate_stores::rules::{Author, Change, DbError, Edit, Item, RulesDb, Stored, Version};

use crate::config::RulesDbConfig;

mod earned;
mod follow;
mod lifted;
mod load;
mod means;
mod taken;

pub use follow::follow;
pub use means::Means;
pub use taken::read;

/// An edit is answered after this even if it is not in force here yet: it is in the database.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(2);

pub struct Rulebook {
    address: String,
    folder: PathBuf,
    /// As it is written, without login and options: for messages.
    pub name: String,
    db: OnceLock<RulesDb>,
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
    /// Things of the database that cannot be in force here, and why.
    left_out: BTreeMap<Item, String>,
    lag: Option<u64>,
    /// Bans that were lifted elsewhere, and may be in the database.
    lifted: VecDeque<(Key, Time)>,
}

/// How the database and this node stand to each other.
pub struct Standing {
    /// `None` until the first rules were read.
    pub version: Option<Version>,
    pub trouble: Option<String>,
    /// Changes that the server which is read lacks; `None` where that is not known.
    pub lag: Option<u64>,
    pub left_out: Vec<(Item, String)>,
}

impl Rulebook {
    pub fn new(config: &RulesDbConfig, means: Means) -> Rulebook {
        Rulebook {
            address: config.address.clone(),
            folder: config.folder.clone(),
            name: config.name.clone(),
            db: OnceLock::new(),
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
        let changes = self.db()?.edit(author, edits).await?;
        self.settled(&changes).await;
        Ok(changes)
    }

    /// Takes one change back, as a new change.
    pub async fn rollback(&self, who: &str, version: Version, now: Time) -> Result<Vec<Change>, DbError> {
        let author = Author { who: who.to_owned(), at: now };
        let changes = self.db()?.rollback(author, version).await?;
        self.settled(&changes).await;
        Ok(changes)
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

    /// Waits until the first rules are in force, or cannot be had for the time being.
    pub async fn first_look(&self) {
        let mut in_force = self.in_force.subscribe();
        in_force.wait_for(|seen| seen.is_some() || self.state().trouble.is_some()).await.ok();
    }

    /// Whether the first rules were read.
    pub fn is_ready(&self) -> bool {
        self.in_force.borrow().is_some()
    }

    pub fn standing(&self) -> Standing {
        let (version, state) = (*self.in_force.borrow(), self.state());
        let left_out = state.left_out.iter().map(|(item, why)| (item.clone(), why.clone())).collect();
        Standing { version, trouble: state.trouble.clone(), lag: state.lag, left_out }
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

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
