//! Loads all items from one snapshot, in batches: they are never all in memory.

use rusqlite::{Connection, Row};

use super::{items, log};
use crate::rules::{DbError, StoredItem, Version};

/// Items per batch.
const BATCH: usize = 1_000;

pub(super) fn load_all(
    mut connection: Connection,
    mut each: impl FnMut(Vec<StoredItem>, u64),
) -> Result<Version, DbError> {
    let transaction = connection.transaction()?;
    let version = log::last_version(&transaction)?;
    let count = "SELECT (SELECT count(*) FROM rule) + (SELECT count(*) FROM thing)";
    let total = transaction.query_row(count, [], |row| row.get(0))?;
    let rules = format!("SELECT {} FROM rule", items::RULE_COLUMNS);
    stream(&transaction, &rules, items::read_rule, |batch| each(batch, total))?;
    let others = format!("SELECT {} FROM thing", items::ITEM_COLUMNS);
    stream(&transaction, &others, items::read_item, |batch| each(batch, total))?;
    Ok(version)
}

fn stream(
    connection: &Connection,
    sql: &str,
    read: fn(&Row<'_>) -> rusqlite::Result<StoredItem>,
    mut each: impl FnMut(Vec<StoredItem>),
) -> Result<(), DbError> {
    let mut query = connection.prepare(sql)?;
    let mut batch = Vec::with_capacity(BATCH);
    for row in query.query_map([], read)? {
        batch.push(row?);
        if batch.len() == BATCH {
            each(std::mem::replace(&mut batch, Vec::with_capacity(BATCH)));
        }
    }
    if !batch.is_empty() {
        each(batch);
    }
    Ok(())
}
