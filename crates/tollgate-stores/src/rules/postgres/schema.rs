//! The tables, and their migration, safe when many nodes start at once.

use tokio_postgres::{Client, GenericClient};

use super::connection::error_text;
use crate::rules::DbError;

/// Advisory lock held during migrations; an arbitrary number that other programs are unlikely to use.
pub(super) const MIGRATION_LOCK: i64 = 0x746f_6c6c_6761_7465;

/// Each migrates the schema to the next version. Names are ordered by their bytes, as in SQLite, whatever the server's
/// collation.
const MIGRATIONS: [&str; 3] = [TABLES, PRUNED, CHANGE_SETS];

const TABLES: &str = r#"
    CREATE SCHEMA tollgate;
    CREATE TABLE tollgate.schema (version bigint NOT NULL);
    INSERT INTO tollgate.schema VALUES (0);
    CREATE TABLE tollgate.rule (
        id text COLLATE "C" PRIMARY KEY, v bigint NOT NULL, uid text, method text, url text,
        unit text, requests bigint, algorithm text, options text
    );
    CREATE TABLE tollgate.thing (
        kind smallint NOT NULL, name text COLLATE "C" NOT NULL, v bigint NOT NULL, until bigint, body text NOT NULL,
        PRIMARY KEY (kind, name)
    );
    CREATE INDEX thing_until ON tollgate.thing (until) WHERE until IS NOT NULL;
    CREATE TABLE tollgate.author (first bigint PRIMARY KEY, who text NOT NULL, at bigint NOT NULL, undoes bigint);
    CREATE TABLE tollgate.log (
        v bigint PRIMARY KEY, kind smallint NOT NULL, name text NOT NULL, previous bigint, body text
    );
"#;

/// Up to `floor` entries may be missing; up to `scanned` automatic bans are removed.
const PRUNED: &str = "
    CREATE TABLE tollgate.pruned (floor bigint NOT NULL, scanned bigint NOT NULL);
    INSERT INTO tollgate.pruned VALUES (0, 0);
";

/// An author of several changes has the last one and their numbers; the ramp of a guarded apply has a row.
const CHANGE_SETS: &str = "
    ALTER TABLE tollgate.author ADD COLUMN note text, ADD COLUMN last bigint, ADD COLUMN created bigint,
        ADD COLUMN changed bigint, ADD COLUMN deleted bigint;
    CREATE TABLE tollgate.ramp (
        id text PRIMARY KEY, revision bigint NOT NULL, change bigint NOT NULL, owner text NOT NULL,
        lease_until bigint NOT NULL, state text NOT NULL
    );
    CREATE TABLE tollgate.ramp_count (
        ramp text NOT NULL, node text NOT NULL, counts text NOT NULL, PRIMARY KEY (ramp, node)
    );
";

pub(super) async fn migrate(client: &mut Client) -> Result<(), DbError> {
    let done = async {
        let transaction = client.transaction().await?;
        transaction.query("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        let found = schema_version(&transaction).await?;
        let known = MIGRATIONS.len() as i64;
        let missing = usize::try_from(found).ok().and_then(|found| MIGRATIONS.get(found..));
        let Some(missing) = missing else { return Ok(Err(DbError::UnsupportedSchema { found, known })) };
        for migration in missing {
            transaction.batch_execute(migration).await?;
        }
        if !missing.is_empty() {
            transaction.execute("UPDATE tollgate.schema SET version = $1", &[&known]).await?;
        }
        transaction.commit().await.map(Ok)
    };
    let done: Result<_, tokio_postgres::Error> = done.await;
    done.map_err(|error| DbError::Unwritable {
        location: "the schema of the rules".to_owned(),
        why: error_text(&error),
    })?
}

/// The version of the existing schema; 0 if there is none.
pub(super) async fn schema_version(client: &impl GenericClient) -> Result<i64, tokio_postgres::Error> {
    // Not to_regclass: its cache may not yet show what another session created under the lock.
    let sql =
        "SELECT EXISTS (SELECT 1 FROM pg_tables WHERE schemaname = 'tollgate' AND tablename = 'schema')";
    let there = client.query_one(sql, &[]).await?;
    if !there.get::<_, bool>(0) {
        return Ok(0);
    }
    Ok(client.query_one("SELECT version FROM tollgate.schema", &[]).await?.get(0))
}
