//! Minutes and hours of the last 30 days in an SQLite file, so that series survive a restart.
//!
//! A thread of its own writes; minutes wait in a bounded queue, and are lost if the disk is too slow or fails. No
//! decision and no reader of live counts waits for it. Rows are ordered by series, then by time: a view reads one
//! series. Hours are rows of their own, so that a month is 720 rows, and so that they remain when minutes are deleted
//! for want of space.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvError, SyncSender, TryRecvError, TrySendError};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Row, params};

use super::point_ring::Point;
use super::rule_history::{HOUR, MINUTE};

mod migration;
mod retention;

/// Name of the file in the state folder.
pub const FILE_NAME: &str = "tollgate.insight";
/// Bytes of the file; the oldest minutes are deleted first.
const MAX_FILE_BYTES: u64 = 256 << 20;
/// Minutes that wait to be written.
const MAX_WAITING: usize = 8;
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);

/// The name of the total in the file, and that of the rules without a series of their own; neither is a rule's id.
pub const TOTAL: &str = "";
pub const OTHER: &str = "*";

const PRAGMAS: &str = "
    PRAGMA auto_vacuum = INCREMENTAL;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = NORMAL;";

/// How far apart the points of a table are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HistoryStep {
    Minute,
    Hour,
}

impl HistoryStep {
    /// The finest first.
    const ALL: [HistoryStep; 2] = [HistoryStep::Minute, HistoryStep::Hour];

    const fn table(self) -> &'static str {
        match self {
            HistoryStep::Minute => "minute",
            HistoryStep::Hour => "hour",
        }
    }

    const fn secs(self) -> u64 {
        match self {
            HistoryStep::Minute => MINUTE,
            HistoryStep::Hour => HOUR,
        }
    }

    fn schema(self) -> String {
        format!(
            "CREATE TABLE IF NOT EXISTS {} (
                rule TEXT NOT NULL,
                at INTEGER NOT NULL,
                allowed INTEGER NOT NULL,
                denied INTEGER NOT NULL,
                banned INTEGER NOT NULL,
                shadow_denied INTEGER NOT NULL,
                clients_limited INTEGER NOT NULL,
                PRIMARY KEY (rule, at)
            ) WITHOUT ROWID;",
            self.table()
        )
    }

    /// Adds rows: a node may have been restarted in a minute, and an hour has many. `rows` are values, or a query.
    fn insert(self, rows: &str) -> String {
        format!(
            "INSERT INTO {} (rule, at, allowed, denied, banned, shadow_denied, clients_limited) {rows} \
             ON CONFLICT DO UPDATE SET allowed = allowed + excluded.allowed, denied = denied + excluded.denied, \
             banned = banned + excluded.banned, shadow_denied = shadow_denied + excluded.shadow_denied, \
             clients_limited = MAX(clients_limited, excluded.clients_limited)",
            self.table()
        )
    }

    /// The points of a series in a period.
    fn query(self) -> String {
        format!(
            "SELECT at, allowed, denied, banned, shadow_denied, clients_limited FROM {} \
             WHERE rule = ?1 AND at BETWEEN ?2 AND ?3 ORDER BY at",
            self.table()
        )
    }
}

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
        self.read_step(HistoryStep::Minute, series, from, to)
    }

    /// As [`read`](Self::read), of hours. The latest one is what has been saved of it so far.
    pub fn read_hours(&self, series: &str, from: u64, to: u64) -> rusqlite::Result<Vec<(u64, Point)>> {
        self.read_step(HistoryStep::Hour, series, from, to)
    }

    fn read_step(
        &self,
        step: HistoryStep,
        series: &str,
        from: u64,
        to: u64,
    ) -> rusqlite::Result<Vec<(u64, Point)>> {
        let connection = Connection::open_with_flags(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        let mut query = connection.prepare(&step.query())?;
        let bounded = |second: u64| i64::try_from(second).unwrap_or(i64::MAX);
        query.query_map(params![series, bounded(from), bounded(to)], point_of)?.collect()
    }
}

fn point_of(row: &Row<'_>) -> rusqlite::Result<(u64, Point)> {
    let count = |column| row.get::<_, i64>(column).map(|count| u32::try_from(count).unwrap_or(u32::MAX));
    let point = Point {
        allowed: count(1)?,
        denied: count(2)?,
        banned: count(3)?,
        shadow_denied: count(4)?,
        clients_limited: count(5)?,
    };
    Ok((row.get::<_, i64>(0)?.unsigned_abs(), point))
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
    connection.execute_batch(PRAGMAS)?;
    for step in HistoryStep::ALL {
        connection.execute_batch(&step.schema())?;
    }
    Ok(connection)
}

