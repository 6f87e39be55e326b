//! The file in which a clean stop leaves its counters and bans, and what guards the folder that it is in.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tollgate::document::{Problem, Problems};

use crate::gate::Gate;

mod lock;

pub use lock::FolderLock;

pub struct StateFile(PathBuf);

const NAME: &str = "tollgate.snapshot";

impl StateFile {
    pub fn in_folder(folder: &Path) -> StateFile {
        StateFile(folder.join(NAME))
    }

    /// What was saved; nothing on a first start, or if it cannot be read, which is said.
    pub fn read(&self) -> Option<Vec<u8>> {
        match fs::read(&self.0) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => {
                tracing::error!(file = %self.0.display(), %error, "the saved state cannot be read");
                None
            }
        }
    }

    /// Saves all at once: a crash in between leaves the file of the stop before.
    pub fn write(&self, gate: &Gate) -> io::Result<()> {
        let unfinished = self.0.with_extension("snapshot.tmp");
        let file = create_private(&unfinished)?;
        let live = gate.live.load();
        gate.engine.save(BufWriter::new(&file), &live.history.write(), gate.now())?;
        file.sync_all()?;
        fs::rename(&unfinished, &self.0)
    }

    /// Keeps a file that could not be used for those who want to look at it.
    pub fn set_aside(&self) {
        let aside = self.0.with_extension("snapshot.damaged");
        match fs::rename(&self.0, &aside) {
            Ok(()) => tracing::warn!(file = %aside.display(), "the saved state was set aside"),
            Err(error) => tracing::warn!(%error, "the saved state could not be set aside"),
        }
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// Permissions of users who are neither the owner nor in the file's group.
const OTHERS: u32 = 0o007;
const GROUP: u32 = 0o070;

/// Rejects state files that every user may read or write. A group is a choice of the operator's, or of a volume that is
/// mounted for one: it is only warned about.
pub fn reject_open_to_others<'p>(
    files: impl IntoIterator<Item = (&'static str, &'p Path)>,
) -> Result<(), Problems> {
    let mut problems = Problems::new();
    for (setting, path) in files {
        let Ok(found) = fs::metadata(path) else { continue };
        let mode = found.permissions().mode();
        let mend = format!("chmod 600 '{}'", path.display());
        if mode & OTHERS != 0 {
            let message = format!(
                "{} is open to every user of this machine (mode {:03o}), and it holds keys and secrets: run {mend}",
                path.display(),
                mode & 0o777
            );
            problems.push(Problem::new(None, setting, message));
        } else if mode & GROUP != 0 {
            tracing::warn!("{} is open to its group; to close it: {mend}", path.display());
        }
    }
    problems.or(())
}

/// It holds the secret of the fingerprints: nobody else may read it.
fn create_private(path: &Path) -> io::Result<File> {
    fs::remove_file(path)
        .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
