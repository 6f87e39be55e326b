//! The single row that describes the copy: its source database, version, and the digest of all rows.

use ring::digest::{Context, SHA256};
use rusqlite::{Connection, params};
use tollgate::Time;

use super::CopyError;
use crate::rules::{ItemChange, Version};

pub(super) const TABLE: &str = "CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1), source TEXT NOT NULL, v INTEGER NOT NULL, last BLOB NOT NULL,
    rows INTEGER NOT NULL, digest BLOB NOT NULL, confirmed INTEGER NOT NULL, sum BLOB NOT NULL)";

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CopyHead {
    pub(super) source: String,
    pub(super) version: Version,
    pub(super) last: ChangeDigest,
    pub(super) contents: RowsDigest,
    pub(super) confirmed_at: Time,
}

/// Hash of one log entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ChangeDigest([u8; 32]);

impl ChangeDigest {
    pub fn of(change: &ItemChange) -> ChangeDigest {
        let mut hash = FieldHasher::new("change");
        hash.number(change.version.packed());
        hash.number(change.item.kind as i64);
        hash.text(Some(&change.item.name));
        hash.number(change.previous.map_or(-1, Version::packed));
        hash.text(change.text.as_deref());
        ChangeDigest(hash.finish())
    }
}

/// Number of rows, and the sum of their hashes modulo 2^128: adding or removing a row does not read others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RowsDigest {
    rows: u64,
    sum: u128,
}

impl RowsDigest {
    pub(super) fn add(&mut self, row: FieldHasher) {
        self.rows = self.rows.wrapping_add(1);
        self.sum = self.sum.wrapping_add(row.short());
    }

    pub(super) fn remove(&mut self, row: FieldHasher) {
        self.rows = self.rows.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(row.short());
    }
}

/// SHA-256 over length-prefixed fields.
pub(super) struct FieldHasher(Context);

impl FieldHasher {
    pub(super) fn new(what: &str) -> FieldHasher {
        let mut hash = FieldHasher(Context::new(&SHA256));
        hash.text(Some(what));
        hash
    }

    pub(super) fn number(&mut self, number: i64) {
        self.0.update(&number.to_le_bytes());
    }

    pub(super) fn text(&mut self, text: Option<&str>) {
        self.number(text.map_or(-1, |text| text.len() as i64));
        self.0.update(text.unwrap_or_default().as_bytes());
    }

    fn finish(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(self.0.finish().as_ref());
        bytes
    }

    fn short(self) -> u128 {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.0.finish().as_ref()[..16]);
        u128::from_le_bytes(bytes)
    }
}

impl CopyHead {
    pub(super) fn read(connection: &Connection) -> Result<CopyHead, CopyError> {
        let sql = "SELECT source, v, last, rows, digest, confirmed, sum FROM head WHERE id = 1";
        let (head, sum) = connection.prepare_cached(sql)?.query_row([], |row| {
            let confirmed: i64 = row.get(5)?;
            let head = CopyHead {
                source: row.get(0)?,
                version: Version::from_packed(row.get(1)?),
                last: ChangeDigest(row.get(2)?),
                contents: RowsDigest {
                    rows: row.get::<_, i64>(3)?.unsigned_abs(),
                    sum: u128::from_le_bytes(row.get(4)?),
                },
                confirmed_at: Time::from_nanos(confirmed.unsigned_abs()),
            };
            Ok((head, row.get::<_, [u8; 32]>(6)?))
        })?;
        if head.checksum() == sum {
            Ok(head)
        } else {
            Err(CopyError::Damaged("its head does not match its checksum".to_owned()))
        }
    }

    pub(super) fn write(&self, connection: &Connection) -> Result<(), CopyError> {
        let sql = "INSERT OR REPLACE INTO head (id, source, v, last, rows, digest, confirmed, sum)
            VALUES (1, ?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        connection.prepare_cached(sql)?.execute(params![
            self.source,
            self.version.packed(),
            self.last.0,
            self.contents.rows as i64,
            self.contents.sum.to_le_bytes(),
            nanos(self.confirmed_at),
            self.checksum(),
        ])?;
        Ok(())
    }

    fn checksum(&self) -> [u8; 32] {
        let mut hash = FieldHasher::new("head");
        hash.text(Some(&self.source));
        hash.number(self.version.packed());
        hash.0.update(&self.last.0);
        hash.number(self.contents.rows as i64);
        hash.0.update(&self.contents.sum.to_le_bytes());
        hash.number(nanos(self.confirmed_at));
        hash.finish()
    }
}

/// Nanoseconds as an SQLite integer.
pub(super) fn nanos(time: Time) -> i64 {
    i64::try_from(time.nanos()).unwrap_or(i64::MAX)
}
