//! The append-only log of changes. Author and time are stored once for all changes of one call.
//!
//! It is pruned from its start; automatic bans are pruned earlier. Up to its floor entries may be missing, so nodes
//! that are further behind cannot follow it.

use tokio_postgres::{GenericClient, Row};
use tollgate::Time;

use super::connection::PgFailure;
use super::items::item;
use crate::rules::change_set::OpenSet;
use crate::rules::plan::{self, Candidate, Pruned};
use crate::rules::{Author, ChangeFeed, ChangeLogEntry, ChangeSet, DbError, ItemChange, ItemId, Version};

/// Channel of change notifications.
pub(super) const CHANNEL: &str = "tollgate_rules";
const CHUNK: usize = 10_000;

/// Current state of a server.
pub(super) struct PgServerState {
    pub(super) in_recovery: bool,
    pub(super) timeline: u32,
    /// Whether the tables exist: a standby may not have them yet.
    pub(super) ready: bool,
    pub(super) last: Version,
}

/// A standby takes its timeline from the server that it follows, or from the last checkpoint that it has replayed.
const STATE: &str = "SELECT pg_is_in_recovery(), CASE WHEN pg_is_in_recovery() THEN
        greatest((SELECT timeline_id FROM pg_control_checkpoint()),
                 (SELECT max(received_tli) FROM pg_stat_wal_receiver))
    ELSE ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int END";

pub(super) async fn server_state(
    client: &impl GenericClient,
) -> Result<PgServerState, tokio_postgres::Error> {
    let row = client.query_one(STATE, &[]).await?;
    let timeline = row.get::<_, i32>(1).unsigned_abs();
    let ready = super::schema::schema_version(client).await? > 0;
    let last = if ready { read_last_version(client).await? } else { Version::ZERO };
    Ok(PgServerState { in_recovery: row.get(0), timeline, ready, last })
}

/// Takes an EXCLUSIVE lock on the log until commit: writers are serialised, readers are not blocked.
pub(super) async fn lock(client: &impl GenericClient) -> Result<(), tokio_postgres::Error> {
    // An acknowledged change must be on disk, whatever the server's default.
    let durable = "SELECT set_config('synchronous_commit', 'on', true)
        WHERE current_setting('synchronous_commit') = 'off'";
    client.query(durable, &[]).await?;
    client.batch_execute("LOCK TABLE tollgate.log IN EXCLUSIVE MODE").await
}

pub(super) async fn last_version(client: &impl GenericClient) -> Result<Version, PgFailure> {
    Ok(read_last_version(client).await?)
}

async fn read_last_version(client: &impl GenericClient) -> Result<Version, tokio_postgres::Error> {
    let row = client.query_one("SELECT coalesce(max(v), 0) FROM tollgate.log", &[]).await?;
    Ok(Version::from_packed(row.get(0)))
}

pub(super) async fn append(
    client: &impl GenericClient,
    set: &mut OpenSet<'_>,
    changes: &[ItemChange],
) -> Result<(), PgFailure> {
    let (Some(first), Some(last)) = (changes.first(), changes.last()) else { return Ok(()) };
    if set.first.is_none() {
        set.first = Some(first.version);
        let Author { name, at, note } = set.author;
        let at = i64::try_from(at.nanos()).unwrap_or(i64::MAX);
        let undoes = set.undoes.map(Version::packed);
        let sql = "INSERT INTO tollgate.author (first, who, at, undoes, note) VALUES ($1, $2, $3, $4, $5)";
        client.execute(sql, &[&first.version.packed(), name, &at, &undoes, note]).await?;
    }
    for chunk in changes.chunks(CHUNK) {
        let versions: Vec<i64> = chunk.iter().map(|change| change.version.packed()).collect();
        let kinds: Vec<i16> = chunk.iter().map(|change| change.item.kind as i16).collect();
        let names: Vec<&str> = chunk.iter().map(|change| &*change.item.name).collect();
        let previous: Vec<Option<i64>> =
            chunk.iter().map(|change| change.previous.map(Version::packed)).collect();
        let texts: Vec<Option<&str>> = chunk.iter().map(|change| change.text.as_deref()).collect();
        let sql = "INSERT INTO tollgate.log (v, kind, name, previous, body)
            SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::text[], $4::bigint[], $5::text[])";
        client.execute(sql, &[&versions, &kinds, &names, &previous, &texts]).await?;
    }
    client.execute("SELECT pg_notify($1, $2)", &[&CHANNEL, &last.version.to_string()]).await?;
    Ok(())
}

/// Records where a set ends.
pub(super) async fn close(client: &impl GenericClient, set: &OpenSet<'_>) -> Result<(), PgFailure> {
    let Some(ChangeSet { first, last, created, changed, deleted }) = set.finished() else { return Ok(()) };
    let [created, changed, deleted] =
        [created, changed, deleted].map(|count| i64::try_from(count).unwrap_or(i64::MAX));
    let sql =
        "UPDATE tollgate.author SET last = $2, created = $3, changed = $4, deleted = $5 WHERE first = $1";
    client.execute(sql, &[&first.packed(), &last.packed(), &created, &changed, &deleted]).await?;
    Ok(())
}

