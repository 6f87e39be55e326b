//! The state of every key, in a bounded table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::learned::{LearnSettings, Learned};

/// Keys with a state of their own; further ones share one.
const MAX_KEYS: usize = 10_000;
/// A full table is searched for idle keys at most this often.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The calls of one key.
pub struct KeyState {
    /// Held by the first call of the queue. The lock is fair, so calls are served in the order of their arrival.
    pub queue_lock: tokio::sync::Mutex<()>,
    learned: Mutex<Learned>,
    /// Calls in the queue, the first one included.
    queued: AtomicUsize,
    /// Until when the first call of the queue waits for the budget, while it does.
    first_due: Mutex<Option<Instant>>,
    /// The first call of the queue has begun to wait for a limit.
    pub blocked: Notify,
    /// A response has arrived.
    pub answered: Notify,
}

/// A call in the queue, until it is dropped.
pub struct QueuedCall<'s>(&'s KeyState);

/// The first call of the queue while it waits for the budget, until it is dropped.
pub struct DelayedFirst<'s>(&'s KeyState);

pub struct KeyTable {
    settings: LearnSettings,
    keys: Mutex<Keys>,
    shared: Arc<KeyState>,
}

struct Keys {
    states: HashMap<Box<str>, Arc<KeyState>>,
    swept_at: Option<Instant>,
}

impl KeyState {
    fn new(settings: LearnSettings) -> KeyState {
        let learned = Mutex::new(Learned::new(settings));
        KeyState {
            queue_lock: tokio::sync::Mutex::new(()),
            learned,
            queued: AtomicUsize::new(0),
            first_due: Mutex::new(None),
            blocked: Notify::new(),
            answered: Notify::new(),
        }
    }

    pub fn enqueue(&self) -> QueuedCall<'_> {
        self.queued.fetch_add(1, Ordering::Relaxed);
        QueuedCall(self)
    }

    /// Relaxed: the order of calls that arrive at the same time is not defined.
    pub fn has_queue(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Until when the first call of the queue waits for the budget.
    pub fn first_due(&self) -> Option<Instant> {
        *self.lock_first_due()
    }

    /// The first call of the queue waits for the budget.
    pub fn delay_first(&self, until: Instant) -> DelayedFirst<'_> {
        *self.lock_first_due() = Some(until);
        self.blocked.notify_waiters();
        DelayedFirst(self)
    }

    fn lock_first_due(&self) -> MutexGuard<'_, Option<Instant>> {
        self.first_due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for QueuedCall<'_> {
    fn drop(&mut self) {
        self.0.queued.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for DelayedFirst<'_> {
    fn drop(&mut self) {
        *self.0.lock_first_due() = None;
    }
}

impl KeyTable {
    pub fn new(settings: LearnSettings) -> KeyTable {
        let keys = Mutex::new(Keys { states: HashMap::new(), swept_at: None });
        KeyTable { settings, keys, shared: Arc::new(KeyState::new(settings)) }
    }

    pub fn get(&self, key: &str) -> Arc<KeyState> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = keys.states.get(key) {
            return Arc::clone(state);
        }
        if keys.states.len() >= MAX_KEYS {
            keys.sweep();
        }
        if keys.states.len() >= MAX_KEYS {
            return Arc::clone(&self.shared);
        }
        let state = Arc::new(KeyState::new(self.settings));
        keys.states.insert(key.into(), Arc::clone(&state));
        state
    }
}

impl Keys {
    /// Removes the keys that nothing is known about and that nothing waits for.
    fn sweep(&mut self) {
        let now = Instant::now();
        if self.swept_at.is_some_and(|last| now < last + SWEEP_INTERVAL) {
            return;
        }
        self.swept_at = Some(now);
        self.states.retain(|_, state| Arc::strong_count(state) > 1 || !state.learned().is_idle(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learned::FirstCall;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_keys_stays_within_the_table_and_idle_keys_make_room() {
        let settings =
            LearnSettings { first_call: FirstCall::Alone, max_wait: Duration::from_secs(60), spaced: None };
        let table = KeyTable::new(settings);
        let busy: Vec<_> = (0..MAX_KEYS).map(|n| table.get(&format!("busy {n}"))).collect();
        assert!(Arc::ptr_eq(&table.get("one more"), &table.shared));
        assert!(Arc::ptr_eq(&table.get("busy 5"), &busy[5]), "keys that are in use keep their state");
        drop(busy);
        tokio::time::advance(SWEEP_INTERVAL).await;
        assert!(!Arc::ptr_eq(&table.get("one more"), &table.shared));
    }
}
