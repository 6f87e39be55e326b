//! The statistics of a rule: admissions, denials, and its tracked keys.
//!
//! They outlive edits of the rule: each generation passes them to the next by the rule's id.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::stripes::Striped;
use crate::track::RuleTracks;

#[derive(Default)]
pub struct RuleStats {
    counts: AdaptiveCounts,
    pub(crate) tracks: RuleTracks,
}

/// A copy of the counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RuleCounts {
    pub allowed: u64,
    pub denied: u64,
    /// Denials by the rule in shadow mode: no request was denied by them.
    pub shadow_denied: u64,
    /// Bans that the rule has caused.
    pub banned: u64,
}

/// Indexes of the counts.
const ALLOWED: usize = 0;
const DENIED: usize = 1;
const SHADOW_DENIED: usize = 2;
const BANNED: usize = 3;

type Counts = [AtomicU64; 4];

/// Counts that are striped once two threads have raced for them: there may be a million rules, and few of them are
/// hit by several threads at once.
#[derive(Default)]
struct AdaptiveCounts {
    first: Counts,
    striped: OnceLock<Striped<Counts>>,
}

/// Rules with striped counts; further ones stay with one copy. A striped one takes 4 KiB.
const MAX_STRIPED: usize = 1024;

static STRIPED: AtomicUsize = AtomicUsize::new(0);

impl AdaptiveCounts {
    #[inline]
    fn add(&self, index: usize) {
        if let Some(striped) = self.striped.get() {
            striped.current()[index].fetch_add(1, Ordering::Relaxed);
            return;
        }
        let count = &self.first[index];
        let known = count.load(Ordering::Relaxed);
        if count.compare_exchange(known, known + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            self.add_contended(index);
        }
    }

    #[cold]
    fn add_contended(&self, index: usize) {
        if self.striped.get().is_none() {
            let is_full = STRIPED.fetch_add(1, Ordering::Relaxed) >= MAX_STRIPED;
            if is_full || self.striped.set(Striped::default()).is_err() {
                STRIPED.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let counts = self.striped.get().map_or(&self.first, |striped| striped.current());
        counts[index].fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self, index: usize) -> u64 {
        let striped = self.striped.get().into_iter().flat_map(|striped| striped.iter());
        std::iter::once(&self.first).chain(striped).map(|counts| counts[index].load(Ordering::Relaxed)).sum()
    }
}

impl Drop for AdaptiveCounts {
    fn drop(&mut self) {
        if self.striped.get().is_some() {
            STRIPED.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl RuleStats {
    pub fn counts(&self) -> RuleCounts {
        RuleCounts {
            allowed: self.counts.get(ALLOWED),
            denied: self.counts.get(DENIED),
            shadow_denied: self.counts.get(SHADOW_DENIED),
            banned: self.counts.get(BANNED),
        }
    }

    #[inline]
    pub(crate) fn count_allowed(&self) {
        self.counts.add(ALLOWED);
    }

    pub(crate) fn count_denied(&self) {
        self.counts.add(DENIED);
    }

    pub(crate) fn count_shadow_denied(&self) {
        self.counts.add(SHADOW_DENIED);
    }

    pub(crate) fn count_banned(&self) {
        self.counts.add(BANNED);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn threads_that_race_lose_no_count() {
        const EACH: u64 = 50_000;
        let stats = RuleStats::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..EACH).for_each(|_| stats.count_allowed()));
            }
        });
        stats.counts.add_contended(DENIED); // from here on it is striped for certain
        stats.count_denied();
        let expected = RuleCounts { allowed: 4 * EACH, denied: 2, ..RuleCounts::default() };
        assert_eq!(stats.counts(), expected);
    }

    #[test]
    fn a_rule_that_one_thread_hits_has_one_copy() {
        let stats = RuleStats::default();
        (0..1_000).for_each(|_| stats.count_allowed());
        assert!(stats.counts.striped.get().is_none());
        assert_eq!(stats.counts().allowed, 1_000);
    }
}
