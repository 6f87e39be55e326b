//! The queue in an SQLite file. One thread owns the connection; callers wait for it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tokio::sync::oneshot;
use tollgate::Time;

use crate::queue::{
    DEAD_RETENTION, DONE_RETENTION, ITEM_OVERHEAD, MAX_DUE_SCANNED, QueueBounds, QueueError, QueuedRequest,
    QueuedState, RequestSender,
};

/// In SQL a state is the number of its [`QueuedState`]: 0 queued, 1 sending, 2 done, 3 dead. `used`, `waiting` and `sender`
/// are sums that triggers maintain, so that a push does not scan the queue. `sender.ip` is an address or its network.
const SCHEMA: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    CREATE TABLE IF NOT EXISTS item (
        sequence INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        state INTEGER NOT NULL,
        method TEXT NOT NULL, target TEXT NOT NULL, host TEXT NOT NULL,
        headers TEXT NOT NULL, body BLOB NOT NULL, sender TEXT NOT NULL,
        queued_at INTEGER NOT NULL, expires_at INTEGER NOT NULL, next_at INTEGER NOT NULL,
        tries INTEGER NOT NULL, status INTEGER, error TEXT
    );
    CREATE INDEX IF NOT EXISTS item_due ON item (state, next_at);
    DROP INDEX IF EXISTS item_sender;
    CREATE TABLE IF NOT EXISTS used (bytes INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS waiting (items INTEGER NOT NULL);
    DROP TRIGGER IF EXISTS waiting_added;
    DROP TRIGGER IF EXISTS waiting_ended;
    DROP TRIGGER IF EXISTS waiting_removed;
    CREATE TABLE IF NOT EXISTS sender (ip TEXT PRIMARY KEY, items INTEGER NOT NULL, bytes INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TRIGGER IF NOT EXISTS item_added AFTER INSERT ON item BEGIN
        UPDATE used SET bytes = bytes + length(NEW.body) + length(NEW.target) + length(NEW.headers) + length(NEW.sender) + 512;
    END;
    CREATE TRIGGER IF NOT EXISTS item_removed AFTER DELETE ON item BEGIN
        UPDATE used SET bytes = bytes - length(OLD.body) - length(OLD.target) - length(OLD.headers) - length(OLD.sender) - 512;
    END;
    CREATE TRIGGER IF NOT EXISTS waiting_added AFTER INSERT ON item WHEN NEW.state IN (0, 1) BEGIN
        UPDATE waiting SET items = items + 1;
        INSERT INTO sender VALUES (coalesce(json_extract(NEW.sender, '$.network'), json_extract(NEW.sender, '$.ip')), 1, length(NEW.body))
            ON CONFLICT DO UPDATE SET items = items + 1, bytes = bytes + excluded.bytes;
    END;
    CREATE TRIGGER IF NOT EXISTS waiting_ended AFTER UPDATE OF state ON item
    WHEN OLD.state IN (0, 1) AND NEW.state NOT IN (0, 1) BEGIN
        UPDATE waiting SET items = items - 1;
        UPDATE sender SET items = items - 1, bytes = bytes - length(OLD.body) 
            WHERE ip = coalesce(json_extract(OLD.sender, '$.network'), json_extract(OLD.sender, '$.ip'));
        DELETE FROM sender 
            WHERE ip = coalesce(json_extract(OLD.sender, '$.network'), json_extract(OLD.sender, '$.ip')) AND items <= 0;
    END;
    CREATE TRIGGER IF NOT EXISTS waiting_removed AFTER DELETE ON item WHEN OLD.state IN (0, 1) BEGIN
        UPDATE waiting SET items = items - 1;
        UPDATE sender SET items = items - 1, bytes = bytes - length(OLD.body) 
            WHERE ip = coalesce(json_extract(OLD.sender, '$.network'), json_extract(OLD.sender, '$.ip'));
        DELETE FROM sender 
            WHERE ip = coalesce(json_extract(OLD.sender, '$.network'), json_extract(OLD.sender, '$.ip')) AND items <= 0;
    END;
    DELETE FROM used;
    INSERT INTO used SELECT coalesce(sum(length(body) + length(target) + length(headers) + length(sender) + 512), 0) FROM item;
    DELETE FROM waiting;
    INSERT INTO waiting SELECT count(*) FROM item WHERE state IN (0, 1);
    DELETE FROM sender;
    INSERT INTO sender SELECT coalesce(json_extract(sender, '$.network'), json_extract(sender, '$.ip')) AS ip, count(*), sum(length(body)) FROM item
        WHERE state IN (0, 1) GROUP BY ip;
    PRAGMA user_version = 1;
";

/// Pages for the schema and the indexes of an empty queue.
const SPARE_PAGES: usize = 64;
/// The write-ahead log is truncated to this size after a checkpoint.
const LOG_BYTES: usize = 4 << 20;

const COLUMNS: &str = "id, state, method, target, host, headers, length(body), sender, queued_at, expires_at, next_at, tries, status, error";

type Job = Box<dyn FnOnce(&Connection) + Send>;

/// A handle on the file.
pub struct SqliteQueue {
    jobs: mpsc::Sender<Job>,
    bounds: QueueBounds,
}

impl SqliteQueue {
    /// Opens or creates the file. Requests that were in flight when the last process ended are queued again.
    pub fn open(path: &Path, bounds: QueueBounds) -> Result<SqliteQueue, QueueError> {
        // The file holds users' data: only its owner may read it.
        OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        connection.execute_batch(SCHEMA)?;
        bound_file(&connection, bounds)?;
        connection.execute(
            "UPDATE item SET state = ?1 WHERE state = ?2",
            [QueuedState::Queued as u8, QueuedState::Sending as u8],
        )?;
        let (jobs, incoming) = mpsc::channel::<Job>();
        thread::Builder::new().name("queue".to_owned()).spawn(move || {
            for job in incoming {
                job(&connection);
            }
        })?;
        Ok(SqliteQueue { jobs, bounds })
    }

    async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&Connection) -> Result<T, QueueError> + Send + 'static,
    ) -> Result<T, QueueError> {
        let (reply_tx, reply_rx) = oneshot::channel();
        let job = Box::new(move |connection: &Connection| _ = reply_tx.send(job(connection)));
        self.jobs.send(job).map_err(|_| QueueError::Closed)?;
        reply_rx.await.map_err(|_| QueueError::Closed)?
    }

    pub async fn push(&self, item: QueuedRequest, body: Vec<u8>) -> Result<(), QueueError> {
        let bounds = self.bounds;
        self.run(move |connection| push(connection, &item, &body, bounds)).await
    }

    pub async fn take_due(
        &self,
        now: Time,
        count: usize,
    ) -> Result<(Vec<QueuedRequest>, Option<Time>), QueueError> {
        self.run(move |connection| take_due(connection, now, count)).await
    }

    pub async fn update(&self, item: QueuedRequest) -> Result<(), QueueError> {
        self.run(move |connection| update(connection, &item)).await
    }

    pub async fn sweep(&self, now: Time) -> Result<(), QueueError> {
        self.run(move |connection| {
            let before = |age: Duration| to_sqlite_nanos(now).saturating_sub(age.as_nanos() as i64);
            connection.execute(
                "DELETE FROM item WHERE (state = 2 AND next_at < ?1) OR (state = 3 AND next_at < ?2)",
                [before(DONE_RETENTION), before(DEAD_RETENTION)],
            )?;
            Ok(())
        })
        .await
    }

    pub async fn find(&self, id: &str) -> Result<Option<QueuedRequest>, QueueError> {
        let id = id.to_owned();
        self.run(move |connection| {
            let sql = format!("SELECT {COLUMNS} FROM item WHERE id = ?1");
            Ok(connection.prepare_cached(&sql)?.query_row([id], read_row).optional()?)
        })
        .await
    }

    pub async fn body(&self, id: &str) -> Result<Option<Vec<u8>>, QueueError> {
        let id = id.to_owned();
        self.run(move |connection| {
            let mut query = connection.prepare_cached("SELECT body FROM item WHERE id = ?1")?;
            Ok(query.query_row([id], |row| row.get(0)).optional()?)
        })
        .await
    }

    pub async fn list(
        &self,
        state: Option<QueuedState>,
        count: usize,
    ) -> Result<Vec<QueuedRequest>, QueueError> {
        self.run(move |connection| {
            let sql = format!(
                "SELECT {COLUMNS} FROM item WHERE ?1 IS NULL OR state = ?1 ORDER BY sequence LIMIT ?2"
            );
            let mut query = connection.prepare_cached(&sql)?;
            let found = query.query_map(params![state.map(|state| state as u8), count], read_row)?;
            Ok(found.collect::<Result<_, _>>()?)
        })
        .await
    }

    pub async fn remove(&self, id: &str) -> Result<bool, QueueError> {
        let id = id.to_owned();
        self.run(move |connection| Ok(connection.execute("DELETE FROM item WHERE id = ?1", [id])? > 0)).await
    }

    pub async fn counts(&self) -> Result<Vec<(QueuedState, u64)>, QueueError> {
        self.run(move |connection| {
            let mut query = connection.prepare_cached("SELECT count(*) FROM item WHERE state = ?1")?;
            let count = |state: QueuedState| Ok((state, query.query_row([state as u8], |row| row.get(0))?));
            QueuedState::ALL.into_iter().map(count).collect()
        })
        .await
    }
}

