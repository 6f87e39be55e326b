//! When a queued request is tried next: after the requests of the same key that are queued already.
//!
//! The time is an estimate. It keeps the order within a key and avoids checking every queued request whenever one may
//! pass; the limit itself is checked when the time has come.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::internal::limit::Shape;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};

/// A later estimate could outlive the rule that it is based on.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// Where the wait is unknown: for example a ban without an end.
const UNKNOWN_WAIT: Duration = Duration::from_secs(300);
/// A permit may be released at any time.
const PERMIT_WAIT: Duration = Duration::from_secs(1);
/// Keys that are remembered. When as many others came later, a key that has not been scheduled since is forgotten.
const MAX_KEYS: usize = 32_768;
/// This many requests of a key are tried each time that one may pass.
const MAX_PER_ADMISSION: usize = 8;

#[derive(Default)]
pub struct RetrySchedule {
    by_key: Mutex<RecentSchedules>,
    hasher: RandomState,
}

/// Schedules keyed by a hash of limit and key, in two generations: when the current one is full it replaces the previous
/// one. So a flood of keys costs each request the same, and keys in use stay.
#[derive(Default)]
struct RecentSchedules {
    current: HashMap<u64, KeySchedule>,
    previous: HashMap<u64, KeySchedule>,
}

impl RecentSchedules {
    fn get(&self, key: u64) -> Option<KeySchedule> {
        self.current.get(&key).or_else(|| self.previous.get(&key)).copied()
    }

    fn insert(&mut self, key: u64, schedule: KeySchedule) {
        if self.current.len() >= MAX_KEYS && !self.current.contains_key(&key) {
            self.previous = mem::take(&mut self.current);
        }
        self.current.insert(key, schedule);
    }
}

/// The queued requests of one key.
#[derive(Clone, Copy)]
struct KeySchedule {
    /// Requests denied at their scheduled time: when the first of them may pass, how many they are, and the last retry
    /// time.
    next_admission: Time,
    denied: usize,
    last_retry: Time,
    /// The latest time that was assigned.
    latest: Time,
}

impl KeySchedule {
    fn new(now: Time) -> KeySchedule {
        KeySchedule { next_admission: now, denied: 0, last_retry: now, latest: now }
    }
}

/// The minimum wait of a denied request.
pub fn min_wait(verdict: &EngineVerdict) -> Duration {
    let wait = verdict.retry_after.unwrap_or(UNKNOWN_WAIT);
    let permit = verdict.reported().is_some_and(|limit| limit.limit.shape() == Shape::Concurrency);
    if permit { wait.min(PERMIT_WAIT) } else { wait }
}

impl RetrySchedule {
    /// The time of a new request: after all others of its key.
    pub fn schedule(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        verdict: &EngineVerdict,
        now: Time,
    ) -> Time {
        self.update(policy, hit, verdict, now, |entry, soonest, step| {
            let behind = entry.map_or(soonest, |entry| entry.latest + step);
            let at = behind.min(now + MAX_WAIT).max(soonest);
            let entry = entry.unwrap_or(KeySchedule::new(now));
            (at, KeySchedule { latest: at, ..entry })
        })
    }

    /// Releases a time that was assigned to a request which was not enqueued.
    pub fn cancel(&self, policy: &PolicySnapshot, hit: &Hit<'_>, verdict: &EngineVerdict, now: Time) {
        self.update(policy, hit, verdict, now, |entry, soonest, step| {
            let entry = entry.unwrap_or(KeySchedule::new(now));
            let end = Time::from_nanos(entry.latest.nanos().saturating_sub(step.as_nanos() as u64));
            (soonest, KeySchedule { latest: end, ..entry })
        });
    }

    /// The next time of a request that was denied at its time. The oldest of them are all tried at the next admission,
    /// in their order; the others come later.
    pub fn reschedule(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        verdict: &EngineVerdict,
        now: Time,
    ) -> Time {
        self.update(policy, hit, verdict, now, |entry, soonest, step| {
            let entry = entry.unwrap_or(KeySchedule::new(now));
            let round = if now < entry.next_admission {
                KeySchedule { denied: entry.denied + 1, ..entry }
            } else {
                KeySchedule { next_admission: soonest, denied: 1, last_retry: soonest, ..entry }
            };
            let at = if round.denied > MAX_PER_ADMISSION {
                (round.last_retry + step).min(now + MAX_WAIT).max(soonest)
            } else {
                soonest
            };
            let last_retry = round.last_retry.max(at);
            (at, KeySchedule { last_retry, latest: entry.latest.max(at), ..round })
        })
    }

