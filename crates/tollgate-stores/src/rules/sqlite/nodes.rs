//! The table of nodes.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use tollgate::Time;

use crate::rules::DbError;
use crate::rules::node::{AnnouncedNode, MAX_NODES, signed, unsigned};

const TABLE: &str = "CREATE TABLE IF NOT EXISTS node (
    address TEXT PRIMARY KEY, id INTEGER NOT NULL, version TEXT NOT NULL, generation INTEGER NOT NULL,
    rules TEXT, seen INTEGER NOT NULL
) WITHOUT ROWID;";

/// Replaces the row of a node, and removes those that were last seen before `forget_before`.
pub(super) fn announce(
    transaction: &Transaction<'_>,
    node: &AnnouncedNode,
    forget_before: Time,
) -> Result<(), DbError> {
    transaction.execute_batch(TABLE)?;
    transaction.execute("DELETE FROM node WHERE seen < ?1", [signed(forget_before.nanos())])?;
    transaction.execute(
        "INSERT OR REPLACE INTO node (address, id, version, generation, rules, seen) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        params![
            node.address,
            node.id,
            node.version,
            signed(node.generation),
            node.rules_version,
            signed(node.seen.nanos())
        ],
    )?;
    let excess = "DELETE FROM node WHERE address NOT IN (SELECT address FROM node ORDER BY seen DESC, address LIMIT ?1)";
    transaction.execute(excess, [MAX_NODES])?;
    Ok(())
}

/// Removes the row of a node, unless another one has announced the same address since.
pub(super) fn forget(transaction: &Transaction<'_>, address: &str, id: u32) -> Result<(), DbError> {
    if has_table(transaction)? {
        transaction.execute("DELETE FROM node WHERE address = ?1 AND id = ?2", params![address, id])?;
    }
    Ok(())
}

pub(super) fn list(connection: &Connection) -> Result<Vec<AnnouncedNode>, DbError> {
    if !has_table(connection)? {
        return Ok(Vec::new());
    }
    let sql = "SELECT address, id, version, generation, rules, seen FROM node ORDER BY address LIMIT ?1";
    let mut query = connection.prepare_cached(sql)?;
    let rows = query.query_map([MAX_NODES], read)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn has_table(connection: &Connection) -> Result<bool, DbError> {
    let sql = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'node'";
    Ok(connection.prepare_cached(sql)?.query_row([], |_| Ok(())).optional()?.is_some())
}

fn read(row: &Row<'_>) -> rusqlite::Result<AnnouncedNode> {
    Ok(AnnouncedNode {
        address: row.get(0)?,
        id: row.get(1)?,
        version: row.get(2)?,
        generation: unsigned(row.get(3)?),
        rules_version: row.get(4)?,
        seen: Time::from_nanos(unsigned(row.get(5)?)),
    })
}
