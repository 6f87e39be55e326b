//! Files of earlier versions: their table `minutes` has the key (at, rule), and no hours.
//!
//! Minutes are moved in batches, the newest first, between the writes of new ones, and added up to hours. So the file
//! does not grow by its own size, a stop does not wait for it, and the oldest minutes can still be deleted first. A
//! migration that was interrupted goes on at the next start.

use rusqlite::{Connection, Transaction};

use super::{HistoryStep, retention};
use crate::insight::HOUR;

const FORMER: &str = "minutes";
/// The time of the minutes that are moved at once.
const BATCH_SECS: u64 = 2 * HOUR;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MigrationState {
    Unfinished,
    Finished,
}

/// Moves the newest minutes that are left; drops the table when it is empty.
pub(super) fn run_batch(connection: &mut Connection) -> rusqlite::Result<MigrationState> {
    if !is_left(connection)? {
        return Ok(MigrationState::Finished);
    }
    let transaction = connection.transaction()?;
    let newest: Option<i64> =
        transaction.query_row(&format!("SELECT MAX(at) FROM {FORMER}"), [], |row| row.get(0))?;
    let Some(newest) = newest else {
        transaction.execute_batch(&format!("DROP TABLE {FORMER}"))?;
        transaction.commit()?;
        // Not earlier: each batch needs the free pages of the one before.
        retention::release_free_pages(connection)?;
        return Ok(MigrationState::Finished);
    };
    let from = newest - BATCH_SECS as i64;
    let rows = format!(
        "SELECT rule, at, allowed, denied, banned, shadow_denied, clients_limited FROM {FORMER} \
         WHERE at > ?1 ORDER BY rule, at"
    );
    transaction.execute(&HistoryStep::Minute.insert(&rows), [from])?;
    add_up_hours(&transaction, "at > ?1", from)?;
    transaction.execute(&format!("DELETE FROM {FORMER} WHERE at > ?1"), [from])?;
    transaction.commit()?;
    Ok(MigrationState::Unfinished)
}

fn add_up_hours(transaction: &Transaction<'_>, condition: &str, at: i64) -> rusqlite::Result<()> {
    let rows = format!(
        "SELECT rule, at / {HOUR} * {HOUR}, SUM(allowed), SUM(denied), SUM(banned), SUM(shadow_denied), \
         MAX(clients_limited) FROM {FORMER} WHERE {condition} GROUP BY 1, 2"
    );
    transaction.execute(&HistoryStep::Hour.insert(&rows), [at]).map(drop)
}

/// Deletes what would be too old.
pub(super) fn delete_before(connection: &Connection, before: u64) -> rusqlite::Result<()> {
    if is_left(connection)? {
        connection.execute(&format!("DELETE FROM {FORMER} WHERE at < ?1"), [before as i64])?;
    }
    Ok(())
}

/// Adds up and deletes the oldest minutes that are not moved yet; returns whether there were any.
pub(super) fn delete_oldest(connection: &mut Connection, secs: u64) -> rusqlite::Result<bool> {
    if !is_left(connection)? {
        return Ok(false);
    }
    let transaction = connection.transaction()?;
    let oldest: Option<i64> =
        transaction.query_row(&format!("SELECT MIN(at) FROM {FORMER}"), [], |row| row.get(0))?;
    let Some(oldest) = oldest else { return Ok(false) };
    let before = oldest + secs as i64;
    add_up_hours(&transaction, "at < ?1", before)?;
    transaction.execute(&format!("DELETE FROM {FORMER} WHERE at < ?1"), [before])?;
    transaction.commit()?;
    Ok(true)
}

