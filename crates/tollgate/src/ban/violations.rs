//! Violations to be counted across nodes, in a buffer of bounded size.
//!
//! A decision only adds to it. The consumer counts the violations in the central store, or returns them to be counted
//! on this node.
//!
//! An attacker can invent keys. In a full buffer a key replaces the lowest-ranked of a few others only if it was denied
//! more often, as a sketch remembers it. So keys that are denied once keep no repeated offender out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use smallvec::SmallVec;

use crate::ban::sketch::CountMinSketch;
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
/// Entries that are compared to find one to replace.
const SAMPLE: usize = 8;
/// Entries that one violation may replace.
const MAX_EVICTIONS: usize = 8;
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
    buffer: Mutex<RankedBuffer>,
    dropped: AtomicU64,
}

#[derive(Default)]
struct RankedBuffer {
    pending: ViolationBuffer,
    /// Denials of keys that came while the buffer was full.
    sketch: CountMinSketch,
}

#[derive(Default)]
struct ViolationBuffer {
    keys: HashMap<Fingerprint, PendingKey>,
    /// The keys, to sample from.
    order: Vec<Fingerprint>,
    /// Where the next sample begins.
    cursor: usize,
    pairs: usize,
    bytes: usize,
}

struct PendingKey {
    violations: Violations,
    /// In `order`.
    index: usize,
    /// How often it was denied, as far as is known.
    denials: u64,
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
        let dropped = lock(&self.buffer).push(fingerprint, key, rule, conditions, at);
        if dropped > 0 {
            self.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
    }

    pub(crate) fn take(&self) -> Vec<(Fingerprint, Violations)> {
        let ViolationBuffer { keys, .. } = std::mem::take(&mut lock(&self.buffer).pending);
        keys.into_iter().map(|(fingerprint, pending)| (fingerprint, pending.violations)).collect()
    }

    /// Violations that were dropped because the buffer was full.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl RankedBuffer {
    /// Adds a violation. Returns the number of violations that were dropped: this one, or those that it replaces.
    fn push(
        &mut self,
        fingerprint: Fingerprint,
        key: &Key,
        rule: &RuleId,
        conditions: BanConditions,
        at: Time,
    ) -> u64 {
        let pending = &mut self.pending;
        if let Some(known) = pending.keys.get_mut(&fingerprint) {
            known.denials += 1;
            if let Some(same) = known.violations.by_rule.iter_mut().find(|by| by.rule == *rule) {
                same.add(conditions, at);
                return 0;
            }
        }
        let is_known = pending.keys.contains_key(&fingerprint);
        let bytes = if is_known { 0 } else { key.to_string().len() };
        if bytes > Key::MAX_LEN {
            return 1; // a longer key has no valid text, so it cannot be banned
        }
        let mut denials = 1;
        let mut dropped = 0;
        if !pending.has_room(bytes) {
            denials = self.sketch.add(fingerprint);
            dropped = pending.make_room(fingerprint, bytes, denials);
            if !pending.has_room(bytes) {
                return dropped + 1;
            }
        }
        pending.add(fingerprint, key, RuleViolations::new(rule, conditions, at), (denials, bytes));
        dropped
    }
}

impl ViolationBuffer {
    fn has_room(&self, bytes: usize) -> bool {
        self.pairs < MAX_PENDING && self.bytes + bytes <= MAX_PENDING_BYTES
    }

    /// Adds a pair that has room, of a key that was denied so often and has so many bytes.
    fn add(
        &mut self,
        fingerprint: Fingerprint,
        key: &Key,
        by: RuleViolations,
        (denials, bytes): (u64, usize),
    ) {
        self.pairs += 1;
        self.bytes += bytes;
        let ViolationBuffer { keys, order, .. } = self;
        let pending = keys.entry(fingerprint).or_insert_with(|| {
            order.push(fingerprint);
            let by_rule = SmallVec::new();
            let violations = Violations { key: key.clone(), known_strikes: Strikes::default(), by_rule };
            PendingKey { violations, index: order.len() - 1, denials, bytes }
        });
        pending.violations.by_rule.push(by);
    }

    /// Removes keys that were denied less often, until there is room; returns the number of their violations.
    fn make_room(&mut self, fingerprint: Fingerprint, bytes: usize, denials: u64) -> u64 {
        let mut dropped = 0;
        for _ in 0..MAX_EVICTIONS {
            let least = self.least_of_sample().filter(|(_, least)| *least != fingerprint);
            let Some((fewer, least)) = least.filter(|(fewer, _)| *fewer < denials) else { break };
            self.remove(least);
            dropped += fewer;
            if self.has_room(bytes) {
                break;
            }
        }
        dropped
    }

    /// The key of the next few that was denied least often.
    fn least_of_sample(&mut self) -> Option<(u64, Fingerprint)> {
        let sample = (0..SAMPLE.min(self.order.len())).map(|n| {
            let fingerprint = self.order[(self.cursor + n) % self.order.len()];
            (self.keys[&fingerprint].denials, fingerprint)
        });
        let least = sample.min_by_key(|(denials, _)| *denials);
        self.cursor = self.cursor.wrapping_add(SAMPLE) % self.order.len().max(1);
        least
    }

    fn remove(&mut self, fingerprint: Fingerprint) {
        let Some(removed) = self.keys.remove(&fingerprint) else { return };
        self.pairs -= removed.violations.by_rule.len();
        self.bytes -= removed.bytes;
        self.order.swap_remove(removed.index);
        if let Some(moved) = self.order.get(removed.index) {
            self.keys.get_mut(moved).expect("it is in the order").index = removed.index;
        }
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

    /// 10,000 invented keys kept every offender out, on all nodes.
    #[test]
    fn a_flood_of_invented_keys_keeps_no_repeated_offender_out() {
        let waiting = ViolationQueue::default();
        let mut invented = 1_000..;
        for round in 0..4 {
            for n in invented.by_ref().take(3 * MAX_PENDING) {
                push(&waiting, n, "a", NOW);
                if n % 300 == 0 {
                    push(&waiting, n / 300 % 100, "a", NOW); // an offender
                }
            }
            let batch = waiting.take();
            assert_eq!(batch.len(), MAX_PENDING);
            let offenders = batch.iter().filter(|(fingerprint, _)| fingerprint.0 < 100).count();
            assert!(offenders >= if round == 0 { 20 } else { 95 }, "round {round}: {offenders} of 100");
        }
        assert!(waiting.dropped() > 0);
        let buffer = lock(&waiting.buffer);
        assert_eq!((buffer.pending.pairs, buffer.pending.bytes, buffer.pending.order.len()), (0, 0, 0));
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
