//! Current items, one row each.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate::Time;

use super::word_codes::{decode, encode};
use crate::rules::plan::CurrentItems;
use crate::rules::row::RuleRow;
use crate::rules::text::expiry;
use crate::rules::{DbError, ItemChange, ItemId, ItemKind, PageQuery, StoredItem, Version};

pub(super) const RULE_COLUMNS: &str = "id, v, uid, method, url, unit, requests, algorithm, options";
pub(super) const ITEM_COLUMNS: &str = "kind, name, v, body";

pub(super) fn get(connection: &Connection, item: &ItemId) -> Result<Option<StoredItem>, DbError> {
    if item.kind == ItemKind::Rule {
        let mut query =
            connection.prepare_cached(&format!("SELECT {RULE_COLUMNS} FROM rule WHERE id = ?1"))?;
        return Ok(query.query_row([&item.name], read_rule).optional()?);
    }
    let mut query = connection.prepare_cached("SELECT v, body FROM thing WHERE kind = ?1 AND name = ?2")?;
    let read = |row: &Row<'_>| {
        Ok(StoredItem { item: item.clone(), version: Version::from_packed(row.get(0)?), text: row.get(1)? })
    };
    Ok(query.query_row(params![item.kind as i16, item.name], read).optional()?)
}

/// The current state of some items; missing ones are left out.
pub(super) fn find<'i>(
    connection: &Connection,
    items: impl IntoIterator<Item = &'i ItemId>,
) -> Result<CurrentItems, DbError> {
    let mut current = CurrentItems::new();
    for item in items {
        current.extend(get(connection, item)?.map(|stored| (stored.item.clone(), stored)));
    }
    Ok(current)
}

pub(super) fn page(connection: &Connection, page: &PageQuery) -> Result<Vec<StoredItem>, DbError> {
    let PageQuery { kind, after, limit, .. } = page;
    let (from, to) = page.range();
    if *kind == ItemKind::Rule {
        let sql = format!(
            "SELECT {RULE_COLUMNS} FROM rule WHERE id > ?1 AND id >= ?2 AND id < ?3 ORDER BY id LIMIT ?4"
        );
        let mut query = connection.prepare_cached(&sql)?;
        let rows = query.query_map(params![after, from, to, limit], read_rule)?;
        return Ok(rows.collect::<Result<_, _>>()?);
    }
    let sql = format!(
        "SELECT {ITEM_COLUMNS} FROM thing
         WHERE kind = ?5 AND name > ?1 AND name >= ?2 AND name < ?3 ORDER BY name LIMIT ?4"
    );
    let mut query = connection.prepare_cached(&sql)?;
    let rows = query.query_map(params![after, from, to, limit, *kind as i16], read_item)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

pub(super) fn read_item(row: &Row<'_>) -> rusqlite::Result<StoredItem> {
    let code: i16 = row.get(0)?;
    let kind = ItemKind::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(0, code.into()))?;
    let item = ItemId::new(kind, row.get::<_, String>(1)?);
    Ok(StoredItem { item, version: Version::from_packed(row.get(2)?), text: row.get(3)? })
}

pub(super) fn read_rule(row: &Row<'_>) -> rusqlite::Result<StoredItem> {
    let rule = RuleRow {
        id: row.get(0)?,
        uid: row.get(2)?,
        method: decode(row.get(3)?),
        url: row.get(4)?,
        unit: decode(row.get(5)?),
        requests: row.get(6)?,
        algorithm: decode(row.get(7)?),
        options: row.get(8)?,
    };
    Ok(StoredItem {
        item: ItemId::rule(&rule.id),
        version: Version::from_packed(row.get(1)?),
        text: rule.to_json(),
    })
}

pub(super) fn put(connection: &Connection, change: &ItemChange) -> Result<(), DbError> {
    let ItemChange { item, version, text, .. } = change;
    match (item.kind, text) {
        (ItemKind::Rule, Some(text)) => {
            let rule = RuleRow::from_json(text)?;
            let sql = format!(
                "INSERT OR REPLACE INTO rule ({RULE_COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)"
            );
            connection.prepare_cached(&sql)?.execute(params![
                rule.id,
                version.packed(),
                rule.uid,
                encode(rule.method.as_deref()),
                rule.url,
                encode(rule.unit.as_deref()),
                rule.requests,
                encode(rule.algorithm.as_deref()),
                rule.options
            ])?;
        }
        (ItemKind::Rule, None) => {
            connection.prepare_cached("DELETE FROM rule WHERE id = ?1")?.execute([&item.name])?;
        }
        (kind, Some(text)) => {
            let sql = "INSERT OR REPLACE INTO thing (kind, name, v, until, body) VALUES (?1, ?2, ?3, ?4, ?5)";
            let until = expiry(kind, text)?;
            let values = params![kind as i16, item.name, version.packed(), until, text];
            connection.prepare_cached(sql)?.execute(values)?;
        }
        (kind, None) => {
            let sql = "DELETE FROM thing WHERE kind = ?1 AND name = ?2";
            connection.prepare_cached(sql)?.execute(params![kind as i16, item.name])?;
        }
    }
    Ok(())
}

pub(super) fn remove_expired(connection: &Connection, now: Time, batch: usize) -> Result<usize, DbError> {
    let sql = "DELETE FROM thing WHERE (kind, name) IN (
        SELECT kind, name FROM thing WHERE until IS NOT NULL AND until <= ?1 ORDER BY until LIMIT ?2)";
    let now = i64::try_from(now.nanos()).unwrap_or(i64::MAX);
    Ok(connection.prepare_cached(sql)?.execute(params![now, batch])?)
}