fn push(
    connection: &Connection,
    item: &QueuedRequest,
    body: &[u8],
    bounds: QueueBounds,
) -> Result<(), QueueError> {
    let mut waiting = connection.prepare_cached("SELECT items FROM waiting")?;
    if waiting.query_row([], |row| row.get::<_, usize>(0))? >= bounds.items {
        return Err(QueueError::Full);
    }
    check_sender(connection, item, bounds)?;
    let headers = serde_json::to_string(&item.headers).expect("texts are valid JSON");
    let sender = serde_json::to_string(&item.sender).expect("texts are valid JSON");
    let change = connection.unchecked_transaction()?;
    make_room(
        &change,
        body.len() + item.target.len() + headers.len() + sender.len() + ITEM_OVERHEAD,
        bounds,
    )?;
    change.prepare_cached(
        "INSERT INTO item (id, state, method, target, host, headers, body, sender, queued_at, expires_at, next_at, tries)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, 0)",
    )?.execute(params![
        item.id, item.state as u8, item.method, item.target, item.host, headers, body, sender,
        to_sqlite_nanos(item.queued_at), to_sqlite_nanos(item.expires_at), to_sqlite_nanos(item.next_at)
    ])?;
    Ok(change.commit()?)
}

/// The oldest requests among the first that are due. Sorting all of them would cost each call the whole queue.
fn take_due(
    connection: &Connection,
    now: Time,
    count: usize,
) -> Result<(Vec<QueuedRequest>, Option<Time>), QueueError> {
    let sql = format!(
        "SELECT {COLUMNS} FROM item WHERE sequence IN
             (SELECT sequence FROM item WHERE state = 0 AND next_at <= ?1 ORDER BY next_at, sequence LIMIT {MAX_DUE_SCANNED})
         ORDER BY sequence LIMIT ?2"
    );
    let mut query = connection.prepare_cached(&sql)?;
    let due: Vec<QueuedRequest> =
        query.query_map(params![to_sqlite_nanos(now), count], read_row)?.collect::<Result<_, _>>()?;
    for item in &due {
        connection.prepare_cached("UPDATE item SET state = 1 WHERE id = ?1")?.execute([&item.id])?;
    }
    let mut next = connection.prepare_cached("SELECT min(next_at) FROM item WHERE state = 0")?;
    let next: Option<i64> = next.query_row([], |row| row.get(0))?;
    Ok((due, next.map(from_sqlite_nanos)))
}

