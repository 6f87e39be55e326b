//! The tables, and their migration, safe when many processes open the file at once.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, TransactionBehavior};

use crate::rules::DbError;

/// How long a writer waits for another process.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);
const WAL_TRUNCATE_TIMEOUT: Duration = Duration::from_millis(500);
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(5);

/// Each migrates the schema to the next version.
const MIGRATIONS: [&str; 4] = [
    TABLES,
    // A rule's text is stored once: the log has what each change replaced, and the table the current text.
    "ALTER TABLE log ADD COLUMN before TEXT;
    UPDATE log SET before = (SELECT earlier.body FROM log AS earlier WHERE earlier.v = log.previous)
        WHERE kind = 0 AND previous IS NOT NULL;
    UPDATE log SET body = NULL WHERE kind = 0;
    CREATE INDEX log_previous ON log (previous) WHERE kind = 0 AND previous IS NOT NULL;",
    // Up to `floor` entries may be missing; up to `scanned` automatic bans are removed.
    "CREATE TABLE pruned (floor INTEGER NOT NULL, scanned INTEGER NOT NULL);
    INSERT INTO pruned VALUES (0, 0);",
    // An author of several changes has the last one and their numbers; the ramp of a guarded apply has a row.
    "ALTER TABLE author ADD COLUMN note TEXT;
    ALTER TABLE author ADD COLUMN last INTEGER;
    ALTER TABLE author ADD COLUMN created INTEGER;
    ALTER TABLE author ADD COLUMN changed INTEGER;
    ALTER TABLE author ADD COLUMN deleted INTEGER;
    CREATE TABLE ramp (
        id TEXT PRIMARY KEY, revision INTEGER NOT NULL, change INTEGER NOT NULL, owner TEXT NOT NULL,
        lease_until INTEGER NOT NULL, state TEXT NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE ramp_count (
        ramp TEXT NOT NULL, node TEXT NOT NULL, counts TEXT NOT NULL, PRIMARY KEY (ramp, node)
    ) WITHOUT ROWID;",
];

const TABLES: &str = "
    CREATE TABLE rule (
        id TEXT PRIMARY KEY, v INTEGER NOT NULL, uid TEXT, method TEXT, url TEXT,
        unit TEXT, requests INTEGER, algorithm TEXT, options TEXT
    ) WITHOUT ROWID;
    CREATE TABLE thing (
        kind INTEGER NOT NULL, name TEXT NOT NULL, v INTEGER NOT NULL, until INTEGER, body TEXT NOT NULL,
        PRIMARY KEY (kind, name)
    ) WITHOUT ROWID;
    CREATE INDEX thing_until ON thing (until) WHERE until IS NOT NULL;
    CREATE TABLE author (first INTEGER PRIMARY KEY, who TEXT NOT NULL, at INTEGER NOT NULL, undoes INTEGER);
    CREATE TABLE log (
        v INTEGER PRIMARY KEY, kind INTEGER NOT NULL, name TEXT NOT NULL, previous INTEGER, body TEXT
    );
";

/// Opens or creates the file, and migrates its schema.
pub(super) fn open(path: &Path) -> Result<Connection, DbError> {
    let made = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    made.map_err(|error| DbError::Unwritable {
        location: format!("the SQLite file {}", path.display()),
        why: error.to_string(),
    })?;
    let mut connection = connect(path)?;
    enable_wal(&connection)?;
    migrate(&mut connection)?;
    Ok(connection)
}

pub(super) fn connect(path: &Path) -> Result<Connection, DbError> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // journal_size_limit: after a large edit, the next one truncates the write-ahead log.
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -8000; PRAGMA journal_size_limit = 16000000;",
    )?;
    Ok(connection)
}

/// Truncates the write-ahead log. If readers block it, a later edit does it.
pub(super) fn truncate_wal(connection: &Connection) {
    connection.busy_timeout(WAL_TRUNCATE_TIMEOUT).ok();
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).ok();
    connection.busy_timeout(BUSY_TIMEOUT).ok();
}

/// Two processes that enable WAL at the same time can both get SQLITE_BUSY without waiting.
fn enable_wal(connection: &Connection) -> Result<(), DbError> {
    let start = Instant::now();
    loop {
        match connection.pragma_update(None, "journal_mode", "WAL") {
            Err(error)
                if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)
                    && start.elapsed() < BUSY_TIMEOUT =>
            {
                thread::sleep(BUSY_RETRY_DELAY);
            }
            done => return Ok(done?),
        }
    }
}

fn migrate(connection: &mut Connection) -> Result<(), DbError> {
    let known = MIGRATIONS.len() as i64;
    if schema_version(connection)? == known {
        return Ok(());
    }
    // Check again inside the transaction: another process may have migrated first.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let found = schema_version(&transaction)?;
    let missing = usize::try_from(found).ok().and_then(|found| MIGRATIONS.get(found..));
    for migration in missing.ok_or(DbError::UnsupportedSchema { found, known })? {
        transaction.execute_batch(migration)?;
    }
    transaction.pragma_update(None, "user_version", known)?;
    Ok(transaction.commit()?)
}

fn schema_version(connection: &Connection) -> Result<i64, DbError> {
    Ok(connection.pragma_query_value(None, "user_version", |row| row.get(0))?)
}
