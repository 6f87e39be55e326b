//! A full copy, written to a temporary file and renamed over the existing one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tollgate::Time;

use super::head::{ChangeDigest, CopyHead, RowsDigest};
use super::{CopyError, FORMAT, LocalCopy, MAX_PAST, head, items, with_suffix};
use crate::rules::{ChangeLogEntry, ItemChange, ItemKind, StoredItem, Version};

#[derive(Debug)]
pub struct NewCopy {
    connection: Connection,
    head: CopyHead,
    path: PathBuf,
    unfinished: TempFile,
}

/// A file that is removed on drop unless it was renamed: a partial copy must not keep a full disk full.
#[derive(Debug)]
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        remove(&self.0).ok();
    }
}

impl NewCopy {
    /// Starts a copy of a database. The file at `path` is kept until [`finish`](Self::finish).
    pub fn create(path: &Path, source: &str) -> Result<NewCopy, CopyError> {
        let unfinished = TempFile(with_suffix(path, ".tmp"));
        create_private(&unfinished.0).map_err(unusable)?;
        let connection = Connection::open(&unfinished.0)?;
        // The file is not read before the rename: after a crash the next start removes it.
        connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")?;
        connection.execute_batch(super::CACHE_PRAGMA)?;
        connection.execute_batch(&format!("BEGIN; {}; {}", head::TABLE, items::TABLES))?;
        let head = CopyHead {
            source: source.to_owned(),
            version: Version::ZERO,
            last: ChangeDigest::default(),
            contents: RowsDigest::default(),
            confirmed_at: Time::EPOCH,
        };
        Ok(NewCopy { connection, head, path: path.to_owned(), unfinished })
    }

    pub fn put(&mut self, batch: Vec<StoredItem>) -> Result<(), CopyError> {
        for stored in batch {
            items::append(&self.connection, &mut self.head, stored)?;
        }
        Ok(())
    }

    /// Renames the copy into place. `last` is the change that led to the version, `past` the latest changes, latest
    /// first.
    pub fn finish(
        mut self,
        version: Version,
        last: Option<&ItemChange>,
        past: Vec<ChangeLogEntry>,
        now: Time,
    ) -> Result<LocalCopy, CopyError> {
        let rules = |logged: &ChangeLogEntry| {
            logged.change.item.kind == ItemKind::Rule && logged.change.version <= version
        };
        for logged in past.into_iter().filter(rules).take(MAX_PAST) {
            items::insert_logged(&self.connection, &mut self.head, logged)?;
        }
        self.head.version = version;
        self.head.last = last.map(ChangeDigest::of).unwrap_or_default();
        self.head.confirmed_at = now;
        self.head.write(&self.connection)?;
        self.connection.execute_batch(items::INDEXES)?;
        self.connection.execute_batch(&format!("PRAGMA user_version = {FORMAT}; COMMIT"))?;
        self.connection.close().map_err(|(_, error)| error)?;
        replace(&self.unfinished.0, &self.path).map_err(unusable)?;
        LocalCopy::open(&self.path, &self.head.source)
    }
}

fn unusable(error: io::Error) -> CopyError {
    CopyError::Unusable(error.to_string())
}

fn create_private(path: &Path) -> io::Result<()> {
    remove(path)?;
    remove(&with_suffix(path, "-journal"))?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(())
}

fn replace(new: &Path, old: &Path) -> io::Result<()> {
    File::open(new)?.sync_all()?;
    // SQLite would replay a journal of the old file into the new one.
    remove(&with_suffix(old, "-journal"))?;
    fs::rename(new, old)?;
    let folder = old.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
