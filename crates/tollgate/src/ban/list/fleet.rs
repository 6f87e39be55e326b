//! Bans that are decided for the whole fleet: violations to count, and the bans that result.

use crate::ban::list::{BanList, InsertResult};
use crate::ban::{Ban, BanConditions, BanSource, Violations};
use crate::identity::Key;
use crate::rule::RuleId;
use crate::sync::lock;
use crate::time::Time;

impl BanList {
    /// Records a violation: counted at once, or buffered for the central store. Returns whether it has led to a ban.
    pub(crate) fn record_violation(
        &self,
        key: &Key,
        rule: &RuleId,
        conditions: BanConditions,
        now: Time,
    ) -> bool {
        if !self.violation_queue.is_enabled() {
            return self.record_denials(key, rule.as_str(), &conditions, now, 1);
        }
        let fingerprint = self.fingerprint(key);
        if now >= self.strikes(fingerprint).until {
            self.violation_queue.push(fingerprint, key, rule, conditions, now);
        }
        false
    }

    /// Takes the buffered violations, without those that a known ban covers by now.
    pub(crate) fn take_violations(&self) -> Vec<Violations> {
        let known = |fingerprint| self.strikes(fingerprint).latest(self.offenders.strikes(fingerprint));
        let batch = self.violation_queue.take().into_iter();
        batch.filter_map(|(fingerprint, violations)| violations.not_covered_by(known(fingerprint))).collect()
    }

    /// Adds a ban that resulted from violations of this node; `false` if it was known or found no room.
    pub(crate) fn insert_fleet_ban(&self, key: &Key, ban: &Ban, now: Time) -> bool {
        let inserted = self.insert_longer(key, ban, now);
        if inserted == InsertResult::New {
            self.pending_bans.push(key, ban);
        }
        if inserted != InsertResult::Full {
            self.fleet_bans.add(self.fingerprint(key), ban.until, now);
        }
        inserted == InsertResult::New
    }

    /// Adds a ban that resulted from violations of another node.
    pub(crate) fn apply_fleet_ban(&self, key: &Key, ban: &Ban, now: Time) {
        if ban.until <= now {
            return self.offenders.record_strikes(self.fingerprint(key), ban.strikes());
        }
        if self.insert_longer(key, ban, now) != InsertResult::Full {
            self.fleet_bans.add(self.fingerprint(key), ban.until, now);
        }
    }

    /// Applies the lifting of an automatic ban by another node.
    pub(crate) fn apply_fleet_lift(&self, key: &Key, until: Time, now: Time) -> Option<Ban> {
        let fingerprint = self.fingerprint(key);
        let listed = self.get(key, now);
        if listed.is_some_and(|ban| ban.until > until || ban.source != BanSource::Automatic) {
            return None;
        }
        self.fleet_bans.remove(fingerprint);
        let removed = self.remove_locked(&mut lock(&self.writer), key);
        self.offenders.forgive(fingerprint);
        removed.filter(|ban| ban.until > now)
    }
}
