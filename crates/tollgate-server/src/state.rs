//! The file of saved counters, bans and tracked keys, and the protection of its folder.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use tollgate::internal::document::{Problem, Problems};
use tollgate::internal::engine::log::Frames;

use crate::config::{Config, QueueConfig, QueueLocation};
use crate::insight;

mod lock;
mod log;
mod saver;

pub use lock::FolderLock;
pub use log::StateLog;
pub use saver::{SaveStatus, Saver, Saving};

pub struct StateFile {
    path: PathBuf,
    /// The position for appends, once the file was read.
    end: OnceLock<(Frames, u64)>,
}

const NAME: &str = "tollgate.snapshot";

impl StateFile {
    pub fn in_folder(folder: &Path) -> StateFile {
        StateFile { path: folder.join(NAME), end: OnceLock::new() }
    }

    /// The saved state; `None` on a first start, or if the file cannot be read, which is logged.
    pub fn read(&self) -> Option<Vec<u8>> {
        match fs::read(&self.path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                tracing::error!(file = %self.path.display(), %error, "the saved state cannot be read");
                None
            }
        }
    }

    /// Sets the position for appends to the file that was read.
    pub fn ends_at(&self, end: Option<(Frames, u64)>) {
        if let Some(end) = end {
            self.end.set(end).ok();
        }
    }

    /// The log, which continues at the end of the file or begins a new one.
    pub fn log(self) -> StateLog {
        StateLog::new(self.path, self.end.into_inner())
    }

    /// Renames an unusable file, so that it can be examined.
    pub fn quarantine(&self) {
        let damaged = self.path.with_extension("snapshot.damaged");
        match fs::rename(&self.path, &damaged) {
            Ok(()) => tracing::warn!(file = %damaged.display(), "the saved state was renamed"),
            Err(error) => tracing::warn!(%error, "the saved state could not be renamed"),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The folder of the state.
pub fn folder(config: &Config) -> &Path {
    if config.state_dir.as_os_str().is_empty() { Path::new(".") } else { &config.state_dir }
}

/// A folder that is missing is an error at the start, not at the stop.
pub fn check_folder(config: &Config) -> Result<(), Problems> {
    let folder = folder(config);
    if folder.is_dir() {
        return Ok(());
    }
    let message = format!("there is no folder {0}: mkdir -p '{0}'", folder.display());
    Err(Problem::new(None, "state_dir", message).into())
}

/// All files in which a node keeps keys, rules or requests, with the settings that place them.
pub fn files(config: &Config) -> Vec<(&'static str, PathBuf)> {
    let folder = folder(config);
    let mut files = vec![("state_dir", folder.join(NAME)), ("state_dir", folder.join(insight::FILE_NAME))];
    if let Some(db) = &config.rules_db {
        files.extend(db.file().map(|file| ("rules_db", file)));
        files.extend(db.copy.clone().map(|file| ("state_dir", file)));
        files.push(("state_dir", db.pending_edits.clone()));
    }
    if let Some(QueueConfig { location: QueueLocation::File(file), .. }) = &config.queue {
        files.push(("queue", file.clone()));
    }
    files
}

/// Permissions of users who are neither the owner nor in the file's group.
const OTHERS: u32 = 0o007;
const GROUP: u32 = 0o070;

/// Rejects state files that all users may read or write. Access of a group may be intended by the operator or by a
/// mounted volume, so it only causes a warning.
pub fn reject_open_to_others(config: &Config) -> Result<(), Problems> {
    let mut problems = Problems::new();
    for (setting, path) in files(config) {
        let Ok(found) = fs::metadata(&path) else { continue };
        if found.is_dir() {
            continue; // rejected where the file is opened: other permissions would break the folder
        }
        let mode = found.permissions().mode();
        let fix = format!("chmod 600 '{}'", path.display());
        if mode & OTHERS != 0 {
            let message = format!(
                "{} is open to every user of this machine (mode {:03o}), and it holds keys and secrets: run {fix}",
                path.display(),
                mode & 0o777
            );
            problems.push(Problem::new(None, setting, message));
        } else if mode & GROUP != 0 {
            tracing::warn!("{} is open to its group; to close it: {fix}", path.display());
        }
    }
    problems.or(())
}
