//! The state file: appended to while the server runs, and replaced before it becomes too long.
//!
//! Appends are synced before they count as written. A new file is written beside the old one, receives the same appends
//! meanwhile, and is renamed to the old one's name once it is complete and synced: after a crash at any time the file
//! of that name is valid up to its last complete frame. A failed write loses nothing while the process lives: its chunk
//! is kept, and changes that were not collected yet stay marked.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::Time;
use tollgate::internal::EngineCore;
use tollgate::internal::engine::log::{Chunk, Frames, Image};

use crate::gate::{Gate, LiveSettings};

/// A shorter file is not replaced.
const MIN_BOUND: u64 = 1 << 20;
/// The file is at most this many times as long as the state in it.
const MAX_FACTOR: u64 = 2;
/// Minimum number of bytes written to a new file between two appends: small, so that appends and requests are barely
/// delayed.
const IMAGE_STEP: u64 = if cfg!(test) { 64 << 10 } else { 8 << 20 };
/// Bytes written to it for each byte that is appended meanwhile.
const IMAGE_PER_APPENDED: u64 = 4;
/// Minimum time between two new files if the reason is that the state has shrunk.
const SHRINK_PAUSE: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 60 });

pub struct StateLog {
    path: PathBuf,
    current: Option<StateLogFile>,
    /// The file that will replace the current one.
    next: Option<(StateLogFile, Image)>,
    unwritten: Option<Chunk>,
    /// The settings from which the rules in the file were made.
    rules: Option<Arc<LiveSettings>>,
    /// Changes were lost, or it is unknown whether they were written: only a new file has all of them.
    is_incomplete: bool,
    measured: Measured,
}

/// Sizes in the last complete image.
struct Measured {
    bytes: u64,
    /// Bytes beyond the estimate for counters.
    others: u64,
    at: Instant,
}

struct StateLogFile {
    file: File,
    frames: Frames,
    length: u64,
}

/// The result of collecting changes.
enum Appended {
    All {
        bytes: u64,
    },
    /// They exceed the bound.
    TooLong,
}

