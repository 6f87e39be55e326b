//! A whole copy, written beside the one that is there and renamed over it.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use tollgate::Time;

use super::head::{ChangeMark, Contents, Head};
use super::{CopyError, FORMAT, LocalCopy, MAX_PAST, beside, head, items};
use crate::rules::{Change, Kind, Logged, Stored, Version};

#[derive(Debug)]
pub struct NewCopy {
    connection: Connection,
    head: Head,
    path: PathBuf,
    unfinished: Unfinished,
}

/// A file that is removed unless it is renamed: what is left of it would keep a full disk full.
#[derive(Debug)]
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        remove(&self.0).ok();
    }
}

impl NewCopy {
    /// Starts a copy of a database. What is at `path` stays until [`finish`](Self::finish).
    pub fn create(path: &Path, source: &str) -> Result<NewCopy, CopyError> {
        let unfinished = Unfinished(beside(path, ".tmp"));
        create_private(&unfinished.0).map_err(unusable)?;
        let connection = Connection::open(&unfinished.0)?;
        // Until it is renamed nobody reads it: a crash leaves a file that the next start removes.
        connection.execute_batch("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")?;
        connection.execute_batch(super::CACHE)?;
        connection.execute_batch(&format!("BEGIN; {}; {}", head::TABLE, items::TABLES))?;
        let head = Head {
            source: source.to_owned(),
            version: Version::ZERO,
            last: ChangeMark::default(),
            contents: Contents::default(),
            confirmed_at: Time::EPOCH,
        };
        Ok(NewCopy { connection, head, path: path.to_owned(), unfinished })
    }

    pub fn put(&mut self, batch: Vec<Stored>) -> Result<(), CopyError> {
        for stored in batch {
            items::append(&self.connection, &mut self.head, stored)?;
        }
        Ok(())
    }

    /// Puts the copy in place. `last` is the change that led to the version, `past` the latest changes, latest first.
    pub fn finish(
        mut self,
        version: Version,
        last: Option<&Change>,
        past: Vec<Logged>,
        now: Time,
    ) -> Result<LocalCopy, CopyError> {
        let rules =
            |logged: &Logged| logged.change.item.kind == Kind::Rule && logged.change.version <= version;
        for logged in past.into_iter().filter(rules).take(MAX_PAST) {
            items::insert_logged(&self.connection, &mut self.head, logged)?;
        }
        self.head.version = version;
        self.head.last = last.map(ChangeMark::of).unwrap_or_default();
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
    remove(&beside(path, "-journal"))?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    Ok(())
}

fn replace(new: &Path, old: &Path) -> io::Result<()> {
    File::open(new)?.sync_all()?;
    // SQLite would roll a journal of the old file back into the new one.
    remove(&beside(old, "-journal"))?;
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