fn update(connection: &Connection, item: &QueuedRequest) -> Result<(), QueueError> {
    connection
        .prepare_cached(
            "UPDATE item SET state = ?2, next_at = ?3, tries = ?4, status = ?5, error = ?6, expires_at = ?7 WHERE id = ?1",
        )?
        .execute(params![
            item.id, item.state as u8, to_sqlite_nanos(item.next_at), item.tries, item.status, item.error,
            to_sqlite_nanos(item.expires_at)
        ])?;
    Ok(())
}

/// Bounds the file's size: the queue's bytes and a quarter more for partly filled pages; the write-ahead log is extra.
fn bound_file(connection: &Connection, bounds: QueueBounds) -> Result<(), QueueError> {
    let page: usize = connection.query_row("PRAGMA page_size", [], |row| row.get(0))?;
    let pages = bounds.bytes / page * 5 / 4 + SPARE_PAGES;
    connection.query_row(&format!("PRAGMA max_page_count = {pages}"), [], |_| Ok(()))?;
    connection.query_row(&format!("PRAGMA journal_size_limit = {LOG_BYTES}"), [], |_| Ok(()))?;
    Ok(())
}

/// Checks that the sender may enqueue one more request.
fn check_sender(
    connection: &Connection,
    item: &QueuedRequest,
    bounds: QueueBounds,
) -> Result<(), QueueError> {
    let mut query = connection.prepare_cached("SELECT items, bytes FROM sender WHERE ip = ?1")?;
    let sum = |row: &Row<'_>| Ok((row.get::<_, usize>(0)?, row.get::<_, usize>(1)?));
    let known = query.query_row([item.sender.share()], sum).optional()?;
    let (items, bytes) = known.unwrap_or_default();
    let fits = items < bounds.sender_items && bytes + item.body_bytes <= bounds.sender_bytes;
    if fits { Ok(()) } else { Err(QueueError::SenderFull) }
}

