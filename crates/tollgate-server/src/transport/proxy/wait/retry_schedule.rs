//! When a queued request is tried next: after the requests of the same key that are queued already.
//!
//! The time is an estimate. It keeps the order within a key and avoids checking every queued request whenever one may
//! pass; the limit itself is checked when the time has come.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::internal::limit::Shape;
use tollgate::internal::{EngineVerdict, PolicySnapshot};
use tollgate::{Hit, Time};
use tollgate_stores::recent_map::RecentMap;

/// A later estimate could outlive the rule that it is based on.
const MAX_WAIT: Duration = Duration::from_secs(120);
/// Where the wait is unknown: for example a ban without an end.
const UNKNOWN_WAIT: Duration = Duration::from_secs(300);
/// A permit may be released at any time.
const PERMIT_WAIT: Duration = Duration::from_secs(1);
/// Keys of each generation of the schedules.
const MAX_KEYS: usize = 32_768;
/// This many requests of a key are tried each time that one may pass.
const MAX_PER_ADMISSION: usize = 8;

pub struct RetrySchedule {
    /// By a hash of limit and key.
    by_key: Mutex<RecentMap<u64, KeySchedule>>,
    hasher: RandomState,
}

impl Default for RetrySchedule {
    fn default() -> RetrySchedule {
        RetrySchedule { by_key: Mutex::new(RecentMap::new(MAX_KEYS)), hasher: RandomState::new() }
    }
}

/// The queued requests of one key.
///
/// The requests that were denied at their scheduled time form a round: they wait for the next admission, at `round_at`.
/// The first [`MAX_PER_ADMISSION`] of a round are all tried then, in their order; each further one is tried one interval
/// after the one before it. A new request is scheduled one interval after all others of its key. A round of ten, and then
/// a new request:
///
/// ```text
///          now      round_at      + interval   + interval   + interval
///  retry    |       1 2 … 8           9            10           |
///  new      |          |              |            |            11
/// ```
#[derive(Clone, Copy)]
struct KeySchedule {
    /// When a request of the current round may pass.
    round_at: Time,
    /// Requests of the round so far.
    round_size: usize,
    /// The latest time that was assigned in the round.
    round_end: Time,
    /// The latest time that was assigned at all.
    latest: Time,
}

impl KeySchedule {
    fn new(now: Time) -> KeySchedule {
        KeySchedule { round_at: now, round_size: 0, round_end: now, latest: now }
    }

    /// Adds a request to the round, or begins a new one if the round's admission has come.
    fn with_denied(self, first_admission: Time, now: Time) -> KeySchedule {
        if now < self.round_at {
            KeySchedule { round_size: self.round_size + 1, ..self }
        } else {
            KeySchedule { round_at: first_admission, round_size: 1, round_end: first_admission, ..self }
        }
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
        self.update(policy, hit, verdict, now, |known, first_admission, interval| {
            let behind_all = known.map_or(first_admission, |known| known.latest + interval);
            let at = behind_all.min(now + MAX_WAIT).max(first_admission);
            let schedule = known.unwrap_or(KeySchedule::new(now));
            (at, KeySchedule { latest: at, ..schedule })
        })
    }

    /// Releases a time that was assigned to a request which was not enqueued.
    pub fn cancel(&self, policy: &PolicySnapshot, hit: &Hit<'_>, verdict: &EngineVerdict, now: Time) {
        self.update(policy, hit, verdict, now, |known, first_admission, interval| {
            let schedule = known.unwrap_or(KeySchedule::new(now));
            let latest = Time::from_nanos(schedule.latest.nanos().saturating_sub(interval.as_nanos() as u64));
            (first_admission, KeySchedule { latest, ..schedule })
        });
    }

    /// The next time of a request that was denied at its time: see [`KeySchedule`].
    pub fn reschedule(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        verdict: &EngineVerdict,
        now: Time,
    ) -> Time {
        self.update(policy, hit, verdict, now, |known, first_admission, interval| {
            let schedule = known.unwrap_or(KeySchedule::new(now)).with_denied(first_admission, now);
            let at = if schedule.round_size > MAX_PER_ADMISSION {
                (schedule.round_end + interval).min(now + MAX_WAIT).max(first_admission)
            } else {
                first_admission
            };
            let round_end = schedule.round_end.max(at);
            (at, KeySchedule { round_end, latest: schedule.latest.max(at), ..schedule })
        })
    }

    /// Replaces the schedule of the denied key. `next` is given the known schedule, the first time at which a request
    /// may pass, and the interval between admissions; it returns the request's time and the new schedule.
    fn update(
        &self,
        policy: &PolicySnapshot,
        hit: &Hit<'_>,
        verdict: &EngineVerdict,
        now: Time,
        next: impl FnOnce(Option<KeySchedule>, Time, Duration) -> (Time, KeySchedule),
    ) -> Time {
        let first_admission = now + min_wait(verdict);
        let Some(denied) = verdict.reported().filter(|limit| limit.limit.shape() != Shape::Concurrency)
        else {
            return first_admission;
        };
        let rate = denied.limit.rate();
        let interval = u128::from(rate.period().nanos()) * u128::from(denied.rule.cost)
            / u128::from(rate.count().max(1));
        let interval = Duration::from_nanos(u64::try_from(interval).unwrap_or(u64::MAX)).min(MAX_WAIT);
        let key: Vec<_> = denied.rule.key.iter().map(|attribute| policy.value(hit, attribute)).collect();
        let name = self.hasher.hash_one((&denied.rule.id, *denied.limit, key));
        let mut schedules = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        let known = schedules.get_mut(&name).filter(|schedule| schedule.latest > now);
        let (at, schedule) = next(known.copied(), first_admission, interval);
        schedules.insert(name, schedule);
        at
    }
}

#[cfg(test)]
mod tests {
    use tollgate::internal::EngineCore;

    use super::*;

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
