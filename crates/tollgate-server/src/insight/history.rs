//! Minutes of the last 30 days in an SQLite file, so that series survive a restart.
//!
//! A thread of its own writes; minutes wait in a bounded queue, and are lost if the disk is too slow or fails. No
//! decision and no reader of live counts waits for it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};

use super::point_ring::Point;
use super::rule_history::HOUR;

/// Name of the file in the state folder.
pub const FILE_NAME: &str = "tollgate.insight";
const MAX_DAYS: u64 = 30;
/// Bytes of the file; the oldest minutes are deleted first.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Share of the bound above which minutes are deleted, in percent: the rest is for the journal.
const FULL_PERCENT: u64 = 90;
/// Minutes that wait to be written.
const MAX_WAITING: usize = 8;
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The name of the total in the file, and that of the rules without a series of their own; neither is a rule's id.
pub const TOTAL: &str = "";
pub const OTHER: &str = "*";

const SCHEMA: &str = "
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;
    CREATE TABLE IF NOT EXISTS minutes (
        at INTEGER NOT NULL,
        rule TEXT NOT NULL,
        allowed INTEGER NOT NULL,
        denied INTEGER NOT NULL,
        banned INTEGER NOT NULL,
        shadow_denied INTEGER NOT NULL,
        clients_limited INTEGER NOT NULL,
        PRIMARY KEY (at, rule)
    ) WITHOUT ROWID;";

/// A minute of a node: the counts of each series that has any.
pub struct MinuteCounts {
    /// Its start, in seconds since 1970.
    pub at: u64,
    pub points: Vec<(Box<str>, Point)>,
}

/// The file, written by its thread until it is closed.
pub struct HistoryFile {
    path: PathBuf,
    writer: Mutex<Option<HistoryWriter>>,
}

struct HistoryWriter {
    queue: SyncSender<MinuteCounts>,
    thread: JoinHandle<()>,
}

impl HistoryFile {
    /// Opens or creates the file. One that is damaged is replaced: it holds only statistics.
    pub fn open(path: PathBuf) -> rusqlite::Result<HistoryFile> {
        let connection = create(&path).or_else(|_| {
            for suffix in ["", "-wal", "-shm"] {
                std::fs::remove_file(with_suffix(&path, suffix)).ok();
            }
            create(&path)
        })?;
        let (queue, waiting) = mpsc::sync_channel(MAX_WAITING);
        let spawned = thread::Builder::new()
            .name("insight-history".to_owned())
            .spawn(move || write_all(connection, &waiting));
        let writer = spawned.ok().map(|thread| HistoryWriter { queue, thread });
        Ok(HistoryFile { path, writer: Mutex::new(writer) })
    }

    /// Enqueues a minute. Counts of a minute that was written before are added: a node may have been restarted in it.
    pub fn write(&self, minute: MinuteCounts) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = writer.as_ref().map(|writer| writer.queue.try_send(minute));
        if let Some(Err(TrySendError::Full(_))) = sent {
            tracing::warn!("a minute is missing from {}: the disk is too slow", self.path.display());
        }
    }

    /// Writes what is enqueued, and ends the thread.
    pub fn close(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(HistoryWriter { queue, thread }) = writer {
            drop(queue);
            thread.join().ok();
        }
    }

    /// The minutes of a series from `from` to `to`, both included, by their start. It may wait for the disk.
    pub fn read(&self, series: &str, from: u64, to: u64) -> rusqlite::Result<Vec<(u64, Point)>> {
        let connection = Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let mut query = connection.prepare(
            "SELECT at, allowed, denied, banned, shadow_denied, clients_limited FROM minutes \
             WHERE rule = ?1 AND at BETWEEN ?2 AND ?3 ORDER BY at",
        )?;
        let bounded = |second: u64| i64::try_from(second).unwrap_or(i64::MAX);
        let rows = query.query_map(params![series, bounded(from), bounded(to)], |row| {
            let count =
                |column| row.get::<_, i64>(column).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
            let point = Point {
                allowed: count(1)?,
                denied: count(2)?,
                banned: count(3)?,
                shadow_denied: count(4)?,
                clients_limited: count(5)?,
            };
            Ok((row.get::<_, i64>(0)?.unsigned_abs(), point))
        })?;
        rows.collect()
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn create(path: &Path) -> rusqlite::Result<Connection> {
    // Only for the mode of a new file: what is wrong with it, SQLite reports.
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).ok();
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch(SCHEMA)?;
    Ok(connection)
}

fn write_all(mut connection: Connection, waiting: &Receiver<MinuteCounts>) {
    let mut is_failing = false;
    while let Ok(minute) = waiting.recv() {
        match write_minute(&mut connection, &minute, MAX_FILE_BYTES) {
            Ok(()) => is_failing = false,
            Err(error) if !is_failing => {
                is_failing = true;
                tracing::warn!(%error, "counts of past minutes cannot be saved");
            }
            Err(_) => {}
        }
    }
}