/// Deletes answered requests, then dead ones, the oldest first, until `bytes` fit.
fn make_room(connection: &Connection, bytes: usize, bounds: QueueBounds) -> Result<(), QueueError> {
    let mut used = connection.prepare_cached("SELECT bytes FROM used")?;
    let mut remove = connection.prepare_cached(
        "DELETE FROM item WHERE sequence = (SELECT sequence FROM item WHERE state = ?1 ORDER BY next_at LIMIT 1)",
    )?;
    for state in [QueuedState::Done, QueuedState::Dead] {
        loop {
            if used.query_row([], |row| row.get::<_, usize>(0))? + bytes <= bounds.bytes {
                return Ok(());
            }
            if remove.execute([state as u8])? == 0 {
                break;
            }
        }
    }
    Err(QueueError::Full)
}

/// A timestamp as an SQLite integer, saturating.
fn to_sqlite_nanos(at: Time) -> i64 {
    i64::try_from(at.nanos()).unwrap_or(i64::MAX)
}

fn from_sqlite_nanos(at: i64) -> Time {
    Time::from_nanos(at.unsigned_abs())
}

fn read_row(row: &Row<'_>) -> rusqlite::Result<QueuedRequest> {
    let json = |at: usize, error: serde_json::Error| {
        rusqlite::Error::FromSqlConversionFailure(at, rusqlite::types::Type::Text, Box::new(error))
    };
    let state: u8 = row.get(1)?;
    let headers: String = row.get(5)?;
    let sender: String = row.get(7)?;
    Ok(QueuedRequest {
        id: row.get(0)?,
        state: QueuedState::ALL.into_iter().find(|known| *known as u8 == state).unwrap_or(QueuedState::Dead),
        method: row.get(2)?,
        target: row.get(3)?,
        host: row.get(4)?,
        headers: serde_json::from_str(&headers).map_err(|error| json(5, error))?,
        body_bytes: row.get(6)?,
        sender: serde_json::from_str::<RequestSender>(&sender).map_err(|error| json(7, error))?,
        queued_at: from_sqlite_nanos(row.get(8)?),
        expires_at: from_sqlite_nanos(row.get(9)?),
        next_at: from_sqlite_nanos(row.get(10)?),
        tries: row.get(11)?,
        status: row.get(12)?,
        error: row.get(13)?,
        delivery_tag: None,
    })
}

/// Enqueues requests of several senders, and takes and answers all of them: for linearity tests.
#[cfg(feature = "testing")]
pub fn enqueue_and_answer(count: usize) {
    const NOW: Time = Time::from_secs(1_800_000_000);
    let connection = Connection::open_in_memory().expect("a database");
    connection.execute_batch(SCHEMA).expect("the schema");
    let bounds = QueueBounds::new(10 * count.max(100), 1 << 30, 1 << 10);
    for n in 0..count {
        let sender =
            RequestSender { ip: [10, 0, 0, (n % 7) as u8].into(), network: None, identity: Vec::new() };
        // All are due; the latest first, so that age and due time differ.
        let next_at = Time::from_nanos(NOW.nanos() - n as u64);
        push(&connection, &QueuedRequest::example(n, sender, next_at), b"body", bounds)
            .expect("there is room");
    }
    let mut answered = 0;
    loop {
        let (due, _) = take_due(&connection, NOW, 16).expect("a sound database");
        if due.is_empty() {
            break;
        }
        answered += due.len();
        for item in due {
            update(&connection, &QueuedRequest { state: QueuedState::Done, ..item })
                .expect("a sound database");
        }
    }
    assert_eq!(answered, count);
}

