//! Requested changes. An edit is valid by construction.

use serde_json::json;
use tollgate::Time;
use tollgate::internal::ban::Ban;
use tollgate::internal::identity::Key;

use crate::rules::{DbError, Enforce, ItemChange, ItemId, ItemKind, RuleText, Version, plan};

/// Edits in one call.
pub const MAX_EDITS: usize = 1_000_000;

/// Author and time of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Author {
    pub name: String,
    pub at: Time,
    /// Why the change is made; part of the log.
    pub note: Option<String>,
}

impl Author {
    /// The author of automatic bans.
    pub const AUTOMATIC: &str = "tollgate";

    pub fn new(name: impl Into<String>, at: Time) -> Author {
        Author { name: name.into(), at, note: None }
    }

    pub fn with_note(self, note: impl Into<String>) -> Author {
        Author { note: Some(note.into()), ..self }
    }
}

/// The required state of an item for an edit to apply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Precondition {
    Any,
    Absent,
    /// The version that the author has read.
    AtVersion(Version),
}

/// The result of very many edits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct EditSummary {
    pub created: usize,
    pub changed: usize,
    pub deleted: usize,
    pub unchanged: usize,
    /// The names of the first items that have changed.
    pub first_names: Vec<Box<str>>,
    /// The last change, if there was one.
    pub version: Option<Version>,
}

impl EditSummary {
    /// Maximum length of `first_names`.
    pub const MAX_NAMED: usize = 100;

    /// Adds the result of a batch of edits.
    pub fn add<'c>(&mut self, edits: usize, changes: impl IntoIterator<Item = &'c ItemChange>) {
        self.unchanged += edits;
        for change in changes {
            self.unchanged -= 1;
            match (&change.text, change.previous) {
                (None, _) => self.deleted += 1,
                (Some(_), None) => self.created += 1,
                (Some(_), Some(_)) => self.changed += 1,
            }
            if self.first_names.len() < EditSummary::MAX_NAMED {
                self.first_names.push(change.item.name.clone());
            }
            self.version = self.version.max(Some(change.version));
        }
    }

    pub fn changes(&self) -> usize {
        self.created + self.changed + self.deleted
    }

    pub fn edits(&self) -> usize {
        self.changes() + self.unchanged
    }
}

/// Edits that are planned and written in one batch of a large import.
pub(super) const BATCH: usize = 10_000;

/// The next batch of a large import.
pub(super) fn next_batch(
    edits: &mut impl Iterator<Item = Result<Edit, DbError>>,
    so_far: &EditSummary,
) -> Result<Vec<Edit>, DbError> {
    let batch: Vec<Edit> = edits.take(BATCH).collect::<Result<_, _>>()?;
    let count = so_far.edits() + batch.len();
    if count > MAX_EDITS {
        return Err(DbError::TooManyEdits { count, max: MAX_EDITS });
    }
    plan::check_items(&batch)?;
    Ok(batch)
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edit {
    pub(super) item: ItemId,
    pub(super) expected: Precondition,
    pub(super) text: Option<String>,
}

impl Edit {
    pub fn rule(rule: RuleText, expected: Precondition) -> Edit {
        Edit { item: ItemId::rule(rule.id()), expected, text: Some(rule.into_text()) }
    }

    pub fn ban(key: &Key, ban: &Ban, expected: Precondition) -> Edit {
        let text = json!({
            "until": ban.until.nanos(), "reason": ban.reason,
            "source": ban.source.name(), "strikes": ban.strikes,
        });
        Edit { item: ItemId::new(ItemKind::Ban, key.to_string()), expected, text: Some(text.to_string()) }
    }

    pub fn allow(key: &Key, note: &str, expected: Precondition) -> Edit {
        Edit { item: ItemId::new(ItemKind::Allow, key.to_string()), expected, text: Some(note.to_owned()) }
    }

    pub fn enforce(enforce: Enforce, expected: Precondition) -> Edit {
        Edit { item: ItemId::enforce(), expected, text: Some(enforce.name().to_owned()) }
    }

    pub fn delete(item: ItemId, expected: Precondition) -> Edit {
        Edit { item, expected, text: None }
    }

    /// Sets an item, or deletes it, whatever the database has.
    pub fn unconditional(item: ItemId, text: Option<String>) -> Edit {
        Edit { item, expected: Precondition::Any, text }
    }

    /// The new text; `None` for a deletion.
    pub fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    pub fn item(&self) -> &ItemId {
        &self.item
    }
}
