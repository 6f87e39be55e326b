//! Pending edits: the panic switch and bans that an operator set while the database could not be written. They are in
//! force on this node at once, and are written in their order, with author and time, when the database is back.
//!
//! They are on the node's disk before they are answered, so a restart keeps them.
//!
//! What is loaded from the database or its copy may be older than a pending edit, or than one that was just written. Such
//! an edit stays in force over its item until a version that contains it is loaded.

use std::collections::VecDeque;
use std::path::PathBuf;

use tollgate::Time;
use tollgate_stores::rules::{Author, DbError, Edit, ItemId, ItemKind, RulesDb, Version};

use crate::gate::Gate;
use crate::rules_follower::{RulesFollower, apply};

mod file;

use file::EditsFile;

/// Bound on edits that are not yet written.
const MAX_PENDING: usize = 10_000;
/// Changes of an item among which an edit is searched that may be in the database already.
const SEARCHED_CHANGES: usize = 100;

#[derive(Default)]
pub(super) struct PendingEdits {
    /// Not in the database, or not known to be there; the oldest first.
    unwritten: VecDeque<PendingEdit>,
    /// Committed, and not loaded yet.
    unloaded: Vec<(Version, Edit)>,
}

impl PendingEdits {
    /// Whether an edit of this item is newer than a version.
    pub(super) fn has_newer(&self, item: &ItemId, version: Version) -> bool {
        let unloaded = self.unloaded.iter().filter(|(written, _)| *written > version).map(|(_, edit)| edit);
        // Rules, of which there may be very many, are never pending.
        matches!(item.kind, ItemKind::Ban | ItemKind::Setting)
            && self
                .unwritten
                .iter()
                .map(|pending| &pending.edit)
                .chain(unloaded)
                .any(|edit| edit.item() == item)
    }

    /// Edits up to this version are in what was loaded.
    pub(super) fn loaded(&mut self, version: Version) {
        self.unloaded.retain(|(written, _)| *written > version);
    }
}

#[derive(Clone, PartialEq, Debug)]
struct PendingEdit {
    author: String,
    at: Time,
    edit: Edit,
    /// Whether it may be in the database: its outcome is unknown, or that of the process that wrote it to disk.
    was_tried: bool,
}

/// Where an edit is that waits for the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeferredEdit {
    OnDisk,
    /// The disk cannot be written: a restart would forget it.
    InMemory,
}

/// The file of pending edits. Its lock orders appends and rewrites.
pub(super) struct EditsLog(tokio::sync::Mutex<EditsFile>);

impl EditsLog {
    pub(super) fn new(path: PathBuf) -> EditsLog {
        EditsLog(tokio::sync::Mutex::new(EditsFile::new(path)))
    }
}

impl RulesFollower {
    /// Whether an edit would fail now, or would overtake a pending one.
    pub fn must_defer_edits(&self) -> bool {
        let state = self.state();
        state.read_error.is_some() || state.write_error.is_some() || !state.pending_edits.unwritten.is_empty()
    }

    /// Queues an edit without a precondition, and saves it; `None` if there is no room.
    pub async fn defer_edit(&self, author: &str, edit: Edit, now: Time) -> Option<DeferredEdit> {
        let file = self.edits_log.0.lock().await;
        let pending = PendingEdit { author: author.to_owned(), at: now, edit, was_tried: false };
        let queued = {
            let queue = &mut self.state().pending_edits.unwritten;
            let has_room = queue.len() < MAX_PENDING;
            if has_room {
                queue.push_back(pending.clone());
            }
            has_room
        };
        if !queued {
            return None;
        }
        match file.append(&pending).await {
            Ok(()) => Some(DeferredEdit::OnDisk),
            Err(error) => {
                tracing::error!(%error, "a pending edit cannot be saved: a restart of this node would forget it");
                Some(DeferredEdit::InMemory)
            }
        }
    }

    pub fn pending_edits(&self) -> usize {
        self.state().pending_edits.unwritten.len()
    }

    /// Reads the edits that an earlier process of this node has left, and puts them in force.
    pub async fn restore_pending_edits(&self, gate: &Gate) {
        let restored = self.edits_log.0.lock().await.read(MAX_PENDING).await;
        if restored.is_empty() {
            return;
        }
        tracing::warn!(
            edits = restored.len(),
            "the panic switch or bans were set while the rules database could not be written, before this start: they \
             are in force on this node, and will be written"
        );
        self.state().pending_edits.unwritten = restored.into();
        self.apply_pending_edits(gate);
    }