#[cfg(any(test, feature = "testing"))]
impl QueuedRequest {
    fn example(number: usize, sender: RequestSender, next_at: Time) -> QueuedRequest {
        QueuedRequest {
            id: format!("id-{number}"),
            method: "POST".to_owned(),
            target: "/jobs".to_owned(),
            host: "api".to_owned(),
            headers: Vec::new(),
            body_bytes: 4,
            sender,
            state: QueuedState::Queued,
            queued_at: next_at,
            expires_at: Time::from_secs(2_000_000_000),
            next_at,
            tries: 0,
            status: None,
            error: None,
            delivery_tag: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(connection: &Connection) -> (usize, Vec<(String, usize, usize)>) {
        let waiting = connection.query_row("SELECT items FROM waiting", [], |row| row.get(0)).expect("a row");
        let mut query = connection.prepare("SELECT ip, items, bytes FROM sender ORDER BY ip").expect("valid");
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).expect("valid");
        (waiting, rows.collect::<Result<_, _>>().expect("rows"))
    }

    #[test]
    fn what_a_sender_has_queued_is_counted_until_it_is_answered_or_removed() {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(SCHEMA).expect("the schema");
        let bounds = QueueBounds::new(100, 1 << 20, 100);
        let at = Time::from_secs(1_000);
        for n in 0..3 {
            let sender =
                RequestSender { ip: [10, 0, 0, n as u8 / 2].into(), network: None, identity: Vec::new() };
            push(&connection, &QueuedRequest::example(n, sender, at), b"body", bounds)
                .expect("there is room");
        }
        let both = |first: usize, second: usize| {
            let all = [("10.0.0.0", first), ("10.0.0.1", second)].into_iter().filter(|(_, items)| *items > 0);
            (first + second, all.map(|(ip, items)| (ip.to_owned(), items, 4 * items)).collect::<Vec<_>>())
        };
        assert_eq!(shares(&connection), both(2, 1));
        let (due, _) = take_due(&connection, at, 2).expect("they are due");
        assert_eq!(shares(&connection), both(2, 1), "those that are being sent count");
        update(&connection, &QueuedRequest { state: QueuedState::Done, ..due[0].clone() }).expect("written");
        assert_eq!(shares(&connection), both(1, 1));
        connection.execute("DELETE FROM item WHERE id = 'id-2'", []).expect("removed");
        connection.execute("DELETE FROM item WHERE id = 'id-0'", []).expect("removed");
        assert_eq!(shares(&connection), both(1, 0));
        // As after a start.
        connection.execute_batch(SCHEMA).expect("the schema");
        assert_eq!(shares(&connection), both(1, 0));
    }

    /// Each address of an IPv6 network had a share of the queue.
    #[test]
    fn addresses_of_one_network_share_what_a_sender_may_queue() {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(SCHEMA).expect("the schema");
        let bounds = QueueBounds { sender_items: 3, ..QueueBounds::new(100, 1 << 20, 100) };
        let enqueue = |n: usize, network: &str| {
            let ip = format!("2001:db8::{n}").parse().expect("an address");
            let sender = RequestSender { ip, network: Some(network.to_owned()), identity: Vec::new() };
            push(&connection, &QueuedRequest::example(n, sender, Time::from_secs(1_000)), b"body", bounds)
        };
        (0..3).for_each(|n| enqueue(n, "2001:db8::/64").expect("there is room"));
        assert!(matches!(enqueue(3, "2001:db8::/64"), Err(QueueError::SenderFull)));
        enqueue(4, "2001:db8:0:1::/64").expect("another network");
        connection.execute_batch(SCHEMA).expect("as after a start");
        assert_eq!(shares(&connection).1[0], ("2001:db8:0:1::/64".to_owned(), 1, 4));
        connection.execute("DELETE FROM item WHERE id = 'id-1'", []).expect("removed");
        enqueue(5, "2001:db8::/64").expect("there is room again");
    }

    #[test]
    fn the_file_is_bounded_by_what_may_be_queued() {
        let connection = Connection::open_in_memory().expect("a database");
        connection.execute_batch(SCHEMA).expect("the schema");
        let bounds = QueueBounds::new(1_000, 1 << 20, 10_000);
        bound_file(&connection, bounds).expect("bounded");
        let error = (0..).find_map(|n| {
            let insert = "INSERT INTO item VALUES (NULL, ?1, 0, '', '', '', '', zeroblob(10000), '{\"ip\":\"::1\"}', 0, 0, 0, 0, NULL, NULL)";
            connection.execute(insert, [n]).err()
        });
        assert!(matches!(error.map(QueueError::from), Some(QueueError::Full)));
        let pages: usize = connection.query_row("PRAGMA page_count", [], |row| row.get(0)).expect("a number");
        assert!(pages * 4096 <= (1 << 20) * 5 / 4 + SPARE_PAGES * 4096, "{pages} pages");
    }
}
