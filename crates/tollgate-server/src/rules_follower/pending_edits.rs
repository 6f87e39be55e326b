//! Pending edits: the panic switch and bans that an operator set while the database could not be written. They are in
//! force on this node at once, and are written in their order, with author and time, when the database is back.
//!
//! They are kept in memory: a node that restarts before the database is back forgets them.

use std::collections::VecDeque;

use tollgate::Time;
use tollgate_stores::rules::{Author, DbError, Edit, RulesDb};

use crate::rules_follower::RulesFollower;

/// Bound on edits that are not yet written.
const MAX_PENDING: usize = 10_000;

#[derive(Default)]
pub(super) struct PendingEdits(VecDeque<PendingEdit>);

#[derive(Clone)]
struct PendingEdit {
    author: String,
    at: Time,
    edit: Edit,
}

impl RulesFollower {
    /// Whether an edit would fail now, or would overtake a pending one.
    pub fn must_defer_edits(&self) -> bool {
        let state = self.state();
        state.read_error.is_some() || state.write_error.is_some() || !state.pending_edits.0.is_empty()
    }

    /// Queues an edit without a precondition; returns whether there was room.
    pub fn defer_edit(&self, author: &str, edit: Edit, now: Time) -> bool {
        let pending = &mut self.state().pending_edits.0;
        let has_room = pending.len() < MAX_PENDING;
        if has_room {
            pending.push_back(PendingEdit { author: author.to_owned(), at: now, edit });
        }
        has_room
    }

    pub fn pending_edits(&self) -> usize {
        self.state().pending_edits.0.len()
    }

    /// Writes pending edits, the oldest first, until one fails. An edit with an unknown outcome is repeated: if it was
    /// committed, the second one changes nothing.
    pub(super) async fn write_pending_edits(&self, db: &RulesDb) {
        loop {
            let next = self.state().pending_edits.0.front().cloned();
            let Some(PendingEdit { author, at, edit }) = next else { return };
            let result = db.edit(Author { name: author, at }, vec![edit]).await;
            match self.record_write(result) {
                Err(error) if error.is_transient() => return,
                Ok(_) | Err(DbError::Missing { .. }) => {}
                Err(error) => tracing::error!(%error, "a pending edit was rejected by the rules database"),
            }
            self.state().pending_edits.0.pop_front();
        }
    }
}
