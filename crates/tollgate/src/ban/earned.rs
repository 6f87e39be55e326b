//! Bans that this node has just earned somebody, for whoever tells the others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::ban::Ban;
use crate::identity::Key;
use crate::sync::{Mutex, lock};

/// Bans that wait to be taken.
const MAX_WAITING: usize = 10_000;

#[derive(Default)]
pub(crate) struct Earned {
    /// Whether anybody takes them.
    taken: AtomicBool,
    waiting: Mutex<Vec<(Key, Ban)>>,
    lost: AtomicU64,
}

impl Earned {
    pub(crate) fn push(&self, key: &Key, ban: &Ban) {
        if !self.taken.load(Ordering::Acquire) {
            return;
        }
        let mut waiting = lock(&self.waiting);
        match waiting.len() < MAX_WAITING {
            true => waiting.push((key.clone(), ban.clone())),
            false => _ = self.lost.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn take(&self) -> Vec<(Key, Ban)> {
        self.taken.store(true, Ordering::Release);
        std::mem::take(&mut *lock(&self.waiting))
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        lock(&self.waiting).iter().map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Time;
    use crate::ban::BanSource;

    #[test]
    fn bans_wait_once_somebody_takes_them_and_those_beyond_the_bound_are_counted() {
        let earned = Earned::default();
        let key = Key::parse("user:1").expect("valid");
        let ban = Ban { until: Time::MAX, reason: String::new(), source: BanSource::Automatic, strikes: 1 };
        earned.push(&key, &ban);
        assert_eq!((earned.take().len(), earned.lost()), (0, 0), "nobody had asked for it");
        (0..MAX_WAITING + 7).for_each(|_| earned.push(&key, &ban));
        assert_eq!((earned.take().len(), earned.lost()), (MAX_WAITING, 7));
        assert_eq!(earned.take(), []);
    }
}
