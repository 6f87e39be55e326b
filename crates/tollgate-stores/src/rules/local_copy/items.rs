//! The rows of a local copy: the items of the database, and past changes of rules.
//!
//! Every row that is inserted or deleted updates the digest in the head.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate::Time;

use super::head::{CopyHead, FieldHasher, RowsDigest, nanos};
use super::{CopyError, MAX_PAST};
use crate::rules::text::expiry;
use crate::rules::{ChangeLogEntry, ItemChange, ItemId, ItemKind, StoredItem, Version};

pub(super) const TABLES: &str = "
    CREATE TABLE item (kind INTEGER NOT NULL, name TEXT NOT NULL, v INTEGER NOT NULL, until INTEGER, text TEXT NOT NULL);
    CREATE TABLE past (v INTEGER PRIMARY KEY, name TEXT NOT NULL, before TEXT, after TEXT, at INTEGER NOT NULL);";
/// Created after the rows: sorting a million once is faster than a million single inserts.
pub(super) const INDEXES: &str = "
    CREATE UNIQUE INDEX item_name ON item (kind, name);
    CREATE INDEX item_until ON item (until) WHERE until IS NOT NULL;";

/// Items per batch.
const BATCH: usize = 1_000;
const ITEM: &str = "SELECT kind, name, v, until, text FROM item";
const PAST: &str = "SELECT v, name, before, after, at FROM past";

/// A row of `item`.
struct ItemRow {
    stored: StoredItem,
    until: Option<i64>,
}

impl ItemRow {
    fn new(stored: StoredItem) -> ItemRow {
        let until = expiry(stored.item.kind, &stored.text).ok().flatten();
        ItemRow { stored, until }
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<ItemRow> {
        let code: i16 = row.get(0)?;
        let kind =
            ItemKind::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code.into()))?;
        let item = ItemId::new(kind, row.get::<_, String>(1)?);
        let stored = StoredItem { item, version: Version::from_packed(row.get(2)?), text: row.get(4)? };
        Ok(ItemRow { stored, until: row.get(3)? })
    }

    fn hash(&self) -> FieldHasher {
        let mut hash = FieldHasher::new("item");
        hash.number(self.stored.item.kind as i64);
        hash.text(Some(&self.stored.item.name));
        hash.number(self.stored.version.packed());
        hash.number(self.until.unwrap_or(-1));
        hash.text(Some(&self.stored.text));
        hash
    }
}

/// A row of `past`.
struct PastRow {
    version: Version,
    name: String,
    before: Option<String>,
    after: Option<String>,
    at: i64,
}

impl PastRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<PastRow> {
        Ok(PastRow {
            version: Version::from_packed(row.get(0)?),
            name: row.get(1)?,
            before: row.get(2)?,
            after: row.get(3)?,
            at: row.get(4)?,
        })
    }

    fn hash(&self) -> FieldHasher {
        let mut hash = FieldHasher::new("past");
        hash.number(self.version.packed());
        hash.text(Some(&self.name));
        hash.text(self.before.as_deref());
        hash.text(self.after.as_deref());
        hash.number(self.at);
        hash
    }
}

pub(super) fn load_all(
    connection: &Connection,
    mut each: impl FnMut(Vec<StoredItem>, u64),
) -> Result<(), CopyError> {
    let total = connection.query_row("SELECT count(*) FROM item", [], |row| row.get(0))?;
    let mut query = connection.prepare(ITEM)?;
    let mut batch = Vec::with_capacity(BATCH);
    for row in query.query_map([], ItemRow::read)? {
        batch.push(row?.stored);
        if batch.len() == BATCH {
            each(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)), total);
        }
    }
    if !batch.is_empty() {
        each(batch, total);
    }
    Ok(())
}

pub(super) fn digest_of_all(connection: &Connection) -> Result<RowsDigest, CopyError> {
    let mut contents = RowsDigest::default();
    let mut query = connection.prepare(ITEM)?;
    for row in query.query_map([], ItemRow::read)? {
        contents.add(row?.hash());
    }
    let mut query = connection.prepare(PAST)?;
    for former in query.query_map([], PastRow::read)? {
        contents.add(former?.hash());
    }
    Ok(contents)
}

pub(super) fn past(connection: &Connection) -> Result<Vec<ChangeLogEntry>, CopyError> {
    let mut query = connection.prepare(&format!("{PAST} ORDER BY v DESC LIMIT {MAX_PAST}"))?;
    let rows = query.query_map([], PastRow::read)?;
    let logged = rows.map(|former| {
        let PastRow { version, name, before, after, at } = former?;
        let change = ItemChange { item: ItemId::rule(&name), version, previous: None, text: after };
        let at = Time::from_nanos(at.unsigned_abs());
        Ok(ChangeLogEntry { change, before, author: String::new(), at, undoes: None, note: None, set: None })
    });
    logged.collect()
}

/// Applies one change, and returns the previous text.
pub(super) fn put(
    connection: &Connection,
    head: &mut CopyHead,
    change: &ItemChange,
) -> Result<Option<String>, CopyError> {
    let ItemChange { item, version, text, .. } = change;
    let before = find(connection, item)?;
    if let Some(row) = &before {
        head.contents.remove(row.hash());
    }
    match text {
        Some(text) => {
            let stored = StoredItem { item: item.clone(), version: *version, text: text.clone() };
            insert(connection, head, stored)?;
        }
        None => delete(connection, item)?,
    }
    Ok(before.map(|row| row.stored.text))
}

