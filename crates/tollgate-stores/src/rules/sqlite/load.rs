//! Reads everything, as of one moment, without ever holding all of it.

use rusqlite::{Connection, Row};

use super::{log, things};
use crate::rules::{DbError, Stored, Version};

/// Things given out at once.
const BATCH: usize = 1_000;

pub(super) fn all(
    mut connection: Connection,
    mut each: impl FnMut(Vec<Stored>, u64),
) -> Result<Version, DbError> {
    let transaction = connection.transaction()?;
    let version = log::last(&transaction)?;
    let count = "SELECT (SELECT count(*) FROM rule) + (SELECT count(*) FROM thing)";
    let total = transaction.query_row(count, [], |row| row.get(0))?;
    let rules = format!("SELECT {} FROM rule", things::RULE);
    stream(&transaction, &rules, things::read_rule, |batch| each(batch, total))?;
    let others = format!("SELECT {} FROM thing", things::THING);
    stream(&transaction, &others, things::read_thing, |batch| each(batch, total))?;
    Ok(version)
}

fn stream(
    connection: &Connection,
    sql: &str,
    read: fn(&Row<'_>) -> rusqlite::Result<Stored>,
    mut each: impl FnMut(Vec<Stored>),
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