fn is_left(connection: &Connection) -> rusqlite::Result<bool> {
    let known = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1)";
    connection.prepare_cached(known)?.query_row([FORMER], |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tollgate_testkit::Folder;

    use super::super::{FILE_NAME, MAX_FILE_BYTES, create, write_minute};
    use super::*;
    use crate::insight::history::MinuteCounts;
    use crate::insight::{MINUTE, Point};

    const START: u64 = 1_800_000_000;
    const MINUTES: u64 = 1_000;

    /// A file as the earlier version left it: two series with one decision a minute.
    fn former_file(path: &Path) {
        let connection = Connection::open(path).expect("it is created");
        let schema = "
            PRAGMA auto_vacuum = INCREMENTAL;
            PRAGMA journal_mode = WAL;
            CREATE TABLE minutes (
                at INTEGER NOT NULL, rule TEXT NOT NULL, allowed INTEGER NOT NULL, denied INTEGER NOT NULL,
                banned INTEGER NOT NULL, shadow_denied INTEGER NOT NULL, clients_limited INTEGER NOT NULL,
                PRIMARY KEY (at, rule)
            ) WITHOUT ROWID;";
        connection.execute_batch(schema).expect("its table");
        for n in 0..MINUTES {
            for rule in ["", "login"] {
                connection
                    .execute(
                        "INSERT INTO minutes VALUES (?1, ?2, 1, 2, 0, 0, 3)",
                        ((START + n * MINUTE) as i64, rule),
                    )
                    .expect("a row");
            }
        }
    }

    /// Points of a series, and the sum of what they denied.
    fn sums(connection: &Connection, step: HistoryStep) -> (i64, i64) {
        let query = format!("SELECT COUNT(*), SUM(denied) FROM {} WHERE rule = 'login'", step.table());
        connection.query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("a row")
    }

    #[test]
    fn minutes_of_an_earlier_version_are_moved_once_and_added_up_to_hours() {
        let folder = Folder::new();
        let path = folder.path(FILE_NAME);
        former_file(&path);
        let minutes = MINUTES as i64;
        for _ in 0..2 {
            // Each is a process that is stopped after a batch.
            let mut connection = create(&path).expect("it is opened");
            assert_eq!(run_batch(&mut connection), Ok(MigrationState::Unfinished));
        }
        let mut connection = create(&path).expect("it is opened");
        let (moved, _) = sums(&connection, HistoryStep::Minute);
        assert_eq!(moved, 2 * BATCH_SECS as i64 / 60, "two batches");
        // The last minute goes on after the restart.
        let point = Point { denied: 5, ..Point::default() };
        let last = START + (MINUTES - 1) * MINUTE;
        let more = MinuteCounts { at: last, points: vec![("login".into(), point)] };
        write_minute(&mut connection, &more, MAX_FILE_BYTES).expect("written");
        while run_batch(&mut connection) == Ok(MigrationState::Unfinished) {}
        assert_eq!(sums(&connection, HistoryStep::Minute), (minutes, 2 * minutes + 5));
        assert_eq!(sums(&connection, HistoryStep::Hour), ((minutes + 59) / 60, 2 * minutes + 5));
        assert_eq!(is_left(&connection), Ok(false));
    }

    #[test]
    fn minutes_that_are_not_moved_yet_are_the_oldest_to_be_deleted() {
        let folder = Folder::new();
        let path = folder.path(FILE_NAME);
        former_file(&path);
        let mut connection = create(&path).expect("it is opened");
        assert_eq!(run_batch(&mut connection), Ok(MigrationState::Unfinished));
        let (moved, _) = sums(&connection, HistoryStep::Minute);
        let used = retention::used_bytes(&connection).expect("a size");
        retention::shrink(&mut connection, used).expect("it is shrunk");
        assert_eq!(sums(&connection, HistoryStep::Minute).0, moved, "the newer ones stay");
        while run_batch(&mut connection) == Ok(MigrationState::Unfinished) {}
        let (left, _) = sums(&connection, HistoryStep::Minute);
        let minutes = MINUTES as i64;
        assert!(left > moved && left < minutes, "{left} minutes remain");
        assert_eq!(sums(&connection, HistoryStep::Hour), ((minutes + 59) / 60, 2 * minutes), "and all hours");
    }
}