fn find(connection: &Connection, item: &ItemId) -> Result<Option<ItemRow>, CopyError> {
    let mut query = connection.prepare_cached(&format!("{ITEM} WHERE kind = ?1 AND name = ?2"))?;
    Ok(query.query_row(params![item.kind as i16, item.name], ItemRow::read).optional()?)
}

fn delete(connection: &Connection, item: &ItemId) -> Result<(), CopyError> {
    let mut query = connection.prepare_cached("DELETE FROM item WHERE kind = ?1 AND name = ?2")?;
    query.execute(params![item.kind as i16, item.name])?;
    Ok(())
}

/// Inserts or replaces an item. The digest must no longer include the replaced row.
fn insert(connection: &Connection, head: &mut CopyHead, stored: StoredItem) -> Result<(), CopyError> {
    // Update in place, so that edits do not grow the file.
    let sql = "INSERT INTO item (kind, name, v, until, text) VALUES (?1, ?2, ?3, ?4, ?5)
        ON CONFLICT (kind, name) DO UPDATE SET v = excluded.v, until = excluded.until, text = excluded.text";
    write(connection, sql, head, stored)
}

/// Appends an item to a file without indexes.
pub(super) fn append(
    connection: &Connection,
    head: &mut CopyHead,
    stored: StoredItem,
) -> Result<(), CopyError> {
    let sql = "INSERT INTO item (kind, name, v, until, text) VALUES (?1, ?2, ?3, ?4, ?5)";
    write(connection, sql, head, stored)
}

fn write(
    connection: &Connection,
    sql: &str,
    head: &mut CopyHead,
    stored: StoredItem,
) -> Result<(), CopyError> {
    let row = ItemRow::new(stored);
    let StoredItem { item, version, text } = &row.stored;
    let values = params![item.kind as i16, item.name, version.packed(), row.until, text];
    connection.prepare_cached(sql)?.execute(values)?;
    head.contents.add(row.hash());
    Ok(())
}

/// Records a rule's text before a change.
pub(super) fn insert_past_change(
    connection: &Connection,
    head: &mut CopyHead,
    change: &ItemChange,
    before: Option<String>,
    now: Time,
) -> Result<(), CopyError> {
    let ItemChange { item, version, text, .. } = change;
    if item.kind != ItemKind::Rule {
        return Ok(());
    }
    let name = item.name.to_string();
    let after = text.clone();
    insert_past(connection, head, &PastRow { version: *version, name, before, after, at: nanos(now) })
}

/// Records a log entry of a rule in a new copy.
pub(super) fn insert_logged(
    connection: &Connection,
    head: &mut CopyHead,
    logged: ChangeLogEntry,
) -> Result<(), CopyError> {
    let ItemChange { item, version, text, .. } = logged.change;
    let name = item.name.into();
    let at = nanos(logged.at);
    insert_past(connection, head, &PastRow { version, name, before: logged.before, after: text, at })
}

fn insert_past(connection: &Connection, head: &mut CopyHead, former: &PastRow) -> Result<(), CopyError> {
    let PastRow { version, name, before, after, at } = former;
    let sql = "INSERT INTO past (v, name, before, after, at) VALUES (?1, ?2, ?3, ?4, ?5)";
    connection.prepare_cached(sql)?.execute(params![version.packed(), name, before, after, at])?;
    head.contents.add(former.hash());
    Ok(())
}

/// Deletes the oldest past changes beyond [`MAX_PAST`].
pub(super) fn trim_past(connection: &Connection, head: &mut CopyHead) -> Result<(), CopyError> {
    let mut query =
        connection.prepare_cached(&format!("{PAST} ORDER BY v DESC LIMIT -1 OFFSET {MAX_PAST}"))?;
    let old: Vec<PastRow> = query.query_map([], PastRow::read)?.collect::<Result<_, _>>()?;
    for former in old {
        head.contents.remove(former.hash());
        connection.prepare_cached("DELETE FROM past WHERE v = ?1")?.execute([former.version.packed()])?;
    }
    Ok(())
}

pub(super) fn has_expired(connection: &Connection, now: Time) -> Result<bool, CopyError> {
    let sql = "SELECT EXISTS (SELECT 1 FROM item WHERE until IS NOT NULL AND until <= ?1)";
    Ok(connection.prepare_cached(sql)?.query_row([nanos(now)], |row| row.get(0))?)
}

pub(super) fn remove_expired(
    connection: &Connection,
    head: &mut CopyHead,
    now: Time,
    batch: usize,
) -> Result<usize, CopyError> {
    let sql = format!("{ITEM} WHERE until IS NOT NULL AND until <= ?1 ORDER BY until LIMIT ?2");
    let mut query = connection.prepare_cached(&sql)?;
    let rows = query.query_map(params![nanos(now), batch], ItemRow::read)?;
    let over: Vec<ItemRow> = rows.collect::<Result<_, _>>()?;
    for row in &over {
        head.contents.remove(row.hash());
        delete(connection, &row.stored.item)?;
    }
    Ok(over.len())
}