/// The entries of a set after a version, in their order.
pub(super) async fn entries_of(
    client: &impl GenericClient,
    set: &ChangeSet,
    after: Option<Version>,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, PgFailure> {
    let from = after.map_or(set.first.packed(), |after| after.packed() + 1);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql = format!("{SELECT_LOG} WHERE log.v >= $1 AND log.v <= $2 ORDER BY log.v LIMIT $3");
    let rows = client.query(&sql, &[&from, &set.last.packed(), &limit]).await?;
    Ok(rows.iter().map(read_entry).collect::<Result<_, _>>()?)
}

/// Whether no entry of a set was pruned.
pub(super) async fn is_whole(client: &impl GenericClient, set: &ChangeSet) -> Result<bool, PgFailure> {
    let sql = "SELECT count(*) FROM tollgate.log WHERE v >= $1 AND v <= $2";
    let count: i64 = client.query_one(sql, &[&set.first.packed(), &set.last.packed()]).await?.get(0);
    Ok(count.unsigned_abs() == set.changes())
}

/// The changes after a version, if this database has that version. A standby may not have it yet.
pub(super) async fn changes_since(
    client: &impl GenericClient,
    version: Version,
    limit: usize,
) -> Result<ChangeFeed, PgFailure> {
    let floor = pruned(client).await?.floor;
    if version.packed() < floor {
        return Ok(ChangeFeed::Diverged);
    }
    let sql = "SELECT EXISTS (SELECT 1 FROM tollgate.log WHERE v = $1)";
    let is_logged: bool = client.query_one(sql, &[&version.packed()]).await?.get(0);
    if !is_logged && version.packed() != floor {
        let PgServerState { in_recovery, timeline, last, .. } = server_state(client).await?;
        let behind = in_recovery && timeline <= version.timeline() && last < version;
        return Ok(if behind { ChangeFeed::Changes(Vec::new()) } else { ChangeFeed::Diverged });
    }
    let sql = "SELECT v, kind, name, previous, body FROM tollgate.log WHERE v > $1 ORDER BY v LIMIT $2";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = client.query(sql, &[&version.packed(), &limit]).await?;
    Ok(ChangeFeed::Changes(rows.iter().map(read_change).collect::<Result<_, _>>()?))
}

async fn pruned(client: &impl GenericClient) -> Result<Pruned, tokio_postgres::Error> {
    let row = client.query_one("SELECT floor, scanned FROM tollgate.pruned", &[]).await?;
    Ok(Pruned { floor: row.get(0), scanned: row.get(1) })
}

async fn note_pruned(client: &impl GenericClient, pruned: Pruned) -> Result<(), tokio_postgres::Error> {
    let Pruned { floor, scanned } = pruned;
    client.execute("UPDATE tollgate.pruned SET floor = $1, scanned = $2", &[&floor, &scanned]).await?;
    Ok(())
}

/// Removes up to `batch` of the oldest entries from before a time, but never the last entry.
pub(super) async fn prune(
    client: &impl GenericClient,
    before: Time,
    batch: usize,
) -> Result<usize, tokio_postgres::Error> {
    let most = i64::try_from(batch.saturating_add(1)).unwrap_or(i64::MAX);
    let rows =
        client.query("SELECT first, at FROM tollgate.author ORDER BY first LIMIT $1", &[&most]).await?;
    let authors: Vec<(i64, i64)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    let Some(end) = plan::prune_bound(&authors, before) else { return Ok(0) };
    let sql = "SELECT max(v) FROM (SELECT v FROM tollgate.log WHERE v < $1 ORDER BY v LIMIT $2) AS oldest";
    let limit = i64::try_from(batch).unwrap_or(i64::MAX);
    let last: Option<i64> = client.query_one(sql, &[&end, &limit]).await?.get(0);
    let mut removed = 0;
    if let Some(last) = last {
        removed = client.execute("DELETE FROM tollgate.log WHERE v <= $1", &[&last]).await? as usize;
        let Pruned { floor, scanned } = pruned(client).await?;
        note_pruned(client, Pruned { floor: floor.max(last), scanned: scanned.max(last) }).await?;
    }
    if removed < batch {
        client.execute("DELETE FROM tollgate.author WHERE first < $1", &[&end]).await?;
    }
    Ok(removed)
}

/// Removes automatic bans from before a time, and those that `kept` or more entries follow, but never the last entry. Scans
/// up to `batch` of the next entries, and returns the number scanned.
pub(super) async fn prune_automatic_bans(
    client: &impl GenericClient,
    before: Time,
    kept: usize,
    batch: usize,
) -> Result<usize, tokio_postgres::Error> {
    let known = pruned(client).await?;
    let sql = "SELECT v FROM tollgate.log WHERE v > $1 ORDER BY v DESC LIMIT 1 OFFSET $2";
    let kept = i64::try_from(kept).unwrap_or(i64::MAX);
    let beyond = client.query_opt(sql, &[&known.scanned, &kept]).await?.map(|row| row.get(0));
    let sql = "SELECT log.v, kind, body, who, at FROM tollgate.log
        JOIN tollgate.author ON author.first = (SELECT max(first) FROM tollgate.author WHERE first <= log.v)
        WHERE log.v > $1 AND log.v < (SELECT max(v) FROM tollgate.log) ORDER BY log.v LIMIT $2";
    let limit = i64::try_from(batch).unwrap_or(i64::MAX);
    let rows = client.query(sql, &[&known.scanned, &limit]).await?;
    let candidate = |row: &Row| Candidate {
        version: row.get(0),
        kind: row.get(1),
        text: row.get(2),
        author: row.get(3),
        at: row.get(4),
    };
    let candidates = rows.iter().map(candidate).collect();
    let Some((next, removed, looked)) = plan::prune_automatic(known, candidates, before, beyond) else {
        return Ok(0);
    };
    client.execute("DELETE FROM tollgate.log WHERE v = ANY($1)", &[&removed]).await?;
    // Authors without remaining entries.
    let sql = "DELETE FROM tollgate.author WHERE first <= $2
        AND first >= coalesce((SELECT max(first) FROM tollgate.author WHERE first <= $1), 0)
        AND NOT EXISTS (SELECT 1 FROM tollgate.log WHERE v >= author.first AND v < coalesce(
            (SELECT min(next.first) FROM tollgate.author AS next WHERE next.first > author.first), $3))";
    client.execute(sql, &[&known.scanned, &next.scanned, &i64::MAX]).await?;
    note_pruned(client, next).await?;
    Ok(looked)
}

const SELECT_LOG: &str = "SELECT log.v, kind, name, previous, body, who, at, undoes,
        (SELECT earlier.body FROM tollgate.log AS earlier WHERE earlier.v = log.previous),
        note, first, last, created, changed, deleted
    FROM tollgate.log
    JOIN tollgate.author ON author.first = (SELECT max(first) FROM tollgate.author WHERE first <= log.v)";

pub(super) async fn find(
    client: &impl GenericClient,
    version: Version,
) -> Result<Option<ChangeLogEntry>, PgFailure> {
    let row = client.query_opt(&format!("{SELECT_LOG} WHERE log.v = $1"), &[&version.packed()]).await?;
    Ok(row.as_ref().map(read_entry).transpose()?)
}

pub(super) async fn page(
    client: &impl GenericClient,
    before: Option<Version>,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, PgFailure> {
    let before = before.map_or(i64::MAX, Version::packed);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql = format!("{SELECT_LOG} WHERE log.v < $1 ORDER BY log.v DESC LIMIT $2");
    let rows = client.query(&sql, &[&before, &limit]).await?;
    Ok(rows.iter().map(read_entry).collect::<Result<_, _>>()?)
}

/// The last change of each call within a time, latest first, without those of the nodes themselves.
pub(super) async fn calls(
    client: &impl GenericClient,
    from: Time,
    to: Time,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, PgFailure> {
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let [from, to] = [from, to].map(|time| i64::try_from(time.nanos()).unwrap_or(i64::MAX));
    let sql = format!(
        "{SELECT_LOG} WHERE log.v IN (SELECT coalesce(last, first) FROM tollgate.author
            WHERE who <> $1 AND at >= $2 AND at <= $3 ORDER BY first DESC LIMIT $4) ORDER BY log.v DESC"
    );
    let rows = client.query(&sql, &[&Author::AUTOMATIC, &from, &to, &limit]).await?;
    Ok(rows.iter().map(read_entry).collect::<Result<_, _>>()?)
}

/// Changes of one item. Without an index: the query is rare, and an index would cost every rule.
pub(super) async fn history(
    client: &impl GenericClient,
    item: &ItemId,
    before: Option<Version>,
    limit: usize,
) -> Result<Vec<ChangeLogEntry>, PgFailure> {
    let before = before.map_or(i64::MAX, Version::packed);
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let sql =
        format!("{SELECT_LOG} WHERE log.v < $1 AND kind = $3 AND name = $4 ORDER BY log.v DESC LIMIT $2");
    let rows = client.query(&sql, &[&before, &limit, &(item.kind as i16), &&*item.name]).await?;
    Ok(rows.iter().map(read_entry).collect::<Result<_, _>>()?)
}

fn read_entry(row: &Row) -> Result<ChangeLogEntry, DbError> {
    Ok(ChangeLogEntry {
        change: read_change(row)?,
        author: row.get(5),
        at: Time::from_nanos(row.get::<_, i64>(6).unsigned_abs()),
        undoes: row.get::<_, Option<i64>>(7).map(Version::from_packed),
        before: row.get(8),
        note: row.get(9),
        set: ChangeSet::from_columns(row.get(10), row.get(11), [row.get(12), row.get(13), row.get(14)]),
    })
}

fn read_change(row: &Row) -> Result<ItemChange, DbError> {
    Ok(ItemChange {
        item: item(row.get(1), row.get(2))?,
        version: Version::from_packed(row.get(0)),
        previous: row.get::<_, Option<i64>>(3).map(Version::from_packed),
        text: row.get(4),
    })
}
