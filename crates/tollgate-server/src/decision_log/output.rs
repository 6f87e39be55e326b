//! Where lines go: stderr, or a file of bounded length.
//!
//! A file that would outgrow [`MAX_FILE_BYTES`] is renamed to `NAME.1`, over the one before. A file that was renamed or
//! removed by another program is created again within a second, so logrotate needs no signal.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::LogTarget;

/// The log and its predecessor are at most twice as long.
pub(super) const MAX_FILE_BYTES: u64 = 64 << 20;

pub(super) enum Output {
    Stderr,
    File(LogFile),
}

pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    bytes: u64,
    max_bytes: u64,
    /// The last write failed, perhaps within a line.
    is_torn: bool,
}

impl Output {
    pub(super) fn open(target: &LogTarget) -> io::Result<Output> {
        match target {
            LogTarget::Stderr => Ok(Output::Stderr),
            LogTarget::File(path) => Ok(Output::File(LogFile::open(path, MAX_FILE_BYTES)?)),
        }
    }

    /// Writes whole lines.
    pub(super) fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        match self {
            Output::Stderr => io::stderr().lock().write_all(lines),
            Output::File(file) => file.write(lines),
        }
    }

    /// Creates the file again if its name leads elsewhere.
    pub(super) fn reopen_if_moved(&mut self) -> io::Result<()> {
        match self {
            Output::File(log) if log.is_moved() => {
                *log = LogFile::open(&log.path, log.max_bytes)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

impl LogFile {
    fn open(path: &Path, max_bytes: u64) -> io::Result<LogFile> {
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        let bytes = file.metadata()?.len();
        Ok(LogFile { path: path.to_owned(), file, bytes, max_bytes, is_torn: false })
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let length = lines.len() as u64;
        if self.bytes > 0 && self.bytes + length > self.max_bytes && self.is_regular() {
            fs::rename(&self.path, predecessor(&self.path))?;
            *self = LogFile::open(&self.path, self.max_bytes)?;
        }
        let written = match self.is_torn {
            true => self.file.write_all(b"\n").and_then(|()| self.file.write_all(lines)),
            false => self.file.write_all(lines),
        };
        self.is_torn = written.is_err();
        self.bytes += length;
        written
    }

    /// A device, a pipe or a link is not renamed.
    fn is_regular(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|seen| seen.is_file())
    }

    fn is_moved(&self) -> bool {
        let identity = |seen: fs::Metadata| (seen.dev(), seen.ino());
        match (self.file.metadata(), fs::metadata(&self.path)) {
            (Ok(open), Ok(named)) => identity(open) != identity(named),
            (Ok(_), Err(error)) => error.kind() == io::ErrorKind::NotFound,
            (Err(_), _) => false,
        }
    }
}

fn predecessor(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tollgate_testkit::Folder;

    use super::*;

    fn read(path: &Path) -> String {
        fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn a_file_and_its_predecessor_are_bounded() {
        let folder = Folder::new();
        let path = folder.path("decisions.ndjson");
        let mut log = LogFile::open(&path, 20).expect("a file");
        for n in 0..10 {
            log.write(format!("line {n}\n").as_bytes()).expect("it is written");
        }
        assert_eq!(
            (read(&path), read(&predecessor(&path))),
            ("line 8\nline 9\n".into(), "line 6\nline 7\n".into())
        );
        let mut again = LogFile::open(&path, 20).expect("the file");
        again.write(b"line 10\n").expect("it is written");
        assert_eq!(read(&path), "line 10\n", "what was there before counts");
        let mode = fs::metadata(&path).expect("it exists").mode();
        assert_eq!(mode & 0o077, 0, "only the owner reads it");
    }

    #[test]
    fn a_file_that_was_moved_away_is_created_again() {
        let folder = Folder::new();
        let path = folder.path("decisions.ndjson");
        let mut output = Output::open(&LogTarget::File(path.clone())).expect("a file");
        output.write(b"1\n").expect("it is written");
        output.reopen_if_moved().expect("nothing to do");
        fs::rename(&path, folder.path("old")).expect("a rename");
        output.reopen_if_moved().expect("a new file");
        output.write(b"2\n").expect("it is written");
        assert_eq!((read(&folder.path("old")), read(&path)), ("1\n".into(), "2\n".into()));
    }

    #[test]
    fn a_link_is_never_renamed() {
        let folder = Folder::new();
        let target = folder.path("target");
        let link = folder.path("link");
        symlink(&target, &link).expect("a link");
        let mut log = LogFile::open(&link, 4).expect("a file");
        log.write(b"123\n").and_then(|()| log.write(b"456\n")).expect("it is written");
        assert_eq!(read(&target), "123\n456\n");
    }
}
