//! Pending bans: automatic bans of this node that are not published to the fleet yet.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::ban::Ban;
use crate::identity::Key;
use crate::sync::{Mutex, lock};

/// Maximum length of the queue.
const MAX_PENDING: usize = 10_000;

#[derive(Default)]
pub(crate) struct PendingBanQueue {
    /// Set by the first `take`: without a consumer nothing is queued.
    has_consumer: AtomicBool,
    pending: Mutex<Vec<(Key, Ban)>>,
    dropped: AtomicU64,
}

impl PendingBanQueue {
    pub(crate) fn push(&self, key: &Key, ban: &Ban) {
        if !self.has_consumer.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = lock(&self.pending);
        match waiting.len() < MAX_PENDING {
            true => waiting.push((key.clone(), ban.clone())),
            false => _ = self.dropped.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn take(&self) -> Vec<(Key, Ban)> {
        self.has_consumer.store(true, Ordering::Release);
        std::mem::take(&mut *lock(&self.pending))
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        lock(&self.pending).iter().map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;
    use crate::ban::BanSource;

    #[test]
    fn bans_are_queued_once_a_consumer_exists_and_counted_beyond_the_bound() {
        let queue = PendingBanQueue::default();
        let key = Key::parse("user:1").expect("valid");
        let ban = Ban { until: Time::MAX, reason: String::new(), source: BanSource::Automatic, strikes: 1 };
        queue.push(&key, &ban);
        assert_eq!((queue.take().len(), queue.dropped()), (0, 0), "no consumer is registered");
        (0..MAX_PENDING + 7).for_each(|_| queue.push(&key, &ban));
        assert_eq!((queue.take().len(), queue.dropped()), (MAX_PENDING, 7));
        assert_eq!(queue.take(), []);
    }
}
