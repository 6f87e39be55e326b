//! From edits to changes: checks and numbers them before anything is written. Pure, and the same for every database.

use std::collections::{HashMap, HashSet};

use tollgate::Time;
use tollgate::internal::ban::BanSource;

use crate::rules::{
    Author, ChangeLogEntry, DbError, Edit, ItemChange, ItemId, ItemKind, MAX_EDITS, Precondition, StoredItem,
    Version, parse_ban,
};

/// The current state of the items of some edits.
pub type CurrentItems = HashMap<ItemId, StoredItem>;

/// Checks the number of edits, and that each is about another item.
pub(super) fn check_items(edits: &[Edit]) -> Result<(), DbError> {
    if edits.len() > MAX_EDITS {
        return Err(DbError::TooManyEdits { count: edits.len(), max: MAX_EDITS });
    }
    let mut seen = HashSet::with_capacity(edits.len());
    match edits.iter().position(|edit| !seen.insert(&edit.item)) {
        Some(edit) => Err(DbError::DuplicateItem { edit, item: edits[edit].item.clone() }),
        None => Ok(()),
    }
}

/// The changes that edits make, numbered after `last`. An edit without effect makes none.
pub(super) fn plan_changes(
    edits: Vec<Edit>,
    current: &CurrentItems,
    last: Version,
    timeline: u32,
) -> Result<Vec<ItemChange>, DbError> {
    let mut last = last;
    let mut changes = Vec::with_capacity(edits.len());
    for (edit, Edit { item, expected, text }) in edits.into_iter().enumerate() {
        let now = current.get(&item);
        match (expected, now) {
            (Precondition::Absent, Some(_)) => return Err(DbError::Exists { edit, item }),
            (Precondition::AtVersion(version), now) if now.map(|now| now.version) != Some(version) => {
                return Err(DbError::Conflict { edit, item, found: now.map(|now| now.version) });
            }
            _ => {}
        }
        if text.is_none() && now.is_none() && expected != Precondition::Absent {
            return Err(DbError::Missing { edit, item });
        }
        if now.map(|now| &now.text) == text.as_ref() {
            continue;
        }
        last = last.next_on_timeline(timeline);
        changes.push(ItemChange { item, version: last, previous: now.map(|now| now.version), text });
    }
    Ok(changes)
}

/// The edit that reverts a change. It conflicts if the item has changed since, and is impossible once the log no
/// longer has the text that the change replaced.
pub(super) fn revert_edit(logged: ChangeLogEntry) -> Result<Edit, DbError> {
    let ItemChange { item, version, text, previous } = logged.change;
    if let Some(forgotten) = previous.filter(|_| logged.before.is_none()) {
        return Err(DbError::UnknownVersion(forgotten));
    }
    let expected = if text.is_some() { Precondition::AtVersion(version) } else { Precondition::Absent };
    Ok(Edit { item, expected, text: logged.before })
}

/// The version up to which a log may be pruned: the first change of the oldest author at or after `before`. `authors`
/// are the oldest ones, as (first change, time), in order; if all of them are old, the rest is pruned by the next
/// call.
pub(super) fn prune_bound(authors: &[(i64, i64)], before: Time) -> Option<i64> {
    let before = i64::try_from(before.nanos()).unwrap_or(i64::MAX);
    let oldest_kept = authors.iter().find(|(_, at)| *at >= before).or(authors.last())?;
    Some(oldest_kept.0)
}

/// State of a log that may have gaps.
#[derive(Clone, Copy)]
pub(super) struct Pruned {
    /// The latest removed entry; after it the log is complete.
    pub(super) floor: i64,
    /// Automatic bans are removed up to this entry.
    pub(super) scanned: i64,
}

/// An entry that may be an automatic ban.
pub(super) struct Candidate {
    pub(super) version: i64,
    pub(super) kind: i16,
    pub(super) text: Option<String>,
    pub(super) author: String,
    pub(super) at: i64,
}

impl Candidate {
    /// Automatic bans and their lifts, written by tollgate and not by an operator.
    fn is_automatic(&self) -> bool {
        let is_automatic =
            |text: &String| parse_ban(text).is_ok_and(|ban| ban.source == BanSource::Automatic);
        self.kind == ItemKind::Ban as i16
            && self.author == Author::AUTOMATIC
            && self.text.as_ref().is_none_or(is_automatic)
    }
}

/// The new state of the log, the entries to remove, and the number scanned; `candidates` follow `pruned.scanned`.
/// `None` if all are newer than `before`, and than the version `beyond`.
pub(super) fn prune_automatic(
    pruned: Pruned,
    candidates: Vec<Candidate>,
    before: Time,
    beyond: Option<i64>,
) -> Option<(Pruned, Vec<i64>, usize)> {
    let before = i64::try_from(before.nanos()).unwrap_or(i64::MAX);
    let is_old =
        |candidate: &Candidate| candidate.at < before || beyond.is_some_and(|last| candidate.version <= last);
    let old: Vec<_> = candidates.into_iter().take_while(is_old).collect();
    let scanned = old.last()?.version;
    let automatic = old.iter().filter(|candidate| candidate.is_automatic());
    let removed: Vec<_> = automatic.map(|candidate| candidate.version).collect();
    let floor = removed.last().copied().unwrap_or(0).max(pruned.floor);
    Some((Pruned { floor, scanned }, removed, old.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(name: &str, expected: Precondition, text: Option<&str>) -> Edit {
        Edit { item: ItemId::rule(name), expected, text: text.map(str::to_owned) }
    }

    fn current() -> CurrentItems {
        let item = ItemId::rule("a");
        [(item.clone(), StoredItem { item, version: Version::new(0, 3), text: "old".into() })].into()
    }

    fn check(expected: Precondition, name: &str, text: Option<&str>) -> String {
        match plan_changes(vec![edit(name, expected, text)], &current(), Version::new(0, 9), 0) {
            Ok(changes) => changes.iter().map(|change| change.version.to_string()).collect(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn an_edit_is_made_only_on_what_its_author_has_seen() {
        let precondition = Precondition::AtVersion(Version::new(0, 3));
        assert_eq!(check(precondition, "a", Some("new")), "0-10");
        assert_eq!(check(precondition, "a", None), "0-10");
        assert_eq!(check(Precondition::Any, "b", Some("new")), "0-10");
        let late = check(Precondition::AtVersion(Version::new(0, 2)), "a", Some("new"));
        assert!(late.starts_with("rule a is at version 0-3 now"), "{late}");
        let deleted = check(precondition, "b", Some("new"));
        assert!(deleted.starts_with("rule b is deleted now"), "{deleted}");
        assert!(check(Precondition::Absent, "a", Some("new")).starts_with("rule a exists"));
        assert!(check(Precondition::Any, "b", None).starts_with("there is no rule b"));
    }

    #[test]
    fn an_edit_that_changes_nothing_takes_no_number() {
        assert_eq!(check(Precondition::Any, "a", Some("old")), "");
    }

    #[test]
    fn an_item_is_edited_once_per_batch() {
        let edits = ["a", "b", "a"].map(|name| edit(name, Precondition::Any, None));
        let error = check_items(&edits).expect_err("a is there twice").to_string();
        assert_eq!(error, "rule a is edited twice in one batch (edit 3)");
    }
}
