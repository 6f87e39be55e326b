//! The log of changes: appended to, never rewritten. Who and when is kept once for all changes made in one go.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate::Time;

use crate::rules::{Author, Change, DbError, Feed, Item, Kind, Logged, Version};

pub(super) fn last(connection: &Connection) -> Result<Version, DbError> {
    let mut query = connection.prepare_cached("SELECT coalesce(max(v), 0) FROM log")?;
    Ok(query.query_row([], |row| row.get(0).map(Version::unpack))?)
}

pub(super) fn append(
    connection: &Connection,
    author: &Author,
    changes: &[Change],
    undoes: Option<Version>,
) -> Result<(), DbError> {
    let Some(first) = changes.first() else { return Ok(()) };
    let at = i64::try_from(author.at.nanos()).unwrap_or(i64::MAX);
    connection.execute(
        "INSERT INTO author (first, who, at, undoes) VALUES (?1, ?2, ?3, ?4)",
        params![first.version.packed(), author.who, at, undoes.map(Version::packed)],
    )?;
    let sql = "INSERT INTO log (v, kind, name, previous, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    let mut insert = connection.prepare_cached(sql)?;
    for Change { item, version, previous, text } in changes {
        let previous = previous.map(Version::packed);
        insert.execute(params![version.packed(), item.kind as i16, item.name, previous, text])?;
    }
    Ok(())
}

/// The changes after a version, if that version is one of this file's.
pub(super) fn since(connection: &Connection, version: Version, limit: usize) -> Result<Feed, DbError> {
    let known = "SELECT 1 FROM log WHERE v = ?1";
    let known = connection.prepare_cached(known)?.query_row([version.packed()], |_| Ok(())).optional()?;
    if version != Version::ZERO && known.is_none() {
        return Ok(Feed::Diverged);
    }
    let sql = "SELECT v, kind, name, previous, body FROM log WHERE v > ?1 ORDER BY v LIMIT ?2";
    let mut query = connection.prepare_cached(sql)?;
    let changes = query.query_map(params![version.packed(), limit], read)?;
    Ok(Feed::Changes(changes.collect::<Result<_, _>>()?))
}

const LOGGED: &str = "SELECT log.v, kind, name, previous, body, who, at, undoes,
        (SELECT earlier.body FROM log AS earlier WHERE earlier.v = log.previous)
    FROM log JOIN author ON author.first = (SELECT max(first) FROM author WHERE first <= log.v)";

pub(super) fn find(connection: &Connection, version: Version) -> Result<Option<Logged>, DbError> {
    let mut query = connection.prepare_cached(&format!("{LOGGED} WHERE log.v = ?1"))?;
    Ok(query.query_row([version.packed()], read_logged).optional()?)
}

pub(super) fn page(
    connection: &Connection,
    before: Option<Version>,
    limit: usize,
) -> Result<Vec<Logged>, DbError> {
    let mut query =
        connection.prepare_cached(&format!("{LOGGED} WHERE log.v < ?1 ORDER BY log.v DESC LIMIT ?2"))?;
    let before = before.map_or(i64::MAX, Version::packed);
    let rows = query.query_map(params![before, limit], read_logged)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

/// The changes of one thing. There is no index for it: nobody waits for it, and each rule would pay.
pub(super) fn history(
    connection: &Connection,
    item: &Item,
    before: Option<Version>,
    limit: usize,
) -> Result<Vec<Logged>, DbError> {
    let sql = format!("{LOGGED} WHERE log.v < ?1 AND kind = ?3 AND name = ?4 ORDER BY log.v DESC LIMIT ?2");
    let before = before.map_or(i64::MAX, Version::packed);
    let mut query = connection.prepare_cached(&sql)?;
    let rows = query.query_map(params![before, limit, item.kind as i16, item.name], read_logged)?;
    Ok(rows.collect::<Result<_, _>>()?)
}

fn read_logged(row: &Row<'_>) -> rusqlite::Result<Logged> {
    let at: i64 = row.get(6)?;
    Ok(Logged {
        change: read(row)?,
        who: row.get(5)?,
        at: Time::from_nanos(at.unsigned_abs()),
        undoes: row.get::<_, Option<i64>>(7)?.map(Version::unpack),
        before: row.get(8)?,
    })
}

fn read(row: &Row<'_>) -> rusqlite::Result<Change> {
    let code: i16 = row.get(1)?;
    let kind = Kind::from_code(code).ok_or(rusqlite::Error::IntegralValueOutOfRange(1, code.into()))?;
    Ok(Change {
        item: Item::new(kind, row.get::<_, String>(2)?),
        version: Version::unpack(row.get(0)?),
        previous: row.get::<_, Option<i64>>(3)?.map(Version::unpack),
        text: row.get(4)?,
    })
}
