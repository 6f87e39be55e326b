//! The lock on the state folder: only one node at a time may use it.
//!
//! The lock is the kernel's (`flock`), so it ends with the process that holds it; the file stays, and its text only
//! names that process. It is never removed: otherwise a second node could lock a file that is already unlinked.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const NAME: &str = "tollgate.lock";
/// Maximum number of bytes read from another node's description.
const MAX_HOLDER_BYTES: u64 = 256;

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "{} is in use by another node: {holder}; give each node a state_dir of its own, or stop that one",
        folder.display()
    )]
    Held { folder: PathBuf, holder: String },
    #[error("{} cannot be opened: {error}", file.display())]
    Io { file: PathBuf, error: io::Error },
}

/// Held until it is dropped, or the process ends.
#[derive(Debug)]
pub struct FolderLock(Option<File>);

impl FolderLock {
    pub fn take(folder: &Path) -> Result<FolderLock, LockError> {
        let path = folder.join(NAME);
        let io_error = |error| LockError::Io { file: path.clone(), error };
        let mut options = OpenOptions::new();
        let open = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = match open {
            Ok(file) => file,
            Err(error) if !path.exists() && is_read_only(&error) => {
                tracing::warn!(folder = %folder.display(), %error, "state_dir cannot be written to");
                return Ok(FolderLock(None)); // no node can write there
            }
            Err(error) => return Err(io_error(error)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(LockError::Held { folder: folder.to_owned(), holder: holder(&mut file) });
            }
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
                tracing::warn!(file = %path.display(), "the file system has no locks: a second node with this state_dir goes unnoticed");
            }
            Err(TryLockError::Error(error)) => return Err(io_error(error)),
        }
        let lock = FolderLock(Some(file));
        lock.describe(&[]).map_err(io_error)?;
        Ok(lock)
    }

    /// The description of the process that holds the lock, if one does. Creates nothing.
    pub fn holder_of(folder: &Path) -> Option<String> {
        let mut file = File::open(folder.join(NAME)).ok()?;
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Some(holder(&mut file)),
            _ => None,
        }
    }

    /// Writes the process id and the listeners' addresses, for the error message of a second node.
    pub fn describe(&self, listeners: &[(&str, String)]) -> io::Result<()> {
        let Some(mut file) = self.0.as_ref() else { return Ok(()) };
        let mut text = format!("process {}", std::process::id());
        if let Ok(host) = rustix::system::uname().nodename().to_str() {
            text += &format!(" on {host}");
        }
        for (n, (name, address)) in listeners.iter().enumerate() {
            let before = if n == 0 { ", which listens on" } else { "," };
            text += &format!("{before} {address} ({name})");
        }
        file.seek(SeekFrom::Start(0))?;
        file.write_all(text.as_bytes())?;
        file.write_all(b"\n")?;
        file.set_len(text.len() as u64 + 1)
    }
}

fn is_read_only(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

/// The holder's description; it may not be written yet.
fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    let read = file.take(MAX_HOLDER_BYTES).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    match text.lines().next().map(str::trim).filter(|line| read.is_ok() && !line.is_empty()) {
        Some(line) => line.chars().filter(|c| !c.is_control()).collect(),
        None => "an unknown process".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_locked_once_and_a_stale_lock_file_is_taken_over() {
        let folder = std::env::temp_dir().join(format!("tollgate-lock-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(
            folder.join(NAME),
            "process 1 on elsewhere, of long ago, and much longer than what follows it",
        )
        .expect("a stale file");
        let lock = FolderLock::take(&folder).expect("nothing holds it");
        lock.describe(&[("http", "127.0.0.1:8080".to_owned())]).expect("it is ours");
        let second = FolderLock::take(&folder).expect_err("it is held").to_string();
        assert!(second.contains(&format!("process {} ", std::process::id())), "{second}");
        assert!(second.contains("which listens on 127.0.0.1:8080 (http); give"), "{second}");
        drop(lock);
        FolderLock::take(&folder).expect("it was given back");
        std::fs::remove_dir_all(&folder).ok();
    }
}
