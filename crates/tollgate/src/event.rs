//! The stream of decisions for people who look: the latest ones, and a sample of all.
//!
//! It is bounded and never blocks: a decision that finds the stream busy is dropped and counted.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::fingerprint::Fingerprint;
use crate::rule::RuleId;
use crate::time::Time;
use crate::verdict::{Reason, VerdictId};

/// The decisions kept.
pub const RECENT: usize = 10_000;
/// The sample kept, and every how many decisions it takes one.
pub const SAMPLED: usize = 1_000;
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

/// Whom a decision was about, as far as may be told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EventKey {
    Unknown,
    /// The same key has the same mark as long as the process lives.
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
    rings: Mutex<Rings>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct Rings {
    recent: VecDeque<Event>,
    sampled: VecDeque<Event>,
    seen: u64,
}

impl Events {
    pub(crate) fn push(&self, event: Event) {
        let Ok(mut rings) = self.rings.try_lock() else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        rings.seen += 1;
        if rings.seen % SAMPLE_EVERY == 1 {
            ring_push(&mut rings.sampled, event.clone(), SAMPLED);
        }
        ring_push(&mut rings.recent, event, RECENT);
    }

    /// The latest `count` decisions, newest first.
    pub fn recent(&self, count: usize) -> Vec<Event> {
        self.read(|rings| rings.recent.iter().rev().take(count).cloned().collect())
    }

    /// One in a hundred decisions, newest first.
    pub fn sampled(&self) -> Vec<Event> {
        self.read(|rings| rings.sampled.iter().rev().cloned().collect())
    }

    pub fn find(&self, id: VerdictId) -> Option<Event> {
        self.read(|rings| rings.recent.iter().rev().find(|event| event.id == id).cloned())
    }

    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn read<T>(&self, read: impl FnOnce(&Rings) -> T) -> T {
        read(&self.rings.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

fn ring_push(ring: &mut VecDeque<Event>, event: Event, bound: usize) {
    if ring.len() == bound {
        ring.pop_front();
    }
    ring.push_back(event);
}
