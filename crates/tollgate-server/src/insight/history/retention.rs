//! What is deleted: points that are too old, and the oldest ones while the file is too large.

use rusqlite::{Connection, OptionalExtension};

use super::{HistoryStep, migration};
use crate::insight::HOUR;

pub(super) const MAX_DAYS: u64 = 30;
/// Share of the bound above which points are deleted, in percent: the rest is for the journal.
const FULL_PERCENT: u64 = 90;
/// Hours are few: they are deleted when no minutes are left.
const HOURS_AT_ONCE: u64 = 24;

/// Deletes what is older than 30 days.
pub(super) fn delete_old(connection: &Connection, now: u64) -> rusqlite::Result<()> {
    let oldest = now.saturating_sub(MAX_DAYS * 24 * HOUR);
    migration::delete_before(connection, oldest)?;
    for step in HistoryStep::ALL {
        delete_before(connection, step, oldest)?;
    }
    Ok(())
}

/// Deletes the oldest minutes, an hour at a time, and then the oldest hours, until the file is small enough.
pub(super) fn shrink(connection: &mut Connection, max_bytes: u64) -> rusqlite::Result<()> {
    while used_bytes(connection)? > max_bytes / 100 * FULL_PERCENT {
        if !delete_oldest(connection)? {
            return Ok(());
        }
        release_free_pages(connection)?;
    }
    Ok(())
}

/// Whether anything was left to delete.
fn delete_oldest(connection: &mut Connection) -> rusqlite::Result<bool> {
    if migration::delete_oldest(connection, HOUR)? {
        return Ok(true);
    }
    for (step, secs) in [(HistoryStep::Minute, HOUR), (HistoryStep::Hour, HOURS_AT_ONCE * HOUR)] {
        let mut oldest = None;
        let find = format!("SELECT MIN(at) FROM {} WHERE rule = ?1", step.table());
        for series in all_series(connection, step)? {
            let first: Option<i64> =
                connection.prepare_cached(&find)?.query_row([series], |row| row.get(0))?;
            oldest = oldest.min(first).or(oldest).or(first);
        }
        if let Some(oldest) = oldest {
            delete_before(connection, step, oldest.unsigned_abs() + secs)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn delete_before(connection: &Connection, step: HistoryStep, before: u64) -> rusqlite::Result<()> {
    let delete = format!("DELETE FROM {} WHERE rule = ?1 AND at < ?2", step.table());
    for series in all_series(connection, step)? {
        connection.prepare_cached(&delete)?.execute((series, before as i64))?;
    }
    Ok(())
}

/// The names of the series in a table, each found by one search.
fn all_series(connection: &Connection, step: HistoryStep) -> rusqlite::Result<Vec<String>> {
    let table = step.table();
    let mut first = connection.prepare_cached(&format!("SELECT MIN(rule) FROM {table}"))?;
    let mut next = connection
        .prepare_cached(&format!("SELECT rule FROM {table} WHERE rule > ?1 ORDER BY rule LIMIT 1"))?;
    let mut series = Vec::new();
    let mut found: Option<String> = first.query_row([], |row| row.get(0))?;
    while let Some(name) = found {
        found = next.query_row([&name], |row| row.get(0)).optional()?;
        series.push(name);
    }
    Ok(series)
}

/// Makes the file as short as its contents.
pub(super) fn release_free_pages(connection: &Connection) -> rusqlite::Result<()> {
    let mut vacuum = connection.prepare_cached("PRAGMA incremental_vacuum")?;
    let mut pages = vacuum.raw_query();
    while pages.next()?.is_some() {} // a page per row
    connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
}

pub(super) fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let pages = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
    Ok(pages.unsigned_abs() * number("PRAGMA page_size")?.unsigned_abs())
}
