//! The append-only log of changes. Author and time are stored once for all changes of one call.
//!
//! It is pruned from its start; automatic bans are pruned earlier. Up to its floor entries may be missing, so nodes
//! that are further behind cannot follow it.
//!
//! The entry of a rule has the text that the change replaced. The new text is in the next entry of the rule or, if
//! there is none, in its row: a million rules are on disk once. Other items can disappear without an entry, as expired
//! bans do, so their entries have the new text.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate::Time;

use super::items;
use crate::rules::change_set::OpenSet;
use crate::rules::plan::{self, Candidate, CurrentItems, Pruned};
use crate::rules::{
    Author, ChangeFeed, ChangeLogEntry, ChangeSet, DbError, ItemChange, ItemId, ItemKind, Version,
};

pub(super) fn last_version(connection: &Connection) -> Result<Version, DbError> {
    let mut query = connection.prepare_cached("SELECT coalesce(max(v), 0) FROM log")?;
    Ok(query.query_row([], |row| row.get(0).map(Version::from_packed))?)
}

/// Logs changes before they are applied: `current` is what they replace.
pub(super) fn append(
    connection: &Connection,
    set: &mut OpenSet<'_>,
    changes: &[ItemChange],
    current: &CurrentItems,
) -> Result<(), DbError> {
    let Some(first) = changes.first() else { return Ok(()) };
    if set.first.is_none() {
        set.first = Some(first.version);
        let Author { name, at, note } = set.author;
        let at = i64::try_from(at.nanos()).unwrap_or(i64::MAX);
        connection.execute(
            "INSERT INTO author (first, who, at, undoes, note) VALUES (?1, ?2, ?3, ?4, ?5)",
            params![first.version.packed(), name, at, set.undoes.map(Version::packed), note],
        )?;
    }
    let sql = "INSERT INTO log (v, kind, name, previous, body, before) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let mut insert = connection.prepare_cached(sql)?;
    for ItemChange { item, version, previous, text } in changes {
        let previous = previous.map(Version::packed);
        let before = current.get(item).map(|stored| &stored.text).filter(|_| item.kind == ItemKind::Rule);
        let after = text.as_ref().filter(|_| item.kind != ItemKind::Rule);
        insert.execute(params![version.packed(), item.kind as i16, item.name, previous, after, before])?;
    }
    Ok(())
}

/// Records where a set ends.
pub(super) fn close(connection: &Connection, set: &OpenSet<'_>) -> Result<(), DbError> {
    let Some(ChangeSet { first, last, created, changed, deleted }) = set.finished() else { return Ok(()) };
    let sql = "UPDATE author SET last = ?2, created = ?3, changed = ?4, deleted = ?5 WHERE first = ?1";
    connection.execute(sql, params![first.packed(), last.packed(), created, changed, deleted])?;
    Ok(())
}

