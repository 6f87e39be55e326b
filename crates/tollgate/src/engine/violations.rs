//! Violations counted across nodes, and the bans that result.
//!
//! The engine does no I/O: a caller takes the violations, counts them in the central store, and applies the bans that
//! result, on this node or another.

use crate::ban::{Ban, ViolationCounter, Violations};
use crate::engine::EngineCore;
use crate::identity::Key;
use crate::time::Time;

impl EngineCore {
    /// Sets where violations are counted from now on; initially [`ViolationCounter::Node`].
    pub fn set_violation_counter(&self, counter: ViolationCounter) {
        self.bans.violation_queue.set_counter(counter);
    }

    /// Where violations are counted now.
    pub fn violation_counter(&self) -> ViolationCounter {
        if self.bans.violation_queue.is_enabled() { ViolationCounter::Fleet } else { ViolationCounter::Node }
    }

    /// Takes the violations to be counted across nodes.
    pub fn take_violations(&self) -> Vec<Violations> {
        self.bans.take_violations()
    }

    /// Violations that were dropped because the buffer was full.
    pub fn dropped_violations(&self) -> u64 {
        self.bans.violation_queue.dropped()
    }

    /// Counts violations on this node, because the store is unavailable.
    pub fn count_violations_locally(&self, violations: &Violations) {
        for by in &violations.by_rule {
            for (at, count) in &by.times {
                if self.bans.record_denials(&violations.key, by.rule.as_str(), &by.conditions, *at, *count) {
                    self.count_ban(by.rule.as_str());
                }
            }
        }
    }

    /// Applies a ban that violations sent by this node have led to. It is queued as one of the
    /// [pending](Self::take_pending_bans) bans.
    pub fn apply_decided_ban(&self, rule: &str, key: &Key, ban: &Ban, now: Time) {
        if self.bans.insert_fleet_ban(key, ban, now) {
            self.count_ban(rule);
        }
    }

    /// Applies a ban that another node's violations have led to. Idempotent. Of a ban that has ended only the strikes
    /// matter.
    pub fn apply_fleet_ban(&self, key: &Key, ban: &Ban, now: Time) {
        self.bans.apply_fleet_ban(key, ban, now);
    }

    /// Applies the lifting of an automatic ban by another node; a longer ban, or a manual one, stays. Returns the ban
    /// that was lifted here.
    pub fn apply_fleet_lift(&self, key: &Key, lifted_until: Time, now: Time) -> Option<Ban> {
        self.bans.apply_fleet_lift(key, lifted_until, now)
    }

    pub(super) fn count_ban(&self, rule: &str) {
        if let Some(rule) = self.policy.load().rule(rule) {
            rule.stats().count_banned();
        }
    }
}
