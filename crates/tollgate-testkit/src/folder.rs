//! A folder for one test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Removed with its last user.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    #[allow(clippy::new_ret_no_self)] // processes keep a reference to it
    pub fn new() -> Arc<Folder> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tollgate-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // Left behind by a process that was killed and had the same id.
        fs::remove_dir_all(&path).ok();
        fs::create_dir(&path).expect("a folder for the test");
        Arc::new(Folder(path))
    }

    pub fn root(&self) -> &Path {
        &self.0
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, contents).expect("a file of the test");
        path
    }

    /// A file that only its owner may read, as the server leaves its own.
    pub fn write_private(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.write(name, contents);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("the file is ours");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}
