//! Reloads of the configuration file, by result.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use tollgate::Time;
use tollgate::internal::lock;

/// Written by the thread that reloads the file, read by health and metrics. Relaxed: nothing else is inferred from
/// these values.
pub struct Reloads {
    applied: AtomicU64,
    rejected: AtomicU64,
    /// Why the last change was rejected; `None` if it was not.
    rejection: Mutex<Option<String>>,
    /// When the file in force was last read, in seconds since 1970: at the start, or by a reload.
    succeeded_at_secs: AtomicU64,
}

impl Reloads {
    /// A node that has started has read its configuration.
    pub fn since_start(now: Time) -> Reloads {
        Reloads {
            applied: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
            rejection: Mutex::default(),
            succeeded_at_secs: AtomicU64::new(now.secs()),
        }
    }

    pub fn record_applied(&self, now: Time) {
        self.applied.fetch_add(1, Ordering::Relaxed);
        self.record_unchanged(now);
    }

    /// The file equals the configuration in force, perhaps because a rejected change was undone.
    pub fn record_unchanged(&self, now: Time) {
        self.succeeded_at_secs.store(now.secs(), Ordering::Relaxed);
        *self.lock() = None;
    }

    pub fn record_rejected(&self, why: String) {
        self.rejected.fetch_add(1, Ordering::Relaxed);
        *self.lock() = Some(why);
    }

    /// Why the last change was rejected; `None` if it was not.
    pub fn rejection(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        lock(&self.rejection)
    }

    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Relaxed)
    }

    pub fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    pub fn is_last_rejected(&self) -> bool {
        self.lock().is_some()
    }

    pub fn succeeded_at_secs(&self) -> u64 {
        self.succeeded_at_secs.load(Ordering::Relaxed)
    }
}