fn write_all(mut connection: Connection, waiting: &Receiver<MinuteCounts>) {
    let mut is_failing = false;
    let mut is_migrating = true;
    while let Ok(minute) = next(waiting, is_migrating) {
        let done = match minute {
            Some(minute) => write_minute(&mut connection, &minute, MAX_FILE_BYTES),
            None => migration::run_batch(&mut connection).map(|state| {
                is_migrating = state == migration::MigrationState::Unfinished;
            }),
        };
        match done {
            Ok(()) => is_failing = false,
            Err(error) => {
                if !is_failing {
                    tracing::warn!(%error, "counts of past minutes cannot be saved");
                }
                is_failing = true;
                is_migrating = false; // until the next start
            }
        }
    }
}

/// The next minute; `None` if there is none yet and other work is left.
fn next(waiting: &Receiver<MinuteCounts>, is_work_left: bool) -> Result<Option<MinuteCounts>, RecvError> {
    if !is_work_left {
        return waiting.recv().map(Some);
    }
    match waiting.try_recv() {
        Ok(minute) => Ok(Some(minute)),
        Err(TryRecvError::Empty) => Ok(None),
        Err(TryRecvError::Disconnected) => Err(RecvError),
    }
}

fn write_minute(connection: &mut Connection, minute: &MinuteCounts, max_bytes: u64) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for step in HistoryStep::ALL {
        let at = minute.at / step.secs() * step.secs();
        let mut insert = transaction.prepare_cached(&step.insert("VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"))?;
        for (series, point) in &minute.points {
            let Point { allowed, denied, banned, shadow_denied, clients_limited } = *point;
            insert.execute(params![
                series,
                at as i64,
                allowed,
                denied,
                banned,
                shadow_denied,
                clients_limited
            ])?;
        }
    }
    transaction.commit()?;
    // Once an hour: it looks at each series.
    if minute.at % HOUR < MINUTE {
        retention::delete_old(connection, minute.at)?;
    }
    retention::shrink(connection, max_bytes)
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

    fn read(file: &HistoryFile, step: HistoryStep) -> Vec<(u64, u32)> {
        let points = file.read_step(step, "login", 0, u64::MAX).expect("it can be read");
        points.into_iter().map(|(at, point)| (at, point.allowed)).collect()
    }

    #[test]
    fn the_minutes_of_an_hour_are_added_up_beside_it() {
        let folder = Folder::new();
        let file = HistoryFile::open(folder.path(FILE_NAME)).expect("it is created");
        for (at, allowed) in [(START, 1), (START + MINUTE, 2), (START + HOUR - MINUTE, 4), (START + HOUR, 8)]
        {
            file.write(minute(at, allowed));
        }
        file.close();
        assert_eq!(read(&file, HistoryStep::Minute).len(), 4);
        assert_eq!(read(&file, HistoryStep::Hour), [(START, 7), (START + HOUR, 8)]);
        let hours = file.read_hours("login", START, START + HOUR - 1).expect("it can be read");
        assert_eq!((hours.len(), hours[0].1.clients_limited), (1, 4), "estimates are not added");
    }

    /// A regression: the key was (at, rule), so that a month of one series was read by a scan of all series.
    #[test]
    fn a_series_is_read_by_its_key_alone() {
        let folder = Folder::new();
        let connection = create(&folder.path(FILE_NAME)).expect("it is created");
        for step in HistoryStep::ALL {
            let plan: String = connection
                .query_row(&format!("EXPLAIN QUERY PLAN {}", step.query()), params!["login", 0, 1], |row| {
                    row.get(3)
                })
                .expect("a plan");
            let expected = format!("SEARCH {} USING PRIMARY KEY (rule=? AND at>? AND at<?)", step.table());
            assert_eq!(plan, expected);
        }
    }

    #[test]
    fn old_points_are_deleted_by_age_and_the_oldest_minutes_by_size() {
        let folder = Folder::new();
        let mut connection = create(&folder.path(FILE_NAME)).expect("it is created");
        let rows = |connection: &Connection, step: HistoryStep| -> (i64, i64) {
            let query = format!("SELECT COUNT(*), MIN(at) FROM {}", step.table());
            connection.query_row(&query, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("a row")
        };
        write_minute(&mut connection, &minute(START, 1), MAX_FILE_BYTES).expect("written");
        let later = START + retention::MAX_DAYS * 24 * HOUR + HOUR;
        write_minute(&mut connection, &minute(later, 1), MAX_FILE_BYTES).expect("written");
        for step in HistoryStep::ALL {
            assert_eq!(rows(&connection, step), (2, later as i64), "{step:?}");
        }
        const MAX_BYTES: u64 = 150 << 10;
        for n in 0..3_000 {
            write_minute(&mut connection, &minute(later + n * MINUTE, 1), MAX_BYTES).expect("written");
        }
        assert!(retention::used_bytes(&connection).expect("a size") <= MAX_BYTES);
        let (count, oldest) = rows(&connection, HistoryStep::Minute);
        assert!(count > 100 && oldest > later as i64, "the newest remain");
        assert_eq!(rows(&connection, HistoryStep::Hour), (2 * 50, later as i64), "all hours remain");
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