    fn update(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        verdict: &EngineVerdict,
        now: Time,
        next: impl FnOnce(Option<KeySchedule>, Time, Duration) -> (Time, KeySchedule),
    ) -> Time {
        let soonest = now + min_wait(verdict);
        let Some(denied) = verdict.reported().filter(|limit| limit.limit.shape() != Shape::Concurrency)
        else {
            return soonest;
        };
        let rate = denied.limit.rate();
        let step = u128::from(rate.period().nanos()) * u128::from(denied.rule.cost)
            / u128::from(rate.count().max(1));
        let step = Duration::from_nanos(u64::try_from(step).unwrap_or(u64::MAX)).min(MAX_WAIT);
        let key: Vec<_> = denied.rule.key.iter().map(|attribute| policy.value(hit, attribute)).collect();
        let name = self.hasher.hash_one((&denied.rule.id, *denied.limit, key));
        let mut schedules = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let known = schedules.get(name).filter(|entry| entry.latest > now);
        let (at, entry) = next(known, soonest, step);
        schedules.insert(name, entry);
        at
    }
}

#[cfg(test)]
mod tests {
    use tollgate::internal::EngineCore;

    use super::*;

    /// A regression: with a full table, every request searched all of it under the lock.
    #[test]
    fn a_flood_of_keys_displaces_keys_that_are_not_used_and_no_others() {
        let mut schedules = RecentSchedules::default();
        let entry = KeySchedule::new(Time::from_secs(1_000));
        schedules.insert(0, entry);
        schedules.insert(1, entry);
        for key in 2..4 * MAX_KEYS as u64 {
            schedules.insert(key, entry);
            if key.is_multiple_of(MAX_KEYS as u64 / 2) {
                schedules.insert(0, entry);
            }
            assert!(schedules.current.len() <= MAX_KEYS && schedules.previous.len() <= MAX_KEYS);
        }
        assert!(schedules.get(0).is_some() && schedules.get(1).is_none());
    }

    #[test]
    fn requests_of_one_key_are_scheduled_one_after_another_and_keys_independently() {
        let rules = "rules: [{ id: a, key: user, limit: 10/s, burst: 1 }]";
        let engine = EngineCore::new(PolicySnapshot::from_yaml(rules).expect("rules"));
        let start = Time::from_secs(1_000);
        let schedule = RetrySchedule::default();
        type Scheduler = fn(&RetrySchedule, &PolicySnapshot, &Hit<'_>, &EngineVerdict, Time) -> Time;
        let scheduled = |how: Scheduler, user: &str, after_ms: u64| {
            let hit = Hit::by(user);
            let now = start + Duration::from_millis(after_ms);
            engine.check(&hit, now);
            let verdict = engine.peek(&hit, now);
            assert!(!verdict.allowed);
            how(&schedule, &engine.policy(), &hit, &verdict, now).since(start).as_millis()
        };
        assert_eq!([(); 4].map(|()| scheduled(RetrySchedule::schedule, "ann", 0)), [100, 200, 300, 400]);
        assert_eq!([(); 2].map(|()| scheduled(RetrySchedule::schedule, "bob", 0)), [100, 200]);
        // Requests that were tried too early are tried at the next admission, but not all of them.
        let early = [(); MAX_PER_ADMISSION + 2].map(|()| scheduled(RetrySchedule::reschedule, "ann", 50));
        assert_eq!(early, [100, 100, 100, 100, 100, 100, 100, 100, 200, 300]);
        assert_eq!(scheduled(RetrySchedule::schedule, "ann", 50), 500, "a new request is behind all others");
        assert_eq!(
            scheduled(RetrySchedule::schedule, "ann", 10_000),
            10_100,
            "a schedule that has ended starts again"
        );
        for _ in 0..10_000 {
            assert!(
                scheduled(RetrySchedule::schedule, "ann", 10_000) <= 130_000,
                "no guess is further away than that"
            );
        }
    }
}
