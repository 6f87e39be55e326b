//! The row of the ramp, and the counts of the nodes.

use tokio_postgres::GenericClient;
use tollgate::Time;

use super::connection::PgFailure;
use crate::rules::{DbError, MAX_RAMP_NODES, RampRow, RampWrite, Version};

pub(super) async fn read(client: &impl GenericClient) -> Result<Option<RampRow>, PgFailure> {
    let sql = "SELECT id, revision, change, owner, lease_until, state FROM tollgate.ramp LIMIT 1";
    let row = client.query_opt(sql, &[]).await?;
    Ok(row.map(|row| RampRow {
        id: row.get(0),
        revision: row.get::<_, i64>(1).unsigned_abs(),
        change: Version::from_packed(row.get(2)),
        owner: row.get(3),
        lease_until: Time::from_nanos(row.get::<_, i64>(4).unsigned_abs()),
        state: row.get(5),
    }))
}

/// `change` is the version of the apply that starts a ramp.
pub(super) async fn write(
    client: &impl GenericClient,
    write: RampWrite,
    change: Version,
) -> Result<(), PgFailure> {
    match write {
        RampWrite::Start(RampRow { id, owner, lease_until, state, .. }) => {
            client.batch_execute("DELETE FROM tollgate.ramp; DELETE FROM tollgate.ramp_count;").await?;
            let sql = "INSERT INTO tollgate.ramp (id, revision, change, owner, lease_until, state)
                VALUES ($1, 0, $2, $3, $4, $5)";
            client.execute(sql, &[&id, &change.packed(), &owner, &nanos(lease_until), &state]).await?;
        }
        RampWrite::Update(RampRow { id, revision, owner, lease_until, state, .. }) => {
            let sql =
                "UPDATE tollgate.ramp SET revision = revision + 1, owner = $3, lease_until = $4, state = $5
                WHERE id = $1 AND revision = $2";
            let revision = i64::try_from(revision).unwrap_or(i64::MAX);
            let updated = client.execute(sql, &[&id, &revision, &owner, &nanos(lease_until), &state]).await?;
            if updated == 0 {
                return Err(DbError::RampMoved.into());
            }
        }
    }
    Ok(())
}

fn nanos(time: Time) -> i64 {
    i64::try_from(time.nanos()).unwrap_or(i64::MAX)
}

/// Stores the counts of a node; of a ramp that has ended, or beyond the bound, none.
pub(super) async fn put_counts(
    client: &impl GenericClient,
    ramp: &str,
    node: &str,
    counts: &str,
) -> Result<(), PgFailure> {
    let sql = "INSERT INTO tollgate.ramp_count (ramp, node, counts)
        SELECT id, $2, $3 FROM tollgate.ramp WHERE id = $1 AND (SELECT count(*) FROM tollgate.ramp_count) < $4
        ON CONFLICT (ramp, node) DO UPDATE SET counts = excluded.counts";
    let most = i64::try_from(MAX_RAMP_NODES).unwrap_or(i64::MAX);
    client.execute(sql, &[&ramp, &node, &counts, &most]).await?;
    Ok(())
}

pub(super) async fn counts(client: &impl GenericClient, ramp: &str) -> Result<Vec<String>, PgFailure> {
    let rows = client.query("SELECT counts FROM tollgate.ramp_count WHERE ramp = $1", &[&ramp]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
