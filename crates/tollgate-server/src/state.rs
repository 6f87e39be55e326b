//! The file in which a clean stop leaves its counters and bans.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::gate::Gate;

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

/// It holds the secret of the fingerprints: nobody else may read it.
fn create_private(path: &Path) -> io::Result<File> {
    fs::remove_file(path)
        .or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })?;
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}
