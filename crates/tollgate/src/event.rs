//! The stream of decisions for operators: the latest ones, and a sample of all.
//!
//! It is bounded and never blocks: a decision that finds the stream locked is dropped and counted.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fingerprint::Fingerprint;
use crate::rule::RuleId;
use crate::time::Time;
use crate::verdict::{Reason, VerdictId};

/// Maximum number of latest decisions.
pub const MAX_RECENT: usize = 10_000;
/// Maximum size of the sample, and its interval in decisions.
pub const MAX_SAMPLED: usize = 1_000;
const SAMPLE_EVERY: u64 = 100;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    pub id: VerdictId,
    pub at: Time,
    pub allowed: bool,
    pub reason: Reason,
    pub rule: Option<RuleId>,
    pub key: EventKey,
}

/// The key of a decision, redacted if required.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKey {
    Unknown,
    /// The same key has the same mark during the lifetime of the process.
    Redacted(Fingerprint),
    Plain(Box<str>),
}

impl std::fmt::Display for EventKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            EventKey::Unknown => f.write_str("-"),
            EventKey::Redacted(mark) => write!(f, "#{:016x}", mark.0),
            EventKey::Plain(key) => f.write_str(key),
        }
    }
}

#[derive(Default)]
pub struct Events {
    rings: Mutex<EventRings>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct EventRings {
    recent: EventRing<MAX_RECENT>,
    sampled: EventRing<MAX_SAMPLED>,
    pushed: u64,
}

/// The latest `BOUND` events.
#[derive(Default)]
struct EventRing<const BOUND: usize> {
    events: Vec<Event>,
    /// The index that the next event overwrites, once the buffer is full.
    oldest: usize,
}

impl<const BOUND: usize> EventRing<BOUND> {
    fn push(&mut self, event: Event) {
        if self.events.len() < BOUND {
            self.events.reserve_exact(BOUND - self.events.len()); // a single allocation
            return self.events.push(event);
        }
        self.events[self.oldest] = event;
        self.oldest = if self.oldest + 1 == BOUND { 0 } else { self.oldest + 1 };
    }

    fn newest_first(&self) -> impl Iterator<Item = &Event> {
        let (newer, older) = self.events.split_at(self.oldest);
        newer.iter().rev().chain(older.iter().rev())
    }
}

impl Events {
    pub(crate) fn push(&self, event: Event) {
        let Ok(mut rings) = self.rings.try_lock() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        rings.pushed += 1;
        if rings.pushed % SAMPLE_EVERY == 1 {
            rings.sampled.push(event.clone());
        }
        rings.recent.push(event);
    }

    /// The latest `count` decisions, newest first.
    pub fn recent(&self, count: usize) -> Vec<Event> {
        self.read(|rings| rings.recent.newest_first().take(count).cloned().collect())
    }

    /// One in a hundred decisions, newest first.
    pub fn sampled(&self) -> Vec<Event> {
        self.read(|rings| rings.sampled.newest_first().cloned().collect())
    }

    pub fn find(&self, id: VerdictId) -> Option<Event> {
        self.read(|rings| rings.recent.newest_first().find(|event| event.id == id).cloned())
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn read<T>(&self, read: impl FnOnce(&EventRings) -> T) -> T {
        read(&self.rings.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