    /// Puts pending edits in force, on top of what was loaded.
    pub(super) fn apply_pending_edits(&self, gate: &Gate) {
        let edits: Vec<_> = {
            let pending = &self.state().pending_edits;
            let unwritten = pending.unwritten.iter().map(|pending| &pending.edit);
            pending.unloaded.iter().map(|(_, edit)| edit).chain(unwritten).cloned().collect()
        };
        edits.iter().for_each(|edit| apply::put_pending(gate, edit.item(), edit.text()));
    }

    /// Writes pending edits, the oldest first, until one fails.
    pub(super) async fn write_pending_edits(&self, db: &RulesDb, gate: &Gate) {
        let mut has_progressed = false;
        loop {
            let next = self.state().pending_edits.unwritten.front().cloned();
            let Some(pending) = next else { break };
            let edit = pending.edit.clone();
            let committed = match self.commit(db, pending).await {
                Err(error) if error.is_transient() => break,
                Err(error) => {
                    tracing::error!(%error, "a pending edit was rejected by the rules database");
                    None
                }
                Ok(committed) => committed,
            };
            let to_load = committed.filter(|version| !self.is_loaded(*version));
            let is_last = {
                let pending = &mut self.state().pending_edits;
                pending.unwritten.pop_front();
                pending.unloaded.extend(to_load.map(|version| (version, edit.clone())));
                !pending.has_newer(edit.item(), Version::ZERO)
            };
            // What was loaded while this edit was pending may differ from it: a later change, if it was in the database
            // already, or the item as it is without it, if it was rejected.
            if is_last && let Ok(stored) = db.get(edit.item().clone()).await {
                let text = stored.as_ref().map(|stored| stored.text.as_str());
                apply::put_pending(gate, edit.item(), text);
            }
            has_progressed = true;
        }
        if has_progressed {
            self.save_pending_edits().await;
        }
    }

    fn is_loaded(&self, version: Version) -> bool {
        self.in_force.borrow().is_some_and(|loaded| version <= loaded)
    }

    /// Writes an edit; `None` if it changes nothing.
    async fn commit(&self, db: &RulesDb, pending: PendingEdit) -> Result<Option<Version>, DbError> {
        if pending.was_tried
            && let Some(version) = find_in_history(db, &pending).await?
        {
            return Ok(Some(version));
        }
        if let Some(front) = self.state().pending_edits.unwritten.front_mut() {
            front.was_tried = true;
        }
        let PendingEdit { author, at, edit, .. } = pending;
        let result = db.edit(Author::new(author, at), vec![edit]).await;
        match self.record_write(result) {
            Ok(changes) => Ok(changes.last().map(|change| change.version)),
            Err(DbError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Saves what is left. A crash before this repeats no edit: those that may be in the database are looked up.
    async fn save_pending_edits(&self) {
        let file = self.edits_log.0.lock().await;
        let left: Vec<_> = self.state().pending_edits.unwritten.iter().cloned().collect();
        if let Err(error) = file.replace(left).await {
            tracing::warn!(%error, "the file of pending edits cannot be updated");
        }
    }
}

/// The version of an edit that was committed though its outcome was not seen. Another change of the item may have
/// followed it.
async fn find_in_history(db: &RulesDb, pending: &PendingEdit) -> Result<Option<Version>, DbError> {
    let changes = db.history(pending.edit.item().clone(), None, SEARCHED_CHANGES).await?;
    let committed = changes.iter().find(|entry| entry.author == pending.author && entry.at == pending.at);
    Ok(committed.map(|entry| entry.change.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loaded_version_overrides_no_newer_edit_of_the_item() {
        let edit = |state: &str| Edit::unconditional(ItemId::enforce(), Some(state.to_owned()));
        let at = |number| Version::new(1, number);
        let unwritten =
            PendingEdit { author: "ann".to_owned(), at: Time::EPOCH, edit: edit("on"), was_tried: false };
        let mut pending =
            PendingEdits { unwritten: [unwritten].into(), unloaded: vec![(at(5), edit("shadow"))] };
        assert!(pending.has_newer(&ItemId::enforce(), at(9)), "one is not written yet");
        assert!(!pending.has_newer(&ItemId::new(ItemKind::Ban, "user:a"), at(4)), "another item");
        pending.unwritten.clear();
        pending.loaded(at(4));
        assert!(pending.has_newer(&ItemId::enforce(), at(4)));
        assert!(!pending.has_newer(&ItemId::enforce(), at(5)), "this version is the edit itself");
        pending.loaded(at(5));
        assert!(pending.unloaded.is_empty());
    }
}
