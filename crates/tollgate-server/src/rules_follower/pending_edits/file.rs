//! Pending edits on disk: a line of JSON each, in `state_dir`, which only this node uses.
//!
//! An edit is appended and synced before it is answered. A line without its end was never answered and is ignored. What
//! remains after a write to the database replaces the file; an empty file is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tollgate::Time;
use tollgate_stores::rules::{Edit, ItemId, ItemKind};

use super::PendingEdit;

/// Bound on a line: a key and a reason are much shorter.
const MAX_LINE_BYTES: u64 = 64 << 10;
const FORMAT: u32 = 1;

pub(super) struct EditsFile {
    path: PathBuf,
}

/// One edit; `text` is absent for a removal.
#[derive(Serialize, Deserialize)]
struct EditLine {
    format: u32,
    author: String,
    at: u64,
    kind: String,
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
}

impl EditsFile {
    pub(super) fn new(path: PathBuf) -> EditsFile {
        EditsFile { path }
    }

    /// Adds an edit; it is on disk when this returns.
    pub(super) async fn append(&self, pending: &PendingEdit) -> io::Result<()> {
        let path = self.path.clone();
        let line = line_of(pending);
        blocking(move || {
            let is_new = !path.exists();
            let mut file = private_file().append(true).open(&path)?;
            let before = file.metadata()?.len();
            if let Err(error) = file.write_all(line.as_bytes()).and_then(|()| file.sync_data()) {
                file.set_len(before).ok(); // half a line would hide the next one
                return Err(error);
            }
            if is_new { sync_folder(&path) } else { Ok(()) }
        })
        .await
    }

    /// Replaces all edits by these.
    pub(super) async fn replace(&self, edits: Vec<PendingEdit>) -> io::Result<()> {
        let path = self.path.clone();
        blocking(move || {
            if edits.is_empty() {
                return match fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                    _ => sync_folder(&path),
                };
            }
            let new = path.with_extension("new");
            let mut file = private_file().write(true).truncate(true).open(&new)?;
            edits.iter().try_for_each(|edit| file.write_all(line_of(edit).as_bytes()))?;
            file.sync_data()?;
            fs::rename(&new, &path)?;
            sync_folder(&path)
        })
        .await
    }

    /// The edits on disk, at most `max`. What cannot be read is reported and skipped.
    pub(super) async fn read(&self, max: usize) -> Vec<PendingEdit> {
        let path = self.path.clone();
        let read = blocking(move || read_lines(&path, max)).await;
        read.unwrap_or_else(|error| {
            tracing::error!(file = %self.path.display(), %error, "pending edits cannot be read");
            Vec::new()
        })
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    options
}

fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

fn line_of(pending: &PendingEdit) -> String {
    let item = pending.edit.item();
    let line = EditLine {
        format: FORMAT,
        author: pending.author.clone(),
        at: pending.at.nanos(),
        kind: item.kind.name().to_owned(),
        name: item.name.to_string(),
        text: pending.edit.text().map(ToOwned::to_owned),
    };
    serde_json::to_string(&line).expect("texts and numbers are valid JSON") + "\n"
}

fn read_lines(path: &Path, max: usize) -> io::Result<Vec<PendingEdit>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        file => file?,
    };
    let mut reader = BufReader::new(file);
    let mut edits = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let length = (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if length == 0 || edits.len() == max {
            break;
        }
        if line.last() != Some(&b'\n') && (length as u64) < MAX_LINE_BYTES {
            break; // it was never answered
        }
        match parse(&line) {
            Some(edit) => edits.push(edit),
            None => {
                tracing::error!(file = %path.display(), line = number, "a pending edit is damaged and left out")
            }
        }
    }
    Ok(edits)
}

fn parse(line: &[u8]) -> Option<PendingEdit> {
    let EditLine { format, author, at, kind, name, text } = serde_json::from_slice(line).ok()?;
    let kind = [ItemKind::Ban, ItemKind::Setting].into_iter().find(|known| known.name() == kind)?;
    let edit = Edit::unconditional(ItemId::new(kind, name), text);
    (format == FORMAT).then(|| PendingEdit { author, at: Time::from_nanos(at), edit, was_tried: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_testkit::Folder;

    const MAX: usize = 100;

    fn edit(name: &str, text: Option<&str>) -> PendingEdit {
        let edit = Edit::unconditional(ItemId::new(ItemKind::Ban, name), text.map(ToOwned::to_owned));
        PendingEdit {
            author: "ann \"the\"\nadmin".to_owned(),
            at: Time::from_nanos(7),
            edit,
            was_tried: true,
        }
    }

    #[tokio::test]
    async fn edits_are_read_as_they_were_written() {
        let folder = Folder::new();
        let file = EditsFile::new(folder.path("edits"));
        assert_eq!(file.read(MAX).await, []);
        let edits = [edit("user:a", Some("{}")), edit("user:b", None), edit("user:c\n", Some(""))];
        for each in &edits {
            file.append(each).await.expect("written");
        }
        assert_eq!(file.read(MAX).await, edits);
        assert_eq!(file.read(2).await, edits[..2]);
        file.replace(edits[1..].to_vec()).await.expect("written");
        assert_eq!(file.read(MAX).await, edits[1..]);
        file.replace(Vec::new()).await.expect("removed");
        file.replace(Vec::new()).await.expect("nothing to remove");
        assert!(!folder.path("edits").exists());
    }

    #[tokio::test]
    async fn half_a_line_and_damaged_ones_are_left_out() {
        let folder = Folder::new();
        let path = folder.path("edits");
        let whole = line_of(&edit("user:a", None));
        let other_format = whole.replace("\"format\":1", "\"format\":9");
        let long = "x".repeat(3 * MAX_LINE_BYTES as usize);
        fs::write(&path, format!("{whole}{{\n{long}\n{other_format}{whole}{}", &whole[..20]))
            .expect("a file");
        let read = EditsFile::new(path).read(MAX).await;
        assert_eq!(read, [edit("user:a", None), edit("user:a", None)]);
    }
}
