//! The row of the ramp, and the counts of the nodes.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate::Time;

use crate::rules::{DbError, MAX_RAMP_NODES, RampRow, RampWrite, Version};

pub(super) fn read(connection: &Connection) -> Result<Option<RampRow>, DbError> {
    let sql = "SELECT id, revision, change, owner, lease_until, state FROM ramp LIMIT 1";
    Ok(connection.prepare_cached(sql)?.query_row([], read_row).optional()?)
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<RampRow> {
    Ok(RampRow {
        id: row.get(0)?,
        revision: row.get(1)?,
        change: Version::from_packed(row.get(2)?),
        owner: row.get(3)?,
        lease_until: Time::from_nanos(row.get::<_, i64>(4)?.unsigned_abs()),
        state: row.get(5)?,
    })
}

/// `change` is the version of the apply that starts a ramp.
pub(super) fn write(connection: &Connection, write: RampWrite, change: Version) -> Result<(), DbError> {
    match write {
        RampWrite::Start(RampRow { id, owner, lease_until, state, .. }) => {
            connection.execute_batch("DELETE FROM ramp; DELETE FROM ramp_count;")?;
            let sql = "INSERT INTO ramp (id, revision, change, owner, lease_until, state)
                VALUES (?1, 0, ?2, ?3, ?4, ?5)";
            connection.execute(sql, params![id, change.packed(), owner, nanos(lease_until), state])?;
        }
        RampWrite::Update(RampRow { id, revision, owner, lease_until, state, .. }) => {
            let sql = "UPDATE ramp SET revision = revision + 1, owner = ?3, lease_until = ?4, state = ?5
                WHERE id = ?1 AND revision = ?2";
            let updated = connection.execute(sql, params![id, revision, owner, nanos(lease_until), state])?;
            if updated == 0 {
                return Err(DbError::RampMoved);
            }
        }
    }
    Ok(())
}

fn nanos(time: Time) -> i64 {
    i64::try_from(time.nanos()).unwrap_or(i64::MAX)
}

/// Stores the counts of a node; of a ramp that has ended, or beyond the bound, none.
pub(super) fn put_counts(
    connection: &Connection,
    ramp: &str,
    node: &str,
    counts: &str,
) -> Result<(), DbError> {
    let sql = "INSERT OR REPLACE INTO ramp_count (ramp, node, counts)
        SELECT id, ?2, ?3 FROM ramp WHERE id = ?1 AND (SELECT count(*) FROM ramp_count) < ?4";
    connection.prepare_cached(sql)?.execute(params![ramp, node, counts, MAX_RAMP_NODES])?;
    Ok(())
}

pub(super) fn counts(connection: &Connection, ramp: &str) -> Result<Vec<String>, DbError> {
    let mut query = connection.prepare_cached("SELECT counts FROM ramp_count WHERE ramp = ?1")?;
    let counts = query.query_map([ramp], |row| row.get(0))?;
    Ok(counts.collect::<Result<_, _>>()?)
}