/// The entries of a set after a version, in their order.
pub(super) fn entries_of(
    connection: &Connection,
    set: &ChangeSet,
    after: Option<Version>,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, DbError> {
    let from = after.map_or(set.first.packed(), |after| after.packed() + 1);
    let sql = format!("{SELECT_LOG} WHERE log.v >= ?1 AND log.v <= ?2 ORDER BY log.v LIMIT ?3");
    let mut query = connection.prepare_cached(&sql)?;
    with_texts(connection, query.query_map(params![from, set.last.packed(), limit], read_entry)?)
}

/// Whether no entry of a set was pruned.
pub(super) fn is_whole(connection: &Connection, set: &ChangeSet) -> Result<bool, DbError> {
    let sql = "SELECT count(*) FROM log WHERE v >= ?1 AND v <= ?2";
    let count: u64 = connection.query_row(sql, [set.first.packed(), set.last.packed()], |row| row.get(0))?;
    Ok(count == set.changes())
}

/// The changes after a version, if this file has that version.
pub(super) fn changes_since(
    connection: &Connection,
    version: Version,
    limit: usize,
) -> Result<ChangeFeed, DbError> {
    let floor = pruned(connection)?.floor;
    let known = "SELECT 1 FROM log WHERE v = ?1";
    let known = connection.prepare_cached(known)?.query_row([version.packed()], |_| Ok(())).optional()?;
    let is_known = version.packed() == floor || version.packed() > floor && known.is_some();
    if !is_known {
        return Ok(ChangeFeed::Diverged);
    }
    let sql = "SELECT v, kind, name, previous, body FROM log WHERE v > ?1 ORDER BY v LIMIT ?2";
    let mut query = connection.prepare_cached(sql)?;
    let changes = query.query_map(params![version.packed(), limit], read_change)?;
    let mut changes: Vec<ItemChange> = changes.collect::<Result<_, _>>()?;
    for change in &mut changes {
        fill_text(connection, change)?;
    }
    Ok(ChangeFeed::Changes(changes))
}

fn pruned(connection: &Connection) -> Result<Pruned, DbError> {
    let mut query = connection.prepare_cached("SELECT floor, scanned FROM pruned")?;
    Ok(query.query_row([], |row| Ok(Pruned { floor: row.get(0)?, scanned: row.get(1)? }))?)
}

fn note_pruned(connection: &Connection, pruned: Pruned) -> Result<(), DbError> {
    let Pruned { floor, scanned } = pruned;
    connection.execute("UPDATE pruned SET floor = ?1, scanned = ?2", [floor, scanned])?;
    Ok(())
}

/// Removes up to `batch` of the oldest entries from before a time, but never the last entry.
pub(super) fn prune(connection: &Connection, before: Time, batch: usize) -> Result<usize, DbError> {
    let mut query = connection.prepare_cached("SELECT first, at FROM author ORDER BY first LIMIT ?1")?;
    let authors = query.query_map([batch.saturating_add(1)], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let authors: Vec<(i64, i64)> = authors.collect::<Result<_, _>>()?;
    let Some(end) = plan::prune_bound(&authors, before) else { return Ok(0) };
    let sql = "SELECT max(v) FROM (SELECT v FROM log WHERE v < ?1 ORDER BY v LIMIT ?2)";
    let last: Option<i64> = connection.query_row(sql, params![end, batch], |row| row.get(0))?;
    let mut removed = 0;
    if let Some(last) = last {
        removed = connection.execute("DELETE FROM log WHERE v <= ?1", [last])?;
        let Pruned { floor, scanned } = pruned(connection)?;
        note_pruned(connection, Pruned { floor: floor.max(last), scanned: scanned.max(last) })?;
    }
    if removed < batch {
        connection.execute("DELETE FROM author WHERE first < ?1", [end])?;
    }
    Ok(removed)
}

/// Removes automatic bans from before a time, and those that `kept` or more entries follow, but never the last entry. Scans
/// up to `batch` of the next entries, and returns the number scanned.
pub(super) fn prune_automatic_bans(
    connection: &Connection,
    before: Time,
    kept: usize,
    batch: usize,
) -> Result<usize, DbError> {
    let known = pruned(connection)?;
    let sql = "SELECT v FROM log WHERE v > ?1 ORDER BY v DESC LIMIT 1 OFFSET ?2";
    let beyond = connection.query_row(sql, params![known.scanned, kept], |row| row.get(0)).optional()?;
    let sql = "SELECT log.v, kind, body, who, at
        FROM log JOIN author ON author.first = (SELECT max(first) FROM author WHERE first <= log.v)
        WHERE log.v > ?1 AND log.v < (SELECT max(v) FROM log) ORDER BY log.v LIMIT ?2";
    let mut query = connection.prepare_cached(sql)?;
    let candidates = query.query_map(params![known.scanned, batch], |row| {
        Ok(Candidate {
            version: row.get(0)?,
            kind: row.get(1)?,
            text: row.get(2)?,
            author: row.get(3)?,
            at: row.get(4)?,
        })
    })?;
    let candidates = candidates.collect::<Result<_, _>>()?;
    let Some((next, removed, looked)) = plan::prune_automatic(known, candidates, before, beyond) else {
        return Ok(0);
    };
    let mut remove = connection.prepare_cached("DELETE FROM log WHERE v = ?1")?;
    for version in removed {
        remove.execute([version])?;
    }
    // Authors without remaining entries.
    let sql = "DELETE FROM author WHERE first <= ?2
        AND first >= coalesce((SELECT max(first) FROM author WHERE first <= ?1), 0)
        AND NOT EXISTS (SELECT 1 FROM log WHERE v >= author.first AND v < coalesce(
            (SELECT min(next.first) FROM author AS next WHERE next.first > author.first), ?3))";
    connection.execute(sql, [known.scanned, next.scanned, i64::MAX])?;
    note_pruned(connection, next)?;
    Ok(looked)
}

/// Fills in the text of a rule after a change.
fn fill_text(connection: &Connection, change: &mut ItemChange) -> Result<(), DbError> {
    if change.item.kind != ItemKind::Rule {
        return Ok(());
    }
    let sql = "SELECT before FROM log WHERE kind = 0 AND previous = ?1";
    let mut query = connection.prepare_cached(sql)?;
    let replaced = query.query_row([change.version.packed()], |row| row.get(0)).optional()?;
    change.text = match replaced {
        Some(text) => text,
        None => {
            let now = items::get(connection, &change.item)?;
            now.filter(|stored| stored.version == change.version).map(|stored| stored.text)
        }
    };
    Ok(())
}

const SELECT_LOG: &str = "SELECT log.v, kind, name, previous, body, who, at, undoes,
        coalesce(before, (SELECT earlier.body FROM log AS earlier WHERE earlier.v = log.previous)),
        note, first, last, created, changed, deleted
    FROM log JOIN author ON author.first = (SELECT max(first) FROM author WHERE first <= log.v)";

pub(super) fn find(connection: &Connection, version: Version) -> Result<Option<ChangeLogEntry>, DbError> {
    let mut query = connection.prepare_cached(&format!("{SELECT_LOG} WHERE log.v = ?1"))?;
    let mut found = query.query_row([version.packed()], read_entry).optional()?;
    if let Some(logged) = &mut found {
        fill_text(connection, &mut logged.change)?;
    }
    Ok(found)
}

fn with_texts(
    connection: &Connection,
    rows: impl Iterator<Item = rusqlite::Result<ChangeLogEntry>>,
) -> Result<Vec<ChangeLogEntry>, DbError> {
    let mut all: Vec<ChangeLogEntry> = rows.collect::<Result<_, _>>()?;
    for logged in &mut all {
        fill_text(connection, &mut logged.change)?;
    }
    Ok(all)
}

pub(super) fn page(
    connection: &Connection,
    before: Option<Version>,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, DbError> {
    let mut query =
        connection.prepare_cached(&format!("{SELECT_LOG} WHERE log.v < ?1 ORDER BY log.v DESC LIMIT ?2"))?;
    let before = before.map_or(i64::MAX, Version::packed);
    with_texts(connection, query.query_map(params![before, limit], read_entry)?)
}

/// The last change of each call within a time, latest first, without those of the nodes themselves.
pub(super) fn calls(
    connection: &Connection,
    from: Time,
    to: Time,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, DbError> {
    let sql = format!(
        "{SELECT_LOG} WHERE log.v IN (SELECT coalesce(last, first) FROM author
            WHERE who <> ?1 AND at >= ?2 AND at <= ?3 ORDER BY first DESC LIMIT ?4) ORDER BY log.v DESC"
    );
    let [from, to] = [from, to].map(|time| i64::try_from(time.nanos()).unwrap_or(i64::MAX));
    let mut query = connection.prepare_cached(&sql)?;
    with_texts(connection, query.query_map(params![Author::AUTOMATIC, from, to, limit], read_entry)?)
}

/// Changes of one item. Without an index: the query is rare, and an index would cost every rule.
pub(super) fn history(
    connection: &Connection,
    item: &ItemId,
    before: Option<Version>,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, DbError> {
    let sql =
        format!("{SELECT_LOG} WHERE log.v < ?1 AND kind = ?3 AND name = ?4 ORDER BY log.v DESC LIMIT ?2");
    let before = before.map_or(i64::MAX, Version::packed);
    let mut query = connection.prepare_cached(&sql)?;
    with_texts(connection, query.query_map(params![before, limit, item.kind as i16, item.name], read_entry)?)
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<ChangeLogEntry> {
    let at: i64 = row.get(6)?;
    Ok(ChangeLogEntry {
        change: read_change(row)?,
        author: row.get(5)?,
        at: Time::from_nanos(at.unsigned_abs()),
        undoes: row.get::<_, Option<i64>>(7)?.map(Version::from_packed),
        before: row.get(8)?,
        note: row.get(9)?,
        set: ChangeSet::from_columns(row.get(10)?, row.get(11)?, [row.get(12)?, row.get(13)?, row.get(14)?]),
    })
}

fn read_change(row: &Row<'_>) -> rusqlite::Result<ItemChange> {
    let code: i16 = row.get(1)?;
    let kind = ItemKind::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(1, code.into()))?;
    Ok(ItemChange {
        item: ItemId::new(kind, row.get::<_, String>(2)?),
        version: Version::from_packed(row.get(0)?),
        previous: row.get::<_, Option<i64>>(3)?.map(Version::from_packed),
        text: row.get(4)?,
    })
}
