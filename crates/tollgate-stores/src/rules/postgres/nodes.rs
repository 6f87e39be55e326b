//! The table of nodes.

use tokio_postgres::{Client, GenericClient};
use tollgate::Time;

use super::connection::PgFailure;
use super::schema::MIGRATION_LOCK;
use crate::rules::node::{AnnouncedNode, MAX_NODES, signed, unsigned};

const TABLE: &str = r#"CREATE TABLE IF NOT EXISTS tollgate.node (
    address text COLLATE "C" PRIMARY KEY, id bigint NOT NULL, version text NOT NULL, generation bigint NOT NULL,
    rules text, seen bigint NOT NULL
)"#;

/// Replaces the row of a node, and removes those that were last seen before `forget_before`. Each statement can be
/// repeated, so there is no transaction around them.
pub(super) async fn announce(
    client: &mut Client,
    node: &AnnouncedNode,
    forget_before: Time,
) -> Result<(), PgFailure> {
    if !has_table(client).await? {
        // Two sessions that create it at the same time would both fail without the lock.
        let transaction = client.transaction().await?;
        transaction.query("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        transaction.batch_execute(TABLE).await?;
        transaction.commit().await?;
    }
    let forget_before = signed(forget_before.nanos());
    client.execute("DELETE FROM tollgate.node WHERE seen < $1", &[&forget_before]).await?;
    let sql = "INSERT INTO tollgate.node (address, id, version, generation, rules, seen) VALUES ($1, $2, $3, $4, $5, $6)
        ON CONFLICT (address) DO UPDATE SET id = excluded.id, version = excluded.version,
            generation = excluded.generation, rules = excluded.rules, seen = excluded.seen";
    let id = i64::from(node.id);
    let generation = signed(node.generation);
    let seen = signed(node.seen.nanos());
    client
        .execute(sql, &[&node.address, &id, &node.version, &generation, &node.rules_version, &seen])
        .await?;
    let excess = "DELETE FROM tollgate.node WHERE address NOT IN
        (SELECT address FROM tollgate.node ORDER BY seen DESC, address LIMIT $1)";
    client.execute(excess, &[&(MAX_NODES as i64)]).await?;
    Ok(())
}

/// Removes the row of a node, unless another one has announced the same address since.
pub(super) async fn forget(client: &Client, address: &str, id: u32) -> Result<(), PgFailure> {
    if has_table(client).await? {
        let sql = "DELETE FROM tollgate.node WHERE address = $1 AND id = $2";
        client.execute(sql, &[&address, &i64::from(id)]).await?;
    }
    Ok(())
}

pub(super) async fn list(client: &impl GenericClient) -> Result<Vec<AnnouncedNode>, PgFailure> {
    if !has_table(client).await? {
        return Ok(Vec::new());
    }
    let sql =
        "SELECT address, id, version, generation, rules, seen FROM tollgate.node ORDER BY address LIMIT $1";
    let rows = client.query(sql, &[&(MAX_NODES as i64)]).await?;
    let read = |row: &tokio_postgres::Row| AnnouncedNode {
        address: row.get(0),
        id: row.get::<_, i64>(1) as u32,
        version: row.get(2),
        generation: unsigned(row.get(3)),
        rules_version: row.get(4),
        seen: Time::from_nanos(unsigned(row.get(5))),
    };
    Ok(rows.iter().map(read).collect())
}

async fn has_table(client: &impl GenericClient) -> Result<bool, PgFailure> {
    let sql = "SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = 'tollgate' AND tablename = 'node')";
    Ok(client.query_one(sql, &[]).await?.get(0))
}
