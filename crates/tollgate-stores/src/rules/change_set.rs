//! Change sets: all changes of one call, such as an import. The log lists a set as one change, and one rollback reverts
//! the whole.
//!
//! A set is the range of versions from its first to its last change; the last one is its version. Automatic bans that
//! are written together are no set: each can be lifted alone.

use crate::rules::ramp::ramp_id;
use crate::rules::{
    Author, ChangeLogEntry, CurrentItems, DbError, Edit, EditSummary, ItemChange, ItemId, Precondition,
    StoredItem, Version,
};

/// Entries of a set that are reverted at once: a rollback never has the whole set in memory.
pub(super) const REVERT_BATCH: usize = 10_000;

/// A finished set of more than one change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChangeSet {
    pub first: Version,
    pub last: Version,
    pub created: u64,
    pub changed: u64,
    pub deleted: u64,
}

impl ChangeSet {
    pub fn changes(&self) -> u64 {
        self.created + self.changed + self.deleted
    }

    /// From the columns of an author; `None` for a single change.
    pub(super) fn from_columns(first: i64, last: Option<i64>, counts: [Option<i64>; 3]) -> Option<ChangeSet> {
        let [created, changed, deleted] = counts.map(|count| count.unwrap_or(0).unsigned_abs());
        let first = Version::from_packed(first);
        Some(ChangeSet { first, last: Version::from_packed(last?), created, changed, deleted })
    }
}

/// The set that a transaction is writing.
pub(super) struct OpenSet<'a> {
    pub(super) author: &'a Author,
    pub(super) undoes: Option<Version>,
    pub(super) first: Option<Version>,
    pub(super) summary: EditSummary,
}

impl<'a> OpenSet<'a> {
    pub(super) fn new(author: &'a Author, undoes: Option<Version>) -> OpenSet<'a> {
        OpenSet { author, undoes, first: None, summary: EditSummary::default() }
    }

    /// The finished set, if its changes belong together.
    pub(super) fn finished(&self) -> Option<ChangeSet> {
        if self.summary.changes() < 2 || self.author.name == Author::AUTOMATIC {
            return None;
        }
        let [created, changed, deleted] =
            [self.summary.created, self.summary.changed, self.summary.deleted].map(|count| count as u64);
        Some(ChangeSet { first: self.first?, last: self.summary.version?, created, changed, deleted })
    }
}

/// What a rollback does with an item that was changed again since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnConflict {
    /// Nothing is reverted.
    Refuse,
    /// The item stays as it is, and the others are reverted.
    Skip,
}

/// The result of a rollback.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reverted {
    pub summary: EditSummary,
    /// The first changes, each with the text that it replaced.
    pub changes: Vec<(ItemChange, Option<String>)>,
    /// Items that were changed again since, and were left alone.
    pub skipped: usize,
}

impl Reverted {
    /// Maximum length of `changes`.
    pub const MAX_LISTED: usize = 1_000;

    fn add(&mut self, edits: usize, changes: Vec<(ItemChange, Option<String>)>) {
        self.summary.add(edits, changes.iter().map(|(change, _)| change));
        let room = Reverted::MAX_LISTED - self.changes.len();
        self.changes.extend(changes.into_iter().take(room));
    }
}

/// A rollback of a set in batches: what is read, reverted and counted so far. The same for every database.
pub(super) struct SetRollback<'a> {
    set: &'a ChangeSet,
    on_conflict: OnConflict,
    /// The last entry that was read.
    after: Option<Version>,
    /// Edits of the batch that is being made.
    edits: usize,
    reverted: Reverted,
}

impl<'a> SetRollback<'a> {
    pub(super) fn new(set: &'a ChangeSet, on_conflict: OnConflict) -> SetRollback<'a> {
        SetRollback { set, on_conflict, after: None, edits: 0, reverted: Reverted::default() }
    }

    /// The next batch is the entries of the set after this one.
    pub(super) fn after(&self) -> Option<Version> {
        self.after
    }

    /// The edits that revert a batch, given the current items. An item that is already as it was before needs none.
    pub(super) fn edits(
        &mut self,
        entries: Vec<ChangeLogEntry>,
        current: &CurrentItems,
    ) -> Result<Vec<Edit>, DbError> {
        self.after = entries.last().map(|last| last.change.version);
        let mut edits = Vec::with_capacity(entries.len());
        for entry in entries {
            let now = current.get(&entry.change.item);
            match revert_one(entry, now) {
                Ok(edit) => edits.extend(edit),
                Err(DbError::ChangedSince { .. }) if self.on_conflict == OnConflict::Skip => {
                    self.reverted.skipped += 1;
                }
                Err(error) => return Err(error),
            }
        }
        self.edits = edits.len();
        Ok(edits)
    }

    /// Adds the changes that the edits of a batch have made, given the items before it.
    pub(super) fn add(&mut self, changes: Vec<ItemChange>, before: CurrentItems) {
        self.reverted.add(self.edits, with_before(changes, before));
    }

    /// An operator's rollback that changes nothing is an error.
    pub(super) fn finish(self) -> Result<Reverted, DbError> {
        match self.on_conflict {
            OnConflict::Refuse if self.reverted.summary.changes() == 0 => {
                Err(DbError::NothingToRevert(self.set.last))
            }
            _ => Ok(self.reverted),
        }
    }
}

fn revert_one(entry: ChangeLogEntry, now: Option<&StoredItem>) -> Result<Option<Edit>, DbError> {
    let ItemChange { item, version, text, previous } = entry.change;
    if item == ItemId::ramp() {
        // The ramp has changed its setting since; another ramp is not this one's.
        let is_own = now.is_some_and(|now| ramp_id(&now.text) == text.as_deref().and_then(ramp_id));
        return Ok(is_own.then_some(Edit { item, expected: Precondition::Any, text: None }));
    }
    if let Some(forgotten) = previous.filter(|_| entry.before.is_none()) {
        return Err(DbError::UnknownVersion(forgotten));
    }
    if now.map(|now| now.text.as_str()) == entry.before.as_deref() {
        return Ok(None);
    }
    let is_as_left = match &text {
        Some(_) => now.is_some_and(|now| now.version == version),
        None => now.is_none(),
    };
    if !is_as_left {
        return Err(DbError::ChangedSince { item, found: now.map(|now| now.version) });
    }
    Ok(Some(Edit { item, expected: Precondition::Any, text: entry.before }))
}

/// Changes, each with the text that it has replaced.
pub(super) fn with_before(
    changes: Vec<ItemChange>,
    mut current: CurrentItems,
) -> Vec<(ItemChange, Option<String>)> {
    let with_before = changes.into_iter().map(|change| {
        let before = current.remove(&change.item).map(|stored| stored.text);
        (change, before)
    });
    with_before.collect()
}