impl StateLog {
    /// A log that begins with a new file, or continues at the end of a file that was read.
    pub fn new(path: PathBuf, end: Option<(Frames, u64)>) -> StateLog {
        let resume = |(frames, length)| StateLogFile::resume(&path, frames, length);
        let current = end.and_then(|end| {
            let resumed = resume(end);
            resumed.inspect_err(|error| tracing::warn!(%error, "the saved state is rewritten")).ok()
        });
        let bytes = current.as_ref().map_or(0, |file| file.length / MAX_FACTOR);
        let measured = Measured { bytes, others: 0, at: Instant::now() };
        StateLog { path, current, next: None, unwritten: None, rules: None, is_incomplete: false, measured }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the file.
    pub fn bytes(&self) -> u64 {
        self.current.as_ref().map_or(0, |file| file.length)
    }

    /// Writes the changes since the last call, and the part of a new file that is due. Returns the bytes written.
    pub fn write(&mut self, gate: &Gate) -> io::Result<u64> {
        if self.current.is_none() || self.is_incomplete {
            return self.write_whole(gate);
        }
        let bound = self.bound(&gate.engine, gate.now());
        let appended = match self.append(gate, bound) {
            Ok(Appended::All { bytes }) => bytes,
            Ok(Appended::TooLong) => return self.write_whole(gate),
            Err(error) => {
                self.drop_next();
                return Err(error);
            }
        };
        self.is_incomplete |= gate.engine.needs_image();
        if self.is_incomplete {
            return Ok(appended + self.write_whole(gate)?);
        }
        if self.next.is_none() && self.bytes() > bound / 4 * 3 {
            self.begin_next(gate)?;
        }
        Ok(appended + self.write_next(gate, appended, bound)?)
    }

    /// Writes a complete new file at once.
    pub fn write_whole(&mut self, gate: &Gate) -> io::Result<u64> {
        self.is_incomplete = true; // until the new file is complete: changes forgotten here are nowhere else
        gate.engine.forget_changes();
        self.unwritten = None;
        self.begin_next(gate)?;
        while self.next.is_some() {
            self.write_next(gate, 0, u64::MAX)?;
        }
        self.is_incomplete = false;
        Ok(self.bytes())
    }

    /// The maximum length of the file.
    fn bound(&self, engine: &EngineCore, now: Time) -> u64 {
        let least = MAX_FACTOR * self.measured.bytes.max(MIN_BOUND / MAX_FACTOR);
        if self.bytes() <= MIN_BOUND / 2 {
            return least;
        }
        let live = engine.estimated_counter_bytes(now) + self.measured.others;
        let estimated = MAX_FACTOR * live.max(MIN_BOUND / MAX_FACTOR);
        if self.measured.at.elapsed() < SHRINK_PAUSE { estimated.max(least) } else { estimated }
    }

    /// Appends changes to the files, and syncs the current one.
    fn append(&mut self, gate: &Gate, bound: u64) -> io::Result<Appended> {
        let live = gate.live.load_full();
        let now = gate.now();
        let is_known = self.rules.as_ref().is_some_and(|rules| Arc::ptr_eq(rules, &live));
        let Some(current) = &mut self.current else { return Ok(Appended::TooLong) };
        let before = current.length;
        let mut is_too_long = false;
        let mut next_error = None;
        let unwritten = &mut self.unwritten;
        let next = &mut self.next;
        let pending = unwritten.take();
        let mut sink = |chunk: Chunk| {
            is_too_long = current.length + Frames::bytes_of(&chunk) > bound;
            let appended = match is_too_long {
                true => Err(io::ErrorKind::FileTooLarge.into()),
                false => current.append(&chunk),
            };
            if let Err(error) = appended {
                *unwritten = Some(chunk);
                return Err(error);
            }
            if let Some(Err(error)) = next.as_mut().map(|(next, _)| next.append(&chunk)) {
                *next = None;
                next_error = Some(error);
            }
            Ok(())
        };
        let collect = || {
            pending.map_or(Ok(()), &mut sink)?;
            if !is_known {
                gate.engine.write_rules(&live.history.write(), now, &mut sink)?;
            }
            gate.engine.write_changes(now, &mut sink)
        };
        let collected = collect();
        let bytes = current.length - before;
        if bytes > 0
            && let Err(error) = current.file.sync_data()
        {
            // What is on disk after a failed sync is unknown.
            self.is_incomplete = true;
            return Err(error);
        }
        if is_too_long {
            return Ok(Appended::TooLong);
        }
        collected?;
        self.rules = Some(live);
        next_error.map_or(Ok(Appended::All { bytes }), Err)
    }

    fn begin_next(&mut self, gate: &Gate) -> io::Result<()> {
        self.next = None;
        let live = gate.live.load_full();
        let mut file = StateLogFile::create(&self.unfinished(), &gate.engine)?;
        gate.engine.write_rules(&live.history.write(), gate.now(), &mut |chunk| file.append(&chunk))?;
        self.next = Some((file, Image::default()));
        if self.current.is_none() || self.is_incomplete {
            self.rules = Some(live);
        }
        Ok(())
    }

    /// Writes the next part of the new file, if there is one, and replaces the current one when it is complete.
    fn write_next(&mut self, gate: &Gate, appended: u64, bound: u64) -> io::Result<u64> {
        let Some((file, image)) = &mut self.next else { return Ok(0) };
        let before = file.length;
        let most = IMAGE_STEP.max(IMAGE_PER_APPENDED * appended);
        let written = gate.engine.write_image(image, most, gate.now(), &mut |chunk| file.append(&chunk));
        let written = written.and_then(|()| file.file.sync_data());
        let bytes = file.length - before;
        let finished = match written {
            Ok(()) if image.is_done() => self.finish_next(gate, bound),
            other => other,
        };
        if finished.is_err() {
            self.drop_next();
        }
        finished.map(|()| bytes)
    }

    /// Frees the space of the new file: the disk may be full.
    fn drop_next(&mut self) {
        self.next = None;
        fs::remove_file(self.unfinished()).ok();
    }

    /// Completes the new file with the changes since it was begun, and renames it.
    fn finish_next(&mut self, gate: &Gate, bound: u64) -> io::Result<()> {
        if self.current.is_some() && !self.is_incomplete {
            if let Appended::TooLong = self.append(gate, bound)? {
                return Ok(()); // the next call writes everything
            }
        } else if let Some((file, _)) = &mut self.next {
            gate.engine.write_changes(gate.now(), &mut |chunk| file.append(&chunk))?;
        }
        let Some((file, image)) = self.next.take() else { return Ok(()) };
        file.file.sync_all()?;
        fs::rename(self.unfinished(), &self.path)?;
        self.current = Some(file);
        let counters = gate.engine.estimated_counter_bytes(gate.now());
        let bytes = image.bytes();
        let at = Instant::now();
        self.measured = Measured { bytes, others: bytes.saturating_sub(counters), at };
        // Until the folder is synced, a power failure may bring the old file back; both are valid.
        File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all()
    }

    fn unfinished(&self) -> PathBuf {
        self.path.with_extension("snapshot.tmp")
    }
}

impl StateLogFile {
    /// The file holds the secret of the fingerprints: only its owner may read it.
    fn create(path: &Path, engine: &EngineCore) -> io::Result<StateLogFile> {
        fs::remove_file(path).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let (frames, header) = engine.begin_log();
        file.write_all_at(&header, 0)?;
        Ok(StateLogFile { file, frames, length: header.len() as u64 })
    }

    /// Truncates an incomplete frame at the end, and continues there.
    fn resume(path: &Path, frames: Frames, length: u64) -> io::Result<StateLogFile> {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(length)?;
        Ok(StateLogFile { file, frames, length })
    }

    fn append(&mut self, chunk: &Chunk) -> io::Result<()> {
        let frame = self.frames.frame(chunk);
        if let Err(error) = self.file.write_all_at(&frame, self.length) {
            self.file.set_len(self.length).ok(); // a partial frame would only be skipped
            return Err(error);
        }
        self.frames.advance();
        self.length += frame.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
