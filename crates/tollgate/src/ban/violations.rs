//! Violations to be counted across nodes, in a buffer of bounded size.
//!
//! A decision only adds to it. The consumer counts the violations in the central store, or returns them to be counted
//! on this node.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::ban::{BanConditions, Strikes};
use crate::fingerprint::Fingerprint;
use crate::identity::Key;
use crate::rule::RuleId;
use crate::sync::{Mutex, lock};
use crate::time::Time;

/// Maximum number of buffered pairs of rule and key.
const MAX_PENDING: usize = 10_000;
/// Maximum bytes of the buffered keys, as text.
const MAX_PENDING_BYTES: usize = 4 << 20;
/// Distinct timestamps per rule and key; later ones are added to the last.
const MAX_TIMESTAMPS: usize = 32;

/// Where violations are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViolationCounter {
    /// In this process.
    Node,
    /// In the central store, by the consumer of [`take_violations`](crate::Engine::take_violations).
    Fleet,
}

/// The violations of one ban key that are not counted yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violations {
    pub key: Key,
    /// The strikes of the key that this node knows.
    pub known_strikes: Strikes,
    pub by_rule: SmallVec<[RuleViolations; 1]>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleViolations {
    pub rule: RuleId,
    pub conditions: BanConditions,
    /// Timestamps and the number of violations at each.
    pub times: SmallVec<[(Time, u32); 2]>,
}

#[derive(Default)]
pub(crate) struct ViolationQueue {
    is_enabled: AtomicBool,
    buffer: Mutex<ViolationBuffer>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct ViolationBuffer {
    keys: HashMap<Fingerprint, Violations>,
    pairs: usize,
    bytes: usize,
}

impl ViolationQueue {
    pub(crate) fn set_counter(&self, counter: ViolationCounter) {
        self.is_enabled.store(counter == ViolationCounter::Fleet, Ordering::Release);
    }

    /// Whether violations are buffered here rather than counted at once.
    pub(crate) fn is_enabled(&self) -> bool {
        self.is_enabled.load(Ordering::Acquire)
    }

    pub(crate) fn push(
        &self,
        fingerprint: Fingerprint,
        key: &Key,
        rule: &RuleId,
        conditions: BanConditions,
        at: Time,
    ) {
        if !lock(&self.buffer).push(fingerprint, key, rule, conditions, at) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn take(&self) -> Vec<(Fingerprint, Violations)> {
        let ViolationBuffer { keys, .. } = std::mem::take(&mut *lock(&self.buffer));
        keys.into_iter().collect()
    }

    /// Violations that were dropped because the buffer was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl ViolationBuffer {
    /// `false` if there is no room.
    fn push(
        &mut self,
        fingerprint: Fingerprint,
        key: &Key,
        rule: &RuleId,
        conditions: BanConditions,
        at: Time,
    ) -> bool {
        let is_full = self.pairs >= MAX_PENDING;
        if let Some(known) = self.keys.get_mut(&fingerprint) {
            if let Some(same) = known.by_rule.iter_mut().find(|by| by.rule == *rule) {
                same.add(conditions, at);
                return true;
            }
            if !is_full {
                known.by_rule.push(RuleViolations::new(rule, conditions, at));
                self.pairs += 1;
            }
            return !is_full;
        }
        let bytes = key.to_string().len();
        // A longer key has no valid text, so it cannot be banned.
        if is_full || bytes > Key::MAX_LEN || self.bytes + bytes > MAX_PENDING_BYTES {
            return false;
        }
        self.pairs += 1;
        self.bytes += bytes;
        let by = SmallVec::from_iter([RuleViolations::new(rule, conditions, at)]);
        self.keys.insert(
            fingerprint,
            Violations { key: key.clone(), known_strikes: Strikes::default(), by_rule: by },
        );
        true
    }
}

impl Violations {
    /// Drops violations that do not count: those before the end of a ban that is known by now.
    pub(crate) fn not_covered_by(mut self, known: Strikes) -> Option<Violations> {
        self.known_strikes = known;
        for by in &mut self.by_rule {
            by.times.retain(|(at, _)| *at >= known.until);
        }
        self.by_rule.retain(|by| !by.times.is_empty());
        Some(self).filter(|violations| !violations.by_rule.is_empty())
    }
}

impl RuleViolations {
    fn new(rule: &RuleId, conditions: BanConditions, at: Time) -> RuleViolations {
        RuleViolations { rule: rule.clone(), conditions, times: SmallVec::from_iter([(at, 1)]) }
    }

    fn add(&mut self, conditions: BanConditions, at: Time) {
        self.conditions = conditions;
        let is_full = self.times.len() >= MAX_TIMESTAMPS;
        match self.times.last_mut() {
            Some(last) if is_full || last.0 == at => *last = (last.0.max(at), last.1.saturating_add(1)),
            _ => self.times.push((at, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Time = Time::from_secs(1_800_000_000);
    const SECOND: Duration = Duration::from_secs(1);
    const CONDITIONS: BanConditions = BanConditions { after: 3, within: SECOND, first: SECOND, max: SECOND };

    fn push(waiting: &ViolationQueue, n: usize, rule: &str, at: Time) {
        let key = Key::parse(&format!("user:{n}")).expect("valid");
        waiting.push(Fingerprint(n as u64), &key, &RuleId::new(rule).expect("valid"), CONDITIONS, at);
    }

    #[test]
    fn violations_of_a_key_wait_together_and_those_beyond_the_bound_are_counted() {
        let waiting = ViolationQueue::default();
        for n in 0..MAX_PENDING + 5 {
            push(&waiting, n, "a", NOW);
        }
        (0..1_000).for_each(|n| push(&waiting, 7, "a", NOW + SECOND * n));
        push(&waiting, 7, "b", NOW);
        assert_eq!(waiting.dropped(), 6);
        let batch = waiting.take();
        assert_eq!((batch.len(), waiting.take().len()), (MAX_PENDING, 0));
        let (_, seven) = batch.iter().find(|(fingerprint, _)| fingerprint.0 == 7).expect("it waits");
        let times = &seven.by_rule[0].times;
        assert_eq!((times.len(), times.iter().map(|(_, count)| count).sum::<u32>()), (MAX_TIMESTAMPS, 1_001));
        assert_eq!(times.last().map(|(at, _)| *at), Some(NOW + SECOND * 999));
    }

    #[test]
    fn long_keys_take_bounded_memory() {
        let waiting = ViolationQueue::default();
        let long = "x".repeat(Key::MAX_LEN - 20);
        let rule = RuleId::new("a").expect("valid");
        for n in 0..2_000 {
            let key = Key::parse(&format!("user:{long}{n}")).expect("valid");
            waiting.push(Fingerprint(n), &key, &rule, CONDITIONS, NOW);
        }
        assert!(waiting.dropped() > 900, "{}", waiting.dropped());
    }

    #[test]
    fn what_a_ban_has_covered_is_not_sent() {
        let waiting = ViolationQueue::default();
        [0, 1, 2].iter().for_each(|n| push(&waiting, 1, "a", NOW + SECOND * *n));
        let (_, violations) = waiting.take().remove(0);
        let known = Strikes { count: 1, until: NOW + SECOND };
        let rest = violations.clone().not_covered_by(known).expect("some are left");
        assert_eq!((rest.by_rule[0].times.len(), rest.known_strikes), (2, known));
        assert_eq!(violations.not_covered_by(Strikes { count: 1, until: NOW + SECOND * 9 }), None);
    }
}
