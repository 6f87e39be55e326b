//! The thread that writes the state log, and its status.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use tollgate::Time;
use tollgate::internal::lock;

use crate::gate::Gate;
use crate::state::StateLog;

/// Maximum interval of attempts on a slow or failing disk, unless `every` is longer.
const MAX_INTERVAL: Duration = Duration::from_secs(60);

/// A write that takes longer than this, and than some intervals, is reported as a problem: the disk may hang.
const OVERDUE: Duration = Duration::from_secs(15);
const OVERDUE_INTERVALS: u32 = 5;

/// A running thread. Dropping this ends it.
pub struct Saver {
    stop: Sender<()>,
    thread: JoinHandle<StateLog>,
}

/// The status of the log, for health and metrics.
pub struct Saving {
    pub every: Duration,
    status: Mutex<SaveStatus>,
    pub written: AtomicU64,
    pub failed: AtomicU64,
    pub written_bytes: AtomicU64,
    pub file_bytes: AtomicU64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaveStatus {
    /// The interval between two writes.
    pub interval: Duration,
    /// All charges before this are on disk.
    pub saved_at: Option<Time>,
    pub trouble: Option<String>,
    /// Whether the last two writes each took longer than `every`.
    pub is_slow: bool,
}

impl Saving {
    pub(super) fn new(every: Duration) -> Saving {
        let status = SaveStatus { interval: every, saved_at: None, trouble: None, is_slow: false };
        Saving {
            every,
            status: Mutex::new(status),
            written: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            file_bytes: AtomicU64::new(0),
        }
    }

    pub fn status(&self) -> SaveStatus {
        lock(&self.status).clone()
    }

    fn set(&self, status: SaveStatus) {
        *lock(&self.status) = status;
    }
}

impl SaveStatus {
    pub fn is_impaired(&self, now: Time) -> bool {
        let patience = OVERDUE.max(self.interval * OVERDUE_INTERVALS);
        let is_overdue = self.saved_at.is_some_and(|at| now.since(at) > patience);
        self.trouble.is_some() || self.is_slow || is_overdue
    }

    /// The status after a write that began at `begun`: after a slow write the pause is as long as the write.
    fn after(&self, every: Duration, begun: Time, took: Duration, written: Result<(), String>) -> SaveStatus {
        let max = MAX_INTERVAL.max(every);
        let was_slow = self.interval > every;
        match written {
            Ok(()) => {
                let interval = if took > every { (2 * took).min(max) } else { every };
                let is_slow = was_slow && interval > every;
                SaveStatus { interval, saved_at: Some(begun), trouble: None, is_slow }
            }
            Err(trouble) => SaveStatus {
                interval: (2 * self.interval.max(took)).min(max),
                trouble: Some(trouble),
                ..self.clone()
            },
        }
    }
}

impl Saver {
    pub fn start(mut log: StateLog, gate: Arc<Gate>, every: Duration) -> io::Result<Saver> {
        let (stop, stopped) = mpsc::channel();
        let saving = Arc::new(Saving::new(every));
        if gate.saving.set(Arc::clone(&saving)).is_err() {
            return Err(io::Error::other("the state is saved once"));
        }
        let run = move || {
            let mut wait = Duration::ZERO;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
                let took = write(&mut log, &gate, &saving);
                wait = saving.status().interval.saturating_sub(took);
            }
            log
        };
        let thread = thread::Builder::new().name("state".to_owned()).spawn(run)?;
        Ok(Saver { stop, thread })
    }

    /// Ends the thread; the caller may write the log once more.
    pub fn stop(self) -> Option<StateLog> {
        drop(self.stop);
        self.thread.join().ok()
    }
}

/// Writes the log once; returns the duration.
pub(super) fn write(log: &mut StateLog, gate: &Gate, saving: &Saving) -> Duration {
    let begun = Instant::now();
    let at = gate.now();
    let written = log.write(gate);
    let took = begun.elapsed();
    let before = saving.status();
    match &written {
        Ok(bytes) => {
            saving.written.fetch_add(1, Ordering::Relaxed);
            saving.written_bytes.fetch_add(*bytes, Ordering::Relaxed);
            if before.trouble.is_some() {
                tracing::info!("the state is saved again");
            }
        }
        Err(error) => {
            saving.failed.fetch_add(1, Ordering::Relaxed);
            if before.trouble.is_none() {
                let file = log.path().display();
                tracing::error!(%file, %error, "the state cannot be saved: a crash would lose what changes now");
            }
        }
    }
    saving.file_bytes.store(log.bytes(), Ordering::Relaxed);
    let written = written.map(drop).map_err(|error| error.to_string());
    let after = before.after(saving.every, at, took, written);
    if after.is_slow && !before.is_slow {
        tracing::warn!(
            ?took,
            "writes of the state take longer than state.every (slow disk, or too little CPU time): it is saved every {:?}",
            after.interval
        );
    }
    saving.set(after);
    took
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_interval_grows_with_a_slow_disk_and_with_failures_and_comes_back() {
        let at = Time::from_secs(1_800_000_000);
        let mut status = Saving::new(SECOND).status();
        let mut check = |took: u64, written: Result<(), &str>, interval: u64, impaired: bool| {
            status = status.after(SECOND, at, SECOND * took as u32, written.map_err(str::to_owned));
            assert_eq!((status.interval, status.is_impaired(at)), (SECOND * interval as u32, impaired));
        };
        check(0, Ok(()), 1, false);
        check(3, Ok(()), 6, false);
        check(3, Ok(()), 6, true);
        check(1, Ok(()), 1, false);
        check(0, Err("full"), 2, true);
        check(0, Err("full"), 4, true);
        (0..10).for_each(|_| check(0, Ok(()), 1, false));
        check(50, Err("full"), 60, true);
        check(500, Ok(()), 60, true);
        check(0, Ok(()), 1, false);
        assert!(status.is_impaired(at + OVERDUE * 2), "a write that never ends");
    }
}
