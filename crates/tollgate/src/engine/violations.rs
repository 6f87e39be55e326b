//! Violations counted for all nodes, and the bans that come of it.
//!
//! The engine does no I/O: a caller takes the violations, counts them in a store that nodes share, and tells the engine
//! which bans that has led to, here or on another node.

use crate::ban::{Ban, ViolationCounter, Violations};
use crate::engine::Engine;
use crate::identity::Key;
use crate::time::Time;

impl Engine {
    /// Chooses where violations are counted from now on; [`ViolationCounter::Node`] at first.
    pub fn set_violation_counter(&self, counter: ViolationCounter) {
        self.bans.violation_queue.set_counter(counter);
    }

    /// Where violations are counted now.
    pub fn violation_counter(&self) -> ViolationCounter {
        if self.bans.violation_queue.is_enabled() { ViolationCounter::Fleet } else { ViolationCounter::Node }
    }

    /// The violations that wait to be counted for all nodes.
    pub fn take_violations(&self) -> Vec<Violations> {
        self.bans.take_violations()
    }

    /// Violations that found the buffer full, and count for nothing.
    pub fn dropped_violations(&self) -> u64 {
        self.bans.violation_queue.dropped()
    }

    /// Counts violations on this node: the store could not be asked.
    pub fn count_violations_locally(&self, violations: &Violations) {
        for by in &violations.by_rule {
            for (at, count) in &by.times {
                if self.bans.record_denials(&violations.key, by.rule.as_str(), &by.terms, *at, *count) {
                    self.count_ban(by.rule.as_str());
                }
            }
        }
    }

    /// Takes over a ban that violations sent by this node have led to. It is handed to whoever
    /// [takes](Self::take_pending_bans) those that were earned here.
    pub fn apply_decided_ban(&self, rule: &str, key: &Key, ban: &Ban, now: Time) {
        if self.bans.insert_fleet_ban(key, ban, now) {
            self.count_ban(rule);
        }
    }

    /// Takes over a ban that another node's violations have led to. Made twice it is the same as made once; of one that
    /// is over only the strikes matter.
    pub fn apply_fleet_ban(&self, key: &Key, ban: &Ban, now: Time) {
        self.bans.apply_fleet_ban(key, ban, now);
    }

    /// Follows the lifting of an automatic ban on another node; a longer ban, or one by hand, stays. Returns what was
    /// lifted here.
    pub fn apply_fleet_lift(&self, key: &Key, lifted_until: Time, now: Time) -> Option<Ban> {
        self.bans.apply_fleet_lift(key, lifted_until, now)
    }

    fn count_ban(&self, rule: &str) {
        if let Some(rule) = self.policy.load().rule(rule) {
            rule.stats().count_banned();
        }
    }
}
