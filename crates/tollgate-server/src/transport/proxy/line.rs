//! When a queued request is tried again: behind those of the same key that wait already.
//!
//! A place in line is a guess. It saves asking about everybody each time that one may pass, and keeps their order;
//! whether a request passes is decided when its time has come.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::limit::Shape;
use tollgate::{Hit, Policy, Time, Verdict};

/// A guess further away would outlive the rule that it was made by.
const FURTHEST: Duration = Duration::from_secs(120);
/// Where nothing is known: a ban without an end, for one.
const UNKNOWN: Duration = Duration::from_secs(300);
/// A permit may be given back at any moment.
const PERMIT: Duration = Duration::from_secs(1);
const MAX_LINES: usize = 65_536;
/// So many of a key are asked about each time that one may pass.
const AT_ONE_CHANCE: usize = 8;

#[derive(Default)]
pub struct Lines {
    /// By a hash of limit and key.
    lines: Mutex<HashMap<u64, Line>>,
    hasher: RandomState,
}

/// Those of one key who wait.
#[derive(Clone, Copy)]
struct Line {
    /// When the first of those may pass who were denied at their place, how many they are, and the last one's place.
    chance: Time,
    early: usize,
    last: Time,
    /// The place furthest away that was given.
    end: Time,
}

impl Line {
    fn new(now: Time) -> Line {
        Line { chance: now, early: 0, last: now, end: now }
    }
}

/// How long a denied request waits at the least.
pub fn shortest_wait(verdict: &Verdict) -> Duration {
    let wait = verdict.retry_after.unwrap_or(UNKNOWN);
    let permit = verdict.reported().is_some_and(|limit| limit.limit.shape() == Shape::Concurrency);
    if permit { wait.min(PERMIT) } else { wait }
}

impl Lines {
    /// The place of a request that comes in: behind everybody.
    pub fn enter(&self, policy: &Policy, hit: &Hit<'_>, verdict: &Verdict, now: Time) -> Time {
        self.place(policy, hit, verdict, now, |line, soonest, step| {
            let behind = line.map_or(soonest, |line| line.end + step);
            let place = behind.min(now + FURTHEST).max(soonest);
            let line = line.unwrap_or(Line::new(now));
            (place, Line { end: place, ..line })
        })
    }

    /// Gives a place back that was taken for nothing.
    pub fn leave(&self, policy: &Policy, hit: &Hit<'_>, verdict: &Verdict, now: Time) {
        self.place(policy, hit, verdict, now, |line, soonest, step| {
            let line = line.unwrap_or(Line::new(now));
            let end = Time::from_nanos(line.end.nanos().saturating_sub(step.as_nanos() as u64));
            (soonest, Line { end, ..line })
        });
    }

    /// The place of a request that was denied at its own. The oldest of those are all tried at the next chance, when
    /// they are asked in their order; the others come behind.
    pub fn stay(&self, policy: &Policy, hit: &Hit<'_>, verdict: &Verdict, now: Time) -> Time {
        self.place(policy, hit, verdict, now, |line, soonest, step| {
            let line = line.unwrap_or(Line::new(now));
            let (early, chance, last) = if now < line.chance {
                (line.early + 1, line.chance, line.last)
            } else {
                (1, soonest, soonest)
            };
            let behind = if early > AT_ONE_CHANCE { (last + step).min(now + FURTHEST) } else { soonest };
            let place = behind.max(soonest);
            (place, Line { chance, early, last: last.max(place), end: line.end.max(place) })
        })
    }

    fn place(
        &self,
        policy: &Policy,
        hit: &Hit<'_>,
        verdict: &Verdict,
        now: Time,
        next: impl FnOnce(Option<Line>, Time, Duration) -> (Time, Line),
    ) -> Time {
        let soonest = now + shortest_wait(verdict);
        let Some(denied) = verdict.reported().filter(|limit| limit.limit.shape() != Shape::Concurrency)
        else {
            return soonest;
        };
        let rate = denied.limit.rate();
        let step = u128::from(rate.period().nanos()) * u128::from(denied.rule.cost)
            / u128::from(rate.count().max(1));
        let step = Duration::from_nanos(u64::try_from(step).unwrap_or(u64::MAX)).min(FURTHEST);
        let key: Vec<_> = denied.rule.key.iter().map(|attribute| policy.value(hit, attribute)).collect();
        let name = self.hasher.hash_one((&denied.rule.id, denied.limit, key));
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() >= MAX_LINES {
            lines.retain(|_, line| line.end > now);
        }
        let known = lines.get(&name).filter(|line| line.end > now).copied();
        let (place, line) = next(known, soonest, step);
        if lines.len() < MAX_LINES || known.is_some() {
            lines.insert(name, line);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use tollgate::Engine;

    use super::*;

    #[test]
    fn those_of_one_key_stand_in_line_and_others_beside_them() {
        let rules = "rules: [{ id: a, key: user, limit: 10/s, burst: 1 }]";
        let engine = Engine::new(Policy::from_yaml(rules).expect("rules"));
        let (start, lines) = (Time::from_secs(1_000), Lines::default());
        type Place = fn(&Lines, &Policy, &Hit<'_>, &Verdict, Time) -> Time;
        let place = |how: Place, user: &str, after_ms: u64| {
            let (hit, now) = (Hit::by(user), start + Duration::from_millis(after_ms));
            engine.check(&hit, now);
            let verdict = engine.peek(&hit, now);
            assert!(!verdict.allowed);
            how(&lines, &engine.policy(), &hit, &verdict, now).since(start).as_millis()
        };
        assert_eq!([(); 4].map(|()| place(Lines::enter, "ann", 0)), [100, 200, 300, 400]);
        assert_eq!([(); 2].map(|()| place(Lines::enter, "bob", 0)), [100, 200]);
        // Those who were tried too early are tried at the next chance, but not all of them.
        let early = [(); AT_ONE_CHANCE + 2].map(|()| place(Lines::stay, "ann", 50));
        assert_eq!(early, [100, 100, 100, 100, 100, 100, 100, 100, 200, 300]);
        assert_eq!(place(Lines::enter, "ann", 50), 500, "who comes in is behind everybody");
        assert_eq!(place(Lines::enter, "ann", 10_000), 10_100, "a line that has ended begins anew");
        for _ in 0..10_000 {
            assert!(place(Lines::enter, "ann", 10_000) <= 130_000, "no guess is further away than that");
        }
    }
}