fn write_minute(connection: &mut Connection, minute: &MinuteCounts, max_bytes: u64) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    {
        let mut insert = transaction.prepare_cached(
            "INSERT INTO minutes VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO UPDATE SET \
             allowed = allowed + excluded.allowed, denied = denied + excluded.denied, \
             banned = banned + excluded.banned, shadow_denied = shadow_denied + excluded.shadow_denied, \
             clients_limited = MAX(clients_limited, excluded.clients_limited)",
        )?;
        for (series, point) in &minute.points {
            let Point { allowed, denied, banned, shadow_denied, clients_limited } = *point;
            insert.execute(params![
                minute.at as i64,
                series,
                allowed,
                denied,
                banned,
                shadow_denied,
                clients_limited
            ])?;
        }
        let oldest = minute.at.saturating_sub(MAX_DAYS * 24 * HOUR);
        transaction.execute("DELETE FROM minutes WHERE at < ?1", [oldest as i64])?;
    }
    transaction.commit()?;
    while used_bytes(connection)? > max_bytes / 100 * FULL_PERCENT {
        let deleted = connection
            .execute("DELETE FROM minutes WHERE at < (SELECT MIN(at) FROM minutes) + ?1", [HOUR as i64])?;
        connection.execute_batch("PRAGMA incremental_vacuum; PRAGMA wal_checkpoint(TRUNCATE);")?;
        if deleted == 0 {
            break;
        }
    }
    Ok(())
}

fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let number = |pragma: &str| connection.query_row(pragma, [], |row| row.get::<_, i64>(0));
    let pages = number("PRAGMA page_count")? - number("PRAGMA freelist_count")?;
    Ok(pages.unsigned_abs() * number("PRAGMA page_size")?.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use tollgate_testkit::Folder;

    use super::*;
    use crate::insight::MINUTE;

    const START: u64 = 1_800_000_000;

    fn minute(at: u64, allowed: u32) -> MinuteCounts {
        let point = Point { allowed, clients_limited: allowed, ..Point::default() };
        MinuteCounts { at, points: vec![(TOTAL.into(), point), ("login".into(), point)] }
    }

    fn counts(file: &HistoryFile) -> Vec<(u64, u32)> {
        let points = file.read("login", 0, u64::MAX).expect("it can be read");
        points.into_iter().map(|(at, point)| (at, point.allowed)).collect()
    }

    #[test]
    fn minutes_survive_and_a_minute_with_a_restart_is_added_up() {
        let folder = Folder::new();
        let path = folder.path(FILE_NAME);
        let file = HistoryFile::open(path.clone()).expect("it is created");
        file.write(minute(START, 3));
        file.close();
        file.write(minute(START, 9)); // closed: without effect
        let file = HistoryFile::open(path).expect("it is opened");
        file.write(minute(START, 4));
        file.write(minute(START + MINUTE, 5));
        file.close();
        assert_eq!(counts(&file), [(START, 7), (START + MINUTE, 5)]);
    }

    #[test]
    fn old_minutes_are_deleted_by_age_and_by_size() {
        let folder = Folder::new();
        let mut connection = create(&folder.path(FILE_NAME)).expect("it is created");
        let rows = |connection: &Connection| -> (i64, i64) {
            connection
                .query_row("SELECT COUNT(*), MIN(at) FROM minutes", [], |row| Ok((row.get(0)?, row.get(1)?)))
                .expect("a row")
        };
        write_minute(&mut connection, &minute(START, 1), MAX_FILE_BYTES).expect("written");
        let later = START + MAX_DAYS * 24 * HOUR + MINUTE;
        write_minute(&mut connection, &minute(later, 1), MAX_FILE_BYTES).expect("written");
        assert_eq!(rows(&connection), (2, later as i64));
        const MAX_BYTES: u64 = 100 << 10;
        for n in 0..3_000 {
            write_minute(&mut connection, &minute(later + n * MINUTE, 1), MAX_BYTES).expect("written");
        }
        assert!(used_bytes(&connection).expect("a size") <= MAX_BYTES);
        let (count, oldest) = rows(&connection);
        assert!(count > 100 && oldest > later as i64, "the newest remain");
    }

    #[test]
    fn a_damaged_file_is_replaced() {
        let folder = Folder::new();
        let path =
            folder.write(FILE_NAME, "not a database, but long enough to be taken for one: ".repeat(100));
        let file = HistoryFile::open(path).expect("it is replaced");
        file.write(minute(START, 1));
        file.close();
        assert_eq!(counts(&file), [(START, 1)]);
    }
}
